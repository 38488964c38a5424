"""``worker``: the time that a program in any language takes to answer lines of JSON, by a clock outside of it.

The protocol: each line of standard input is one request, a JSON array of arguments. The program writes one line for
each, in the same order: the answer as JSON. At the end of its input it ends, with exit status 0. Nothing else goes to
standard output.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, field_validator

from race.cases import Case, Cases, same
from race.errors import Rejected
from race.hidden import HiddenFiles, HiddenPath, hidden_entries
from race.sandbox import ExecResult
from race.scoring import Replay, Sample, ScoreContext, must_have_worked, scoring_seed, wait_share
from race.submission import printable

_SHOWN = 120


class WorkerOptions(BaseModel):
    """Its keys in the race file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run: Annotated[str, Field(min_length=1)]
    """The command, run in the project's folder."""
    cases: HiddenPath
    """A Python file beside the race file, with ``inputs(rng)`` and ``reference(*arguments)``; no agent sees it. Both
    arguments and answers are what JSON knows."""
    build: str = ""
    """A command that runs before, such as ``make``; its time does not count."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Largest relative difference of an answer, or a part of one, that has a fraction."""
    timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds that one sample, or the build, may take."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to its environment."""
    hidden: HiddenFiles = ()
    """Files or folders, relative to the race file, that are put into the project for this scorer only."""

    @field_validator("cases")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        Cases(value)
        return value


class Worker:
    """A metric: milliseconds a request, from the program's start to its end, over the number of requests.

    Every sample is a fresh process in a fresh replay, with inputs that are drawn after the agents have ended. An answer
    of another type or value than the reference's, in any sample, makes the attempt ineligible.
    """

    Options = WorkerOptions
    unit = "ms"
    goal: Literal["min", "max"] = "min"

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._cases = Cases(options.cases)

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        """Let it answer the requests of this round."""
        options = self._options
        cases = await anyio.to_thread.run_sync(self._cases.drawn, context.seed)
        if options.hidden:
            await replay.sandbox.write(hidden_entries(options.hidden, replay.task.workdir))
        env = {**scoring_seed(context), **options.env}
        if options.build:
            await replay.must_run(options.build, timeout=options.timeout, env=env)
        details: dict[str, str] = {}
        if context.round == 0:
            first = await self._run(replay, cases[:1], env)
            details["first_ms"] = f"{first.seconds * 1000:.3g}"
        done = await self._run(replay, cases, env)
        _check(done, cases, options)
        return Sample(
            done.seconds / len(cases) * 1000, wait_share(done), done.seconds, done.usage.cpu_seconds, details
        )

    async def _run(self, replay: Replay, cases: Sequence[Case], env: dict[str, str]) -> ExecResult:
        options = self._options
        requests = "".join(json.dumps(list(c.arguments)) + "\n" for c in cases)
        done = await replay.run(
            options.run, timeout=options.timeout, env=env, stdin=requests.encode(), output_limit=64 << 20
        )
        must_have_worked(done, options.run, options.timeout)
        return done


def _check(done: ExecResult, cases: Sequence[Case], options: WorkerOptions) -> None:
    """Refuse answers that are not all there and all right."""
    lines = done.stdout.splitlines()
    if len(lines) != len(cases):
        raise Rejected(f"{options.run!r} gave {len(lines)} lines for {len(cases)} requests")
    for line, case in zip(lines, cases, strict=True):
        request = _shown(json.dumps(list(case.arguments)))
        try:
            found = json.loads(line)
        except ValueError:
            raise Rejected(f"{options.run!r} answered {request} with no JSON: {_shown(line)}") from None
        if not same(found, json.loads(json.dumps(case.expected)), options.tolerance):
            raise Rejected(
                f"{options.run!r} answered {request} with {_shown(line)}, not {_shown(json.dumps(case.expected))}"
            )


def _shown(text: str | bytes) -> str:
    shown = printable(text[: _SHOWN + 1])
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
