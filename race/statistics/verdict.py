"""From the record of the finals to the standings: who wins, with which numbers and how surely."""

from __future__ import annotations

import math
from statistics import median

import numpy as np

from race.statistics.boundary import t_quantile
from race.statistics.cautions import Caution, Measured, cautions
from race.statistics.decision import Decision, Looks, deviates, draws
from race.statistics.fit import Fit
from race.statistics.mixture import Array
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
    winner, tied, why = (
        (None, [], "nobody better")
        if fit is None or decision is None
        else _winner(record, fit, decision, looks)
    )
    claimed = winner is not None and decision is not None and decision.outcome == "claimed"
    significant = claimed and (why == "decided" or record.rule.require_improvement)
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
        warnings=_warnings(record, fit, decision, looks, why),
    )


def _winner(record: Record, fit: Fit, decision: Decision, looks: Looks) -> tuple[int | None, list[int], Why]:
    """Who wins, who is tied with the winner, and why."""
    required = record.rule.require_improvement
    leader, rivals = decision.leader, [arm for arm in decision.rivals if arm]
    gain = fit.effects[0] - fit.effects
    ahead = gain > record.rule.margin
    if decision.outcome == "no better" or (decision.outcome is not None and required and not ahead[leader]):
        return None, [], "nobody better"
    beats_base = (
        record.states[0] != "live" or deviates(fit, leader)[0] >= looks.drop or decision.outcome == "claimed"
    )
    if required and not (ahead[leader] and beats_base):
        return None, [], "budget"
    if decision.outcome == "claimed":
        alone = sum(state != "rejected" for state in record.states[1:]) == 1
        return leader, [], "only candidate" if alone else "decided"
    if decision.outcome == "tied":
        tied = [leader, *(arm for arm in rivals if ahead[arm] or not required)]
        best = min(tied, key=lambda arm: (record.entrants[arm].size, float(fit.effects[arm])))
        return best, [arm for arm in (leader, *rivals) if arm != best], "practical tie"
    return leader, rivals, "budget"


def _warnings(
    record: Record, fit: Fit | None, decision: Decision | None, looks: Looks, why: Why
) -> tuple[Caution, ...]:
    """What looks wrong with the samples."""
    if fit is None:
        return ()
    y, waits = record.table()
    undecided = None
    if why == "budget" and decision is not None:
        _, error = fit.against(decision.leader)
        rivals = decision.rivals or (0,)
        undecided = looks.claim * max(float(error[arm]) for arm in rivals)
    first = [record.rule.effect(kept[0]) if kept else math.nan for kept in record.warmup]
    return cautions(
        Measured(
            names=[entrant.name for entrant in record.entrants],
            y=y,
            first=np.array(first),
            waits=waits,
            fit=fit,
            margin=record.rule.margin,
            log=record.rule.scale == "log",
            undecided=undecided,
            enough=min(3, record.rule.min_rounds),
        )
    )


def _chances(
    record: Record, fit: Fit | None, winner: int | None, why: Why, rng: np.random.Generator
) -> tuple[Array, float]:
    """Probability of each arm to be the best, and the confidence of `Standings`."""
    chances = np.zeros(len(record.entrants))
    known = (
        [] if fit is None else [arm for arm in range(len(record.entrants)) if math.isfinite(fit.effects[arm])]
    )
    if fit is None or not known:
        return chances, 1.0
    if fit.df <= 0:
        chances[known] = 1 / len(known)
        return chances, 1 / len(known)
    drawn = draws(fit, known, rng)
    best = np.asarray(drawn.argmin(1), np.intp)
    chances[known] = np.bincount(best, minlength=len(known)) / len(drawn)
    if winner is not None and why != "practical tie":
        return chances, float(chances[winner])
    favourite = 0 if winner is None else winner
    if favourite not in known:
        return chances, 1.0
    near = np.asarray(drawn[:, known.index(favourite)] - record.rule.margin < drawn.min(1), np.float64)
    return chances, float(near.mean())


def _standing(record: Record, fit: Fit | None, arm: int, winner: int | None, chance: float) -> Standing:
    """What there is to say of one arm."""
    samples = record.samples[arm]
    known = fit if fit is not None and math.isfinite(fit.effects[arm]) else None
    sure = known if known is not None and known.df > 0 else None
    return Standing(
        name=record.entrants[arm].name,
        state=record.states[arm],
        reason=record.reasons[arm],
        rounds=len(samples),
        values=tuple(s.value for s in samples),
        waits=tuple(s.wait for s in samples),
        warmup=tuple(s.value for s in record.warmup[arm]),
        median=median(s.value for s in samples) if samples else None,
        fitted=None if known is None else record.rule.value(float(known.effects[arm])),
        spread=None if sure is None else float(sure.scale[arm]),
        vs_base=None if sure is None else _speedup(record, sure, arm, 0),
        vs_winner=None if sure is None or winner is None else _speedup(record, sure, arm, winner),
        p_best=chance,
    )


def _speedup(record: Record, fit: Fit, arm: int, over: int) -> Speedup:
    """How many times better one arm is than another."""
    difference, error = fit.against(arm)
    reach = t_quantile(0.5 + record.rule.confidence / 2, fit.df) * float(error[over])
    at, gap = float(fit.effects[over]), float(difference[over])
    low, estimate, high = (record.rule.ratio(at, gap + step) for step in (-reach, 0.0, reach))
    return Speedup(estimate, low, high)
