"""What was measured so far, and who is still in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from race.errors import Rejected
from race.scoring import Sample
from race.statistics.fit import Fit, fit_rounds
from race.statistics.mixture import Array
from race.statistics.rule import Entrant, Rule
from race.statistics.standings import State


class Record:
    """The samples of the finals by round and entrant ("arm": its number; the base is 0)."""

    def __init__(self, entrants: Sequence[Entrant], rule: Rule) -> None:
        """Begin with everybody in it and nothing measured."""
        self.entrants = tuple(entrants)
        self.rule = rule
        self.states: list[State] = ["live"] * len(entrants)
        self.reasons = [""] * len(entrants)
        self.samples: list[list[Sample]] = [[] for _ in entrants]
        self.warmup: list[list[Sample]] = [[] for _ in entrants]
        self._beaten_by: dict[int, int] = {}
        self._rows: list[Array] = []
        self._waits: list[Array] = []

    @property
    def rounds(self) -> int:
        """How many were begun, without the warm-up."""
        return len(self._rows)

    @property
    def live(self) -> list[int]:
        """Who is still measured."""
        return [arm for arm, state in enumerate(self.states) if state == "live"]

    @property
    def contenders(self) -> list[int]:
        """Who may still win, or keep the others from winning."""
        return [arm for arm in self.live if arm or self.rule.require_improvement]

    @property
    def candidates(self) -> list[int]:
        """Who may still win."""
        return [arm for arm in self.live if arm]

    @property
    def runs(self) -> int:
        """How many samples there are, with the warm-up."""
        return sum(map(len, self.samples)) + sum(map(len, self.warmup))

    @property
    def seconds(self) -> float:
        """How long all samples took."""
        return sum(s.seconds for kept in (self.samples, self.warmup) for arm in kept for s in arm)

    @property
    def seconds_of_a_round(self) -> float:
        """How long another round will take, judged by the mean of each arm's samples."""
        total = 0.0
        for arm in self.live:
            times = [s.seconds for s in self.samples[arm] or self.warmup[arm]]
            total += sum(times) / len(times) if times else 0.0
        return total

    def begin_round(self) -> None:
        """Make room for a round that counts."""
        self._rows.append(np.full(len(self.entrants), np.nan))
        self._waits.append(np.zeros(len(self.entrants)))

    def add(self, arm: int, sample: Sample, *, counts: bool) -> None:
        """Keep a sample; one that cannot be compared rejects its arm.

        Raises:
            Rejected: it is the base's.
        """
        try:
            effect = self.rule.effect(sample)
        except ValueError as error:
            if arm == 0:
                message = f"the base {self.entrants[0].name!r} has no number: {error}"
                raise Rejected(message) from error
            self.reject(arm, str(error))
            return
        if counts:
            self._rows[-1][arm] = effect
            self._waits[-1][arm] = sample.wait if self.rule.timelike else 0.0
            self.samples[arm].append(sample)
        else:
            self.warmup[arm].append(sample)

    def leave(self, arm: int, reason: str) -> None:
        """Measure an arm no more."""
        if self.states[arm] == "live":
            self.states[arm], self.reasons[arm] = "eliminated", reason

    def beat(self, arm: int, leader: int) -> None:
        """Measure an arm no more that another beat, unless that one turns out to have no number."""
        self.leave(
            arm, f"clearly worse than {self.entrants[leader].name!r} after {len(self.samples[arm])} rounds"
        )
        self._beaten_by[arm] = leader

    def reject(self, arm: int, reason: str) -> None:
        """Take an arm out; those that only it had beaten are back."""
        self.states[arm], self.reasons[arm] = "rejected", reason
        self._beaten_by.pop(arm, None)
        for beaten in [b for b, by in self._beaten_by.items() if by == arm]:
            del self._beaten_by[beaten]
            self.states[beaten], self.reasons[beaten] = "live", ""

    def table(self) -> tuple[Array, Array]:
        """(R, A) effects of who has a number, NaN where nothing was measured, and waits.

        Rounds in which nobody else was measured than those that were rejected since are left out.
        """
        shape = (self.rounds, len(self.entrants))
        y, waits = np.array(self._rows).reshape(shape), np.array(self._waits).reshape(shape)
        y[:, [state == "rejected" for state in self.states]] = np.nan
        held = np.isfinite(y).any(1)
        return y[held], waits[held]

    def fit(self) -> Fit:
        """Fit everybody who has a number; who has none has an infinite effect, and says nothing of the others."""
        y, waits = self.table()
        known = np.flatnonzero(np.isfinite(y).any(0))
        part = fit_rounds(y[:, known], waits[:, known], one_sided=self.rule.timelike, floor=self.rule.floor)
        return part if len(known) == len(self.entrants) else part.of(known, len(self.entrants))
