"""What it costs to take a submission out of a fork and to put it into a replay, by the size of the project.

    python -m benchmarks.speed.submissions [FILES [CHANGES]]

Prints seconds for each step, the median of three forks, for projects of 1,000 and of FILES (default 50,000) files of
which CHANGES (default 10) are changed. The layer names the changed files, so the cost should hardly grow.
"""

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio

from race.base import prepare
from race.capture import capture
from race.plugins import provider
from race.replay import build
from race.spec import from_data

RUNS = 3


def make_project(folder: Path, files: int) -> None:
    """A project in folders of 100 files."""
    for number in range(files):
        place = folder / f"part{number // 10_000}" / f"module{number // 100}"
        if number % 100 == 0:
            place.mkdir(parents=True)
        (place / f"file{number}.py").write_text(f"NUMBER = {number}\n" * 5)


async def measure(files: int, changes: int, home: Path) -> dict[str, float]:
    """Median seconds of each step."""
    place = Path(tempfile.mkdtemp(prefix="race-speed-"))
    made = provider("local", home, "benchmarks.speed")
    steps: dict[str, list[float]] = {"capture": [], "build": [], "replay": []}
    try:
        make_project(place / "project", files)
        data = {
            "task": {"name": "speed", "prompt": "-", "protected": ["part0/module0/"]},
            "base": {"project": "project", "network": {"setup": "none", "agent": "none"}},
            "entries": [{"name": "a", "agent": "nop"}],
        }
        spec = from_data(data, place / "race.toml")
        base = await prepare(spec, made, home)
        parent = await made.get(base.sandbox)
        for run in range(RUNS):
            fork = await parent.fork(f"fork{run}")
            step = max((files - 200) // changes, 1)
            paths = [200 + i * step for i in range(changes)]
            names = " ".join(f"part{n // 10_000}/module{n // 100}/file{n}.py" for n in paths)
            await fork.exec(f"for f in {names}; do echo '# {run}' >> $f; done", cwd="/app")
            await fork.stop()
            began = time.perf_counter()
            submission = await capture(fork, base)
            captured = time.perf_counter()
            assert len(submission.changes) == changes, submission
            image = await build(made, base, submission, spec, name=f"image{run}", labels={})
            built = time.perf_counter()
            async with image.replay() as replay:
                replayed = time.perf_counter()
                found = await replay.run(f"cat {names} | grep -c '# {run}'", timeout=20)
                assert int(found.stdout) == changes, found
            for name, seconds in zip(
                steps, (captured - began, built - captured, replayed - built), strict=True
            ):
                steps[name].append(seconds)
            await image.sandbox.delete()
            await fork.delete()
        await parent.delete()
    finally:
        await made.aclose()
        shutil.rmtree(place)
    return {name: statistics.median(values) for name, values in steps.items()}


def main() -> None:
    """Measure, and print."""
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    changes = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    for size in (1_000, files):
        home = Path(tempfile.mkdtemp(prefix="race-home-"))
        try:
            found = anyio.run(measure, size, changes, home)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in found.items())
        print(f"{size:,} files, {changes} changed: {sum(found.values()):.3f} s ({parts})", flush=True)


if __name__ == "__main__":
    main()
