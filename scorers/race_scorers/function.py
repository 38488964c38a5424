"""``function``: the time that a Python function takes, by a clock that it cannot reach."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from importlib.resources import files
from typing import Annotated, Any, Literal

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, field_validator

from race.cases import Case, Cases, same
from race.errors import Rejected
from race.hidden import HiddenFiles, HiddenPath, hidden_entries
from race.inside.plain import packed, unpacked
from race.sandbox import ExecResult, File
from race.scoring import Replay, Sample, ScoreContext, last_lines, wait_share
from race.submission import printable

_STARTS = 5
"""How often the start of an interpreter that calls nothing is measured; the shortest counts."""
_FINEST = 0.05
"""Share of the interpreter's own start below which a sample is not told from nothing: starts vary by about as much."""
_SHOWN = 120


class FunctionOptions(BaseModel):
    """Its keys in the race file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    target: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
    """What is called, as ``module:function``; the module is looked for in the project's folder."""
    cases: HiddenPath
    """A Python file beside the race file, with ``inputs(rng)`` and ``reference(*arguments)``; no agent sees it."""
    python: str = "python3"
    """The interpreter, inside."""
    startup: Literal["counted", "apart"] = "counted"
    """Whether the time of the module's import counts. Where it is apart, a submission may do its work there."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Largest relative difference of an answer, or a part of one, that is a float."""
    timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds that one sample may take."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to its environment."""
    hidden: HiddenFiles = ()
    """Files or folders, relative to the race file, that are put into the project for this scorer only."""

    @field_validator("cases")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        Cases(value)
        return value


class Function:
    """A metric: milliseconds a call, from inputs that are drawn after the agents have ended.

    Every sample is a fresh process in a fresh replay, which gets each input once. The clock, the right answers and the
    seed are outside of the sandbox: the clock stops when all answers have been printed and the process has ended. The
    shortest time of the same process without a call, in which no code of the submission runs, is taken off; give
    inputs that keep the base busy for several times as long, such as a tenth of a second. An answer of another type or
    value than the reference's, in any sample, makes the attempt ineligible.
    """

    Options = FunctionOptions
    unit = "ms"
    goal: Literal["min", "max"] = "min"

    def __init__(self, options: FunctionOptions) -> None:
        self._options = options
        self._cases = Cases(options.cases)
        self._starts: list[float] = []

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        """Call it with the inputs of this round."""
        options = self._options
        cases = await anyio.to_thread.run_sync(self._cases.drawn, context.seed)
        folder = f"/.race-{secrets.token_hex(8)}"
        programs = [
            File(f"{folder}/{n}.py".encode(), files("race.inside").joinpath(f"{n}.py").read_bytes())
            for n in ("caller", "plain")
        ]
        await replay.sandbox.write([*programs, *hidden_entries(options.hidden, replay.task.workdir)])
        caller = replay.sandbox.place(f"{folder}/caller.py")
        if len(self._starts) < _STARTS:
            self._starts.append(_busy(await self._run(replay, caller, None)))
        start = min(self._starts)
        imported = first = 0.0
        if context.round == 0 or options.startup == "apart":
            # For people, and where the import does not count: measured in processes of their own.
            imported = max(_busy(await self._run(replay, caller, [])) - start, 0.0)
            first = max(_busy(await self._run(replay, caller, cases[:1])) - start - imported, 0.0)
        done = await self._run(replay, caller, cases)
        _check(done, cases, options)
        whole = _busy(done) - start - (imported if options.startup == "apart" else 0.0)
        value = max(whole, _FINEST * start) / len(cases) * 1000
        details = {"import_ms": f"{imported * 1000:.3g}", "first_call_ms": f"{first * 1000:.3g}"}
        return Sample(value, 0.0, done.seconds, done.usage.cpu_seconds, details if context.round == 0 else {})

    async def _run(self, replay: Replay, caller: str, cases: Sequence[Case] | None) -> ExecResult:
        """Start the caller. Without cases it only imports; with None it does not even that."""
        options = self._options
        module, _, function = options.target.partition(":")
        asked = {
            "root": replay.root,
            "module": "" if cases is None else module,
            "function": function,
        }
        lines = [json.dumps(asked), *(json.dumps(packed(list(c.arguments))) for c in cases or ())]
        done = await replay.run(
            [options.python, "-B", caller],
            timeout=options.timeout,
            env=options.env,
            stdin="\n".join(lines).encode(),
            output_limit=64 << 20,
        )
        if done.timed_out:
            raise Rejected(f"timed out: {options.target} took more than {options.timeout:g} s")
        if done.exit_code != 0:
            raise Rejected(f"{options.target} failed (exit status {done.exit_code}): {last_lines(done)}")
        return done


def _busy(done: ExecResult) -> float:
    """Seconds from the start to the end of a process, without those that it waited for a processor."""
    return done.seconds * (1 - wait_share(done))


def _check(done: ExecResult, cases: Sequence[Case], options: FunctionOptions) -> None:
    """Refuse answers that are not all there and all right."""
    lines = done.stdout.splitlines()
    if len(lines) != len(cases):
        raise Rejected(f"{options.target} gave {len(lines)} answers to {len(cases)} calls")
    for line, case in zip(lines, cases, strict=True):
        try:
            found = unpacked(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):
            shown = printable(line[:_SHOWN])
            raise Rejected(f"{_call(options, case)} gave no plain value: {shown}") from None
        if not same(found, case.expected, options.tolerance):
            raise Rejected(f"{_call(options, case)} is {_shown(found)}, not {_shown(case.expected)}")


def _call(options: FunctionOptions, case: Case) -> str:
    return f"{options.target}({', '.join(_shown(a) for a in case.arguments)})"


def _shown(value: Any) -> str:
    text = printable(repr(value)[: _SHOWN + 1])
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
