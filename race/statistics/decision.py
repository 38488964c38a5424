"""What a fit allows to be concluded: who leads, who is beaten, and whether more rounds are worth while.

A race of candidates in which the beaten leave early (Maron and Moore 1994, "Hoeffding races"; Birattari et al. 2002,
F-race, GECCO) with an indifference zone (Kim and Nelson 2001, "A fully sequential procedure for indifference-zone
selection in simulation", ACM TOMACS): differences too small to matter end the race, they do not prolong it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from race.statistics.boundary import boundary, normal_deviate, t_quantile
from race.statistics.fit import Fit
from race.statistics.mixture import Array

Outcome: TypeAlias = Literal["claimed", "tied", "no better"]


AGREEING: Final = 1.8
"""Undisturbed samples that an arm must have for anything to be sure of it: two, each hardly in doubt."""


@dataclass(frozen=True, slots=True)
class Looks:
    """When the data are looked at, and how sure a conclusion has to be.

    Attributes:
        first: the first round after which anything is concluded.
        last: the last round.
        level: accepted probability of a false claim.
        arms: how many arms there were at the start.
    """

    first: int
    last: int
    level: float
    arms: int

    @property
    def claim(self) -> float:
        """Normal deviate by which every rival must trail for the leader to be claimed the strictly best.

        No correction for having chosen the leader is needed: Gutmann and Maymin 1987, "Is the selected population the
        best?", Annals of Statistics 15. Samples are not normal, and neighbours make them less so: in the simulator
        half of the level is spent when it is to hold.
        """
        return boundary(max(self.first, 2), max(self.last, 2), 0.55 * self.level)

    @property
    def drop(self) -> float:
        """Normal deviate by which an arm is beaten, whichever of the others beats it (Bonferroni)."""
        return boundary(max(self.first, 2), max(self.last, 2), self.level / max(self.arms - 1, 1))


@dataclass(frozen=True, slots=True)
class Decision:
    """What one look at the data says.

    Attributes:
        leader: the arm with the least effect among those that may win.
        beaten: arms that the leader beat.
        outcome: ``"claimed"``: the leader is the strictly best; ``"tied"``: no rival is worse by more than the
            indifference; ``"no better"``: no candidate is better than the base by more than it; None: undecided.
        rivals: the arms that are still in it with the leader (for a tie: the others that are tied).
    """

    leader: int
    beaten: tuple[int, ...]
    outcome: Outcome | None
    rivals: tuple[int, ...]


def decide(
    fit: Fit, contenders: Sequence[int], looks: Looks, *, base: int | None, indifference: float
) -> Decision:
    """Look at the fit once.

    Args:
        fit: of all arms, including those that have left.
        contenders: the arms that may still win.
        looks: the plan of looks.
        base: the arm that has to be beaten, if it is among the contenders.
        indifference: a difference that does not matter, in units of the effects.
    """
    leader = min(contenders, key=lambda arm: float(fit.effects[arm]))
    others = [arm for arm in contenders if arm != leader]
    z = deviates(fit, leader)
    beaten = tuple(arm for arm in others if z[arm] >= looks.drop)
    rivals = tuple(arm for arm in others if arm not in beaten)
    outcome: Outcome | None = None
    difference, error = fit.against(leader)
    reach = t_quantile(1 - looks.level, fit.df)
    if all(z[arm] >= looks.claim for arm in others):
        outcome, rivals = "claimed", ()
    elif fit.df >= 1 and all(difference[arm] + reach * error[arm] < indifference for arm in rivals):
        outcome = "tied"
    if base is not None and base in contenders and fit.df >= 1 and outcome != "claimed":
        difference, error = fit.against(base)
        candidates = [arm for arm in contenders if arm != base and arm not in beaten]
        if all(difference[arm] - reach * error[arm] > -indifference for arm in candidates):
            outcome = "no better"
    return Decision(leader, beaten, outcome, rivals)


def deviates(fit: Fit, leader: int) -> Array:
    """How surely each arm is worse than the leader, in normal deviates; below 0 where it is not worse at all.

    Nothing is sure of an arm that has hardly any undisturbed samples: a single one shows no level.
    """
    difference, error = fit.against(leader)
    if fit.df <= 0 or fit.clean[leader] < AGREEING:
        return np.zeros_like(difference)
    t = difference / np.maximum(error, 1e-300)
    sure = np.where(difference > 0, normal_deviate(np.minimum(t, 1e100), fit.df), -1.0)
    return np.asarray(np.where(fit.clean < AGREEING, np.minimum(sure, 0.0), sure))


def draws(fit: Fit, arms: Sequence[int], rng: np.random.Generator, count: int = 4000) -> Array:
    """(count, len(arms)) plausible effects given the data: a multivariate t around the estimates."""
    some = np.asarray(arms)
    values, vectors = np.linalg.eigh(fit.covariance[np.ix_(some, some)])
    root = vectors * np.sqrt(np.clip(values, 0, None))
    normal = rng.standard_normal((count, len(some))) @ root.T
    df = max(fit.df, 1.0)
    return np.asarray(fit.effects[some] + normal * np.sqrt(df / rng.chisquare(df, (count, 1))))
