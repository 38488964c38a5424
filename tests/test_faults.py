"""What goes wrong around a race: a full disk, a store that cannot be used, a clock that jumps."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import anyio
import pytest

from race.errors import SpecError
from race.runner import resume
from race.store import Store
from tests.cli.test_cli import HONEST, RACE_FILE, Shell, entry
from tests.racing import project
from tests.test_resume import sandboxes

FULL = """
import resource, sys, anyio, race
from pathlib import Path

def fill(event):
    if event.kind == sys.argv[3]:
        # From now on no file of this process can grow: what a full disk does to its writes.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

anyio.run(lambda: race.run(race.load(sys.argv[2]), home=Path(sys.argv[1]), on_event=fill))
"""


@pytest.fixture
def shell(tmp_path: Path, home: Path) -> Shell:
    project(tmp_path)
    shell = Shell(tmp_path, home)
    shell.write(RACE_FILE + HONEST + entry("other", "echo 60 > value.txt", "sleep 0.2"))
    return shell


@pytest.mark.parametrize(
    "kind", ["attempt.result", "attempt.ended", "attempt.done", "finals.sample", "race.verdict"]
)
def test_a_full_disk_loses_nothing_that_was_finished(shell: Shell, kind: str) -> None:
    command = [sys.executable, "-c", FULL, str(shell.home), str(shell.folder / "race.toml"), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "race.store.StoreError: " in done.stderr
    assert "make room on its disk; nothing written before is lost" in done.stderr
    store = Store(shell.home)
    row = store.race("last")
    before = [e for e in store.events(row.id) if e.kind == "attempt.result"]
    assert (row.status, row.verdict) == ("interrupted", None)
    status, _, err = shell.run("run", "race.toml", "--resume")
    assert status == 0, err
    assert f"going on with race {row.id}" in err
    verdict = store.race(row.id).verdict
    assert verdict is not None
    assert verdict.winner == "honest"
    after = [e for e in store.events(row.id) if e.kind == "attempt.result"]
    assert after[: len(before)] == before
    assert len(after) == 3
    store.close()
    winner = verdict.attempt("honest")
    assert winner is not None
    assert anyio.run(sandboxes, shell.home) == [winner.sandbox]


def test_an_interrupted_race_is_named_and_its_forks_can_be_collected(shell: Shell) -> None:
    command = [sys.executable, "-c", FULL, str(shell.home), str(shell.folder / "race.toml"), "attempt.result"]
    subprocess.run(command, capture_output=True, check=False)
    assert anyio.run(sandboxes, shell.home) != []
    race = shell.run("list")[1].split()
    assert "interrupted" in race
    status, out, err = shell.run("show")
    assert status == 2
    assert "goes on with it" in err
    assert shell.run("gc")[0] == 0
    assert anyio.run(sandboxes, shell.home) == []
    # Its forks are gone, so what was not handed in starts anew, and the verdict says so.
    status, out, err = shell.run("resume", "last", "--json")
    assert status == 0, err
    assert "its fork was gone" in out
    watched = [json.loads(line) for line in shell.run("watch", "last", "--json")[1].splitlines()]
    store = Store(shell.home)
    assert watched == [asdict(e) for e in store.events(store.race("last").id)]
    store.close()
    assert "honest" in shell.run("watch")[1]
    status, _, err = shell.run("resume")
    assert status == 2
    assert "has ended (won); there is nothing to go on with" in err
    status, _, err = shell.run("run", "race.toml")
    assert status == 0
    assert "was interrupted" not in err


def test_a_read_only_store(shell: Shell) -> None:
    assert shell.run("run", "race.toml")[0] == 0
    for path in shell.home.glob("race.db*"):
        path.chmod(0o444)
    # Root may write everywhere, but for what it has given up.
    as_others = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    command = [*as_others, sys.executable, "-m", "race", "run", "race.toml"]
    done = subprocess.run(
        command, cwd=shell.folder, env=shell.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert re.fullmatch(r"race: the store \S+race.db cannot be .*: attempt to write a readonly database; "
                        r"make it writable, or set RACE_HOME to a folder that is\n", done.stderr)  # fmt: skip
    (shell.home / "race.db").chmod(0o644)
    assert shell.run("show")[0] == 0


def test_a_damaged_store(shell: Shell) -> None:
    assert shell.run("run", "race.toml")[0] == 0
    path = shell.home / "race.db"
    Store(shell.home).close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    for command in (("list",), ("run", "race.toml")):
        status, _, err = shell.run(*command)
        assert status == 3, err
        assert "malformed" in err
        assert "move it away to begin anew" in err
        assert "Traceback" not in err
    (verdict,) = (shell.home / "races").glob("*/verdict.json")
    assert '"winner": "honest"' in verdict.read_text()


def test_a_clock_that_was_set_back_while_a_race_was_interrupted(shell: Shell) -> None:
    command = [sys.executable, "-c", FULL, str(shell.home), str(shell.folder / "race.toml"), "attempt.done"]
    subprocess.run(command, capture_output=True, check=False)
    db = sqlite3.connect(shell.home / "race.db")
    db.execute("UPDATE events SET time = time + 1e8")
    db.execute("UPDATE races SET created = created + 1e8")
    db.commit()
    db.close()
    verdict = anyio.run(lambda: resume("last", home=shell.home))
    assert verdict.winner == "honest"
    assert 0 < verdict.seconds < 60
    store = Store(shell.home)
    numbers = [e.number for e in store.events(verdict.race)]
    assert numbers == sorted(numbers)
    assert shell.run("run", "race.toml")[0] == 0
    assert store.race("last").id != verdict.race
    store.close()


def test_a_store_of_an_earlier_version_is_brought_up_to_date(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "race.db")
    db.executescript(
        """
        CREATE TABLE races (
            id TEXT PRIMARY KEY, task TEXT NOT NULL, file TEXT NOT NULL, created REAL NOT NULL,
            status TEXT NOT NULL, owner_pid INTEGER NOT NULL, owner_start TEXT NOT NULL, verdict TEXT
        ) STRICT;
        CREATE TABLE events (
            number INTEGER PRIMARY KEY AUTOINCREMENT, race TEXT NOT NULL REFERENCES races(id) ON DELETE CASCADE,
            time REAL NOT NULL, kind TEXT NOT NULL, attempt TEXT NOT NULL, data TEXT NOT NULL
        ) STRICT;
        CREATE INDEX events_of_race ON events(race, number);
        INSERT INTO races VALUES ('old', 't', 'f', 1.0, 'running', 1, 'gone', NULL);
        INSERT INTO events VALUES (7, 'old', 1.0, 'race.started', '', '{}');
        PRAGMA user_version = 1;
        """
    )
    db.close()
    store = Store(tmp_path)
    assert store.race("old").status == "interrupted"
    assert [e.number for e in store.events("old")] == [7]
    assert store.append("old", "more").number == 8
    store.close()
    Store(tmp_path).close()


def test_resume_names_what_there_is(home: Path) -> None:
    with pytest.raises(SpecError, match="no race yet"):
        anyio.run(lambda: resume("x", home=home))
