"""The finals: all eligible candidates and the base measured against each other until it is known who wins.

After a warm-up that is thrown away come rounds. In a round everybody who is still in it is measured once, in random
order, so that drift and busy neighbours meet all alike. After each round the clearly beaten leave, and the finals end
when one is claimed the best, when what is left does not differ enough to matter, when nobody can be better than the
base, or when the budget is spent. `benchmarks.finals.simulate` measures how often this is right, and at what cost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import numpy as np

from race.errors import Rejected
from race.scoring import Sample
from race.statistics.decision import Decision, Looks, decide
from race.statistics.record import Record
from race.statistics.rule import MANY, Entrant, Rule
from race.statistics.standings import Speedup, Standing, Standings
from race.statistics.verdict import judge

__all__ = ["Entrant", "Measure", "Rule", "Speedup", "Standing", "Standings", "finals"]

Measure: TypeAlias = Callable[[Entrant, int, int], Awaitable[Sample]]
"""``await measure(entrant, round, seed)`` takes one sample. Rounds count from 0, the first of the warm-up; the seed is
the same for everybody in a round. Raising `race.errors.Rejected` says that the entrant has no number, and why."""


async def finals(
    entrants: Sequence[Entrant], measure: Measure, rule: Rule, rng: np.random.Generator
) -> Standings:
    """Measure until it is known who wins.

    Args:
        entrants: the base first, then the candidates. Without a candidate nothing is measured.
        measure: takes one sample; one call at a time.
        rule: when to stop, and what counts as better.
        rng: for the orders of the rounds and their seeds: the same generator and the same samples give the same
            standings.

    Raises:
        ValueError: nobody entered, or two of the same name.
        Rejected: the base has no number.
        Exception: whatever else ``measure`` raises.
    """
    if not entrants or len({e.name for e in entrants}) != len(entrants):
        message = f"the entrants are {[e.name for e in entrants]!r}; there must be a base, and no name twice"
        raise ValueError(message)
    record = Record(entrants, rule)
    many = len(entrants) > MANY
    last = rule.max_rounds * (2 if many else 1)
    looks = Looks(first=rule.min_rounds, last=last, level=1 - rule.confidence, arms=len(entrants))
    for number in range(rule.warmup):
        if record.candidates:
            await _round(record, measure, number, rng)
    decision: Decision | None = None
    while record.candidates and record.rounds < last:
        if record.rounds and _spent(record, rule, most_runs=rule.runs_each * len(entrants) if many else None):
            break
        await _round(record, measure, rule.warmup + record.rounds, rng, counts=True)
        if not record.candidates:
            break
        decision = None
        if record.rounds >= rule.min_rounds:
            if not rule.require_improvement:
                record.leave(0, "measured often enough")
            decision = decide(record.fit(), record.contenders, looks, base=0, indifference=rule.margin)
            for arm in decision.beaten:
                record.beat(arm, decision.leader)
            if decision.outcome is not None:
                break
    if decision is None and record.candidates and record.rounds:
        decision = decide(record.fit(), record.contenders, looks, base=0, indifference=rule.margin)
    return judge(record, decision, looks, rng)


async def _round(
    record: Record, measure: Measure, number: int, rng: np.random.Generator, *, counts: bool = False
) -> None:
    """Measure everybody who is still in it once, in random order."""
    seed = int(rng.integers(2**31))
    if counts:
        record.begin_round()
    live = record.live
    for place in rng.permutation(len(live)):
        arm = live[int(place)]
        entrant = record.entrants[arm]
        try:
            sample = await measure(entrant, number, seed)
        except Rejected as rejected:
            if arm == 0:
                message = f"the base {entrant.name!r} has no number: {rejected}"
                raise Rejected(message) from rejected
            record.reject(arm, str(rejected))
        else:
            record.add(arm, sample, counts=counts)


def _spent(record: Record, rule: Rule, *, most_runs: int | None) -> bool:
    """Whether another round would be beyond the budget of runs or of seconds."""
    if most_runs is not None and record.runs + len(record.live) > most_runs:
        return True
    return record.seconds + record.seconds_of_a_round > rule.seconds
