"""From the record of the finals to the standings: who wins, with which numbers and how surely."""

from __future__ import annotations

import math
from statistics import median

import numpy as np

from race.statistics.boundary import t_quantile
from race.statistics.decision import Decision, Looks, deviates, draws
from race.statistics.fit import Array, Fit
from race.statistics.record import Record
from race.statistics.standings import Speedup, Standing, Standings, Why


def judge(record: Record, decision: Decision | None, looks: Looks, rng: np.random.Generator) -> Standings:
    """Draw the conclusion.

    Args:
        record: everything that was measured.
        decision: the last look at it; None when no candidate has a number.
        looks: the plan of looks.
        rng: for the draws behind the probabilities.
    """
    fit = record.fit() if any(record.samples) else None
    winner, tied, why = (None, [], "nobody better") if fit is None or decision is None else _winner(record, fit, decision, looks)
    significant = winner is not None and decision is not None and decision.outcome == "claimed" and why == "decided"
    chances, confidence = _chances(record, fit, winner, why, rng)
    names = [entrant.name for entrant in record.entrants]
    return Standings(
        winner=None if winner is None else names[winner],
        tied_with=tuple(names[arm] for arm in tied),
        significant=significant,
        confidence=confidence,
        why=why,
        leader=names[int(np.argmin(fit.effects))] if fit is not None else None,
        rounds=record.rounds,
        runs=record.runs,
        seconds=record.seconds,
        entrants=tuple(
            _standing(record, fit, arm, winner, float(chances[arm])) for arm in range(len(record.entrants))
        ),
        warnings=(),
    )


def _winner(record: Record, fit: Fit, decision: Decision, looks: Looks) -> tuple[int | None, list[int], Why]:
    """Who wins, who is tied with the winner, and why."""
    required = record.rule.require_improvement
    leader, rivals = decision.leader, [arm for arm in decision.rivals if arm]
    gain = fit.effects[0] - fit.effects
    ahead = gain > record.rule.margin
    if decision.outcome == "no better" or (decision.outcome is not None and required and not ahead[leader]):
        return None, [], "nobody better"
    beats_base = record.states[0] != "live" or deviates(fit, leader)[0] >= looks.drop or decision.outcome == "claimed"
    if required and not (ahead[leader] and beats_base):
        return None, [], "budget"
    if decision.outcome == "claimed":
        alone = not required and len([s for s in record.states[1:] if s != "rejected"]) == 1
        return leader, [], "only candidate" if alone else "decided"
    if decision.outcome == "tied":
        tied = [leader, *(arm for arm in rivals if ahead[arm] or not required)]
        best = min(tied, key=lambda arm: (record.entrants[arm].size, float(fit.effects[arm])))
        return best, [arm for arm in (leader, *rivals) if arm != best], "practical tie"
    return leader, rivals, "budget"


def _chances(
    record: Record, fit: Fit | None, winner: int | None, why: Why, rng: np.random.Generator
) -> tuple[Array, float]:
    """Probability of each arm to be the best, and the confidence of `Standings`."""
    chances = np.zeros(len(record.entrants))
    known = [] if fit is None else [arm for arm in range(len(record.entrants)) if math.isfinite(fit.effects[arm])]
    if fit is None or not known:
        return chances, 1.0
    drawn = draws(fit, known, rng)
    chances[known] = np.bincount(drawn.argmin(1), minlength=len(known)) / len(drawn)
    if winner is not None and why != "practical tie":
        return chances, float(chances[winner])
    favourite = 0 if winner is None else winner
    if favourite not in known:
        return chances, 1.0
    return chances, float(np.mean(drawn[:, known.index(favourite)] - record.rule.margin < drawn.min(1)))


def _standing(record: Record, fit: Fit | None, arm: int, winner: int | None, chance: float) -> Standing:
    samples = record.samples[arm]
    known = fit is not None and math.isfinite(fit.effects[arm])
    return Standing(
        name=record.entrants[arm].name,
        state=record.states[arm],
        reason=record.reasons[arm],
        rounds=len(samples),
        values=tuple(s.value for s in samples),
        waits=tuple(s.wait for s in samples),
        warmup=tuple(s.value for s in record.warmup[arm]),
        median=median(s.value for s in samples) if samples else None,
        fitted=record.rule.value(float(fit.effects[arm])) if fit is not None and known else None,
        spread=math.sqrt(fit.variance[arm]) if fit is not None and known else None,
        vs_base=speedup(record, fit, arm, 0) if fit is not None and known else None,
        vs_winner=speedup(record, fit, arm, winner) if fit is not None and known and winner is not None else None,
        p_best=chance,
    )


def speedup(record: Record, fit: Fit, arm: int, over: int) -> Speedup:
    """How many times better one arm is than another."""
    difference, error = fit.against(arm)
    reach = t_quantile(0.5 + record.rule.confidence / 2, fit.df) * error[over]
    at, gap = float(fit.effects[over]), float(difference[over])
    low, estimate, high = (record.rule.ratio(at, gap + step) for step in (-reach, 0.0, reach))
    return Speedup(estimate, low, high)
