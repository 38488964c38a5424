"""What the finals found, for everybody who took part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from race.statistics.cautions import Caution

Why: TypeAlias = Literal["decided", "practical tie", "budget", "only candidate", "nobody better"]
State: TypeAlias = Literal["live", "eliminated", "rejected"]


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times better, with an interval at the rule's confidence; above 1 is better whatever the goal."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Standing:
    """One entrant.

    Attributes:
        name: as entered.
        state: ``"live"`` to the end, ``"eliminated"`` when it was clearly beaten (or, the base, seen often enough),
            or ``"rejected"`` when a measurement said that it has no number.
        reason: why it left; empty for who did not.
        rounds: how often it was measured, without the warm-up.
        values: the samples as measured, in the order of the rounds.
        waits: share of each sample's time that was spent waiting for a processor.
        warmup: the samples that were thrown away.
        median: of ``values``; None without any.
        fitted: its value on an undisturbed machine, as fitted; None when it was rejected.
        spread: standard deviation of one undisturbed sample: a share of the value on the log scale, else in its unit;
            None as for the next.
        vs_base: how many times better than the base; None when it was rejected, or after a single round.
        vs_winner: how many times better than the winner, so mostly below 1; None without a winner, and as above.
        p_best: probability that it is the best of all that were not rejected, given the samples.
    """

    name: str
    state: State
    reason: str
    rounds: int
    values: tuple[float, ...]
    waits: tuple[float, ...]
    warmup: tuple[float, ...]
    median: float | None
    fitted: float | None
    spread: float | None
    vs_base: Speedup | None
    vs_winner: Speedup | None
    p_best: float


@dataclass(frozen=True, slots=True)
class Standings:
    """The end of the finals.

    Attributes:
        winner: name of the entrant that won, or None.
        tied_with: who could not be told apart from the winner: in a practical tie those whose difference does not
            matter, at the end of the budget those that might still have been better.
        significant: whether the winner is claimed to be strictly better than everybody else that may win or, with
            `Rule.require_improvement`, than the base.
        confidence: with a winner, the probability that it is the best (in a practical tie: that nobody is better by
            more than the indifference); without one, that no candidate is better than the base by more than it.
        why: ``"decided"``; ``"practical tie"``: what is left does not differ enough to matter, and the smallest change
            won; ``"budget"``: rounds or seconds ran out, so the winner, if any, merely leads (there is none when
            nobody was shown to be better than the base); ``"only candidate"``: like decided, but
            nobody else had a number; ``"nobody better"`` than the base.
        leader: who is best by the numbers, be it the base; None when nobody has any.
        rounds: how many were held, without the warm-up.
        runs: how many samples were taken in all, with the warm-up.
        seconds: that the samples took in all.
        entrants: in the order of entry, the base first.
        warnings: what looked wrong with the samples.
    """

    winner: str | None
    tied_with: tuple[str, ...]
    significant: bool
    confidence: float
    why: Why
    leader: str | None
    rounds: int
    runs: int
    seconds: float
    entrants: tuple[Standing, ...]
    warnings: tuple[Caution, ...]

    def __getitem__(self, name: str) -> Standing:
        """The standing of the entrant of that name.

        Raises:
            KeyError: nobody has it.
        """
        for standing in self.entrants:
            if standing.name == name:
                return standing
        raise KeyError(name)
