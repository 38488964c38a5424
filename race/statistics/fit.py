"""A robust fit of samples that were taken in rounds: ``y[round, arm] = round + arm + noise``.

The difference of two arms within a round is free of what slows a whole round: drift, frequency, heat (paired or
"duet" measuring: Bulej et al. 2019, "Duet benchmarking", ICPE). What is left is noise of two kinds, a mixture that is
fitted by expectation-maximisation (Dempster, Laird and Rubin 1977): *clean* noise, normal, with a spread of its own
for each arm; and *disturbance*, which on a machine that others use too only ever adds time (Georges, Buytaert and
Eeckhout 2007, "Statistically rigorous Java performance evaluation", OOPSLA: why the median misleads). A sample counts
by the chance that it is clean. Samples that waited for a processor count less, and have their own rate of
disturbance, so that the fit learns whether taking the waits out was enough (for programs bound by memory it is not).

Everything here is a pure function of arrays. Smaller is better; a cell that was not measured is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

ITERATIONS = 12
WAIT_ERROR = 0.12
"""Standard deviation, per unit of wait, of what is left of a wait after it was taken out (log scale)."""
WAITED = 0.05
"""A wait share from which on a sample is suspect."""
DISTURBED, SUSPECT = 0.2, 0.3
"""Prior shares of disturbed samples: of those that did not wait, and of those that did; worth PRIOR samples each."""
PRIOR = 4.0
SHARP = 0.25
SHARP = 0.1
CAP = 9.
OBS=1.
RIDGE = 0.5
"""Variance of clean noise over that of the rounds: how far a round's shift is drawn to 0."""
TIGHT = 0.05
"""A one-sided fit starts from a spread of at most this: from a wide one it may end by calling everything clean."""
LENGTH = 0.5
"""Mean of a disturbance, when it can only add: log(time) of 0.5 is a slow-down by 1.65."""
STRAY = 0.02
"""Share of disturbances in either direction, four times as wide as clean noise; alone when noise is two-sided."""
POOLING = 8.0
"""How many degrees of freedom an arm's own variance is given of the pooled one (empirical Bayes; Smyth 2004)."""
INFLATION = 1.2
"""Of the variance, for what the weights cut off and the model leaves out, so that claims are as sure as they say."""
MAD = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What `fit_rounds` found; A arms, R rounds.

    Attributes:
        effects: (A,) level of each arm.
        rounds: (R,) shift of each round, around 0.
        covariance: (A, A) of the effects for noise of variance 1; only differences of arms mean anything.
        variance: (A,) of one clean sample of each arm.
        df: degrees of freedom of the pooled variance; 0 when there was nothing to learn it from.
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


def fit_rounds(y: Array, waits: Array, *, one_sided: bool, floor: float, sharp: bool = False) -> Fit:
    """Fit round and arm effects to samples of which some are disturbed.

    Args:
        y: (R, A) samples, smaller is better, NaN where an arm was not measured; every arm has at least one.
        waits: (R, A) share of its time that each sample waited for a processor, already taken out of ``y``.
        one_sided: disturbance only adds (times on the log scale); else it goes either way.
        floor: the least spread to believe in, in units of ``y``.
    """
    seen = np.isfinite(y)
    mask = seen.astype(np.float64)
    values = np.where(seen, y, 0.0)
    waits = np.where(seen, waits, 0.0)
    groups = [g for g in (seen & (waits > WAITED), seen & (waits <= WAITED)) if g.any()]
    prior = np.where(waits > WAITED, SUSPECT, DISTURBED) if one_sided else np.zeros_like(values)
    rough = _rough_scale(y, one_sided=one_sided, floor=floor) * (SHARP if sharp else 1)
    effects = _fastest(y, waits) if one_sided else np.nanmedian(y, axis=0)
    arms = y.shape[1]
    rounds = np.zeros((y.shape[0], 1))
    rate = prior
    pooled = prior_scale = rough
    prior_scale = rough * SHARP
    scale = np.full(arms, min(rough, TIGHT) if one_sided else rough)
    own_df = np.zeros(arms)
    clean = weights = mask
    df = 0.0
    for _ in range(ITERATIONS):
        residual = (values - effects - rounds) * mask
        spread = np.hypot(scale, WAIT_ERROR * waits) if one_sided else np.broadcast_to(scale, y.shape)
        clean = _chance_clean(residual, spread, rate, one_sided=one_sided) * mask
        weights = clean * np.square(scale / spread)
        effects = ((values - rounds) * weights).sum(0) / np.maximum(weights.sum(0), 1e-9)
        total = weights.sum(1, keepdims=True)
        rounds = ((values - effects) * weights).sum(1, keepdims=True) / (total + RIDGE)
        residual = (values - effects - rounds) * mask
        used = float((total / (total + RIDGE)).sum()) - 1.0
        squares = (weights * np.square(residual)).sum(0)
        df = max(float(clean.sum()) - arms - used, 0.0)
        pooled = max(math.sqrt((float(squares.sum()) + prior_scale**2) / (df + 1.0)), floor)
        own_df = np.maximum(clean.sum(0) - 1 - used / arms, 0.0)
        scale = _own_scale(squares, own_df, pooled, noisier=False)
        if one_sided:
            scale = np.minimum(scale, CAP)
        for group in groups:
            size = float(group.sum())
            share = (float((1 - clean)[group].sum()) + PRIOR * prior[group]) / (size + PRIOR)
            rate = rate.copy()
            rate[group] = np.clip(share, 0.0, 0.9)
    pooled = max(math.sqrt((float(squares.sum()) + OBS*rough**2) / (df + OBS)), floor)
    laplacian = np.diag(weights.sum(0)) - (weights / (weights.sum(1, keepdims=True) + RIDGE)).T @ weights
    return Fit(
        effects=effects,
        rounds=rounds[:, 0],
        covariance=np.linalg.pinv(laplacian + 1e-9 * np.eye(arms), hermitian=True),
        variance=INFLATION * np.square(_own_scale(squares, own_df, pooled, noisier=True)),
        df=df,
        residuals=np.where(seen, residual, np.nan),
        weights=weights,
    )


def _chance_clean(residual: Array, spread: Array, rate: Array, *, one_sided: bool) -> Array:
    """Posterior probability that each sample is clean."""
    clean = (1 - rate) * np.exp(-0.5 * np.square(residual / spread)) / (spread * math.sqrt(2 * math.pi))
    other = STRAY * np.exp(-np.abs(residual) / (4 * spread)) / (8 * spread)
    if one_sided:
        other += rate * np.where(residual > 0, np.exp(-np.maximum(residual, 0.0) / LENGTH) / LENGTH, 0.0)
    return clean / (clean + other + 1e-300)


def _own_scale(squares: Array, df: Array, pooled: float, *, noisier: bool) -> Array:
    """Standard deviation of each arm, shrunk to the pooled one; with ``noisier``, not if it is clearly larger."""
    own = np.where(df > 0, squares / np.maximum(df, 1e-9), pooled**2)
    shrunk = (own * df + POOLING * pooled**2) / (df + POOLING)
    return np.sqrt(np.where(noisier & (own > 2 * pooled**2) & (df > 1), np.maximum(own, shrunk), shrunk))


def _fastest(y: Array, waits: Array) -> Array:
    """Mean of the fastest quarter of each arm, where a wait counts as a little slower: the start of a one-sided fit."""
    ranked = np.sort(np.where(np.isfinite(y), y + 0.3 * waits / (waits + 0.1), np.inf), axis=0)
    count = np.maximum(1, np.ceil(np.isfinite(y).sum(0) / 4))
    first = np.arange(len(y))[:, None] < count
    return np.where(first, np.where(np.isfinite(ranked), ranked, 0.0), 0.0).sum(0) / count


def _rough_scale(y: Array, *, one_sided: bool, floor: float) -> float:
    """A spread that disturbance hardly moves: of the deviations below the arms' medians when it only adds, else of all.

    It counts as one observation of the pooled variance. Without it a mixture may settle on a few samples that happen
    to agree and call all others disturbed.
    """
    deviations = y - np.nanmedian(y, axis=0)
    below = deviations[deviations < 0] if one_sided else deviations[np.isfinite(deviations)]
    return max(1.3 * MAD * float(np.median(np.abs(below))), floor) if below.size else floor
