"""Paired ratios to the base: of metrics that must not get worse, of each workload, and of cases that pass or fail."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from race.scoring import Goal
from race.statistics.boundary import t_quantile


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better than the base, from samples that were taken in the same rounds.

    Attributes:
        estimate: the median of the ratios; above 1 is better, whatever the goal.
        low: the lower end of the 95 % interval of their geometric mean; 0 when there is a single one.
        high: its upper end; infinite likewise.
        rounds: how many.
    """

    estimate: float
    low: float
    high: float
    rounds: int

    def is_worse(self, allowed: float) -> bool:
        """Whether it is worse than the base by more than a share, and worse at all beyond doubt."""
        return self.estimate < 1 / (1 + allowed) and (self.high < 1 or self.rounds == 1)


def paired(base: Sequence[float], candidate: Sequence[float], goal: Goal) -> Ratio:
    """Compare values above zero round by round; rounds that only one of them has are left out.

    Raises:
        ValueError: there is no common round.
    """
    rounds = min(len(base), len(candidate))
    if not rounds:
        raise ValueError("there is no round in which both were measured")
    logs = np.log(np.asarray(base[:rounds], float)) - np.log(np.asarray(candidate[:rounds], float))
    if goal == "max":
        logs = -logs
    middle = math.exp(float(np.median(logs)))
    if rounds == 1:
        return Ratio(middle, 0.0, math.inf, 1)
    reach = t_quantile(0.975, rounds - 1) * float(logs.std(ddof=1)) / math.sqrt(rounds)
    mean = float(logs.mean())
    return Ratio(middle, math.exp(mean - reach), math.exp(min(mean + reach, 700.0)), rounds)


def paired_workloads(
    base: Sequence[Mapping[str, float]], candidate: Sequence[Mapping[str, float]], goal: Goal
) -> dict[str, Ratio]:
    """Compare each workload that is in every sample of both."""
    both = [*base, *candidate]
    names = [name for name in both[0] if all(name in parts for parts in both)] if base and candidate else []
    return {n: paired([p[n] for p in base], [p[n] for p in candidate], goal) for n in names}


@dataclass(frozen=True, slots=True)
class Cases:
    """How two compare on the same cases, each of which passes or fails.

    Attributes:
        gained: cases that only the candidate passes.
        lost: cases that only the base passes.
        both: cases that both pass.
        total: all cases that both were asked.
        evidence: the e-value against there being no difference: 20 is as good as p = 0.05, and it may be looked at
            after every case (a beta-binomial mixture over the discordant cases, as of Robbins 1970).
    """

    gained: int
    lost: int
    both: int
    total: int
    evidence: float

    @property
    def difference(self) -> float:
        """In the share of cases that pass; above 0 is better."""
        return (self.gained - self.lost) / self.total if self.total else 0.0


def paired_cases(base: Mapping[str, bool], candidate: Mapping[str, bool]) -> Cases:
    """Compare by case; cases that only one of them was asked are left out.

    Only discordant cases tell two apart (McNemar 1947): those that both pass or both fail say nothing.
    """
    common = [name for name in base if name in candidate]
    gained = sum(candidate[n] and not base[n] for n in common)
    lost = sum(base[n] and not candidate[n] for n in common)
    both = sum(base[n] and candidate[n] for n in common)
    log_e = _betaln(gained + 0.5, lost + 0.5) - _betaln(0.5, 0.5) + (gained + lost) * math.log(2)
    return Cases(gained, lost, both, len(common), math.exp(min(log_e, 700.0)))


def _betaln(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
