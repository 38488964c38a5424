"""What a model call costs, when the server does not say: from the price list of ``genai-prices``, offline.

A model that the list does not know has no cost, which is not a cost of nothing.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one call, as far as prices tell them apart.

    Attributes:
        read: by the model, cached ones included.
        written: by the model.
        cached: the part of ``read`` that came from a cache.
        cache_written: the part of ``read`` that was put into one.
    """

    read: int = 0
    written: int = 0
    cached: int = 0
    cache_written: int = 0


def price(model: str, tokens: Tokens) -> float | None:
    """USD for a call; None if the price is not known.

    Args:
        model: as the server knows it; of ``provider/name`` the provider is tried first.
        tokens: of the call.
    """
    # Importing the price list takes a seventh of a second, for which `race --help` is not to wait.
    from genai_prices import Usage, calc_price  # noqa: PLC0415 - see above

    usage = Usage(
        input_tokens=tokens.read,
        output_tokens=tokens.written,
        cache_read_tokens=tokens.cached,
        cache_write_tokens=tokens.cache_written,
    )
    for provider, name in _readings(model):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = calc_price(usage, name, provider_id=provider)
        except (LookupError, ValueError):
            continue
        return float(found.total_price)
    return None


@functools.lru_cache(maxsize=256)
def _readings(model: str) -> tuple[tuple[str | None, str], ...]:
    """Provider and name that a model's name may stand for."""
    provider, slash, name = model.partition("/")
    # Without a provider the list falls back to the nearest name of a vendor; with a foreign prefix it must not.
    return ((provider, name), ("openrouter", model)) if slash else ((None, model),)
