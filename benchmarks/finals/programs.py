"""Real programs whose costs are known: how often the best of five is found, by the finals and by a single look.

All commands are one loop that runs more or less often, so who is best is known without measuring. Beside the finals
stands the rule of scripts that race agents by hand: each candidate is timed once, while the others still work, and the
lowest number wins.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.finals.neighbours import neighbours
from race.comparison import compare
from race.finals import Rule
from race.scoring import Sample

LOOPS: Final = 60_000
"""Turns of the loop of the best candidate: about 50 ms on a processor of 2020."""
COSTS: Final = (1.0, 1.02, 1.06, 1.12, 1.2)
"""Of the candidates; the base has 2."""
BESIDE: Final = {"nothing": (0, False), "five frozen": (5, True), "five busy": (5, False)}


@dataclass(slots=True)
class Tally:
    """What came of the comparisons so far: how many were held, how many found the best, how many said something else
    with certainty, how often the single look found the best, and how many samples the finals took.
    """

    held: int = 0
    right: int = 0
    wrong: int = 0
    once: int = 0
    samples: int = 0

    def count(self, _name: str, _number: int, _sample: Sample) -> None:
        """One more sample was taken."""
        self.samples += 1


def program(cost: float) -> str:
    """A command that turns the loop so many times as often as the best candidate.

    The shell itself turns it: it starts in a millisecond, so that what differs is the time of the whole process.
    """
    return f"i=0; while [ $i -lt {round(LOOPS * cost)} ]; do i=$((i + 1)); done"


def once(commands: Sequence[str]) -> str:
    """The command that takes the least time when each is run a single time."""
    times: list[float] = []
    for command in commands:
        began = time.perf_counter()
        subprocess.run(["/bin/sh", "-c", command], check=True)
        times.append(time.perf_counter() - began)
    return commands[int(np.argmin(times))]


async def compared(repetitions: int, rule: Rule, beside: str, seed: int) -> Tally:
    """Hold finals of the five programs so many times, in new orders, beside what `BESIDE` says."""
    rng = np.random.default_rng(seed)
    count, frozen = BESIDE[beside]
    tally = Tally()
    for _ in range(repetitions):
        commands = [program(COSTS[i]) for i in rng.permutation(len(COSTS))]
        best = program(COSTS[0])
        with neighbours(5):
            tally.once += once(commands) == best
        with neighbours(count, frozen=frozen):
            verdict = await compare(program(2.0), commands, rule=rule, on_sample=tally.count)
        tally.held += 1
        tally.right += verdict.winner == best
        tally.wrong += verdict.winner != best and not verdict.tied_with and verdict.winner is not None
    return tally


async def table(repetitions: int, rule: Rule, seed: int) -> None:
    """Print what came of it beside nothing, beside frozen agents, and beside busy ones."""
    print(f"\nreal programs, five candidates, 2 % between the best two, {repetitions} comparisons each\n")
    print(f"{'beside':26} {'right':>9} {'samples':>8} {'false claims':>13} {'once each, in the race':>23}")
    for beside in BESIDE:
        t = await compared(repetitions, rule, beside, seed)
        shares = [f"{n}/{t.held}" for n in (t.right, t.wrong, t.once)]
        mean = t.samples / max(t.held, 1)
        print(f"{beside:26} {shares[0]:>9} {mean:8.0f} {shares[1]:>13} {shares[2]:>23}", flush=True)
