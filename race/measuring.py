"""Measuring replays: one at a time on a machine, after all agents have ended.

Every sample is a fresh process in a fresh fork of a replay image. All races on a machine share one *lane*, so no two of
them measure at the same moment; see `race.lane`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import numpy as np

from race.attempt import Attempt, Course, Emit
from race.errors import AttemptError, Rejected, ScorerError, SpecError
from race.finals import Entrant, Measure, Rule, Standing, Standings, finals
from race.lane import machine_lane
from race.levels import leveled
from race.paired import Ratio, paired, paired_workloads
from race.plugins import boundary
from race.replay import ReplayImage, build
from race.scoring import Metric, Sample, ScoreContext
from race.spec import RaceSpec
from race.statistics.cautions import Caution
from race.submission import Submission, printable
from race.surroundings import Surroundings, surroundings
from race.verdict import Circumstances, MetricResult

TIME_UNITS = frozenset({"ns", "us", "µs", "ms", "s", "sec", "seconds", "min", "h"})
"""Units whose values are times."""
SECONDARY_ROUNDS = 3
"""How often the metrics that do not decide are measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the finals brought.

    Attributes:
        standings: of the metric that decides.
        metric: its name.
        base: what was measured of the base, by metric.
        warnings: for people.
    """

    standings: Standings
    metric: str
    base: Mapping[str, MetricResult]
    warnings: list[str]

    @property
    def names(self) -> set[str]:
        """Everybody who was measured, the base included."""
        return {s.name for s in self.standings.entrants}


def lane(emit: Emit) -> AbstractAsyncContextManager[None]:
    """Hold the machine's measuring lane, and say so if it has to be waited for."""
    return machine_lane(lambda: emit("lane.waiting"))


async def measure_base(course: Course, metrics: Sequence[tuple[str, Metric]]) -> dict[str, MetricResult]:
    """What each metric says of the base, measured once and kept with it.

    Raises:
        SpecError: a metric has no number even for the unchanged project.
    """
    spec, base, emit = course.spec, course.base, course.emit
    for name in spec.finals.no_worse:
        if name not in (secondary := [n for n, _ in metrics[1:]]):
            known_ones = ", ".join(secondary) or "none"
            place = spec.place("finals", "no_worse", name)
            raise SpecError(f"{place}: names no metric besides the one that decides; known: {known_ones}")
    known = course.home / "bases" / base.key / f"baseline-{_tables_key(spec)}.json"
    if base.cached and (found := _kept(known)) is not None:
        return found
    results: dict[str, MetricResult] = {}
    if not metrics:
        return results
    emit("base.progress", text="measuring the base")
    image = await _base_image(course)
    try:
        async with lane(course.emit):
            for name, metric in metrics:
                try:
                    sample = await measure_once(image, name, metric, ScoreContext(name, "base"))
                except Rejected as e:
                    where = next(i for i, s in enumerate(spec.scorers) if s.label == name)
                    raise SpecError(
                        f"{spec.place('scorers', where)} ({name!r}): has no number for the unchanged project: {e}"
                    ) from e
                results[name] = result([sample.value], metric.unit)
    finally:
        with anyio.CancelScope(shield=True):
            await image.sandbox.delete()
    known.write_text(json.dumps({k: v.model_dump() for k, v in results.items()}))
    return results


async def run_finals(
    course: Course, attempts: Sequence[Attempt], metrics: Sequence[tuple[str, Metric]]
) -> Measured:
    """Measure the eligible attempts and the base against each other. Attempts that turn out to have no number end
    as ineligible, those whose scorer breaks as failed.
    """
    image = await _base_image(course)
    arms = _Arms({"base": image, **{a.name: a.image for a in attempts if a.image is not None}}, course.emit)
    entrants = [Entrant("base"), *(Entrant(a.name, change_size(a.submission)) for a in attempts)]
    name, metric = metrics[0]
    async with lane(course.emit):
        names = [e.name for e in entrants]
        course.emit("finals.started", scorer=name, entrants=names, goal=metric.goal, unit=metric.unit)
        rng = np.random.default_rng(int.from_bytes(os.urandom(8)))
        held = rule(course.spec, metric)
        constrained = course.spec.finals.no_worse
        for other, secondary in [m for m in metrics[1:] if m[0] in constrained]:
            await arms.measure_rounds(other, secondary, rng)
            _exclude_worse(attempts, arms, other, secondary, constrained[other])
        entrants = [e for e in entrants if e.name == "base" or _of(attempts, e.name).eligible]
        measure = _remembering(arms.measure_with(name, metric))
        standings = await finals(entrants, measure, held, rng)
        # Who wins is asked again without one that is excluded; what was measured is not measured again.
        while worse := _worse_workload(standings, arms, name, metric, course.spec.finals.no_workload_worse):
            _of(attempts, worse[0]).end("ineligible", f"{name}: {worse[1]}")
            entrants = [e for e in entrants if e.name != worse[0]]
            standings = await finals(entrants, measure, held, rng)
        for other, secondary in [m for m in metrics[1:] if m[0] not in constrained]:
            await arms.measure_rounds(other, secondary, rng)

    def shown(standing: Standing) -> MetricResult:
        around = tuple(c for number, c in arms.seen[name].get(standing.name, ()) if number >= held.warmup)
        made = leveled(result(standing.values, metric.unit), standing, held)
        ratios = arms.workloads(name, standing.name, metric) if standing.name != "base" else {}
        shares = {printable(workload): ratio.estimate for workload, ratio in ratios.items()}
        return made.model_copy(update={"circumstances": around, "workloads": shares})

    base_results = {name: shown(standings["base"])}
    for attempt in filter(lambda a: a.eligible, attempts):
        standing = standings[attempt.name]
        if standing.values:
            attempt.metrics[name] = shown(standing)
        if attempt.name in arms.broken:
            attempt.end("failed", arms.broken[attempt.name])
        elif standing.state == "rejected":
            attempt.end("ineligible", f"{name}: {standing.reason}")
    for other, secondary in metrics[1:]:
        for arm, values in arms.values[other].items():
            target = base_results if arm == "base" else _of(attempts, arm).metrics
            target[other] = result(values, secondary.unit)
    return Measured(standings, name, base_results, [sentence(c) for c in standings.warnings])


def _of(attempts: Sequence[Attempt], name: str) -> Attempt:
    return next(a for a in attempts if a.name == name)


def _remembering(measure: Measure) -> Measure:
    """A measure that gives its answers again, in their order for each entrant, when the finals are held once more."""
    known: dict[tuple[str, int], Sample] = {}

    async def again(entrant: Entrant, number: int, seed: int) -> Sample:
        key = entrant.name, number
        if key not in known:
            known[key] = await measure(entrant, number, seed)
        return known[key]

    return again


def _exclude_worse(
    attempts: Sequence[Attempt], arms: _Arms, name: str, metric: Metric, allowed: float
) -> None:
    """End every attempt for which a metric is worse than for the base by more than is allowed, or has no number."""
    values = arms.values[name]
    for attempt in attempts:
        if attempt.name in arms.broken:
            attempt.end("failed", arms.broken[attempt.name])
        elif not values.get(attempt.name):
            attempt.end("ineligible", f"{name}: has no number, but must not be worse than for the base")
        elif (ratio := paired(values.get("base", ()), values[attempt.name], metric.goal)).is_worse(allowed):
            attempt.metrics[name] = result(values[attempt.name], metric.unit)
            attempt.end(
                "ineligible",
                f"{name}: {1 / ratio.estimate - 1:.1%} worse than the base, where {allowed:.1%} is allowed",
            )


def _worse_workload(
    standings: Standings, arms: _Arms, name: str, metric: Metric, allowed: float | None
) -> tuple[str, str] | None:
    """The winner and its worst workload, if that is worse than for the base by more than is allowed."""
    if standings.winner is None or allowed is None:
        return None
    ratios = arms.workloads(name, standings.winner, metric)
    bad = {workload: r for workload, r in ratios.items() if r.is_worse(allowed)}
    if not bad:
        return None
    worst = min(bad, key=lambda workload: bad[workload].estimate)
    share = 1 / bad[worst].estimate - 1
    return (
        standings.winner,
        f"the workload {printable(worst)!r} is {share:.1%} worse than for the base, where {allowed:.1%} is allowed",
    )


class _Arms:
    """The replay images that are measured, by name."""

    def __init__(self, images: Mapping[str, ReplayImage], emit: Emit) -> None:
        self._images = images
        self._emit = emit
        self.broken: dict[str, str] = {}
        self.values: dict[str, dict[str, list[float]]] = {}
        self.seen: dict[str, dict[str, list[tuple[int, Circumstances]]]] = {}
        self.parts: dict[str, dict[str, dict[int, Mapping[str, float]]]] = {}

    def workloads(self, scorer: str, arm: str, metric: Metric) -> dict[str, Ratio]:
        """How many times better than the base each workload is, from the rounds in which both were measured."""
        parts = self.parts.get(scorer, {})
        base, mine = parts.get("base", {}), parts.get(arm, {})
        both = [number for number in base if number in mine and base[number] and mine[number]]
        return paired_workloads([base[n] for n in both], [mine[n] for n in both], metric.goal)

    def measure_with(self, scorer: str, metric: Metric) -> Measure:
        """What the finals call for each sample. A scorer that breaks on one candidate costs that one its place."""

        async def measure(entrant: Entrant, number: int, seed: int) -> Sample:
            arm = entrant.name
            context = ScoreContext(scorer, arm, number, seed)
            try:
                sample = await measure_once(self._images[arm], scorer, metric, context)
            except AttemptError as e:
                if arm == "base":
                    raise
                self.broken[arm] = str(e)
                raise Rejected(str(e)) from e
            around = surroundings()
            self.parts.setdefault(scorer, {}).setdefault(arm, {})[number] = sample.parts
            self.seen.setdefault(scorer, {}).setdefault(arm, []).append(
                (number, circumstances(sample, around))
            )
            self._emit(
                "finals.sample",
                "" if arm == "base" else arm,
                scorer=scorer,
                base=arm == "base",
                round=number,
                value=sample.value,
                wait=sample.wait,
                seconds=sample.seconds,
                cpu=sample.cpu,
                load=around.load,
                running=around.running,
                mhz=around.mhz,
            )
            return sample

        return measure

    async def measure_rounds(self, scorer: str, metric: Metric, rng: np.random.Generator) -> None:
        """A metric that is reported and does not decide: a few interleaved rounds of everybody still there."""
        found = self.values.setdefault(scorer, {})
        measure = self.measure_with(scorer, metric)
        for number in range(1, SECONDARY_ROUNDS + 1):
            seed = int(rng.integers(1 << 32))
            for arm in rng.permutation([a for a in self._images if a not in self.broken]):
                try:
                    sample = await measure(Entrant(str(arm)), number, seed)
                except Rejected:
                    continue
                found.setdefault(str(arm), []).append(sample.value)


def circumstances(sample: Sample, around: Surroundings) -> Circumstances:
    """What the machine did while a sample was taken, as the verdict keeps it."""
    return Circumstances(
        wait=sample.wait, cpu_seconds=sample.cpu, seconds=sample.seconds, load=around.load, mhz=around.mhz
    )


def sentence(caution: Caution) -> str:
    """A warning and its advice, for people."""
    who = f"{caution.entrant}: " if caution.entrant else ""
    return f"{who}{caution.detail}; {caution.advice}"


async def measure_once(image: ReplayImage, name: str, metric: Metric, context: ScoreContext) -> Sample:
    """One sample, in a fork of its own.

    Raises:
        Rejected: there is no number.
        ScorerError: the scorer broke.
    """
    async with image.replay() as replay:
        with boundary(ScorerError, f"scorer {name!r}"):
            began = time.monotonic()
            sample: object = await metric.measure(replay, context)
            if not isinstance(sample, Sample):
                raise TypeError(f"measure() returned {type(sample).__name__}, not a Sample")
    if is_linear(metric) and math.isfinite(sample.value) and sample.value >= 0:
        return sample if sample.seconds else replace(sample, seconds=time.monotonic() - began)
    if not (math.isfinite(sample.value) and sample.value > 0):
        raise Rejected(f"the scorer {name!r} gave {sample.value}, which is not a finite number above zero")
    return sample if sample.seconds else replace(sample, seconds=time.monotonic() - began)


def result(values: Sequence[float], unit: str) -> MetricResult:
    """Samples as the verdict shows them."""
    data = np.asarray(values, dtype=float)
    middle = float(np.median(data))
    low, high = np.percentile(data, [25, 75])
    return MetricResult(
        value=middle,
        unit=unit,
        samples=tuple(float(v) for v in data),
        spread=float((high - low) / 2 / middle) if middle > 0 else 0.0,
    )


def rule(spec: RaceSpec, metric: Metric) -> Rule:
    """How the finals of a race are to be run."""
    table = spec.finals
    given = {
        "confidence": table.confidence,
        "indifference": table.indifference,
        "max_rounds": table.max_rounds,
        "seconds": table.seconds,
    }
    return Rule.of(
        table.mode,
        goal=metric.goal,
        scale="linear" if is_linear(metric) else "log",
        timelike=is_timelike(metric.unit) and not is_linear(metric),
        require_improvement=table.require_improvement,
        **{k: v for k, v in given.items() if v is not None},
    )


def is_linear(metric: Metric) -> bool:
    """Whether a metric says by its attribute ``scale = "linear"`` that its values are scores or shares, of which
    differences count: they may be 0, and the indifference is in their unit.
    """
    return getattr(metric, "scale", "log") == "linear"


def is_timelike(unit: str) -> bool:
    """Whether values of a unit grow with the time that a program takes, or are rates that fall with it."""
    return unit in TIME_UNITS or unit.endswith(("/s", "/sec", "bps"))


def change_size(submission: Submission | None) -> int:
    """How much a submission changes, for choosing the smallest in a tie: bytes of its patch, and a lot for each
    package that it needs.
    """
    if submission is None:
        return 0
    return len(submission.patch) + 100_000 * len(submission.packages)


async def _base_image(course: Course) -> ReplayImage:
    labels = {**course.labels, "role": "replay"}
    name = f"{course.race}-base-replay"
    return await build(
        course.provider, course.base, Submission(), course.spec, name=name, labels=labels, is_base=True
    )


def _tables_key(spec: RaceSpec) -> str:
    tables = [s.model_dump(mode="json") for s in spec.scorers]
    return hashlib.sha256(json.dumps([tables, spec.base.network.scoring]).encode()).hexdigest()[:12]


def _kept(path: Path) -> dict[str, MetricResult] | None:
    try:
        return {k: MetricResult.model_validate(v) for k, v in json.loads(path.read_text()).items()}
    except (OSError, ValueError):
        return None
