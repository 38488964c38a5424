"""Samples of replay images: each a fresh process in a fresh fork, kept with what the machine did meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from race.attempt import Emit
from race.claims import least
from race.errors import AttemptError, Rejected, ScorerError
from race.finals import Entrant, Measure
from race.history import FinalsHistory, PastSample
from race.moved import moved
from race.paired import Ratio, paired_workloads
from race.plugins import boundary
from race.replay import ReplayImage
from race.scoring import MeasureAgain, Metric, Sample, ScoreContext
from race.surroundings import Surroundings, surroundings
from race.verdict import Circumstances

MOST_TAKEN = 10
"""How often a metric may ask for another sample of the same measurement."""
SECONDARY_ROUNDS = 3
"""How often the metrics that do not decide are measured."""


class Arms:
    """The replay images that are measured, by name."""

    def __init__(self, images: Mapping[str, ReplayImage], emit: Emit, past: FinalsHistory) -> None:
        self._images = images
        self._emit = emit
        self._past = past
        self._of_base: dict[str, Sample] = {}
        self.broken: dict[str, str] = {}
        self.values: dict[str, dict[str, list[float]]] = {}
        self.seen: dict[str, dict[str, list[tuple[int, Circumstances]]]] = {}
        self.parts: dict[str, dict[str, dict[int, Mapping[str, float]]]] = {}
        self.details: dict[str, dict[str, Mapping[str, str]]] = {}

    def cases(self, scorer: str, arm: str) -> dict[str, bool]:
        """Whether each case passed in more than half of the samples; empty if the parts do not pass or fail."""
        samples = [p for p in self.parts.get(scorer, {}).get(arm, {}).values() if p]
        if not samples or any(v not in (0.0, 1.0) for parts in samples for v in parts.values()):
            return {}
        names = dict.fromkeys(name for parts in samples for name in parts)
        return {n: 2 * sum(parts.get(n, 0.0) for parts in samples) > len(samples) for n in names}

    def workloads(self, scorer: str, metric: Metric, arm: str) -> dict[str, Ratio]:
        """How many times better than the base each workload is, from the rounds in which both were measured."""
        parts = self.parts.get(scorer, {})
        base, mine = parts.get("base", {}), parts.get(arm, {})
        both = [number for number in base if number in mine and base[number] and mine[number]]
        return paired_workloads([base[n] for n in both], [mine[n] for n in both], metric.goal)

    def measure_with(self, scorer: str, metric: Metric) -> Measure:
        """What the finals call for each sample. A scorer that breaks on one candidate costs that one its place."""

        async def measure(entrant: Entrant, number: int, seed: int) -> Sample:
            arm = entrant.name
            if (past := self._past.take(scorer, arm, number)) is not None:
                return self._known(scorer, arm, number, past)
            context = ScoreContext(scorer, arm, number, seed, self._of_base.get(scorer))
            try:
                sample = await measure_once(self._images[arm], scorer, metric, context)
            except (AttemptError, Rejected) as e:
                if arm == "base":
                    raise
                broken = isinstance(e, AttemptError)
                self._emit(
                    "finals.rejected",
                    arm,
                    scorer=scorer,
                    base=False,
                    round=number,
                    reason=str(e),
                    broken=broken,
                )
                if not broken:
                    raise
                self.broken[arm] = str(e)
                raise Rejected(str(e)) from e
            around = surroundings()
            self._note(scorer, arm, number, sample, around)
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
                waited=sample.waited,
                parts=dict(sample.parts),
                details=dict(sample.details),
                load=around.load,
                running=around.running,
                mhz=around.mhz,
            )
            return sample

        return measure

    def _note(self, scorer: str, arm: str, number: int, sample: Sample, around: Surroundings) -> None:
        """Keep what belongs to a sample besides its value."""
        if arm == "base":
            known = self._of_base.get(scorer)
            self._of_base[scorer] = sample if known is None else least([sample, known])
        self.parts.setdefault(scorer, {}).setdefault(arm, {})[number] = sample.parts
        self.details.setdefault(scorer, {}).setdefault(arm, sample.details)
        self.seen.setdefault(scorer, {}).setdefault(arm, []).append((number, circumstances(sample, around)))

    def _known(self, scorer: str, arm: str, number: int, past: PastSample) -> Sample:
        """What an earlier process measured."""
        if past.rejected:
            if past.broken:
                self.broken[arm] = past.rejected
            raise Rejected(past.rejected)
        self._note(scorer, arm, number, past.sample, past.around)
        return past.sample

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


async def measure_once(image: ReplayImage, name: str, metric: Metric, context: ScoreContext) -> Sample:
    """One sample, in a fork of its own, or the last of several if the metric does not believe the first.

    Raises:
        Rejected: there is no number.
        ScorerError: the scorer broke.
    """
    while True:
        try:
            return await _sample(image, name, metric, context)
        except MeasureAgain as e:
            if len(context.taken) >= MOST_TAKEN:
                raise
            context = replace(context, taken=(*context.taken, e.sample))


async def _sample(image: ReplayImage, name: str, metric: Metric, context: ScoreContext) -> Sample:
    async with image.replay(measuring=True) as replay:
        with boundary(ScorerError, f"scorer {name!r}"):
            began = time.monotonic()
            given = cast("object", await metric.measure(replay, context))
            if not isinstance(given, Sample):
                raise TypeError(f"measure() returned {type(given).__name__}, not a Sample")
            sample = given
            if changed := await moved(replay):
                raise Rejected(changed)
    if is_linear(metric) and math.isfinite(sample.value) and sample.value >= 0:
        return sample if sample.seconds else replace(sample, seconds=time.monotonic() - began)
    if not (math.isfinite(sample.value) and sample.value > 0):
        raise Rejected(f"the scorer {name!r} gave {sample.value}, which is not a finite number above zero")
    return sample if sample.seconds else replace(sample, seconds=time.monotonic() - began)


def is_linear(metric: Metric) -> bool:
    """Whether a metric says by its attribute ``scale = "linear"`` that its values are scores or shares, of which
    differences count: they may be 0, and the indifference is in their unit.
    """
    return getattr(metric, "scale", "log") == "linear"
