"""Finals whose winner is measured once more before it is announced.

Of many candidates the one that was measured best was also lucky: its estimate is too good (the winner's curse). That of
later rounds, with seeds that nobody has seen, is not. If most of the gain is gone then, it was decided too early, and
the finals go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from race.errors import Rejected
from race.finals import Entrant, Measure, Rule, Standings, finals
from race.scoring import Sample
from race.statistics.boundary import t_quantile
from race.verdict import Speedup

ROUNDS: Final = 2
"""In which the winner and the base are measured once more. The spread of a sample is known by then."""

WHOLE: Final = 100
"""Ratios from this one on are written without decimals."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """How the finals ended.

    Attributes:
        standings: of those that were not excluded.
        speedup: how many times better than the base the winner was when it was measured once more; None without a
            winner, or if its spread is not known.
        rule: by which they were held in the end.
    """

    standings: Standings
    speedup: Speedup | None
    rule: Rule

    @property
    def disagreement(self) -> str:
        """What to say when the winner turned out to be worth less than the finals made of it; nothing if it did not."""
        return _disagreement(self.standings, self.speedup)


async def confirmed_finals(
    entrants: Sequence[Entrant],
    measure: Measure,
    rule: Rule,
    rng: np.random.Generator,
    *,
    exclude: Callable[[Standings, str], None],
    objection: Callable[[str], str] = lambda _: "",
    settle: Callable[[Standings], Standings] = lambda standings: standings,
) -> Confirmed:
    """Hold the finals, and measure the winner once more.

    Who wins is asked again without one that is excluded; what was measured is not measured again.

    Args:
        entrants: see `race.finals.finals`.
        measure: likewise.
        rule: likewise.
        rng: likewise.
        exclude: told of standings whose winner may not win after all, and why.
        objection: why an entrant may not win; empty if it may.
        settle: looks at the standings otherwise, where rounds alone do not decide.

    Raises:
        Rejected: the base has no number.
        Exception: whatever else ``measure`` raises.
    """
    live = list(entrants)
    again = _remembering(measure)
    while True:
        standings = settle(await finals(live, again, rule, rng))
        speedup: Speedup | None = None
        reason = "" if standings.winner is None else objection(standings.winner)
        if not reason:
            speedup, reason = await _once_more(standings, again, rule, rng)
        if reason:
            exclude(standings, reason)
            live = [each for each in live if each.name != standings.winner]
        elif _stands(standings, speedup) or rule.min_rounds == rule.max_rounds:
            return Confirmed(standings, speedup, rule)
        else:  # decided too early, as when a benchmark has two levels and met one of them each time
            rule = replace(rule, min_rounds=min(2 * standings.rounds, rule.max_rounds))


async def _once_more(
    standings: Standings, measure: Measure, rule: Rule, rng: np.random.Generator
) -> tuple[Speedup | None, str]:
    """What the winner is worth when it is measured once more, or why it cannot win.

    The spread of a sample is taken from the finals, which have measured it more often.
    """
    if standings.winner is None:
        return None, ""
    base, winner = standings.entrants[0], standings[standings.winner]
    pairs: list[tuple[float, float]] = []
    for extra in range(ROUNDS):
        number = rule.warmup + standings.rounds + extra
        seed = int(rng.integers(1 << 31))
        effects: dict[str, float] = {}
        for name in (base.name, winner.name) if rng.random() < 0.5 else (winner.name, base.name):  # noqa: PLR2004
            try:
                effects[name] = rule.effect(await measure(Entrant(name), number, seed))
            except Rejected as e:
                if name == base.name:
                    raise
                return None, f"it won, and failed when it was measured once more: {e}"
        pairs.append((effects[base.name], effects[winner.name]))
    at = math.fsum(b for b, _ in pairs) / len(pairs)
    gap = at - math.fsum(w for _, w in pairs) / len(pairs)
    if base.spread is None or winner.spread is None:
        return None, ""
    df = max(base.rounds + winner.rounds - 2, 1)
    reach = t_quantile(0.975, df) * float(np.hypot(base.spread, winner.spread)) / math.sqrt(len(pairs))
    low, middle, high = (rule.ratio(at, gap + step) for step in (-reach, 0.0, reach))
    return Speedup(vs_base=middle, low=low, high=high), ""


def _stands(standings: Standings, confirmed: Speedup | None) -> bool:
    """Whether most of what the winner gained is still there when it is measured once more."""
    winner = standings[standings.winner] if standings.winner else None
    if (
        confirmed is None
        or winner is None
        or winner.vs_base is None
        or not _disagreement(standings, confirmed)
    ):
        return True
    return math.log(max(confirmed.low, 1e-9)) > math.log(max(winner.vs_base.low, 1e-9)) / 2


def _disagreement(standings: Standings, confirmed: Speedup | None) -> str:
    winner = standings[standings.winner] if standings.winner else None
    if confirmed is None or winner is None or winner.vs_base is None or confirmed.high >= winner.vs_base.low:
        return ""
    ratios = (confirmed.vs_base, winner.vs_base.low, winner.vs_base.high)
    times = [f"{ratio:,.0f}" if ratio >= WHOLE else f"{ratio:.3g}" for ratio in ratios]
    return (
        f"winner's curse ({winner.name}): measured once more it is {times[0]} times as good as the base, where the "
        f"finals found {times[1]} to {times[2]}; believe the later number"
    )


def _remembering(measure: Measure) -> Measure:
    """A measure that gives its answers again, in their order for each entrant, when the finals are held once more."""
    known: dict[tuple[str, int], Sample | Rejected] = {}

    async def again(entrant: Entrant, number: int, seed: int) -> Sample:
        key = entrant.name, number
        if key not in known:
            try:
                known[key] = await measure(entrant, number, seed)
            except Rejected as e:
                known[key] = e
        found = known[key]
        if isinstance(found, Rejected):
            raise found
        return found

    return again
