"""``benchmark``: a command that prints one number, or writes a file that `race.readers` can read."""

from __future__ import annotations

import json
import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from race.claims import SECONDS, least, unseen
from race.commandline import Program, recognised
from race.errors import Rejected, SandboxError
from race.hidden import HiddenFiles, hidden_entries
from race.readers import MOST_BYTES, Format, read
from race.readers.json_text import path_steps
from race.readers.reading import PASSED
from race.sandbox import ExecResult, Removed
from race.scoring import (
    MeasureAgain,
    Replay,
    Sample,
    ScoreContext,
    must_have_worked,
    scoring_seed,
    wait_share,
)
from race.submission import printable
from race.witness import Seen, witnessed

_LEAST_PART = 0.5
_MOST_PART = 1.05
_TRIES = 4
"""How often a candidate is run before a claim that is not seen from outside is held against it."""


class BenchmarkOptions(BaseModel):
    """Its keys in the race file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run: Annotated[str, Field(min_length=1)]
    """The command; it prints exactly one number, finite and above zero, to standard output, unless ``format`` or
    ``path`` say otherwise."""
    format: Format = "number"
    """What it writes; ``"auto"`` looks at it."""
    path: str = ""
    """Of the number in JSON, such as ``results[0].mean``; with ``*`` in it, of one for each workload."""
    file: str = ""
    """What it writes to, relative to the project's folder; default: standard output."""
    unit: str = "ms"
    """Of the number, for people. That of a format which names its own is converted to it."""
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

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        if value:
            path_steps(value)
        return value

    @field_validator("file")
    @classmethod
    def _file(cls, value: str) -> str:
        if value.startswith("/") or ".." in value.split("/") or "\0" in value:
            raise ValueError(f"{value!r} must be relative to the project's folder and stay in it")
        return value

    @model_validator(mode="after")
    def _path_and_format(self) -> BenchmarkOptions:
        if (self.format == "json" and not self.path) or (self.path and self.format not in ("auto", "json")):
            raise ValueError('format = "json" and path belong together, and no other format has a path')
        if self.format == "junit" and self.goal != "max":
            raise ValueError('format = "junit" is about the share of cases that pass: goal = "max"')
        return self


class Benchmark:
    """A metric: the number that the command prints, or the one that stands for the workloads in what it wrote.

    Every sample is a fresh process in a fresh fork, with the round's own hash seed, the same for all candidates.
    """

    Options = BenchmarkOptions

    def __init__(self, options: BenchmarkOptions) -> None:
        self._options = options
        self._program = _script(options)

    @property
    def unit(self) -> str:
        """As in the race file; of cases that pass or fail, what they are."""
        return PASSED if self._options.format == "junit" else self._options.unit

    @property
    def scale(self) -> Literal["log", "linear"]:
        """Of cases that pass or fail, differences count; of all else, ratios."""
        return "linear" if self._options.format == "junit" else "log"

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
        taken = (*context.taken, sample)
        if compared and base is not None and (problem := unseen(least(taken), base, options.unit)):
            # A machine that was busy for a moment can make an honest claim look unseen; a false one stays so.
            if len(taken) < _TRIES:
                raise MeasureAgain(sample, problem)
            raise Rejected(problem)
        return sample

    async def _run(self, replay: Replay, context: ScoreContext, base: Sample | None) -> Sample:
        options = self._options
        env = {**scoring_seed(context), **options.env}
        await prepare_output(replay, options.file)
        if self._program is None:
            done = await replay.run(options.run, timeout=options.timeout, env=env)
            # A runner of cases that pass or fail says with its status that some fail.
            if options.format != "junit" or done.timed_out:
                must_have_worked(done, options.run, options.timeout)
            replaced: list[str] = []
        else:
            done, seen = await witnessed(replay, self._program, timeout=options.timeout, env=env)
            must_have_worked(done, options.run, options.timeout)
            replaced = list(seen.replaced)
            _check(seen, replay, base, options.run)
        output = await written(replay, done, options.file, options.run)
        found = read(output, options.format, path=options.path, source=options.file or options.run)
        value, parts = found.value(self.unit), found.values(self.unit)
        if found.passes and base is not None and base.parts:
            # Cases that a submission adds do not count, and those that it takes away fail.
            parts = {case: parts.get(case, 0.0) for case in base.parts}
            value = math.fsum(parts.values()) / len(parts)
        return Sample(
            value,
            _wait(value, options.unit, done),
            done.seconds,
            done.usage.cpu_seconds,
            {"replaced": json.dumps(replaced)},
            parts=parts if len(parts) > 1 or found.passes else {},
            waited=min(done.usage.wait_seconds, done.seconds),
        )


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


async def prepare_output(replay: Replay, file: str) -> None:
    """Remove a file that the command is about to write: one that a submission brought along is no result."""
    if file:
        await replay.sandbox.write([Removed(_place(replay, file))])


async def written(replay: Replay, done: ExecResult, file: str, command: str) -> bytes:
    """What a command wrote, to a file of the project's folder or to standard output.

    Raises:
        Rejected: it is not there, or larger than is read.
    """
    if not file:
        if done.stdout_bytes > len(done.stdout):
            raise Rejected(
                f"{command!r} printed {done.stdout_bytes:,} bytes, more than are kept; have it write a file"
            )
        return done.stdout
    try:
        return await replay.sandbox.read(_place(replay, file), limit=MOST_BYTES)
    except FileNotFoundError as e:
        raise Rejected(f"{command!r} did not write {file!r}") from e
    except SandboxError as e:
        raise Rejected(f"{file!r}, which {command!r} wrote, cannot be read: {e}") from e


def _place(replay: Replay, file: str) -> bytes:
    return f"{replay.task.workdir}/{file}".encode()
