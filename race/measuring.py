"""Measuring replays: one at a time on a machine, after all agents have ended.

Every sample is a fresh process in a fresh fork of a replay image. All races on a machine share one *lane*, so no two of
them measure at the same moment; see `race.lane`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import numpy as np

from race.arms import is_linear, measure_once
from race.attempt import Course, Emit
from race.errors import Rejected, SpecError
from race.finals import Rule
from race.lane import machine_lane
from race.replay import ReplayImage, build
from race.scoring import Metric, ScoreContext
from race.spec import RaceSpec
from race.submission import Submission
from race.verdict import MetricResult

TIME_UNITS = frozenset({"ns", "us", "µs", "ms", "s", "sec", "seconds", "min", "h"})
"""Units whose values are times."""


def lane(emit: Emit) -> AbstractAsyncContextManager[None]:
    """Hold the machine's measuring lane, and say so if it has to be waited for."""
    return machine_lane(lambda: emit("lane.waiting"))


async def measure_base(course: Course, metrics: Sequence[tuple[str, Metric]]) -> dict[str, MetricResult]:
    """What each metric says of the base, measured once and kept with it.

    Raises:
        SpecError: a metric has no number even for the unchanged project.
    """
    spec, base, emit = course.spec, course.base, course.emit
    check_finals(spec, metrics)
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


def check_finals(spec: RaceSpec, metrics: Sequence[tuple[str, Metric]]) -> None:
    """See that ``[finals]`` names metrics that can do what is asked of them.

    Raises:
        SpecError: it does not; the text names the place.
    """
    weights = spec.finals.weights
    deciding = set(weights) if weights else {n for n, _ in metrics[:1]}
    for key, named, of in (
        ("weights", weights, [n for n, m in metrics if not is_linear(m)]),
        ("no_worse", spec.finals.no_worse, [n for n, _ in metrics if n not in deciding]),
    ):
        for name in named:
            if name not in of:
                what = "whose values are ratios" if key == "weights" else "besides what decides"
                raise SpecError(
                    f"{spec.place('finals', key, name)}: names no metric {what}; known: {', '.join(of) or 'none'}"
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
