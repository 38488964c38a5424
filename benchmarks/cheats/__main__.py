"""Run the corpus of cheats and honest submissions, and print what came of it.

python -m benchmarks.cheats                 # all of it; exit status 0 if every verdict is right
python -m benchmarks.cheats primes-         # the cases whose names begin so
python -m benchmarks.cheats --naive         # the control: the same cheats against a naive check inside the fork
python -m benchmarks.cheats --alone 3       # each of 3 random attackers alone beside the rivals
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from benchmarks.cheats import naive, trial
from benchmarks.cheats.corpus import Case, load
from benchmarks.clearing import delete_sandboxes
from race.submission import printable

FIELD = 24
"""How many cases run beside each other in one race."""


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cheats",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="beginnings of names of cases")
    parser.add_argument("--naive", action="store_true", help="the control run with the naive check")
    parser.add_argument("--alone", type=int, default=0, metavar="N", help="also run N random attackers alone")
    parser.add_argument("--all", action="store_true", help="print the cases that went right as well")
    chosen = parser.parse_args()
    cases = [c for c in load() if not chosen.names or c.name.startswith(tuple(chosen.names))]
    if not cases:
        parser.error(f"no case is named so: {' '.join(chosen.names)}")
    home = Path(tempfile.mkdtemp(prefix="race-cheats-"))
    try:
        if chosen.naive:
            return anyio.run(_control, cases, home)
        return anyio.run(functools.partial(_corpus, cases, home, chosen.alone, everything=chosen.all))
    finally:
        anyio.run(delete_sandboxes, home)
        shutil.rmtree(home, ignore_errors=True)


async def _corpus(cases: Sequence[Case], home: Path, alone: int, *, everything: bool) -> int:
    began = time.monotonic()
    left_out = [c for c in cases if trial.missing(c)]
    cases = [c for c in cases if c not in left_out]
    outcomes: list[trial.Outcome] = []
    moved: list[str] = []
    for course, group in itertools.groupby(sorted(cases, key=lambda c: c.course), lambda c: c.course):
        members = list(group)
        control = await trial.run(course, [], home)
        fields = [members[i : i + FIELD] for i in range(0, len(members), FIELD)]
        cheats = [c for c in members if c.expect != "honest"]
        fields += [[c] for c in random.sample(cheats, min(alone, len(cheats)))]
        for field in fields:
            done = await trial.run(course, field, home)
            noisy = [o.case for o in done.outcomes if o.noisy]
            # A busy machine can measure one that did not win as too fast: that is measured once more, alone.
            again = await trial.run(course, noisy, home) if noisy else None
            outcomes += [*(o for o in done.outcomes if not o.noisy), *(again.outcomes if again else ())]
            if done.ranking != control.ranking:
                moved.append(f"{course}: {', '.join(done.ranking)} instead of {', '.join(control.ranking)}")
            wrong = sum(bool(o.wrong) for o in done.outcomes)
            print(f"{course}: {len(field)} cases in {done.seconds:.1f} s, {wrong} wrong", file=sys.stderr)
    _print(outcomes, everything=everything)
    honest = [o for o in outcomes if o.case.expect == "honest"]
    cheats_run = [o for o in outcomes if o.case.expect != "honest"]
    kinds = Counter(o.case.expect for o in cheats_run)
    print(
        f"{len(cheats_run)} cheats ({kinds['ineligible']} to be refused, {kinds['unearned']} to have no effect), ",
        end="",
    )
    print(f"{len({o.case.listed for o in cheats_run} - {None})} of them from the list; ", end="")
    print(f"wrong verdicts: {sum(bool(o.wrong) for o in cheats_run)}")
    print(f"{len(honest)} honest submissions; turned away: {sum(bool(o.wrong) for o in honest)}")
    print(f"races in which the honest rivals were ranked otherwise than without attackers: {len(moved)}")
    for line in moved:
        print(f"  {line}")
    for case in left_out:
        print(f"left out: {case.name}, which needs {', '.join(trial.missing(case))}")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if moved or any(o.wrong for o in outcomes) else 0


def _print(outcomes: Sequence[trial.Outcome], *, everything: bool) -> None:
    table = Table("case", "what", "expected", "state", "times base", "reason")
    for o in sorted(outcomes, key=lambda o: o.case.name):
        if o.wrong or everything:
            mark = f"WRONG: {o.wrong} | " if o.wrong else ""
            speed = f"{o.speedup:.2f}" if o.speedup else ""
            table.add_row(
                o.case.name, o.case.what, o.case.expect, o.state, speed, printable(mark + o.reason[:600])
            )
    if table.row_count:
        Console(width=200, markup=False).print(table)


async def _control(cases: Sequence[Case], home: Path) -> int:
    cheats = [c for c in cases if c.course in naive.COURSES and c.expect != "honest" and not trial.missing(c)]
    beaten = await naive.run(cheats, home)
    for case, said in beaten:
        print(f"{case.name}: {said}")
    print(
        f"the naive check was beaten by {sum(said.startswith('beaten') for _, said in beaten)} of {len(beaten)} cheats"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
