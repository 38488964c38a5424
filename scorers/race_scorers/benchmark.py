"""``benchmark``: a command that prints one number, or writes a file that `race.readers` can read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from race.errors import Rejected, SandboxError
from race.readers import MOST_BYTES, Format, read
from race.readers.json_text import path_steps
from race.sandbox import ExecResult, Removed
from race.scoring import Replay, Sample, ScoreContext, scoring_seed, wait_share


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
    """Of the number, for people."""
    goal: Literal["min", "max"] = "min"
    """Whether less or more is better."""
    timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds that one run may take."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to its environment."""

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
        return self


class Benchmark:
    """A metric: the number that the command prints, or the one that stands for the workloads in what it wrote.

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
        await prepare_output(replay, options.file)
        done = await replay.must_run(options.run, timeout=options.timeout, env=env)
        output = await written(replay, done, options.file, options.run)
        found = read(output, options.format, path=options.path, source=options.file or options.run)
        parts = found.values(options.unit)
        return Sample(
            found.value(options.unit),
            wait_share(done),
            done.seconds,
            done.usage.cpu_seconds,
            parts=parts if len(parts) > 1 else {},
        )


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
