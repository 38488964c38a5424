"""Batches: each task once, whoever comes and goes, and what the numbers over all of them are."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from race.batch import cancel_batch, run_batch
from race.batch_spec import BatchSpec, batch_from_data
from race.batch_table import BatchTable
from race.errors import SpecError
from race.plugins import provider
from race.statistics.variants import Tries, best_at, eligible_rate, mean_speedup, pass_at
from race.store import Event, Store
from race.watching import watch
from tests.racing import SCORERS, project, script

HALF = script("half", "echo 50 > value.txt")


def batch(folder: Path, tasks: list[dict[str, Any]], **tables: Any) -> BatchSpec:
    """A batch on the project in ``folder``."""
    data: dict[str, Any] = {
        "batch": {"name": "many", "concurrency": 2},
        "task": {"prompt": "Make it less.", "protected": ["check.sh", "bench.sh"]},
        "base": {"project": "project", "network": {"agent": "none", "setup": "none"}},
        "entries": [HALF],
        "scorers": SCORERS[:1],
        "finals": {"mode": "quick"},
        "tasks": tasks,
    }
    for name, table in tables.items():
        data[name] = {**data.get(name, {}), **table} if isinstance(table, dict) else table
    return batch_from_data(data, folder / "batch.toml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    project(tmp_path)
    return tmp_path


async def roles(home: Path) -> Counter[str]:
    made = provider("local", home, "test")
    try:
        return Counter(i.labels.get("role", "") for i in await made.list() if i.labels)
    finally:
        await made.aclose()


@pytest.mark.anyio
async def test_a_batch_and_its_numbers(folder: Path, home: Path) -> None:
    events: list[Event] = []
    made = batch(
        folder,
        [
            {"name": "one"},
            {"name": "two", "context": "Only half."},
            {"name": "bad", "base": {"setup": ["exit 3"]}},
        ],
        entries=[script("half", "echo 50 > value.txt", count=2), script("breaks", "echo no > status.txt")],
        scorers=SCORERS,
    )
    assert made.tasks[1].task.prompt == "Make it less.\n\nOnly half."
    result = await run_batch(made, key="k", on_event=events.append, home=home)
    assert (result.status, result.key) == ("ended", "k")
    t = result.totals
    assert (t.tasks, t.won, t.no_winner, t.failed, t.attempts, t.eligible) == (3, 2, 0, 1, 6, 4)
    assert t.cost_usd == 0
    half, breaks = result.variants
    assert (half.attempts, half.eligible, breaks.eligible) == (4, 4, 0)
    assert half.eligible_rate is not None
    assert half.eligible_rate.value == 1
    assert half.pass_at[2].value == 1
    assert half.speedup is not None
    assert half.speedup.value == pytest.approx(2, rel=0.05)
    assert half.best_at[1].value == pytest.approx(2, rel=0.05)
    assert breaks.pass_at[1].value == 0
    assert breaks.speedup is None
    bad = result.tasks[2]
    assert (bad.status, bad.winner) == ("failed", None)
    assert "exit status 3" in bad.error
    assert await roles(home) == {"base": 1}
    numbers = [e.number for e in events]
    assert numbers == sorted(set(numbers))
    assert [e.kind for e in events if e.kind.startswith("batch.")] == ["batch.started", "batch.ended"]
    seen = [e async for e in watch("k", home=home)]
    assert seen == events
    assert [e async for e in watch("k", after=numbers[9], home=home)] == events[10:]
    began = time.monotonic()
    assert await run_batch(made, key="k", home=home) == result
    assert time.monotonic() - began < 1
    with pytest.raises(SpecError, match="the key 'k' belongs to another request"):
        await run_batch(batch(folder, [{"name": "one"}]), key="k", home=home)


@pytest.mark.anyio
async def test_no_more_agents_than_allowed_work_at_once(folder: Path, home: Path) -> None:
    events: list[Event] = []
    made = batch(
        folder,
        [{"name": f"t{i}"} for i in range(4)],
        entries=[script("a", "sleep 0.2"), script("b", "sleep 0.2")],
    )
    await run_batch(made, home=home, on_event=events.append)
    working: set[tuple[str, str]] = set()
    most = 0
    for e in events:
        if e.kind == "attempt.started":
            working.add((e.race, e.attempt))
        elif e.kind == "attempt.ended":
            working.discard((e.race, e.attempt))
        most = max(most, len(working))
    assert most == 2


@pytest.mark.anyio
async def test_a_batch_without_a_key_is_cancelled_with_its_client(folder: Path, home: Path) -> None:
    made = batch(folder, [{"name": "one"}, {"name": "two"}], entries=[script("late", "sleep 60")])

    def see(event: Event) -> None:
        if event.kind == "attempt.command":
            scope.cancel()

    with anyio.CancelScope() as scope:
        await run_batch(made, home=home, on_event=see)
    assert scope.cancelled_caught
    store = Store(home)
    (row,) = BatchTable(store).all()
    store.close()
    assert row.status == "cancelled"
    assert await roles(home) == {"base": 1}


@pytest.mark.anyio
async def test_a_batch_with_a_key_is_left_and_can_be_cancelled(folder: Path, home: Path) -> None:
    made = batch(folder, [{"name": "one"}, {"name": "two"}], entries=[script("late", "sleep 60")])

    def see(event: Event) -> None:
        if event.kind == "attempt.command":
            scope.cancel()

    with anyio.CancelScope() as scope:
        await run_batch(made, key="k", home=home, on_event=see)
    store = Store(home)
    assert BatchTable(store).get("k").status == "running"
    assert "interrupted" in {r.status for r in store.races()}
    store.close()
    result = await cancel_batch("k", home=home)
    assert (result.status, {t.status for t in result.tasks}) == ("cancelled", {"cancelled"})
    assert await roles(home) == {"base": 1}
    with pytest.raises(SpecError, match="has ended"):
        await cancel_batch("k", home=home)


@pytest.mark.anyio
async def test_only_what_the_machinery_broke_is_tried_again(folder: Path, home: Path) -> None:
    entries = [
        {"name": "raises", "agent": "tests.plugins:Raises"},
        {"name": "unlucky", "agent": "tests.plugins:ModelDown"},
    ]
    events: list[Event] = []
    result = await run_batch(
        batch(folder, [{"name": "one"}], entries=entries), home=home, on_event=events.append
    )
    assert [e.attempt for e in events if e.kind == "attempt.retry"] == ["unlucky"]
    assert [e.attempt for e in events if e.kind == "attempt.started"].count("raises") == 1
    raises, unlucky = result.variants
    assert (raises.failed, unlucky.failed) == (1, 1)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"tasks": []}, "tasks: there is none"),
        ({"tasks": [{"name": "a"}, {"name": "a"}]}, r"tasks\[2\].name: 'a' is there twice"),
        ({"tasks": [{"name": "a", "promt": "x"}]}, r"tasks\[1\].promt: unknown key; did you mean 'prompt'"),
        ({"tasks": [{"name": "a", "entries": [{"name": "!"}]}]}, r"entries\[1\].name.*\(task 'a'\)"),
        ({"btch": {}}, "btch: unknown key; did you mean 'batch'"),
        ({"batch": {"concurrency": 0}}, "batch.concurrency: input should be greater"),
    ],
)
def test_what_a_batch_file_must_not_say(folder: Path, tables: dict[str, Any], message: str) -> None:
    rest = {k: v for k, v in tables.items() if k != "tasks"}
    with pytest.raises(SpecError, match=message):
        batch(folder, tables.get("tasks", [{"name": "a"}]), **rest)


JOIN = """
import sys, anyio, race
from pathlib import Path
anyio.run(lambda: race.run_batch(race.load_batch(sys.argv[2]), key="k", home=Path(sys.argv[1])))
"""


@pytest.mark.timeout(120)
def test_six_processes_on_one_key_with_kills(folder: Path, home: Path) -> None:
    tasks = "".join(f'[[tasks]]\nname = "t{i}"\n' for i in range(12))
    (folder / "batch.toml").write_text(
        '[batch]\nname = "many"\nconcurrency = 4\n[task]\nprompt = "x"\n'
        '[base]\nproject = "project"\nnetwork = { agent = "none", setup = "none" }\n'
        '[[scorers]]\nuse = "tests"\nrun = "sh check.sh"\n'
        '[[entries]]\nname = "a"\nagent = "script"\ncommands = ["echo 50 > value.txt", "sleep 0.2"]\n'
        '[[entries]]\nname = "b"\nagent = "script"\ncommands = ["sleep 0.1; echo 5 >> value.txt"]\n' + tasks
    )

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", JOIN, str(home), str(folder / "batch.toml")])

    running = [start() for _ in range(6)]
    store = Store(home)
    while sum(e.kind == "attempt.ended" for r in store.races() for e in store.events(r.id)) < 3:
        time.sleep(0.05)
    for _ in range(6):
        victim = running.pop(0)
        victim.kill()
        victim.wait()
        running.append(start())
        time.sleep(0.3)
    for process in running:
        assert process.wait(60) == 0
    (row,) = BatchTable(store).all()
    events = store.events_below(row.id)
    ended = Counter(e.data["task"] for e in events if e.kind == "task.ended")
    assert ended == {f"t{i}": 1 for i in range(12)}
    assert sum(e.kind == "batch.ended" for e in events) == 1
    done = Counter((e.race, e.attempt) for e in events if e.kind == "attempt.done")
    assert set(done.values()) == {1}
    assert len(done) == 24
    verdicts = [r.verdict for r in store.races()]
    assert [(v.status, v.winner) for v in verdicts if v] == [("won", "a")] * 12
    store.close()
    assert anyio.run(roles, home) == {"base": 1}


def test_estimates() -> None:
    tasks = [Tries(4, 1, (2.0,)), Tries(4, 2, (4.0, 1.0))]
    rate = eligible_rate(tasks)
    assert rate is not None
    assert rate.value == 3 / 8
    assert rate.low is not None
    assert rate.low == pytest.approx(0.1368, abs=1e-3)  # Wilson's interval for 3 of 8
    one, two = pass_at(1, tasks), pass_at(2, tasks)
    assert one is not None
    assert two is not None
    assert one.value == pytest.approx((1 / 4 + 2 / 4) / 2)
    assert two.value == pytest.approx(((1 - 3 / 6) + (1 - 1 / 6)) / 2)
    best = best_at(2, tasks)
    assert best is not None
    # Of six choices of two, three hold the 2; and three hold the 4.
    assert best.value == pytest.approx((1.5 * 2.5) ** 0.5)
    mean = mean_speedup(tasks)
    assert mean is not None
    assert mean.value == pytest.approx((2 * 2) ** 0.5)
    assert mean.low is not None
    assert mean.high is not None
    assert mean.low <= mean.value <= mean.high
    assert pass_at(5, tasks) is None
    assert eligible_rate([]) is None
    alone = pass_at(1, tasks[:1])
    assert alone is not None
    assert alone.low is None
