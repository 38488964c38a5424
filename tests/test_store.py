"""The store: events in order, several processes at once, and clear errors when it cannot be used."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from race.errors import MachineError, SpecError
from race.home import home
from race.store import Store, is_alive, owner
from race.verdict import Verdict


def test_events_are_numbered_and_read_from_a_number(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin("r-1", "t", "f")
    first = store.append("r-1", "one", x=1)
    second = store.append("r-1", "two", "a", text="\ud835 lone", path=Path("p"))
    assert second.number > first.number
    assert store.events("r-1") == [first, second]
    assert store.events("r-1", after=first.number) == [second]
    assert second.data == {"text": "\ud835 lone", "path": "p"}
    store.close()


def append_many(folder: Path) -> None:
    store = Store(folder)
    for i in range(100):
        store.append("r", "e", i=i)
    store.close()


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin("r", "t", "f")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_many, args=(tmp_path,)) for _ in range(3)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    events = store.events("r")
    assert len(events) == 300
    assert len({e.number for e in events}) == 300
    store.close()


def test_races_are_found_by_the_beginning_of_their_id(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(SpecError, match="no race yet"):
        store.race("last")
    store.begin("one-1", "t", "f")
    store.begin("one-2", "t", "f")
    assert store.race("last").id == "one-2"
    assert store.race("one-1").id == "one-1"
    with pytest.raises(SpecError, match="several races 'one'"):
        store.race("one")
    with pytest.raises(SpecError, match=r"no race 'x': one-1, one-2"):
        store.race("x")
    store.remove("one-1")
    assert [r.id for r in store.races()] == ["one-2"]
    store.close()


def test_a_race_whose_process_died_is_interrupted(tmp_path: Path) -> None:
    begin = f"Store(Path({str(tmp_path)!r})).begin('r', 't', 'f')"
    code = f"from race.store import Store; from pathlib import Path; {begin}"
    subprocess.run([sys.executable, "-c", code], check=True)
    store = Store(tmp_path)
    row = store.race("r")
    assert (row.status, row.alive, row.verdict) == ("interrupted", False, None)
    store.begin("mine", "t", "f")
    assert store.race("mine").alive
    store.finish(Verdict(race="mine", task="t", status="no_winner"))
    assert store.race("mine").status == "no_winner"
    store.close()


def test_owners() -> None:
    assert is_alive(owner())
    assert not is_alive("")
    assert not is_alive("1:")
    assert not is_alive(f"{os.getpid()}:1")


def test_a_store_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "race.db").write_bytes(b"no database" * 1000)
    with pytest.raises(MachineError, match="cannot be opened"):
        Store(tmp_path / "damaged")
    (tmp_path / "newer").mkdir()
    db = sqlite3.connect(tmp_path / "newer" / "race.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(MachineError, match="newer version"):
        Store(tmp_path / "newer")


def test_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACE_HOME", str(tmp_path / "a" / "b"))
    assert home() == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0
    monkeypatch.delenv("RACE_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert home() == tmp_path / "state" / "race"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RACE_HOME", str(tmp_path / "file"))
    with pytest.raises(MachineError, match="set RACE_HOME"):
        home()
