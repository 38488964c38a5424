"""A robust fit of samples that were taken in rounds: ``y[round, arm] = round + arm + noise``.

The difference of two arms within a round is free of what slows a whole round: drift, frequency, heat (paired or
"duet" measuring: Bulej et al. 2019, "Duet benchmarking", ICPE). What is left is noise of two kinds, a mixture that is
fitted by expectation-maximisation (Dempster, Laird and Rubin 1977): *clean* noise, normal, with a spread of its own
for each arm; and *disturbance*, which on a machine that others use too only ever adds time (Georges, Buytaert and
Eeckhout 2007, "Statistically rigorous Java performance evaluation", OOPSLA). A sample counts by the chance that it is
clean, so that the fit finds the undisturbed level even where most samples are disturbed and a median is of no use.
Samples that waited for a processor count less, and have their own share of disturbed ones, so that the fit learns
whether taking the waits out was enough (for programs that are bound by memory it is not).

Everything here is a pure function of arrays. Smaller is better; a cell that was not measured is NaN. The constants
were found on simulated machines (`benchmarks.finals.simulate`); none of them is delicate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

ITERATIONS: Final = 12
WAIT_ERROR: Final = 0.1
"""Standard deviation, per unit of wait, of what is left of a wait after it was taken out (log scale)."""
WAITED: Final = 0.05
"""A wait share from which on a sample is suspect."""
DISTURBED: Final = 0.2
"""Prior share of disturbed samples among those that did not wait, worth PRIOR samples."""
SUSPECT: Final = 0.3
"""The same among those that waited."""
PRIOR: Final = 4.0
LENGTH: Final = 0.5
"""Mean of a disturbance, when it can only add: log(time) of 0.5 is a slow-down by 1.65."""
STRAY: Final = 0.02
"""Share of noise in either direction that is four times as wide as clean noise."""
RIDGE: Final = 0.5
"""Variance of clean noise over that of the rounds: how far the shift of a round is drawn to 0."""
TIGHT: Final = 0.05
"""A one-sided fit starts from a spread of at most this: from a wide one it may end by calling everything clean."""
MOSTLY: Final = 0.8
"""With a smaller share of clean samples than this, it may be the rounds that are slow: another start is tried ..."""
ENOUGH: Final = 5
"""... from this many rounds on."""
NOISY: Final = 4.0
"""How many times the usual spread an arm needs to stand alone, where noise is two-sided."""
UNLIKE: Final = 0.5
"""When an arm's share of clean samples is so much less than another's, it may be noisy: another start is tried."""
SHIFT: Final = 0.01
"""A shift of a round that is nothing special, on the log scale; larger ones cost likelihood (a Cauchy prior)."""
SHARP: Final = 0.1
"""While it iterates the fit may find noise down to this share of the rough spread."""
POOLING: Final = 8.0
"""Degrees of freedom of the pooled variance that an arm's own is shrunk by (empirical Bayes: Smyth 2004)."""
INFLATION: Final = 1.25
"""Of the variance, for what the weights cut off and the model leaves out: makes claims as sure as they say."""
LEAST: Final = 1e-6
"""What the least likely sample still counts, so that no arm is left without a level."""
MAD: Final = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What `fit_rounds` found; A arms, R rounds.

    Attributes:
        effects: (A,) level of each arm.
        rounds: (R,) shift of each round, around 0.
        covariance: (A, A) of the effects for noise of variance 1; only differences of arms mean anything.
        variance: (A,) of one clean sample of each arm.
        df: degrees of freedom of the pooled variance, less where a few samples carry most of the weight (Kish 1965);
            0 when there was nothing to learn it from.
        residuals: (R, A) sample minus round minus arm; NaN where nothing was measured.
        weights: (R, A) in [0, 1], what each sample counted.
    """

    effects: Array
    rounds: Array
    covariance: Array
    variance: Array
    df: float
    residuals: Array
    weights: Array

    def against(self, arm: int) -> tuple[Array, Array]:
        """Every arm minus this one: the differences, and their standard errors (0 for the arm itself)."""
        own = np.diag(self.covariance)
        unit = own + own[arm] - 2 * self.covariance[:, arm]
        error = np.sqrt(np.maximum(unit, 0.0) * (self.variance + self.variance[arm]) / 2)
        error[arm] = 0.0
        return self.effects - self.effects[arm], error

    def of(self, columns: npt.NDArray[np.intp], arms: int) -> Fit:
        """The same as a fit of more arms, of which these columns were fitted; the others have an infinite effect."""
        effects, variance = np.full(arms, math.inf), np.zeros(arms)
        covariance = np.zeros((arms, arms))
        shape = (len(self.rounds), arms)
        residuals, weights = np.full(shape, np.nan), np.zeros(shape)
        effects[columns], variance[columns] = self.effects, self.variance
        covariance[np.ix_(columns, columns)] = self.covariance
        residuals[:, columns], weights[:, columns] = self.residuals, self.weights
        return Fit(effects, self.rounds, covariance, variance, self.df, residuals, weights)


def fit_rounds(y: Array, waits: Array, *, one_sided: bool, floor: float) -> Fit:
    """Fit round and arm effects to samples of which some are disturbed.

    Args:
        y: (R, A) samples, smaller is better, NaN where an arm was not measured; every arm has at least one.
        waits: (R, A) share of its time that each sample waited for a processor, already taken out of ``y``.
        one_sided: disturbance only adds (times on the log scale); else it goes either way.
        floor: the least spread to believe in, in units of ``y``.
    """
    seen = np.isfinite(y)
    samples = _Samples(
        values=np.where(seen, y, 0.0),
        waits=np.where(seen, waits, 0.0),
        seen=seen,
        one_sided=one_sided,
        floor=floor,
    )
    best = max(_tries(samples, y), key=lambda settled: settled.score)
    weights = best.weights
    shares = weights / (weights.sum(1, keepdims=True) + best.ridge)
    laplacian = np.diag(weights.sum(0)) - shares.T @ weights
    evenness = float(weights.sum()) ** 2 / float(np.square(weights).sum() * seen.sum())
    pooled = _pooled(best.squares[~best.odd], best.own_df[~best.odd], best.rough, floor)
    own = best.squares / np.maximum(best.own_df, 1e-9)
    alone = best.odd | ((own > 2 * pooled**2) & (best.own_df > 1))
    return Fit(
        effects=best.effects,
        rounds=best.rounds[:, 0],
        covariance=np.asarray(
            np.linalg.pinv(laplacian + 1e-9 * np.eye(y.shape[1]), hermitian=True), np.float64
        ),
        variance=INFLATION * np.square(_own_scale(best.squares, best.own_df, pooled, alone=alone)),
        df=best.df * evenness,
        residuals=np.where(seen, y - best.effects - best.rounds, np.nan),
        weights=weights,
    )


@dataclass(frozen=True, slots=True)
class _Samples:
    """The input of a fit, 0 where nothing was measured."""

    values: Array
    waits: Array
    seen: npt.NDArray[np.bool_]
    one_sided: bool
    floor: float


@dataclass(frozen=True, slots=True)
class _Settled:
    """Where the iteration came to rest: the levels, and what is needed for their errors."""

    effects: Array
    rounds: Array
    weights: Array
    squares: Array
    own_df: Array
    df: float
    ridge: float
    rough: float
    odd: npt.NDArray[np.bool_]
    clean: Array
    score: float


def _tries(samples: _Samples, y: Array) -> Iterator[_Settled]:
    """The iteration from one start, and from others if where it came to rest is suspicious."""
    shifts = _rough_rounds(y, samples.waits, one_sided=samples.one_sided)
    many = samples.seen.sum(0) >= ENOUGH
    if not samples.one_sided:
        rough, own = _rough_scales(y - shifts, one_sided=False, floor=samples.floor)
        yield _settle(samples, y - shifts, shifts, odd=many & (own > NOISY * rough))
        return
    still, same = np.zeros_like(shifts), np.zeros_like(many)
    first = _settle(samples, y, still, odd=same)
    yield first
    share = first.clean / samples.seen.sum(0)
    if len(y) >= ENOUGH and share.mean() < MOSTLY:
        yield _settle(samples, y - shifts, shifts, odd=same)
    odd = many & (share < share.max() - UNLIKE)
    if odd.any():
        yield _settle(samples, y, still, odd=odd)


def _settle(samples: _Samples, start: Array, rounds: Array, *, odd: npt.NDArray[np.bool_]) -> _Settled:
    """Iterate to rest.

    Args:
        samples: to fit.
        start: (R, A) the samples without the shifts of the rounds, for the levels to start from.
        rounds: (R, 1) those shifts.
        odd: arms that start from the spread that they seem to have, and share it with no other.
    """
    mask, waits, one_sided = samples.seen.astype(np.float64), samples.waits, samples.one_sided
    effects = _fastest(start, waits) if one_sided else np.asarray(np.nanmedian(start, axis=0))
    rough, apart = _rough_scales(start, one_sided=one_sided, floor=samples.floor)
    scale = np.where(odd, apart, min(rough, TIGHT) if one_sided else rough)
    suspect = waits > WAITED
    rate = prior = np.where(suspect, SUSPECT, DISTURBED) * mask if one_sided else np.zeros_like(mask)
    groups = [
        group for group in (samples.seen & suspect, samples.seen & ~suspect) if one_sided and group.any()
    ]
    arms, ridge, df = mask.shape[1], RIDGE, 0.0
    weights, squares, own_df, clean, density = mask, np.zeros(arms), np.zeros(arms), mask, mask
    for _ in range(ITERATIONS):
        residual = (samples.values - effects - rounds) * mask
        spread = np.hypot(scale, WAIT_ERROR * waits) if one_sided else np.broadcast_to(scale, mask.shape)
        likely, density = _densities(residual, spread, rate, one_sided=one_sided)
        clean = np.maximum(likely / (density + 1e-300), LEAST) * mask
        weights = clean * np.square(scale / spread)
        effects = ((samples.values - rounds) * weights).sum(0) / weights.sum(0)
        total = weights.sum(1, keepdims=True)
        rounds = ((samples.values - effects) * weights).sum(1, keepdims=True) / (total + ridge)
        squares = (weights * np.square((samples.values - effects - rounds) * mask)).sum(0)
        used = max(float((total / (total + ridge)).sum()) - 1.0, 0.0)
        own_df = np.maximum(clean.sum(0) - 1.0 - used / arms, 0.0)
        df = max(float(clean.sum()) - arms - used, 0.0)
        pooled = _pooled(squares[~odd], own_df[~odd], SHARP * rough, samples.floor)
        scale = _own_scale(squares, own_df, pooled, alone=odd)
        ridge = min(RIDGE, pooled**2 / max(float(np.mean(np.square(rounds))), 1e-12))
        for group in groups:
            share = (float((1 - clean)[group].sum()) + PRIOR * prior[group]) / (float(group.sum()) + PRIOR)
            rate = np.where(group, 0.0, rate)
            rate[group] = np.minimum(share, 0.9)
    return _Settled(
        effects=effects,
        rounds=rounds,
        weights=weights,
        squares=squares,
        own_df=own_df,
        df=df,
        ridge=ridge,
        rough=rough,
        odd=odd,
        clean=np.asarray(clean.sum(0), np.float64),
        score=float((np.log(density + 1e-300) * mask).sum() - np.log1p(np.square(rounds / SHIFT)).sum()),
    )


def _densities(residual: Array, spread: Array, rate: Array, *, one_sided: bool) -> tuple[Array, Array]:
    """Density of each sample as a clean one, and of both kinds together."""
    clean = (1 - rate) * np.exp(-0.5 * np.square(residual / spread)) / (spread * math.sqrt(2 * math.pi))
    other = STRAY * np.exp(-np.abs(residual) / (4 * spread)) / (8 * spread)
    if one_sided:
        other += rate * np.where(residual > 0, np.exp(-np.maximum(residual, 0.0) / LENGTH) / LENGTH, 0.0)
    return np.asarray(clean), np.asarray(clean + other)


def _pooled(squares: Array, df: Array, rough: float, floor: float) -> float:
    """Standard deviation over arms, the rough one counting as one observation.

    Without that a mixture may settle on a few samples that happen to agree and call all others disturbed.
    """
    return max(math.sqrt((float(squares.sum()) + rough**2) / (float(df.sum()) + 1.0)), floor)


def _own_scale(squares: Array, df: Array, pooled: float, *, alone: npt.NDArray[np.bool_]) -> Array:
    """Standard deviation of each arm, shrunk to the pooled one; not that of arms that stand alone."""
    own = np.where(df > 0, squares / np.maximum(df, 1e-9), pooled**2)
    shrunk = (own * df + POOLING * pooled**2) / (df + POOLING)
    return np.asarray(np.sqrt(np.where(alone, np.maximum(own, shrunk), shrunk)))


def _rough_rounds(y: Array, waits: Array, *, one_sided: bool) -> Array:
    """The shift of each round to start from: what most arms, or if disturbance only adds a quarter of them, share."""
    if one_sided:
        excess = y - _fastest(y, waits)
        shifts = np.nanquantile(excess, 0.25, axis=1, keepdims=True, method="lower")
    else:
        shifts = np.nanmedian(y - np.nanmedian(y, axis=0), axis=1, keepdims=True)
    return np.asarray(shifts - np.median(shifts), np.float64)


def _fastest(y: Array, waits: Array) -> Array:
    """Mean of the fastest quarter of each arm, where waiting counts as slower: the start of a one-sided fit."""
    ranked = np.sort(np.where(np.isfinite(y), y + 0.3 * waits / (waits + 0.1), np.inf), axis=0)
    count = np.maximum(1, np.ceil(np.isfinite(y).sum(0) / 4))
    first = np.arange(len(y))[:, None] < count
    return np.asarray(np.where(first, ranked, 0.0).sum(0) / count)


def _rough_scales(y: Array, *, one_sided: bool, floor: float) -> tuple[float, Array]:
    """A spread over all arms that disturbance hardly moves, and a spread of each arm to start from.

    When disturbance only adds, both are of the deviations below the arms' medians.
    """
    deviations: Array = y - np.nanmedian(y, axis=0)
    if one_sided:
        deviations = np.where(deviations < 0, deviations, np.nan)
    sizes: Array = 1.3 * MAD * np.abs(deviations)
    some = sizes[np.isfinite(sizes)]
    rough = max(float(np.median(some)), floor) if some.size else floor
    own: Array = np.array(
        [float(np.median(c[np.isfinite(c)])) if np.isfinite(c).any() else 0.0 for c in sizes.T]
    )
    return rough, np.asarray(np.maximum(rough, own), np.float64)
