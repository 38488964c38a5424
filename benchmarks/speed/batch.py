"""How much the framework adds to a batch whose agents wait for their model, and how much memory it takes.

    python -m benchmarks.speed.batch --tasks 200 --concurrency 20

Each of two entries asks a scripted model on loopback three times a task, and waits for each answer. The ideal is the
waiting alone, divided by how many agents work at once. Everything else, forks, commands, submissions, replays, the
tests and the store, is overhead; what of it fits into the waiting costs no wall time.

Seen on two processors that others kept busy (load average 16): 400 attempts, 20 at once, 8 s for each answer took
531 s, 1.11 times the ideal 480 s; 0.14 s of processor time of the orchestrator for each attempt; 58 MB before it began,
138 MB at most, 11 kB more for each attempt once all places were taken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

import race
from benchmarks.clearing import delete_sandboxes
from race.batch_spec import batch_from_data
from race.store import Event

TURNS = 3
"""Calls of the model in the script ``touch``: two commands and the last word."""


def rss() -> float:
    """Megabytes that this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def project(folder: Path) -> None:
    (folder / "project").mkdir()
    (folder / "project" / "value.txt").write_text("100\n")
    (folder / "project" / "check.sh").write_text("test -s hello.txt\n")


async def run(folder: Path, url: str, tasks: int, concurrency: int, delay: float) -> dict[str, float]:
    project(folder)
    home = folder / "home"
    home.mkdir()
    entry = {"agent": "openai", "model": f"slow:{delay:g}:touch", "base_url": url, "api_key_env": ""}
    data = {
        "batch": {"name": "speed", "concurrency": concurrency},
        "task": {"prompt": "Write hello.txt.", "protected": ["check.sh"]},
        "base": {"project": "project", "network": {"agent": "none", "setup": "none"}},
        "entries": [{"name": "a", **entry}, {"name": "b", **entry}],
        "scorers": [{"use": "tests", "run": "sh check.sh"}],
        "tasks": [{"name": f"t{i:03}"} for i in range(tasks)],
    }
    memory: list[tuple[int, float]] = []
    done = 0

    def see(event: Event) -> None:
        nonlocal done
        if event.kind == "attempt.done":
            done += 1
            memory.append((done, rss()))

    before = rss()
    began, cpu = time.monotonic(), time.process_time()
    result = await race.run_batch(batch_from_data(data, folder / "batch.toml"), home=home, on_event=see)
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    await delete_sandboxes(home)
    assert result.totals.won == tasks, result.totals
    attempts = 2 * tasks
    ideal = attempts * TURNS * delay / concurrency
    at_full = next(m for n, m in memory if n >= min(2 * concurrency, attempts // 2))
    return {
        "attempts": attempts,
        "seconds": round(seconds, 2),
        "ideal_seconds": ideal,
        "ratio": round(seconds / ideal, 3),
        "cpu_seconds_per_attempt": round(cpu / attempts, 4),
        "megabytes_before": round(before, 1),
        "megabytes_most": round(max(m for _, m in memory), 1),
        "megabytes_end": round(memory[-1][1], 1),
        "kilobytes_growth_per_attempt": round(
            (memory[-1][1] - at_full) * 1000 / max(attempts - min(2 * concurrency, attempts // 2), 1), 1
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument(
        "--delay", type=float, default=8.0, help="seconds that each answer of the model takes"
    )
    given = parser.parse_args()
    server = subprocess.Popen([sys.executable, "-m", "race.testing"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http\S+", server.stdout.readline())
        assert found is not None
        with tempfile.TemporaryDirectory(prefix="race-speed-") as folder:
            figures = anyio.run(run, Path(folder), found[0], given.tasks, given.concurrency, given.delay)
    finally:
        server.terminate()
        server.wait()
    print(json.dumps({**figures, "processors": os.cpu_count()}, indent=2))


if __name__ == "__main__":
    main()
