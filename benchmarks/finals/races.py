"""Real races in which nobody is better than anybody: how often one claims a difference all the same.

Five attempts change a text that nothing reads; so they and the base are six replays of the same program.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

import race
from benchmarks.clearing import delete_sandboxes
from benchmarks.finals.neighbours import neighbours
from race.spec import from_data

BENCH: Final = """\
import time
began = time.perf_counter()
for i in range(600_000):
    i * i
print((time.perf_counter() - began) * 1000)
"""
"""About 30 ms on a processor of 2020."""


def race_data(mode: str) -> dict[str, Any]:
    """The race file, as data."""
    return {
        "task": {"name": "alike", "prompt": "Change nothing that matters.", "protected": ["bench.py"]},
        "base": {"project": "project", "network": {"agent": "none", "setup": "none"}},
        "defaults": {"agent": "script"},
        "entries": [{"name": f"same-{i}", "commands": [f"echo {i} >notes.txt"]} for i in range(1, 6)],
        "scorers": [{"use": "benchmark", "run": "python3 -S bench.py", "unit": "ms"}],
        "finals": {"mode": mode},
    }


async def claims(repetitions: int, mode: str, busy: int) -> tuple[int, float]:
    """Hold so many races beside so many busy programs.

    Returns:
        How many had a winner, and how many samples each took on average.
    """
    found = samples = 0
    with tempfile.TemporaryDirectory(prefix="race-alike-") as folder:
        project, home = Path(folder, "project"), Path(folder, "home")
        project.mkdir()
        (project / "bench.py").write_text(BENCH)
        (project / "notes.txt").write_text("0\n")
        spec = from_data(race_data(mode), Path(folder, "race.toml"))
        try:
            with neighbours(busy):
                for _ in range(repetitions):
                    verdict = await race.run(spec, home=home)
                    found += verdict.winner is not None
                    measured = [verdict.base.metrics, *(a.metrics for a in verdict.attempts)]
                    samples += sum(1 + len(metrics["benchmark"].samples) for metrics in measured)
        finally:
            await delete_sandboxes(home)
    return found, samples / max(repetitions, 1)


async def table(repetitions: int, mode: str) -> None:
    """Print what came of it beside nothing, and beside as many busy programs as there are processors."""
    print(f"\nraces of six identical replays, {repetitions} each\n")
    print(f"{'beside':26} {'claims':>9} {'samples':>8}")
    for beside, busy in (("nothing", 0), ("busy neighbours", os.cpu_count() or 1)):
        found, samples = await claims(repetitions, mode, busy)
        print(f"{beside:26} {f'{found}/{repetitions}':>9} {samples:8.0f}", flush=True)
