"""The finals of a race: who decides, who is excluded, who wins, and what that is worth when measured once more."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from race.arms import Arms, is_linear
from race.attempt import Attempt, Course
from race.confirming import confirmed_finals
from race.finals import Entrant, Measure, Rule, Standing, Standings
from race.levels import leveled
from race.measuring import base_image, change_size, lane, result, rule
from race.paired import Cases, paired, paired_cases
from race.scoring import Metric, Sample
from race.statistics.standings import Why
from race.submission import printable
from race.verdict import CaseCounts, MetricResult, Speedup

WEIGHTED: Final = "weighted"
"""Name of the metric that several others are put together to."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the finals brought.

    Attributes:
        standings: of the metric that decides.
        metric: its name.
        base: what was measured of the base, by metric.
        warnings: for people.
        confirmed: how many times better than the base the winner was when it was measured once more; None without one.
        pareto: the attempts that no other one is better than in one metric and as good as in all others; empty where
            there is a single metric.
    """

    standings: Standings
    metric: str
    base: Mapping[str, MetricResult]
    warnings: list[str]
    confirmed: Speedup | None = None
    pareto: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """Everybody who was measured, the base included."""
        return {s.name for s in self.standings.entrants}


async def run_finals(
    course: Course, attempts: Sequence[Attempt], metrics: Sequence[tuple[str, Metric]]
) -> Measured:
    """Measure the eligible attempts and the base against each other. Attempts that turn out to have no number end
    as ineligible, those whose scorer breaks as failed.

    The same samples, given again by `race.history.FinalsHistory`, lead to the same end.
    """
    image = await base_image(course)
    images = {"base": image, **{a.name: a.image for a in attempts if a.image is not None}}
    arms = Arms(images, course.emit, course.finals)
    return await _Finals(course, attempts, metrics, arms).hold()


@dataclass(slots=True)
class _Finals:
    course: Course
    attempts: Sequence[Attempt]
    metrics: Sequence[tuple[str, Metric]]
    arms: Arms
    name: str = field(init=False)
    held: Rule = field(init=False)

    def __post_init__(self) -> None:
        spec = self.course.spec
        self.name = WEIGHTED if spec.finals.weights else self.metrics[0][0]
        self.held = rule(spec, self.metrics[0][1])
        if spec.finals.weights:
            self.held = replace(self.held, goal="min", scale="log", timelike=False)

    async def hold(self) -> Measured:
        """All of it."""
        spec = self.course.spec
        entrants = [Entrant("base"), *(Entrant(a.name, change_size(a.submission)) for a in self.attempts)]
        constrained = spec.finals.no_worse
        deciding = set(spec.finals.weights) or {self.name}
        async with lane(self.course.emit):
            rng = self._generator(entrants)
            for other, metric in self.metrics:
                if other in constrained:
                    await self.arms.measure_rounds(other, metric, rng)
                    self._exclude_worse(other, metric, constrained[other])
            entrants = [e for e in entrants if e.name == "base" or self._of(e.name).eligible]
            found = await confirmed_finals(
                entrants,
                self._measure(),
                self.held,
                rng,
                exclude=self._exclude,
                objection=self._worse_workload,
                settle=self._by_cases,
            )
            standings, self.held = found.standings, found.rule
            for other, metric in self.metrics:
                if other not in constrained and other not in deciding:
                    await self.arms.measure_rounds(other, metric, rng)
        warnings = [c.sentence for c in standings.warnings]
        if found.disagreement:
            warnings.append(found.disagreement)
        base = self._results(standings)
        return Measured(standings, self.name, base, warnings, found.speedup, self._pareto())

    def _generator(self, entrants: Sequence[Entrant]) -> np.random.Generator:
        """The generator of all orders and seeds: that of an earlier process, if it measured the same entrants."""
        names = [e.name for e in entrants]
        known = self.course.finals
        if known.entrants == names:
            return np.random.default_rng(known.seed)
        known.samples.clear()
        seed = int.from_bytes(os.urandom(8)) >> 1
        unit = "" if self.name == WEIGHTED else self.metrics[0][1].unit
        self.course.emit(
            "finals.started", scorer=self.name, entrants=names, goal=self.held.goal, unit=unit, seed=seed
        )
        return np.random.default_rng(seed)

    def _measure(self) -> Measure:
        """What takes one sample of what decides."""
        weights = self.course.spec.finals.weights
        if not weights:
            return self.arms.measure_with(*self.metrics[0])
        parts = [(weights[n], rule(self.course.spec, m), n, m) for n, m in self.metrics if n in weights]
        total = math.fsum(weight for weight, *_ in parts)

        async def measure(entrant: Entrant, number: int, seed: int) -> Sample:
            effect = seconds = 0.0
            for weight, its, name, metric in parts:
                sample = await self.arms.measure_with(name, metric)(entrant, number, seed)
                effect += weight / total * its.effect(sample)
                seconds += sample.seconds
                if number >= self.held.warmup:
                    self.arms.values.setdefault(name, {}).setdefault(entrant.name, []).append(sample.value)
            return Sample(math.exp(effect), seconds=seconds)

        return measure

    def _of(self, name: str) -> Attempt:
        return next(a for a in self.attempts if a.name == name)

    def _exclude_worse(self, name: str, metric: Metric, allowed: float) -> None:
        """End every attempt for which a metric is worse than for the base by more than is allowed, or has no number."""
        values = self.arms.values[name]
        for attempt in self.attempts:
            if attempt.name in self.arms.broken:
                attempt.end("failed", self.arms.broken[attempt.name])
            elif not values.get(attempt.name):
                attempt.end("ineligible", f"{name}: has no number, but must not be worse than for the base")
            elif (ratio := paired(values.get("base", ()), values[attempt.name], metric.goal)).is_worse(
                allowed
            ):
                attempt.metrics[name] = result(values[attempt.name], metric.unit)
                attempt.end(
                    "ineligible",
                    f"{name}: {1 / ratio.estimate - 1:.1%} worse than the base, where {allowed:.1%} is allowed",
                )

    def _exclude(self, standings: Standings, reason: str) -> None:
        self._of(standings.winner or "").end("ineligible", f"{self.name}: {reason}")

    def _worse_workload(self, winner: str) -> str:
        """The winner's worst workload, if that is worse than for the base by more than is allowed."""
        allowed = self.course.spec.finals.no_workload_worse
        if allowed is None:
            return ""
        ratios = self.arms.workloads(*self.metrics[0], winner)
        bad = {workload: r for workload, r in ratios.items() if r.is_worse(allowed)}
        if not bad:
            return ""
        worst = min(bad, key=lambda workload: bad[workload].estimate)
        share = 1 / bad[worst].estimate - 1
        much = f"{share:.1%} worse than for the base, where {allowed:.1%} is allowed"
        return f"the workload {printable(worst)!r} is {much}"

    # Cases that pass or fail

    def _by_cases(self, standings: Standings) -> Standings:
        """Where the values are shares of cases that pass, the cases decide: as many as differ, not as many rounds.

        Rounds with the same cases say nothing new of them. Two are told apart by the cases that only one of them
        passes, with an e-value, which is asked of all pairs at once (Bonferroni).
        """
        outcomes = {s.name: self.arms.cases(self.name, s.name) for s in standings.entrants}
        able = {n: c for n, c in outcomes.items() if c and standings[n].state != "rejected"}
        if not is_linear(self.metrics[0][1]) or self.name == WEIGHTED or "base" not in able or len(able) == 1:
            return standings
        needed = (len(able) - 1) / (1 - self.held.confidence)
        required = self.held.require_improvement

        def beats(one: str, other: str) -> bool:
            compared = paired_cases(able[other], able[one])
            return compared.gained > compared.lost and compared.evidence >= needed

        better = [n for n in able if n != "base" and (beats(n, "base") or not required)]
        if not better:
            return replace(
                standings,
                winner=None,
                tied_with=(),
                significant=False,
                why="nobody better",
                confidence=1 / len(able),
            )
        leader = max(better, key=lambda n: (sum(able[n].values()), -self._size(n)))
        tied = [n for n in better if n != leader and not beats(leader, n)]
        winner = min([leader, *tied], key=self._size)
        weakest = min(
            (paired_cases(able[n], able[winner]).evidence for n in better if n not in (winner, *tied)),
            default=paired_cases(able["base"], able[winner]).evidence,
        )
        why: Why = "practical tie" if tied else "decided"
        return replace(
            standings,
            winner=winner,
            tied_with=tuple(n for n in (leader, *tied) if n != winner),
            significant=not tied,
            why=why,
            confidence=max(0.5, 1 - (len(able) - 1) / max(weakest, 1.0)),
        )

    def _size(self, name: str) -> int:
        return change_size(self._of(name).submission)

    def _counts(self, name: str) -> CaseCounts | None:
        base, mine = self.arms.cases(self.name, "base"), self.arms.cases(self.name, name)
        if not base or not mine or not is_linear(self.metrics[0][1]):
            return None
        found: Cases = paired_cases(base, mine)
        passed = found.both + found.gained
        return CaseCounts(passed=passed, total=found.total, gained=found.gained, lost=found.lost)

    # What is shown

    def _results(self, standings: Standings) -> dict[str, MetricResult]:
        """Give every attempt its numbers, or the reason why it has none. Returns those of the base."""
        # Where everybody else was turned away at once, the base was not measured either.
        base_results = {self.name: self._shown(standings["base"])} if standings["base"].values else {}
        for attempt in filter(lambda a: a.eligible, self.attempts):
            standing = standings[attempt.name]
            if standing.values:
                attempt.metrics[self.name] = self._shown(standing)
            if attempt.name in self.arms.broken:
                attempt.end("failed", self.arms.broken[attempt.name])
            elif standing.state == "rejected":
                attempt.end("ineligible", f"{self.name}: {standing.reason}")
        for other, metric in self.metrics:
            for arm, values in self.arms.values.get(other, {}).items():
                target = base_results if arm == "base" else self._of(arm).metrics
                details = dict(self.arms.details.get(other, {}).get(arm, {}))
                target[other] = result(values, metric.unit).model_copy(update={"details": details})
        return base_results

    def _shown(self, standing: Standing) -> MetricResult:
        name, metric = self.metrics[0]
        weighted = self.name == WEIGHTED
        made = leveled(result(standing.values, "" if weighted else metric.unit), standing, self.held)
        if weighted:
            return made
        counted = range(self.held.warmup, self.held.warmup + standing.rounds)
        around = tuple(c for number, c in self.arms.seen[name].get(standing.name, ()) if number in counted)
        cases = self._counts(standing.name)
        ratios = {} if standing.name == "base" or cases else self.arms.workloads(name, metric, standing.name)
        shares = {printable(workload): ratio.estimate for workload, ratio in ratios.items()}
        details = dict(self.arms.details.get(name, {}).get(standing.name, {}))
        more = {"circumstances": around, "workloads": shares, "cases": cases, "details": details}
        return made.model_copy(update=more)

    def _pareto(self) -> tuple[str, ...]:
        """The attempts that are dominated by no other one."""
        if len(self.metrics) == 1:
            return ()
        able = [a for a in self.attempts if a.eligible and all(n in a.metrics for n, _ in self.metrics)]
        return tuple(a.name for a in able if not any(self._dominates(b, a) for b in able if b is not a))

    def _dominates(self, one: Attempt, other: Attempt) -> bool:
        """Whether one is better beyond doubt in a metric, and not worse in any."""
        better = False
        for name, metric in self.metrics:
            mine, its = one.metrics[name].samples, other.metrics[name].samples
            if is_linear(metric):
                here, there = one.metrics[name].value, other.metrics[name].value
                gain = there - here if metric.goal == "min" else here - there
                sure, worse = gain > self.held.indifference, gain < 0
            else:
                ratio = paired(its, mine, metric.goal)
                sure, worse = ratio.low > 1, ratio.estimate < 1 - self.held.indifference
            if worse:
                return False
            better |= sure
        return better
