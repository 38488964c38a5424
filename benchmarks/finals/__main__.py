"""How often the finals are right, what they cost, and how often they claim what is not so.

    python -m benchmarks.finals            # all of it; the real programs take most of an hour
    python -m benchmarks.finals --quick    # a minute or two, with few repetitions

Three tables: a simulated machine (`benchmarks.finals.machine`), real programs whose costs are known, and identical
programs, of which none may be claimed to be better.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import numpy as np

from benchmarks.finals.machine import PRESETS, Machine
from benchmarks.finals.simulate import select
from race.comparison import compare
from race.finals import Rule

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
LOOPS = 400_000


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


@contextmanager
def neighbours(count: int, *, frozen: bool = False) -> Iterator[None]:
    """Busy programs beside; frozen ones are there and do nothing, as agents when the finals begin."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        for process in busy if frozen else ():
            process.send_signal(signal.SIGSTOP)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def program(share: float, name: str = "") -> str:
    """A command that takes so many times as long as the base of all."""
    return f"{sys.executable} -S -c 'for i in range({round(LOOPS * share)}): i * i  # {name}'"


async def real(repetitions: int, rule: Rule) -> None:
    print(f"\nreal programs, five candidates, 2 % between the best two, {repetitions} repetitions\n")
    print(f"{'beside':26} {'right':>7} {'samples':>8} {'false claims':>13}")
    costs = [5.0, 5.1, 5.3, 5.6, 6.0]
    commands = [program(c) for c in costs]
    for name, count, frozen in (("nothing", 0, False), ("five frozen", 5, True), ("five busy", 5, False)):
        right = claims = samples = 0
        with neighbours(count, frozen=frozen):
            for _ in range(repetitions):
                verdict = await compare(program(10.0), commands, rule=rule)
                samples += sum(len(a.metrics["time"].samples) for a in verdict.attempts) + len(
                    verdict.base.metrics["time"].samples
                )
                right += verdict.winner == commands[0]
                claims += verdict.winner not in (None, commands[0]) and not verdict.tied_with
        print(
            f"{name:26} {right:>4}/{repetitions:<3} {samples / repetitions:7.0f} {claims:>10}/{repetitions}",
            flush=True,
        )


async def alike(repetitions: int, rule: Rule) -> None:
    print(f"\nsix identical programs, {repetitions} repetitions\n")
    print(f"{'beside':26} {'claims':>8}")
    for name, count in (("nothing", 0), ("a busy neighbour", os.cpu_count() or 1)):
        claims = 0
        with neighbours(count):
            for _ in range(repetitions):
                verdict = await compare(
                    program(5.0, "base"), [program(5.0, f"{i}") for i in range(5)], rule=rule
                )
                claims += verdict.winner is not None
        print(f"{name:26} {claims:>4}/{repetitions}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--only", choices=["simulated", "real", "alike"], help="one of the tables")
    parser.add_argument("--seed", type=int, default=1, help="of the simulated machine")
    options = parser.parse_args()
    rule = Rule.of("quick") if options.quick else Rule.of("standard")
    if options.only in (None, "simulated"):
        simulated(20 if options.quick else 300, options.seed)
    if options.only in (None, "real"):
        anyio.run(real, 1 if options.quick else 100, rule)
    if options.only in (None, "alike"):
        anyio.run(alike, 2 if options.quick else 100, rule)


if __name__ == "__main__":
    main()
