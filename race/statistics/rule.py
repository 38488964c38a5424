"""Who is measured, and by which rule: the frozen inputs of the finals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from race.scoring import Goal, Sample

Mode: TypeAlias = Literal["quick", "standard", "thorough"]
Scale: TypeAlias = Literal["log", "linear"]

MANY: Final = 12
"""With more entrants than this few are left after the first rounds, which may then be measured twice as often."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """Somebody to measure.

    Attributes:
        name: of the attempt; unique.
        size: of its change, in any unit; in a practical tie the smallest wins.
    """

    name: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """How the finals are held; `Rule.of` has three ready-made ones.

    Attributes:
        goal: whether less or more is better.
        scale: ``"log"`` compares ratios, for values above zero; ``"linear"`` differences, for scores and shares.
        timelike: whether values grow with the time that a program takes (or, for ``"max"``, fall with it), so that
            waits for a processor may be taken out and disturbance only ever worsens a value. Needs ``"log"``.
        confidence: one minus the accepted probability of a false claim.
        indifference: a difference that does not matter: relative on the log scale, absolute on the linear one.
        warmup: rounds to throw away.
        min_rounds: measured rounds before anybody may leave.
        max_rounds: measured rounds at most; twice as many when there are more than twelve entrants.
        runs_each: the total of samples, in units of entrants, when there are more than twelve.
        seconds: budget of `Sample.seconds`, over all samples; one measured round is always held.
        require_improvement: whether a winner has to be better than the base.
    """

    goal: Goal = "min"
    scale: Scale = "log"
    timelike: bool = True
    confidence: float = 0.95
    indifference: float = 0.01
    warmup: int = 1
    min_rounds: int = 3
    max_rounds: int = 15
    runs_each: int = 10
    seconds: float = math.inf
    require_improvement: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: a field is out of its range.
        """
        if not 0.5 <= self.confidence < 1:  # noqa: PLR2004 - a coin is as sure
            message = f"confidence is {self.confidence!r}; it must be at least 0.5 and below 1"
            raise ValueError(message)
        if not self.indifference > 0:
            message = f"indifference is {self.indifference!r}; it must be above 0"
            raise ValueError(message)
        if not (self.warmup >= 0 and 1 <= self.min_rounds <= self.max_rounds):
            message = (
                f"warmup, min_rounds and max_rounds are {self.warmup!r}, {self.min_rounds!r} and {self.max_rounds!r}; "
                "needed: 0 <= warmup, 1 <= min_rounds <= max_rounds"
            )
            raise ValueError(message)
        if self.timelike and self.scale != "log":
            message = (
                "values that are like times are compared on the log scale: scale='log', or timelike=False"
            )
            raise ValueError(message)

    @staticmethod
    def of(mode: Mode, **overrides: Any) -> Rule:
        """The rule of that name with some fields replaced; fewer ``max_rounds`` mean no more ``min_rounds``.

        Raises:
            ValueError: there is no such mode, or a field is out of its range.
            TypeError: there is no such field.
        """
        if mode not in MODES:
            message = f"mode is {mode!r}; it must be one of {', '.join(MODES)}"
            raise ValueError(message)
        rule = MODES[mode]
        if "max_rounds" in overrides:
            rule = replace(rule, min_rounds=min(rule.min_rounds, max(overrides["max_rounds"], 1)))
        return replace(rule, **overrides)

    @property
    def margin(self) -> float:
        """The indifference in units of `effect`."""
        return math.log1p(self.indifference) if self.scale == "log" else self.indifference

    @property
    def floor(self) -> float:
        """The least spread of samples to believe in: finer than a tenth of what matters is never needed."""
        return self.margin / 10

    def effect(self, sample: Sample) -> float:
        """A sample as the number that is compared: smaller is better, waits taken out.

        Raises:
            ValueError: the value cannot be compared on this scale; the text says why.
        """
        value = sample.value
        if not math.isfinite(value) or (self.scale == "log" and value <= 0):
            message = f"measured {value!r}, which is not a finite number" + " above zero" * (
                self.scale == "log"
            )
            raise ValueError(message)
        if not 0 <= sample.wait < 1:
            message = f"measured a wait of {sample.wait!r}, which is not a share in [0, 1)"
            raise ValueError(message)
        plain = math.log(value) if self.scale == "log" else value
        signed = plain if self.goal == "min" else -plain
        return signed + math.log1p(-min(sample.wait, 0.95)) if self.timelike else signed

    def value(self, effect: float) -> float:
        """The inverse of `effect`, without a wait."""
        signed = effect if self.goal == "min" else -effect
        return math.exp(signed) if self.scale == "log" else signed

    def ratio(self, effect: float, difference: float) -> float:
        """How many times better somebody is whose effect is lower by ``difference`` than one at ``effect``.

        Above 1 is better, whatever the goal.
        """
        if self.scale == "log":
            return math.exp(min(max(difference, -500.0), 500.0))
        there, here = self.value(effect), self.value(effect - difference)
        over, under = (there, here) if self.goal == "min" else (here, there)
        return over / under if under > 0 else math.inf


MODES: Final[dict[Mode, Rule]] = {
    "quick": Rule(indifference=0.02, max_rounds=6, runs_each=6),
    "standard": Rule(),
    "thorough": Rule(indifference=0.005, min_rounds=5, max_rounds=40, runs_each=20),
}
