"""Measuring replays: one at a time on a machine, after all agents have ended.

Every sample is a fresh process in a fresh fork of a replay image. All races on a machine share one *lane*, so no two of
them measure at the same moment; see `race.lane`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import anyio
import numpy as np

from race.arms import Arms, is_linear, measure_once
from race.attempt import Attempt, Course, Emit
from race.errors import Rejected, SpecError
from race.finals import Entrant, Measure, Rule, Standing, Standings, finals
from race.lane import machine_lane
from race.levels import leveled
from race.paired import paired
from race.replay import ReplayImage, build
from race.scoring import Metric, Sample, ScoreContext
from race.spec import RaceSpec
from race.statistics.cautions import Caution
from race.submission import Submission, printable
from race.verdict import MetricResult

TIME_UNITS = frozenset({"ns", "us", "µs", "ms", "s", "sec", "seconds", "min", "h"})
"""Units whose values are times."""


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
    known = course.home / "bases" / base.key / f"baseline-{tables_key(spec)}.json"
    if base.cached and (found := _kept(known)) is not None:
        return found
    results: dict[str, MetricResult] = {}
    if not metrics:
        return results
    emit("base.progress", text="measuring the base")
    image = await base_image(course)
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
    image = await base_image(course)
    images = {"base": image, **{a.name: a.image for a in attempts if a.image is not None}}
    arms = Arms(images, course.emit, course.finals)
    entrants = [Entrant("base"), *(Entrant(a.name, change_size(a.submission)) for a in attempts)]
    name, metric = metrics[0]
    async with lane(course.emit):
        names = [e.name for e in entrants]
        known = course.finals
        if known.entrants == names:
            # The same generator and the same samples give the same orders and standings: see `finals`.
            seed = known.seed
        else:
            known.samples.clear()
            seed = int.from_bytes(os.urandom(8)) >> 1
            course.emit(
                "finals.started", scorer=name, entrants=names, goal=metric.goal, unit=metric.unit, seed=seed
            )
        rng = np.random.default_rng(seed)
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

    # Where everybody else was turned away at once, the base was not measured either.
    base_results = {name: shown(standings["base"])} if standings["base"].values else {}
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
    attempts: Sequence[Attempt], arms: Arms, name: str, metric: Metric, allowed: float
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
    standings: Standings, arms: Arms, name: str, metric: Metric, allowed: float | None
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


def sentence(caution: Caution) -> str:
    """A warning and its advice, for people."""
    who = f"{caution.entrant}: " if caution.entrant else ""
    return f"{who}{caution.detail}; {caution.advice}"


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


async def base_image(course: Course) -> ReplayImage:
    """An image of the unchanged base."""
    labels = {**course.labels, "role": "replay"}
    name = f"{course.race}-base-replay"
    try:
        return await build(
            course.provider, course.base, Submission(), course.spec, name=name, labels=labels, is_base=True
        )
    except Rejected as e:
        raise SpecError(
            f"{course.spec.place('task', 'build')}: does not work for the unchanged project: {e}"
        ) from e


def tables_key(spec: RaceSpec) -> str:
    """What tells the scorers of one race file from those of another on the same base."""
    tables = [s.model_dump(mode="json") for s in spec.scorers]
    made_of = [tables, spec.base.network.scoring, _hidden_sums(spec)]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]


def _hidden_sums(spec: RaceSpec) -> list[str]:
    """The content of the files beside the race file that its scorers name."""
    sums: list[str] = []
    for table in spec.scorers:
        for key in ("hidden", "cases"):
            named = table.options.get(key, ())
            for name in [named] if isinstance(named, str) else named:
                place = spec.folder / str(name)
                files = sorted(p for p in place.rglob("*") if p.is_file()) if place.is_dir() else [place]
                sums += [hashlib.sha256(f.read_bytes()).hexdigest() for f in files if f.is_file()]
    return sums


def _kept(path: Path) -> dict[str, MetricResult] | None:
    try:
        return {k: MetricResult.model_validate(v) for k, v in json.loads(path.read_text()).items()}
    except (OSError, ValueError):
        return None
