"""The finals alone: commands of this machine measured against each other, without sandboxes and without agents."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from race.arms import circumstances
from race.conclusion import HOW
from race.confirming import Confirmed, confirmed_finals
from race.errors import Rejected, SpecError
from race.finals import Entrant, Rule, Standing, Standings
from race.lane import machine_lane
from race.levels import leveled
from race.measuring import is_timelike, result
from race.readers import MOST_BYTES, Format, read
from race.scoring import Goal, Sample
from race.stopwatch import Stopwatch, Timing, stopwatch
from race.submission import printable
from race.surroundings import surroundings
from race.verdict import (
    AttemptState,
    AttemptVerdict,
    BaseVerdict,
    Circumstances,
    MetricResult,
    Speedup,
    Verdict,
)

Measures: TypeAlias = Literal["time", "cpu", "memory", "output"]

UNITS: dict[Measures, str] = {"time": "s", "cpu": "s", "memory": "bytes", "output": "ms"}
"""Of what each measure gives; of ``"output"``, unless a unit is named."""


@dataclass(frozen=True, slots=True)
class Method:
    """How commands are measured.

    Attributes:
        measure: ``"time"``: the wall time; ``"cpu"``: processor time of all processes; ``"memory"``: the most that all
            processes had at once; ``"output"``: what the command prints, see `race.readers`.
        unit: of the output.
        goal: whether less or more of the output is better.
        form: of the output.
        path: of the number, when the output is JSON.
        timeout: seconds that one run may take.
        prepare: a command that runs before each sample, and is not measured.
        cpus: the processors that the commands may use; empty: all.
        cwd: where the commands run; None: here.
    """

    measure: Measures = "time"
    unit: str = ""
    goal: Goal = "min"
    form: Format = "auto"
    path: str = ""
    timeout: float = 600.0
    prepare: str = ""
    cpus: tuple[int, ...] = ()
    cwd: Path | None = None

    @property
    def shown_unit(self) -> str:
        """Of the samples."""
        return (self.unit if self.measure == "output" else "") or UNITS[self.measure]

    def rule(self, rule: Rule) -> Rule:
        """The rule, with what follows from what is measured."""
        timelike = self.measure == "time" or (self.measure == "output" and is_timelike(self.shown_unit))
        return replace(rule, goal=self.goal if self.measure == "output" else "min", timelike=timelike)


@dataclass(slots=True)
class _Run:
    method: Method
    commands: dict[str, str]
    watch: Stopwatch
    on_sample: Callable[[str, int, Sample], None] | None
    seen: dict[str, list[tuple[int, Circumstances]]] = field(
        default_factory=dict[str, list[tuple[int, Circumstances]]]
    )
    excluded: dict[str, Standing] = field(default_factory=dict[str, Standing])

    def exclude(self, standings: Standings, reason: str) -> None:
        """Take note that a command won, and may not."""
        if standings.winner is not None:
            self.excluded[standings.winner] = replace(
                standings[standings.winner], state="rejected", reason=reason
            )

    async def measure(self, entrant: Entrant, number: int, seed: int) -> Sample:
        command = self.commands[entrant.name]
        env = {"PYTHONHASHSEED": str(seed % (1 << 32))}
        if self.method.prepare:
            _must_have_worked(
                await self._time(self.method.prepare, env), self.method.prepare, self.method.timeout
            )
        timing = await self._time(command, env, MOST_BYTES + 1 if self.method.measure == "output" else 0)
        _must_have_worked(timing, command, self.method.timeout)
        sample = self._sample(timing, command)
        self.seen.setdefault(entrant.name, []).append((number, circumstances(sample, surroundings())))
        if self.on_sample is not None:
            self.on_sample(entrant.name, number, sample)
        return sample

    async def _time(self, command: str, env: dict[str, str], keep_output: int = 0) -> Timing:
        m = self.method
        return await self.watch.time(
            command, timeout=m.timeout, env=env, cwd=m.cwd, cpus=m.cpus or None, keep_output=keep_output
        )

    def _sample(self, timing: Timing, command: str) -> Sample:
        m, parts = self.method, dict[str, float]()
        if m.measure == "time":
            value = timing.seconds
        elif m.measure == "cpu":
            value = max(timing.cpu_seconds, 1e-6)
        elif m.measure == "memory":
            value = float(timing.max_rss_bytes)
        else:
            found = read(timing.output, m.form, path=m.path, source=command)
            value, parts = found.value(m.shown_unit), found.values(m.shown_unit)
        return Sample(value, timing.wait, timing.seconds, timing.cpu_seconds, parts=parts)


async def compare(
    base: str,
    commands: Sequence[str],
    *,
    rule: Rule | None = None,
    method: Method | None = None,
    on_sample: Callable[[str, int, Sample], None] | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Verdict:
    """Measure commands against a base command, in the same rounds and by the same procedure as a race's finals.

    Every sample is a fresh process in a session of its own, with a hash seed that is the same for all in a round.

    Args:
        base: a command for ``/bin/sh``.
        commands: likewise, of which the best is looked for.
        rule: how the finals are held; default: ``Rule.of("standard")``.
        method: what is measured, and how.
        on_sample: told of every sample: name, round (0 is a warm-up), sample.
        on_wait: told if somebody else measures on this machine.

    Returns:
        A verdict like that of a race: the candidates are called by their commands.

    Raises:
        SpecError: the base fails, or has no number.
        MachineError: this system cannot measure commands.
    """
    method = method or Method()
    rule = method.rule(rule or Rule.of("standard"))
    named = named_apart(commands)
    began = time.monotonic()
    entrants = [Entrant("base"), *map(Entrant, named)]
    async with machine_lane(on_wait or (lambda: None)), stopwatch() as watch:
        run = _Run(method, {"base": base, **named}, watch, on_sample)
        rng = np.random.default_rng(int.from_bytes(os.urandom(8)))
        try:
            found = await confirmed_finals(entrants, run.measure, rule, rng, exclude=run.exclude)
        except Rejected as e:
            raise SpecError(str(e)) from e
    return _verdict(found, run, time.monotonic() - began)


def named_apart(commands: Sequence[str]) -> dict[str, str]:
    """The commands by names: themselves on one line, with a number where two would be alike."""
    named: dict[str, str] = {}
    for command in commands:
        plain = printable(" ".join(command.split()))
        name, number = plain, 1
        while name in named or name == "base":
            number += 1
            name = f"{plain} ({number})"
        named[name] = command
    return named


def _must_have_worked(timing: Timing, command: str, timeout: float) -> None:
    if timing.exit_code is None:
        raise Rejected(f"timed out: {command!r} took more than {timeout:g} s")
    if timing.exit_code != 0:
        lines = [printable(line.strip()) for line in timing.errors.decode("utf-8", "replace").splitlines()]
        said = " / ".join([line for line in lines if line][-3:])[-300:] or "it printed no error"
        raise Rejected(f"{command!r} failed (exit status {timing.exit_code}): {said}")


def _verdict(found: Confirmed, run: _Run, seconds: float) -> Verdict:
    standings, rule = found.standings, found.rule
    scorer, unit = run.method.measure, run.method.shown_unit

    def metrics(standing: Standing) -> dict[str, MetricResult]:
        if not standing.values:
            return {}
        counted = range(rule.warmup, rule.warmup + standing.rounds)
        around = tuple(c for number, c in run.seen[standing.name] if number in counted)
        made = leveled(result(standing.values, unit), standing, rule)
        return {scorer: made.model_copy(update={"circumstances": around})}

    def attempt(standing: Standing) -> AttemptVerdict:
        states: dict[str, AttemptState] = {
            "live": "scored",
            "eliminated": "eliminated",
            "rejected": "ineligible",
        }
        s = standing.vs_base
        return AttemptVerdict(
            name=standing.name,
            entry=standing.name,
            agent="",
            state=states[standing.state],
            eligible=standing.state != "rejected",
            reasons=(standing.reason,) if standing.reason else (),
            metrics=metrics(standing),
            speedup=None if s is None else Speedup(vs_base=s.estimate, low=s.low, high=s.high),
            confirmed=found.speedup if standing.name == standings.winner else None,
            p_best=standing.p_best,
            seconds=sum(c.seconds for _, c in run.seen.get(standing.name, ())),
        )

    left = {s.name: s for s in standings.entrants[1:]}
    candidates = [(run.excluded | left)[name] for name in run.commands if name != "base"]
    if standings.winner is not None:
        decided = HOW[standings.why]
        if standings.why == "practical tie":
            decided = "a tie within the indifference zone"
        elif standings.why == "only candidate":
            decided = "it is better than the base"
    elif all(s.state == "rejected" for s in candidates):
        decided = "no command could be measured"
    elif standings.why == "budget":
        decided = "no command was shown to be better than the base when the budget for measuring was spent"
    else:
        decided = "no command is better than the base by more than the indifference"
    return Verdict(
        race="measure",
        task=run.commands["base"],
        status="won" if standings.winner else "no_winner",
        winner=standings.winner,
        tied_with=standings.tied_with,
        confidence=standings.confidence,
        decided_by=decided,
        base=BaseVerdict(metrics=metrics(standings["base"])),
        attempts=tuple(map(attempt, candidates)),
        seconds=seconds,
        warnings=(*(c.sentence for c in standings.warnings), *filter(None, [found.disagreement])),
    )
