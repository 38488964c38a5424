"""How fast sandboxes of this machine are forked, used and deleted, next to the bare system calls and to others.

    python -m benchmarks.speed [--quick] [--json] [--plot FILE]

Everything is measured in one run, a round of each thing after the other, so that whatever else the machine does falls
on all of them alike. What is told are medians, and ratios also of the fastest tenth, which others on the machine
disturb least. The bare system calls are `floor.c`, compiled on the spot. The big base is the small one with 50,000
files and 2 GB more; the 2 GB are eight files of holes, which nothing here reads.

Seen on two processors, as root, with little else going on: fork 4.5 ms, 3.4 times the system calls, and as long on the
big base; `bash -c true` 1.7 ms, 2.0 times, and 2.1 times after a pause; delete 3.6 ms, 2.9 times; 1,570 commands a
second in eight forks; podman's fork 18 and its commands 88 times as long. A thousand idle forks took 319 MB, 8.0 s to
make and 2.5 s to delete. A time-out of a fork bomb of 4,096 processes was 53 ms late.
"""

import argparse
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from benchmarks.speed import plot, rivals, trees
from race.forks import fork_many
from race.sandbox import Sandbox, SandboxSpec
from race.sandboxes.local import LocalProvider
from race.sandboxes.local.removal import remove_tree

OURS, FLOOR = "race", "system calls in C"
STEPS = ("fork", "true", "bash", "bash after a pause", "delete")
SETTLING = 0.03
"""Seconds before each round, in which the kernel takes down the namespaces that the one before has left."""
AGAIN = 10
"""How often each command is run in a fork: an agent runs dozens, and the first ones are slower than the others."""
COMMANDS = {"true": ["true"], "bash": ["bash", "-c", "true"]}
AFTER_A_PAUSE = "bash after a pause"
"""Nothing runs for `SETTLING` seconds before it, as when an agent thinks; the others follow each other at once."""
PAUSES = 3
TARGETS = {
    "fork / system calls": (6, "<="),
    "big fork / small fork": (1.1, "<="),
    "bash / system calls": (2.3, "<="),
    "bash after a pause / system calls": (2.3, "<="),
    "delete / system calls": (5, "<="),
    "podman's fork / fork": (12, ">="),
    "podman's true / true": (25, ">="),
    "megabytes of 1,000 idle forks": (600, "<="),
    "seconds to delete 1,000": (10, "<="),
    "milliseconds that a time-out is late": (100, "<="),
}
"""What is wanted of this provider, in the words of `ratios`."""
BOMB = ":(){ :|:& };:; sleep 60"
"""A command that becomes as many processes as the sandbox may have, 4,096, before its time is up."""
BOMB_TIME = 1.5
SLOW_ROUNDS = 2
"""How often what takes many seconds is measured."""


class Floor:
    """The program with the bare system calls."""

    def __init__(self, folder: Path, lower: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise rivals.MissingError("there is no C compiler")
        program = folder / "floor"
        subprocess.run([compiler, "-O2", "-o", program, Path(__file__).with_name("floor.c")], check=True)
        self._fork = f"fork {lower} {folder}/sandbox"
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def round(self) -> Iterator[tuple[str, float]]:
        for step in ("fork", *list(COMMANDS) * AGAIN, *[AFTER_A_PAUSE] * PAUSES, "delete"):
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            if step == AFTER_A_PAUSE:
                time.sleep(SETTLING)
            self._process.stdin.write((self._fork if step == "fork" else step) + "\n")
            answer = self._process.stdout.readline()
            if not answer:
                raise rivals.MissingError("the bare system calls are refused here")
            yield step, float(answer) / 1e6

    def close(self) -> None:
        self._process.communicate()


async def our_round(base: Sandbox, name: str) -> list[tuple[str, float]]:
    """Fork, commands, delete."""
    found: list[tuple[str, float]] = []
    began = time.perf_counter()
    fork = await base.fork(name)
    found.append(("fork", time.perf_counter() - began))
    for step, command in (*list(COMMANDS.items()) * AGAIN, *[(AFTER_A_PAUSE, COMMANDS["bash"])] * PAUSES):
        if step == AFTER_A_PAUSE:
            await anyio.sleep(SETTLING)
        began = time.perf_counter()
        done = await fork.exec(command)
        found.append((step, time.perf_counter() - began))
        assert done.exit_code == 0, done
    began = time.perf_counter()
    await fork.delete()
    found.append(("delete", time.perf_counter() - began))
    return found


Times = dict[tuple[str, str, str], list[float]]
"""In seconds, for each who, where and what."""


class Turns:
    """Everybody who is measured one at a time, in turn.

    Args:
        trees: the small and the big one.
        folder: an empty one to work in.
    """

    def __init__(self, trees: dict[str, Path], folder: Path) -> None:
        self.times: Times = defaultdict(list)
        self.missing: list[str] = []
        self._floors: dict[str, Floor] = {}
        self._others: dict[tuple[str, str], Iterator[tuple[str, float]]] = {}
        for where, tree in trees.items():
            place = folder / f"floor-{where}"
            place.mkdir()
            try:
                self._floors[where] = Floor(place, tree)
            except rivals.MissingError as error:
                self.missing.append(f"{FLOOR}: {error}")
            for who, start in rivals.RIVALS.items():
                place = folder / f"{who}-{where}".replace(" ", "-")
                place.mkdir()
                self._others[who, where] = start(tree, place)

    def floor(self, where: str) -> None:
        """A round of the bare system calls."""
        if where not in self._floors:
            return
        try:
            for step, seconds in self._floors[where].round():
                self.times[FLOOR, where, step].append(seconds)
        except rivals.MissingError as error:
            self.missing.append(f"{FLOOR}: {error}")
            self._floors.pop(where).close()

    def rivals(self) -> None:
        """A round of everybody else."""
        for who, where in list(self._others):
            try:
                for step, seconds in itertools.islice(self._others[who, where], rivals.STEPS[who]):
                    self.times[who, where, step].append(seconds)
            except rivals.MissingError as error:
                self.missing.append(f"{who}, {where} base: {error}")
                del self._others[who, where]
            else:
                if (who, where) in rivals.SLOW and len(self.times[who, where, "fork"]) >= SLOW_ROUNDS:
                    self._others.pop((who, where)).close()

    def close(self) -> None:
        """End what they started."""
        for each in (*self._floors.values(), *self._others.values()):
            each.close()


async def measured_alone(bases: dict[str, Sandbox], turns: Turns, rounds: int, slow_rounds: int) -> None:
    for number in range(rounds):
        for where, base in bases.items():
            await anyio.sleep(SETTLING)
            for step, seconds in await our_round(base, f"r{number}-{where}"):
                turns.times[OURS, where, step].append(seconds)
            await anyio.sleep(SETTLING)
            turns.floor(where)
        if number % (rounds // slow_rounds) == 0:
            await anyio.to_thread.run_sync(turns.rivals)


def available() -> float:
    """Megabytes of memory that programs could still have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1e3


async def measured_together(base: Sandbox, idle: int) -> dict[str, float]:
    """A hundred forks at once, many idle ones, and commands in eight at once."""
    found: dict[str, float] = {}
    for count, what in ((100, "100"), (idle, "idle")):
        before = available()
        began = time.perf_counter()
        made = await fork_many(base, [f"{what}-{number}" for number in range(count)])
        forks = [each for each in made if not hasattr(each, "error")]
        assert len(forks) == count, made
        found[f"{what}: forks"] = count
        found[f"{what}: seconds to fork"] = time.perf_counter() - began
        await anyio.sleep(0.5)
        found[f"{what}: megabytes"] = before - available()
        if what == "100":
            found["commands a second in 8 forks"] = await throughput(forks[:8])
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for each in forks:
                group.start_soon(each.delete)
        found[f"{what}: seconds to delete"] = time.perf_counter() - began
    return found


async def throughput(forks: list[Sandbox], commands: int = 50) -> float:
    async def some(fork: Sandbox) -> None:
        for _ in range(commands):
            await fork.exec(["true"])

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for each in forks:
            group.start_soon(some, each)
    return len(forks) * commands / (time.perf_counter() - began)


async def lateness(base: Sandbox, times: int) -> list[float]:
    """Seconds from when a fork bomb's time is up until that is known."""
    fork = await base.fork("bomb")
    late: list[float] = []
    for _ in range(times):
        await fork.exec("true")  # what is left of the bomb before is gone then
        began = time.perf_counter()
        done = await fork.exec(BOMB, timeout=BOMB_TIME)
        late.append(time.perf_counter() - began - BOMB_TIME)
        assert done.timed_out
    await fork.delete()
    return late


def ratios(
    times: Times, together: dict[str, float], part: Callable[[list[float]], float]
) -> dict[str, float]:
    """What the targets are about, of one number for each list of times."""
    found: dict[str, float] = {}

    def add(name: str, over: tuple[str, str, str], under: tuple[str, str, str]) -> None:
        if over in times and under in times:
            found[name] = part(times[over]) / part(times[under])

    for step in STEPS:
        add(f"{step} / system calls", (OURS, "small", step), (FLOOR, "small", step))
    add("big fork / small fork", (OURS, "big", "fork"), (OURS, "small", "fork"))
    add("podman's fork / fork", ("podman", "small", "fork"), (OURS, "small", "fork"))
    add("podman's true / true", ("podman", "small", "true"), (OURS, "small", "true"))
    thousand = 1000 / together["idle: forks"]
    found["megabytes of 1,000 idle forks"] = together["idle: megabytes"] * thousand
    found["seconds to delete 1,000"] = together["idle: seconds to delete"] * thousand
    found["milliseconds that a time-out is late"] = part(times[OURS, "small", "late"]) * 1000
    return found


def fastest_tenth(values: list[float]) -> float:
    return sorted(values)[len(values) // 10]


def reached(name: str, value: float) -> bool | None:
    """Whether a ratio is as it is wanted; None if nothing is wanted of it."""
    if name not in TARGETS:
        return None
    wanted, sense = TARGETS[name]
    return value <= wanted if sense == "<=" else value >= wanted


def machine() -> dict[str, object]:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": model or platform.machine(),
        "processors": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "load": [round(each, 1) for each in os.getloadavg()],
    }


async def run(folder: Path, *, quick: bool) -> dict[str, object]:
    before = machine()
    files = 5_000 if quick else 50_000
    small, big = trees.small(folder / "small"), trees.big(folder / "big", files)
    home = folder / "home"
    home.mkdir()
    provider = LocalProvider(home / "local")
    turns = Turns({"small": small, "big": big}, folder)
    try:
        bases: dict[str, Sandbox] = {}
        for where, tree in (("small", small), ("big", big)):
            bases[where] = await provider.create(SandboxSpec(f"base-{where}", image=str(tree)))
            await bases[where].stop()
            await our_round(bases[where], "warm")
        rounds, slow = (20, 4) if quick else (100, 5)
        await measured_alone(bases, turns, rounds, slow)
        together = await measured_together(bases["small"], 200 if quick else 1000)
        turns.times[OURS, "small", "late"] = await lateness(bases["small"], 5 if quick else 20)
    finally:
        turns.close()
        for each in reversed(await provider.list()):
            await (await provider.get(each.name)).delete()
        await provider.aclose()
    found = ratios(turns.times, together, statistics.median)
    quiet = ratios(turns.times, together, fastest_tenth)
    return {
        "machine": {**before, "load after": [round(each, 1) for each in os.getloadavg()]},
        "files in the big base": files,
        "medians in ms": [
            {
                "who": who,
                "base": where,
                "step": step,
                "ms": round(statistics.median(values) * 1000, 3),
                "fastest tenth": round(fastest_tenth(values) * 1000, 3),
                "times": len(values),
            }
            for (who, where, step), values in turns.times.items()
        ],
        "together": {name: round(value, 3) for name, value in together.items()},
        "ratios": {
            name: {
                "median": round(value, 2),
                "fastest tenth": round(quiet[name], 2),
                "reached": reached(name, value),
            }
            for name, value in found.items()
        },
        "missing": sorted(set(turns.missing)),
    }


def show(result: dict[str, object]) -> None:
    """Print tables."""
    console = Console()
    about = result["machine"]
    console.print(", ".join(f"{key} {value}" for key, value in about.items()), highlight=False)
    medians = result["medians in ms"]
    whose = list(dict.fromkeys(each["who"] for each in medians))
    table = Table("median ms", *whose, box=None)
    rows = defaultdict(dict)
    for each in medians:
        rows[f"{each['step']}, {each['base']} base"][each["who"]] = f"{each['ms']:.2f}"
    for step, cells in rows.items():
        table.add_row(step, *(cells.get(who, "-") for who in whose))
    console.print(table)
    for name, value in result["together"].items():
        console.print(f"  {name}: {value:g}", highlight=False)
    goals = Table("ratio", "of medians", "of the fastest tenth", "wanted", "", box=None)
    for name, value in result["ratios"].items():
        wanted, sense = TARGETS.get(name, ("", ""))
        word = {True: "reached", False: "missed"}.get(value["reached"], "")
        goals.add_row(name, f"{value['median']:g}", f"{value['fastest tenth']:g}", f"{sense} {wanted}", word)
    console.print(goals)
    for each in result["missing"]:
        console.print(f"not measured: {each}", highlight=False, markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--json", action="store_true", help="print one JSON document, and nothing else")
    parser.add_argument("--plot", type=Path, help="also draw the medians, as an SVG file")
    given = parser.parse_args()
    rivals.leave_hybrid_cgroups()
    folder = Path(tempfile.mkdtemp(prefix="race-speed-"))
    try:
        result = anyio.run(lambda: run(folder, quick=given.quick))
    finally:
        remove_tree(folder)
    if given.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        show(result)
    if given.plot:
        given.plot.write_text(plot.svg(result))


if __name__ == "__main__":
    main()
