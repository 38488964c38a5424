"""The conformance suite of the sandbox contract: every promise as a check with a name.

`check_provider` runs them on any provider, and `CHECKS` lists them, for a test of each::

    @pytest.mark.parametrize("check", race.testing.CHECKS, ids=lambda c: c.name)
    async def test_my_provider(check, tmp_path):
        (result,) = await race.testing.check_provider(MyProvider(tmp_path), only=[check.name])
        if result.outcome == "left out":
            pytest.skip(result.reason)
        assert result.outcome == "passed", result.reason
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import anyio

from race.errors import SpecError
from race.sandbox import SandboxProvider
from race.testing.conformance import commands, files, forks, life, limits, living, moving, network, terminals
from race.testing.conformance.bench import Bench, Broken, Check

__all__ = ["CHECKS", "TIME_LIMIT", "Check", "CheckResult", "Outcome", "check_provider", "checked"]

CHECKS: tuple[Check, ...] = (
    *life.CHECKS,
    *commands.CHECKS,
    *files.CHECKS,
    *forks.CHECKS,
    *network.CHECKS,
    *terminals.CHECKS,
    *living.CHECKS,
    *moving.CHECKS,
    *limits.CHECKS,
)
"""Every promise of `race.SandboxProvider` and `race.Sandbox`, in the order in which they are tried."""

TIME_LIMIT = 120.0
"""Seconds that a check may take before it counts as failed."""

Outcome = Literal["passed", "failed", "left out"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check.

    Attributes:
        name: of the check.
        promise: what is promised, in a sentence.
        outcome: ``"left out"`` if the provider declares that it lacks what the check is about.
        reason: what was seen instead, or why it was left out.
        seconds: that it took.
    """

    name: str
    promise: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0


async def check_provider(
    provider: SandboxProvider,
    *,
    image: str = "host",
    again: Callable[[], SandboxProvider] | None = None,
    only: Collection[str] = (),
) -> list[CheckResult]:
    """Find out by trying whether a provider keeps the promises of the contract.

    It makes sandboxes, and deletes them again. What the provider lacks, as its `Capabilities` declare, is left out.

    Args:
        provider: to look at.
        image: what its sandboxes are made from: needs a shell and the usual small programs.
        again: makes a second instance of the provider over the same sandboxes, as another process would have it.
            Without it, checks of one instance taking over from another are left out.
        only: names of the checks to run; none for all.

    Returns:
        A result for each check, in the order of `CHECKS`.

    Raises:
        SpecError: a name in ``only`` is that of no check.
    """
    return [each async for each in checked(provider, image=image, again=again, only=only)]


async def checked(
    provider: SandboxProvider,
    *,
    image: str = "host",
    again: Callable[[], SandboxProvider] | None = None,
    only: Collection[str] = (),
) -> AsyncIterator[CheckResult]:
    """As `check_provider`, one result at a time."""
    known = {c.name for c in CHECKS}
    if unknown := sorted(set(only) - known):
        raise SpecError(f"there is no check {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    for check in CHECKS:
        if only and check.name not in only:
            continue
        if why := check.left_out(provider.capabilities, again=again is not None):
            yield CheckResult(check.name, check.promise, "left out", why)
            continue
        with tempfile.TemporaryDirectory(prefix="race-check-") as folder:
            bench = Bench(provider, image, again, Path(folder))
            began = time.monotonic()
            reason = await _failure(check, bench)
            outcome: Outcome = "failed" if reason else "passed"
            yield CheckResult(check.name, check.promise, outcome, reason, time.monotonic() - began)


async def _failure(check: Check, bench: Bench) -> str:
    """Why a check failed, or nothing."""
    reason = left = ""
    try:
        with anyio.fail_after(TIME_LIMIT):
            await check.run(bench)
    except Exception as e:  # noqa: BLE001 - whatever a provider raises is what the check found
        reason = _told(e)
    finally:
        with anyio.CancelScope(shield=True):
            left = await _cleaned(bench)
    return reason or left


async def _cleaned(bench: Bench) -> str:
    try:
        return await bench.clean_up()
    except Exception as e:  # noqa: BLE001 - likewise
        return f"its sandboxes could not be deleted: {_told(e)}"


def _told(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return _told(inner[0])
    if isinstance(error, TimeoutError) and not str(error):
        return f"it took more than {TIME_LIMIT:g} s"
    return str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
