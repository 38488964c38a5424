"""How large a difference must be to act on it after any of several looks at the data; Student's t.

Looking after every round and stopping at the first "significant" difference finds one where there is none far more
often than the level says; a boundary for the largest of all looks does not (Pocock 1977, "Group sequential methods in
the design and analysis of clinical trials", Biometrika 64). The boundary is found by simulation with a fixed seed.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

PATHS: Final = 20_000


def normal_quantile(probability: float) -> float:
    """The value that a standard normal variable is below with this probability."""
    return NormalDist().inv_cdf(probability)


def t_quantile(probability: float, df: float) -> float:
    """The value that Student's t is below with this probability, from df = 2 on to within 2 %.

    Expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5), in the normal quantile.
    """
    z, n = normal_quantile(probability), max(df, 2.0)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def normal_deviate(
    t: npt.NDArray[np.float64], df: npt.NDArray[np.float64] | float
) -> npt.NDArray[np.float64]:
    """Standard normal deviates with the same tails as these |t|: Wallace 1959, Annals of Math. Statistics 30."""
    return np.asarray((8 * df + 1) / (8 * df + 3) * np.sqrt(df * np.log1p(np.square(t) / df)))


@lru_cache(maxsize=256)
def boundary(first: int, last: int, level: float) -> float:
    """What the largest of several looks at a paired t-test exceeds with probability ``level`` if nothing differs.

    The looks are after each of the rounds ``first`` (at least 2) to ``last``; the test is two-sided;
    the value is a normal deviate.
    """
    rounds = np.arange(1, last + 1)
    x = np.random.default_rng(1).standard_normal((PATHS, last))
    mean = np.cumsum(x, 1) / rounds
    looks = slice(first - 1, None)
    variance = (np.cumsum(x * x, 1) - rounds * mean**2)[:, looks] / (rounds - 1)[looks]
    t = mean[:, looks] / np.sqrt(variance / rounds[looks])
    largest = normal_deviate(t, (rounds - 1)[looks].astype(np.float64)).max(1)
    return float(np.quantile(largest, 1 - level))
