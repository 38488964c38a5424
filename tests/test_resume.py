"""A race that was killed goes on from where it was, and ends as if nothing had happened.

``RACE_KILLS=200 pytest -s tests/test_resume.py`` kills more often than the default, and prints at what.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest

from race.errors import SpecError
from race.plugins import provider
from race.process import LEASE
from race.removal import delete_sandboxes
from race.runner import resume
from race.store import Store
from tests.cli.test_cli import RACE_FILE, entry
from tests.killing import KINDS, RUN, Killed, race_file, run_and_kill, summary
from tests.racing import project

KILLS = int(os.environ.get("RACE_KILLS", "6"))
KILLS_EACH = 12


def check(alone: Killed, killed: Killed, left: list[str]) -> None:
    """What must hold of a race that was killed, compared with one that was left alone."""
    assert summary(killed.verdict) == summary(alone.verdict)
    assert killed.patches == alone.patches
    assert set(killed.calls) == set(alone.calls)
    assert sum(killed.calls.values()) - len(killed.calls) <= killed.repeats
    said = [r for a in killed.verdict.attempts for r in a.reasons if "was made again" in r]
    assert len(said) <= killed.repeats
    assert bool(said) == bool(killed.repeats)
    winner = killed.verdict.attempt(killed.verdict.winner or "")
    assert winner is not None
    assert left == [winner.sandbox]


async def sandboxes(home: Path) -> list[str]:
    """All but the base."""
    made = provider("local", home, "test")
    try:
        return [i.name for i in await made.list() if i.labels and i.labels["role"] != "base"]
    finally:
        await made.aclose()


def forget(home: Path) -> None:
    """Forget the races so far."""
    store = Store(home)
    for row in store.races():
        anyio.run(delete_sandboxes, home, {row.id})
        shutil.rmtree(store.folder(row.id))
        store.remove(row.id)
    store.close()


@pytest.mark.long
@pytest.mark.timeout(90)
def test_killed_in_every_phase(tmp_path: Path, home: Path) -> None:
    race_file(tmp_path)
    killed = run_and_kill(tmp_path, home, kinds=KINDS)
    left = anyio.run(sandboxes, home)
    assert killed.phases == Counter(KINDS)
    forget(home)
    alone = run_and_kill(tmp_path, home)
    assert alone.verdict.winner == "third"
    assert set(alone.calls.values()) == {1}
    check(alone, killed, left)


@pytest.mark.timeout(60 + 8 * KILLS)
def test_killed_at_random_moments(tmp_path: Path, home: Path) -> None:
    race_file(tmp_path)
    alone = run_and_kill(tmp_path, home)
    rng = random.Random(13)
    total = repeats = 0
    phases: Counter[str] = Counter()
    while total < KILLS:
        forget(home)
        killed = run_and_kill(tmp_path, home, rng=rng, kills=min(KILLS_EACH, KILLS - total))
        check(alone, killed, anyio.run(sandboxes, home))
        total += killed.kills
        repeats += killed.repeats
        phases += killed.phases
    sys.stdout.write(f"{total} kills, {repeats} calls repeated, at {dict(phases)}" + "\n")


def test_a_process_that_was_taken_for_dead_writes_nothing_more(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    (tmp_path / "race.toml").write_text(
        RACE_FILE + entry("honest", "echo 50 > value.txt", "sleep 1.5", "echo 40 > value.txt")
    )
    command = [sys.executable, "-c", RUN, str(home), str(tmp_path / "race.toml"), ""]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    store = Store(home)
    while not any(e.kind == "attempt.result" for r in store.races() for e in store.events(r.id)):
        time.sleep(0.02)
    race = store.race("last").id
    with pytest.raises(SpecError, match=r"is running \(process \d+\)"):
        anyio.run(lambda: resume(race, home=home))
    first.send_signal(signal.SIGSTOP)
    # As if it had been silent for longer than a lease lasts.
    db = sqlite3.connect(home / "race.db")
    db.execute("UPDATE races SET beat = beat - ?", (LEASE,))
    db.commit()
    db.close()
    verdict = anyio.run(lambda: resume(race, home=home))
    assert verdict.winner == "honest"
    ended = store.events(race)
    first.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=20)
    assert first.returncode == 1
    assert f"TakenOverError: another process has taken {race} over" in err
    assert store.events(race) == ended
    assert store.race(race).verdict == verdict
    store.close()
    winner = verdict.attempt("honest")
    assert winner is not None
    assert winner.metrics["benchmark"].value == 40
    assert anyio.run(sandboxes, home) == [winner.sandbox]


def test_an_agent_that_cannot_go_on_starts_anew(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    (tmp_path / "race.toml").write_text(
        RACE_FILE + '[[entries]]\nname = "counts"\nagent = "tests.plugins:Counts"\n'
    )
    for kind in ("attempt.result", ""):
        command = [sys.executable, "-c", RUN, str(home), str(tmp_path / "race.toml"), kind]
        subprocess.run(command, check=not kind)
    store = Store(home)
    verdict = store.race("last").verdict
    store.close()
    assert verdict is not None
    (attempt,) = verdict.attempts
    assert attempt.metrics["benchmark"].value == 99
    assert attempt.reasons == (
        (
            "was started anew in a new fork, because the race was interrupted and its agent 'tests.plugins:Counts' "
            "cannot go on"
        ),
    )
    assert attempt.sandbox == f"{verdict.race}-counts-replay"
