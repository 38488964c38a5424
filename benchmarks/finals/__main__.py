"""How often the finals are right, what they cost, and how often they claim what is not so.

    python -m benchmarks.finals            # all of it; the real programs take most of an hour
    python -m benchmarks.finals --quick    # a minute or two, with few repetitions

Three tables: a simulated machine (`benchmarks.finals.machine`), real programs whose costs are known
(`benchmarks.finals.programs`), and races of identical replays, of which none may be claimed to be better
(`benchmarks.finals.races`).
"""

from __future__ import annotations

import argparse

import anyio
import numpy as np

from benchmarks.finals import programs, races
from benchmarks.finals.machine import PRESETS, Machine
from benchmarks.finals.simulate import select
from race.finals import Rule
from race.statistics.rule import Mode

ROWS = [
    ("quiet", 5, 0.02, True),
    ("neighbour", 5, 0.02, True),
    ("neighbour", 5, 0.05, True),
    ("neighbour", 5, 0.05, False),
    ("heavy", 5, 0.05, True),
    ("neighbour", 3, 0.02, True),
    ("neighbour", 10, 0.02, True),
    ("neighbour", 30, 0.02, True),
    ("neighbour", 5, 0.0, True),
]


def simulated(repetitions: int, seed: int) -> None:
    print(f"\nsimulated machine, standard, {repetitions} repetitions\n")
    print(
        f"{'preset':26} {'N':>3} {'gap':>5} {'right':>7} {'runs':>6} {'false claims':>13} {'once each':>10}"
    )
    for preset, n, gap, visible in ROWS:
        rng = np.random.default_rng(seed)
        right = claims = runs = once = 0
        for _ in range(repetitions):
            # The second best is behind by the gap, the others by more; the base, the last arm, takes twice as long.
            costs = [1.0, 1 + gap, *((1 + gap) * np.exp(rng.exponential(0.25, n - 2))), 2.0]
            order = [*rng.permutation(n), n]
            costs = [costs[i] for i in order]
            best = {i for i, c in enumerate(costs) if c == min(costs)}
            machine = Machine(costs, PRESETS[preset], rng, visible=visible)
            pick = select(machine.run, n + 1, base=n, seed=int(rng.integers(2**31)))
            right += pick.winner in best
            claims += pick.significant and (pick.winner not in best or len(best) > 1)
            runs += machine.runs
            once += min(range(n), key=machine.run) in best
        name = preset if visible else f"{preset}, waits unseen"
        shares = [f"{100 * x / repetitions:.0f} %" for x in (right, claims, once)]
        shown = ["" if gap == 0 else shares[0], f"{runs / repetitions:.0f}", shares[1]]
        print(
            f"{name:26} {n:3} {gap:5.0%} {shown[0]:>7} {shown[1]:>6} {shown[2]:>13} {shares[2]:>10}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--only", choices=["simulated", "programs", "races"], help="one of the tables")
    parser.add_argument("--seed", type=int, default=1, help="of the orders")
    options = parser.parse_args()
    mode: Mode = "quick" if options.quick else "standard"
    if options.only in (None, "simulated"):
        simulated(20 if options.quick else 300, options.seed)
    if options.only in (None, "programs"):
        anyio.run(programs.table, 2 if options.quick else 100, Rule.of(mode), options.seed)
    if options.only in (None, "races"):
        anyio.run(races.table, 2 if options.quick else 100, mode)


if __name__ == "__main__":
    main()
