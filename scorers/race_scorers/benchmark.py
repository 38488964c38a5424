"""``benchmark``: a command that prints one number."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from race.claims import SECONDS, unseen
from race.commandline import Program, recognised
from race.errors import Rejected
from race.hidden import HiddenFiles, hidden_entries
from race.sandbox import ExecResult
from race.scoring import Replay, Sample, ScoreContext, must_have_worked, scoring_seed, wait_share
from race.submission import printable
from race.witness import Seen, witnessed

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_LONGEST = 64
_LEAST_PART = 0.5
_MOST_PART = 1.05


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
    hidden: HiddenFiles = ()
    """Files or folders, relative to the race file, that are put into the project for this scorer only."""
    witness: bool = True
    """Whether a Python program is run under a witness, which sees whether it reaches its end and whether the code under
    test replaces the clock."""
    outside: bool = True
    """Whether a time that the command prints has to agree with what the whole process was seen to save. Set it to false
    for a benchmark that repeats its work until a fixed time has passed."""


class Benchmark:
    """A metric: the number that the command prints.

    Every sample is a fresh process in a fresh fork, with the round's own hash seed, the same for all candidates.
    """

    Options = BenchmarkOptions

    def __init__(self, options: BenchmarkOptions) -> None:
        self._options = options
        self._program = _script(options)

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
        if options.hidden:
            await replay.sandbox.write(hidden_entries(options.hidden, replay.task.workdir))
        base = context.baseline if isinstance(context.baseline, Sample) else None
        sample = await self._run(replay, context, base)
        compared = options.outside and options.goal == "min" and not replay.is_base and base is not None
        if compared and base is not None and unseen(sample, base, options.unit):
            # A machine that was busy for a moment can make an honest claim look unseen; a false one stays so.
            sample = await self._run(replay, context, base)
            if problem := unseen(sample, base, options.unit):
                raise Rejected(problem)
        return sample

    async def _run(self, replay: Replay, context: ScoreContext, base: Sample | None) -> Sample:
        options = self._options
        env = {**scoring_seed(context), **options.env}
        if self._program is None:
            done = await replay.must_run(options.run, timeout=options.timeout, env=env)
            replaced: list[str] = []
        else:
            done, seen = await witnessed(replay, self._program, timeout=options.timeout, env=env)
            must_have_worked(done, options.run, options.timeout)
            replaced = list(seen.replaced)
            _check(seen, replay, base, options.run)
        value = one_number(done.stdout, options.run)
        details = {"replaced": json.dumps(replaced)}
        return Sample(value, _wait(value, options.unit, done), done.seconds, done.usage.cpu_seconds, details)


def _wait(value: float, unit: str, done: ExecResult) -> float:
    """The wait to take out of a value: that of the whole process, if the value is about the time of the whole process.

    Of a part of a process nobody knows how much of the waiting fell into it.
    """
    if unit in SECONDS and not _LEAST_PART <= value * SECONDS[unit] / done.seconds <= _MOST_PART:
        return 0.0
    return wait_share(done)


def _check(seen: Seen, replay: Replay, base: Sample | None, command: str) -> None:
    """Refuse a run that was ended by, or whose clock was replaced by, the code under test."""
    if seen.status is None:
        raise Rejected(f"{command!r} did not come to its end: something ended the process with exit status 0")
    root = replay.root + "/"
    changed = {c.path.decode("utf-8", "surrogateescape") for c in replay.submission.changes}
    if seen.left.startswith(root) and seen.left.removeprefix(root) in changed:
        place = printable(seen.left.removeprefix(root))
        raise Rejected(f"{command!r} did not come to its end: {place} ended it")
    known: list[str] = json.loads(base.details.get("replaced", "[]")) if base is not None else []
    new = [printable(n) for n in seen.replaced if n not in known]
    if new and not replay.is_base:
        raise Rejected(f"the code under test replaced {', '.join(new[:3])}")


def _script(options: BenchmarkOptions) -> Program | None:
    program = recognised(options.run) if options.witness else None
    return program if program is not None and program.kind == "script" else None


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
