"""Clean noise or disturbance: a mixture fitted to samples in rounds by expectation-maximisation.

A sample is ``round + arm + noise``, and its noise is of one of two kinds (Dempster, Laird and Rubin 1977 for the
iteration). *Clean* noise is normal, with a spread of its own for each arm, shrunk to a common one (Smyth 2004).
*Disturbance*, on a machine that others use too, only ever adds time, and may be large. The share of disturbed samples
is learnt from the data, apart for samples that waited for a processor and for those that did not, so that it shows
whether taking the waits out was enough (for programs that are bound by memory it is not).

The constants were found on simulated machines (`benchmarks.finals.simulate`); none of them is delicate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

ITERATIONS: Final = 12
WAIT_ERROR: Final = 0.1
"""Standard deviation, per unit of wait, of what is left of a wait after it was taken out; worth PRIOR samples."""
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
"""Most of what the variance of clean noise may be over that of the rounds: how far their shifts are drawn to 0."""
TIGHT: Final = 0.05
"""A one-sided fit starts from a spread of at most this: from a wide one it may end by calling everything clean."""
WIDE: Final = 2.0
"""A two-sided fit starts from the rough spread times this: from less it may call half of a few samples strays."""
SHARP: Final = 0.1
"""While a one-sided fit iterates, it may find noise down to about this share of the rough spread."""
SHIFT: Final = 0.01
"""A shift of a round that is nothing special, on the log scale; larger ones cost likelihood (a Cauchy prior)."""
POOLING: Final = 8.0
"""Degrees of freedom of the pooled variance that an arm's own is shrunk by."""
LEAST: Final = 1e-6
"""What the least likely sample still counts, so that no arm is left without a level."""
MAD: Final = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What is fitted: (R, A) values and waits, 0 where nothing was measured.

    Attributes:
        values: smaller is better.
        waits: share of its time that each sample waited for a processor, already taken out of its value.
        seen: where something was measured.
        one_sided: disturbance only adds.
        floor: the least spread to believe in.
    """

    values: Array
    waits: Array
    seen: Mask
    one_sided: bool
    floor: float

    def spread(self, scale: Array, error: float) -> Array:
        """(R, A) standard deviation of each sample, when clean."""
        return np.hypot(scale, error * self.waits)


@dataclass(frozen=True, slots=True)
class Settled:
    """Where an iteration came to rest; A arms, R rounds.

    Attributes:
        effects: (A,) levels.
        rounds: (R, 1) shifts.
        clean: (R, A) chance of each sample to be clean.
        scale: (A,) standard deviation of clean noise, with the rough one counted in.
        error: standard deviation, per unit of wait, of what is left of a wait after it was taken out.
        ridge: precision of the prior of the rounds.
        df: degrees of freedom that the scales come from.
        score: log-likelihood, less what the shifts of the rounds cost.
    """

    effects: Array
    rounds: Array
    clean: Array
    scale: Array
    error: float
    ridge: float
    df: float
    score: float


def settle(samples: Samples, start: Array, rounds: Array, *, odd: Mask) -> Settled:
    """Iterate to rest.

    Args:
        samples: to fit.
        start: (R, A) the samples without the shifts of the rounds, NaN where there is none; the levels to start from.
        rounds: (R, 1) those shifts.
        odd: (A,) arms that start from the spread that they seem to have, and share it with no other.
    """
    mask, one_sided, floor = samples.seen.astype(np.float64), samples.one_sided, samples.floor
    effects = fastest(start, samples.waits) if one_sided else np.asarray(np.nanmedian(start, axis=0))
    rough, apart = rough_scales(start, one_sided=one_sided, floor=floor)
    scale = np.where(odd, apart, min(rough, TIGHT) if one_sided else WIDE * rough)
    rate = prior = np.where(samples.waits > WAITED, SUSPECT, DISTURBED) * mask * one_sided
    pooled, ridge, df, error = rough, RIDGE / rough**2, 0.0, WAIT_ERROR
    clean, density = mask, mask
    squares = own_df = np.zeros(mask.shape[1])
    for _ in range(ITERATIONS):
        spread = samples.spread(scale, error)
        likely, density = _densities(
            (samples.values - effects - rounds) * mask, spread, rate, one_sided=one_sided
        )
        clean = np.maximum(likely / (density + 1e-300), LEAST) * mask
        precision = clean / np.square(spread)
        effects = ((samples.values - rounds) * precision).sum(0) / precision.sum(0)
        total = precision.sum(1, keepdims=True)
        rounds = ((samples.values - effects) * precision).sum(1, keepdims=True) / (total + ridge)
        squares = (precision * np.square((samples.values - effects - rounds) * mask)).sum(0) * np.square(
            scale
        )
        used = max(float((total / (total + ridge)).sum()) - 1.0, 0.0)
        own_df = np.maximum(clean.sum(0) - 1.0 - used / len(effects), 0.0)
        df = max(float(clean.sum()) - len(effects) - used, 0.0)
        pooled = _pooled(squares[~odd], own_df[~odd], rough * (SHARP if one_sided else 1.0), floor)
        scale = _own_scale(squares, own_df, pooled, alone=odd)
        ridge = min(RIDGE / pooled**2, rounds.size / max(float(np.square(rounds).sum()), 1e-300))
        left = (samples.values - effects - rounds) * mask
        error = _wait_error(samples, left, clean, scale, max(df, 1.0) / max(float(clean.sum()), 1.0))
        rate = _shares(samples, clean, prior)
    score = float((np.log(density + 1e-300) * mask).sum() - np.log1p(np.square(rounds / SHIFT)).sum())
    pooled = _pooled(squares[~odd], own_df[~odd], rough, floor)
    own = squares / np.maximum(own_df, 1e-9)
    scale = _own_scale(squares, own_df, pooled, alone=odd | ((own > 2 * pooled**2) & (own_df > 1)))
    return Settled(effects, rounds, clean, scale, error, ridge, df, score)


def _densities(residual: Array, spread: Array, rate: Array, *, one_sided: bool) -> tuple[Array, Array]:
    """Density of each sample as a clean one, and of both kinds together."""
    clean = (1 - rate) * np.exp(-0.5 * np.square(residual / spread)) / (spread * math.sqrt(2 * math.pi))
    other = STRAY * np.exp(-np.abs(residual) / (4 * spread)) / (8 * spread)
    if one_sided:
        other += rate * np.where(residual > 0, np.exp(-np.maximum(residual, 0.0) / LENGTH) / LENGTH, 0.0)
    return np.asarray(clean), np.asarray(clean + other)


def _wait_error(samples: Samples, residual: Array, clean: Array, scale: Array, share: float) -> float:
    """The error of waits, by moments: what the squares of clean residuals have beyond the spread of their arms.

    ``share`` of the variance is left in residuals after fitting.
    """
    waits = np.square(samples.waits) * clean
    known = float(waits.sum())
    typical = known / max(float(clean[samples.waits > WAITED].sum()), 1.0)
    beyond = float(
        (clean * (samples.waits > WAITED) * (np.square(residual) / share - np.square(scale))).sum()
    )
    return math.sqrt(max(beyond + PRIOR * typical * WAIT_ERROR**2, 0.0) / max(known + PRIOR * typical, 1e-12))


def _shares(samples: Samples, clean: Array, prior: Array) -> Array:
    """(R, A) share of disturbed samples of the kind of each."""
    rate = prior.copy()
    waited = samples.waits > WAITED
    for group in (samples.seen & waited, samples.seen & ~waited):
        size = float(group.sum())
        share = (float((1 - clean)[group].sum()) + PRIOR * prior[group]) / (size + PRIOR)
        rate[group] = np.minimum(share, 0.9) * samples.one_sided
    return rate


def _pooled(squares: Array, df: Array, rough: float, floor: float) -> float:
    """Standard deviation over arms, the rough one counting as one observation.

    Without that a mixture may settle on a few samples that happen to agree and call all others disturbed.
    """
    return max(math.sqrt((float(squares.sum()) + rough**2) / (float(df.sum()) + 1.0)), floor)


def _own_scale(squares: Array, df: Array, pooled: float, *, alone: Mask) -> Array:
    """Standard deviation of each arm, shrunk to the pooled one; not that of arms that stand alone."""
    own = np.where(df > 0, squares / np.maximum(df, 1e-9), pooled**2)
    shrunk = (own * df + POOLING * pooled**2) / (df + POOLING)
    return np.asarray(np.sqrt(np.where(alone, np.maximum(own, shrunk), shrunk)))


def rough_rounds(y: Array, waits: Array, *, one_sided: bool) -> Array:
    """The shift of each round to start from: what most arms, or if disturbance only adds a quarter of them, share."""
    if one_sided:
        excess = y - fastest(y, waits)
        shifts = np.nanquantile(excess, 0.25, axis=1, keepdims=True, method="lower")
    else:
        shifts = np.nanmedian(y - np.nanmedian(y, axis=0), axis=1, keepdims=True)
    return np.asarray(shifts - np.median(shifts), np.float64)


def fastest(y: Array, waits: Array) -> Array:
    """Mean of the fastest quarter of each arm, where waiting counts as slower: the start of a one-sided fit."""
    ranked = np.sort(np.where(np.isfinite(y), y + 0.3 * waits / (waits + 0.1), np.inf), axis=0)
    count = np.maximum(1, np.ceil(np.isfinite(y).sum(0) / 4))
    first = np.arange(len(y))[:, None] < count
    return np.asarray(np.where(first, ranked, 0.0).sum(0) / count)


def rough_scales(y: Array, *, one_sided: bool, floor: float) -> tuple[float, Array]:
    """A spread over all arms that disturbance hardly moves, and a spread of each arm that is no less.

    When disturbance only adds, both are of the deviations below the arms' medians. Deviations of exactly 0 are left
    out: they are the medians themselves.
    """
    deviations: Array = y - np.nanmedian(y, axis=0)
    if one_sided:
        deviations = np.where(deviations < 0, deviations, np.nan)
    sizes: Array = 1.3 * MAD * np.abs(deviations)
    some = sizes[np.isfinite(sizes) & (sizes > 0)]
    rough = max(float(np.median(some)), floor) if some.size else floor
    own = [float(np.median(c[np.isfinite(c)])) if np.isfinite(c).any() else 0.0 for c in sizes.T]
    return rough, np.maximum(rough, np.array(own))
