"""A robust fit of samples that were taken in rounds: the level of each arm, and how sure it is.

The difference of two arms within a round is free of what slows a whole round: drift, frequency, heat (paired or
"duet" measuring: Bulej et al. 2019, "Duet benchmarking", ICPE). A sample counts by the chance that it is undisturbed
(`race.statistics.mixture`), so that the fit finds the undisturbed level even where most samples are disturbed and a
median is of no use (Georges, Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation",
OOPSLA). Samples that waited for a processor count less.

Everything here is a pure function of arrays. Smaller is better; a cell that was not measured is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from race.statistics.mixture import Array, Samples, Settled, rough_rounds, rough_scales, settle

INFLATION: Final = 1.25
"""Of the variance, for what the weights cut off and the model leaves out: makes claims as sure as they say."""
MOSTLY: Final = 0.8
"""With a smaller share of clean samples than this, it may be the rounds that are slow: another start is tried ..."""
ENOUGH: Final = 5
"""... from this many rounds on."""
UNLIKE: Final = 0.5
"""When an arm's share of clean samples is so much less than another's, it may be noisy: another start is tried."""
NOISY: Final = 4.0
"""How many times the usual spread makes an arm stand alone, where noise is two-sided."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What `fit_rounds` found; A arms, R rounds.

    Attributes:
        effects: (A,) level of each arm.
        rounds: (R,) shift of each round, around 0.
        covariance: (A, A) of the effects; only differences of arms mean anything.
        scale: (A,) standard deviation of one clean sample of each arm.
        df: degrees of freedom behind it, fewer where a few samples carry most of the weight (Kish 1965, "Survey
            sampling"); 0 when there was nothing to learn a spread from.
        residuals: (R, A) sample minus round minus arm; NaN where nothing was measured.
        weights: (R, A) in [0, 1], what each sample counted.
        clean: (A,) how many samples of each arm are undisturbed, by their chances.
    """

    effects: Array
    rounds: Array
    covariance: Array
    scale: Array
    df: float
    residuals: Array
    weights: Array
    clean: Array

    def against(self, arm: int) -> tuple[Array, Array]:
        """Every arm minus this one: the differences, and their standard errors (0 for the arm itself)."""
        own = np.diag(self.covariance)
        variance = own + own[arm] - 2 * self.covariance[:, arm]
        variance[arm] = 0.0
        return self.effects - self.effects[arm], np.sqrt(np.maximum(variance, 0.0))

    def of(self, columns: npt.NDArray[np.intp], arms: int) -> Fit:
        """The same as a fit of more arms, of which these columns were fitted; the others have an infinite effect."""
        effects, scale, clean = np.full(arms, math.inf), np.zeros(arms), np.zeros(arms)
        covariance = np.zeros((arms, arms))
        shape = (len(self.rounds), arms)
        residuals, weights = np.full(shape, np.nan), np.zeros(shape)
        effects[columns], scale[columns], clean[columns] = self.effects, self.scale, self.clean
        covariance[np.ix_(columns, columns)] = self.covariance
        residuals[:, columns], weights[:, columns] = self.residuals, self.weights
        return Fit(effects, self.rounds, covariance, scale, self.df, residuals, weights, clean)


def fit_rounds(y: Array, waits: Array, *, one_sided: bool, floor: float) -> Fit:
    """Fit round and arm effects to samples of which some are disturbed.

    Args:
        y: (R, A) samples, smaller is better, NaN where an arm was not measured; every arm has at least one.
        waits: (R, A) share of its time that each sample waited for a processor, already taken out of ``y``.
        one_sided: disturbance only adds (times on the log scale); else it goes either way.
        floor: the least spread to believe in, in units of ``y``.
    """
    seen = np.isfinite(y)
    samples = Samples(np.where(seen, y, 0.0), np.where(seen, waits, 0.0), seen, one_sided, floor)
    best = max(_tries(samples, y), key=lambda settled: settled.score)
    spread = samples.spread(best.scale, best.error)
    precision = best.clean / np.square(spread)
    shares = precision / (precision.sum(1, keepdims=True) + best.ridge)
    information = np.diag(precision.sum(0)) - shares.T @ precision
    weights = best.clean * np.square(best.scale / spread)
    evenness = float(weights.sum()) ** 2 / float(np.square(weights).sum() * seen.sum())
    return Fit(
        effects=best.effects,
        rounds=best.rounds[:, 0],
        covariance=INFLATION * np.asarray(np.linalg.pinv(information, hermitian=True), np.float64),
        scale=best.scale,
        df=best.df * evenness,
        residuals=np.where(seen, y - best.effects - best.rounds, np.nan),
        weights=weights,
        clean=np.asarray(best.clean.sum(0), np.float64),
    )


def _tries(samples: Samples, y: Array) -> Iterator[Settled]:
    """The iteration from one start, and from others if where it came to rest is suspicious."""
    shifts = rough_rounds(y, samples.waits, one_sided=samples.one_sided)
    still, nobody = np.zeros_like(shifts), np.zeros(y.shape[1], np.bool_)
    long = samples.seen.sum(0) >= ENOUGH
    if not samples.one_sided:
        rough, own = rough_scales(y - shifts, one_sided=False, floor=samples.floor)
        yield settle(samples, y - shifts, shifts, odd=long & (own > NOISY * rough))
        return
    first = settle(samples, y, still, odd=nobody)
    yield first
    share = first.clean.sum(0) / samples.seen.sum(0)
    if len(y) >= ENOUGH and share.mean() < MOSTLY:
        yield settle(samples, y - shifts, shifts, odd=nobody)
    odd = long & (share < share.max() - UNLIKE)
    if odd.any():
        yield settle(samples, y, still, odd=odd)
