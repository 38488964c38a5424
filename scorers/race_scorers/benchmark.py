"""``benchmark``: a command that prints one number."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from race.errors import Rejected
from race.scoring import Replay, Sample, ScoreContext, scoring_seed, wait_share
from race.submission import printable

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_LONGEST = 64


class BenchmarkOptions(BaseModel):
    """Its keys in the race file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run: Annotated[str, Field(min_length=1)]
    """The command; it prints exactly one number, finite and above zero, to standard output."""
    unit: str = "ms"
    """Of the number, for people."""
    goal: Literal["min", "max"] = "min"
    """Whether less or more is better."""
    timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds that one run may take."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to its environment."""


class Benchmark:
    """A metric: the number that the command prints.

    Every sample is a fresh process in a fresh fork, with the round's own hash seed, the same for all candidates.
    """

    Options = BenchmarkOptions

    def __init__(self, options: BenchmarkOptions) -> None:
        self._options = options

    @property
    def unit(self) -> str:
        """As in the race file."""
        return self._options.unit

    @property
    def goal(self) -> Literal["min", "max"]:
        """As in the race file."""
        return self._options.goal

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        """Run the command once."""
        options = self._options
        env = {**scoring_seed(context), **options.env}
        done = await replay.must_run(options.run, timeout=options.timeout, env=env)
        value = one_number(done.stdout, options.run)
        return Sample(value, wait_share(done), done.seconds)


def one_number(output: bytes, command: str) -> float:
    """The number in a command's output.

    Args:
        output: what it printed to standard output.
        command: for the message.

    Raises:
        Rejected: it is not exactly one finite decimal number above zero. ``nan``, ``inf``, ``1_0`` and digits of other
            scripts, which `float` takes, are none.
    """
    text = output.decode("utf-8", "replace").strip()
    shown = printable(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")
    if not text:
        raise Rejected(f"{command!r} printed nothing, where one number was expected")
    if len(text) > _LONGEST or not _NUMBER.fullmatch(text):
        raise Rejected(f"{command!r} printed {shown!r}, which is not exactly one number")
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise Rejected(f"{command!r} printed {shown}, which is not a finite number above zero")
    return value
