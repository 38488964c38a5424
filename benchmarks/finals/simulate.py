"""The finals offered to a simulator of noisy machines.

A simulator calls ``select(run, n, base=..., seed=...)`` where ``run(arm)`` measures an arm once and returns a float (a
time) that has the attribute ``wait``, and checks what it gets back against the true costs that it knows.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from race.finals import Entrant, Rule, Standings, finals
from race.scoring import Sample
from race.statistics.rule import Mode

Result = TypeVar("Result")


class Run(Protocol):
    """One measurement of an arm."""

    def __call__(self, arm: int, /) -> float:
        """A time, with its wait share as the attribute ``wait`` if that is known."""
        ...


@dataclass(frozen=True, slots=True)
class Pick:
    """What a simulator wants to know.

    Attributes:
        winner: the arm that won; when nobody did, the one that led.
        significant: whether it is claimed to be strictly better than every other arm.
        standings: all the rest.
    """

    winner: int
    significant: bool
    standings: Standings


def select(
    run: Run, n: int, *, base: int | None, seed: int, mode: Mode = "standard", **overrides: Any
) -> Pick:
    """Hold the finals of ``n`` arms on a simulated machine.

    Args:
        run: measures an arm once.
        n: how many arms there are, with the base.
        base: the arm that is the base; None to have no base, where the first arm stands in for it.
        seed: of the orders of the rounds.
        mode: of `Rule.of`.
        overrides: of `Rule.of`.
    """
    first = 0 if base is None else base
    arms = [first, *(arm for arm in range(n) if arm != first)]
    number = {str(arm): arm for arm in arms}

    async def measure(entrant: Entrant, _round: int, _seed: int) -> Sample:
        time = run(number[entrant.name])
        return Sample(float(time), wait=min(float(getattr(time, "wait", 0.0)), 0.99))

    rule = Rule.of(mode, **overrides)
    standings = at_once(
        finals([Entrant(str(arm)) for arm in arms], measure, rule, np.random.default_rng(seed))
    )
    return Pick(number[standings.winner or standings.leader or str(first)], standings.significant, standings)


def at_once(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never waits for anything, without an event loop.

    Raises:
        RuntimeError: it waited.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    coroutine.close()
    message = "the coroutine waited for something"
    raise RuntimeError(message)
