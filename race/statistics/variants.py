"""What a variant is worth over many tasks: eligible rate, pass@k, best@k and mean speed-up, each with its interval.

Tasks differ more than attempts at one of them, so intervals come from drawing tasks anew (Efron 1979), but for the
rate, whose interval is Wilson's (1927), which holds up with few attempts and at 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000
"""How often tasks are drawn anew."""
Z = 1.959964
"""The 97.5 % point of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % interval; no interval where there is too little to tell.

    Attributes:
        value: the number.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Tries:
    """The attempts of one variant at one task.

    Attributes:
        count: how many there were.
        eligible: how many of them pass every gate.
        speedups: of those that were measured, over the base.
    """

    count: int
    eligible: int
    speedups: tuple[float, ...] = ()


def eligible_rate(tasks: Sequence[Tries]) -> Estimate | None:
    """The share of all attempts that are eligible; None without attempts."""
    n, hits = sum(t.count for t in tasks), sum(t.eligible for t in tasks)
    if n == 0:
        return None
    p = hits / n
    middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return Estimate(p, max(middle - half, 0.0), min(middle + half, 1.0))


def pass_at(k: int, tasks: Sequence[Tries]) -> Estimate | None:
    """The chance that one of k attempts at a task is eligible: the unbiased estimate of Chen et al. (2021), averaged
    over the tasks with at least k attempts; None without such tasks.
    """
    return _over_tasks([_passes(t, k) for t in tasks if t.count >= k], np.mean)


def best_at(k: int, tasks: Sequence[Tries]) -> Estimate | None:
    """The speed-up to be expected of the best of k attempts, as the geometric mean over the tasks with at least k
    attempts; an attempt that is not eligible, or is slower, leaves the base as it is and counts as 1.
    """
    return _over_tasks([_best(t, k) for t in tasks if t.count >= k], _geometric)


def mean_speedup(tasks: Sequence[Tries]) -> Estimate | None:
    """The geometric mean of the speed-ups that were measured, each task counting once."""
    return _over_tasks([_geometric(np.asarray(t.speedups)) for t in tasks if t.speedups], _geometric)


def _passes(tries: Tries, k: int) -> float:
    missed = tries.count - tries.eligible
    return 1.0 - (math.comb(missed, k) / math.comb(tries.count, k))


def _best(tries: Tries, k: int) -> float:
    """The mean over all choices of k attempts of the best of them."""
    values = sorted([max(s, 1.0) for s in tries.speedups] + [1.0] * (tries.count - len(tries.speedups)))
    # The i-th smallest is the best of a choice if the other k-1 are among the i before it.
    return sum(v * math.comb(i, k - 1) for i, v in enumerate(values)) / math.comb(tries.count, k)


def _geometric(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _over_tasks(
    values: Sequence[float], mean: Callable[[np.ndarray[tuple[int, ...], np.dtype[np.float64]]], float]
) -> Estimate | None:
    if not values:
        return None
    data = np.asarray(values, dtype=np.float64)
    if len(data) == 1:
        return Estimate(float(mean(data)))
    rng = np.random.default_rng(0)  # the same tasks give the same interval
    drawn = [float(mean(data[rng.integers(len(data), size=len(data))])) for _ in range(DRAWS)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Estimate(float(mean(data)), float(low), float(high))
