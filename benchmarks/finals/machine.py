"""A simulated machine that is as noisy as real ones: what a run takes there, of candidates whose true costs are known.

The figures are those of traces of small CPU-bound programs on a shared virtual machine with two cores, quiet and beside
neighbours: log-normal jitter, a drift that all share, steps, spikes, and episodes in which somebody else has the
processor. The first run of each candidate is cold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np


class Time(float):
    """Seconds, with the share of them that was spent waiting for a processor, if that can be seen."""

    wait: float

    def __new__(cls, seconds: float, wait: float) -> Self:
        made = super().__new__(cls, seconds)
        made.wait = wait
        return made


@dataclass(frozen=True, slots=True)
class Noise:
    """How noisy a machine is.

    Attributes:
        busy: share of the samples that meet a neighbour.
        stay: mean length of an episode of that, in samples.
        most: by how many times a neighbour stretches a sample at most.
        least: and at least.
        cache: by how much the processor time itself grows meanwhile, as a logarithm.
    """

    busy: float = 0.05
    stay: float = 4.0
    most: float = 2.0
    least: float = 1.2
    cache: float = 0.02


JITTER, WALK, STEPS, STEP, SPIKES, SPIKE, UNSEEN = 0.02, 0.002, 0.01, 0.03, 0.02, 0.25, 0.1
PRESETS: Final = {
    "quiet": Noise(),
    "neighbour": Noise(busy=0.5, stay=5),
    "heavy": Noise(busy=0.8, stay=8, least=1.3, most=5.0, cache=0.03),
}


class Machine:
    """Runs candidates.

    Args:
        costs: the true time of each, in seconds.
        noise: of the machine.
        rng: for all that is random.
        visible: whether waits can be seen.
    """

    def __init__(
        self, costs: Sequence[float], noise: Noise, rng: np.random.Generator, *, visible: bool = True
    ) -> None:
        self._costs = costs
        self._noise = noise
        self._rng = rng
        self._visible = visible
        self._jitter = JITTER * rng.uniform(0.5, 1.5, len(costs))
        self._cold = list(1 + rng.uniform(0, 0.3, len(costs)))
        self._level = 0.0
        self._wave = rng.uniform(15, 200), rng.uniform(0, 2 * math.pi), 0.015 * rng.normal()
        self._stretch = rng.uniform(noise.least, noise.most) if rng.random() < noise.busy else 1.0
        self.runs = 0

    def run(self, arm: int) -> Time:
        """Run a candidate once."""
        noise, rng = self._noise, self._rng
        self.runs += 1
        self._level += rng.normal(0, WALK) + (rng.random() < STEPS) * rng.normal(0, STEP)
        pause = noise.stay * (1 - noise.busy) / noise.busy
        if self._stretch > 1:
            self._stretch = 1.0 if rng.random() < 1 / noise.stay else self._stretch
        elif rng.random() < 1 / max(pause, 1.0):
            self._stretch = rng.uniform(noise.least, noise.most)
        period, phase, height = self._wave
        log = self._level + height * math.sin(2 * math.pi * self.runs / period + phase)
        log += rng.normal(0, self._jitter[arm]) + (rng.random() < SPIKES) * rng.exponential(SPIKE)
        overlap = 1.0 if rng.random() < 0.7 else rng.random()
        wait = min(1 - 1 / (1 + (self._stretch - 1) * overlap) + abs(rng.normal(0, 0.004)), 0.95)
        log += (
            noise.cache * rng.uniform(0.5, 1.5) * overlap * (self._stretch > 1) + UNSEEN * wait * rng.normal()
        )
        first, self._cold[arm] = self._cold[arm], 1.0
        return Time(self._costs[arm] * first * math.exp(log) / (1 - wait), wait if self._visible else 0.0)
