"""The store: every race and everything that happened in it, in SQLite, appended before the next step begins.

One writer a race, any number of readers. Events have one ascending number over all races, so whoever watches can ask
for all after the last one seen. Write-ahead logging lets readers and writers go on side by side, and a
process killed at any moment leaves complete events.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from race.errors import MachineError, SpecError
from race.verdict import Verdict

SCHEMA = 1
"""Version of the tables, kept in ``PRAGMA user_version``."""

_TABLES = """
CREATE TABLE IF NOT EXISTS races (
    id TEXT PRIMARY KEY, task TEXT NOT NULL, file TEXT NOT NULL, created REAL NOT NULL,
    status TEXT NOT NULL, owner_pid INTEGER NOT NULL, owner_start TEXT NOT NULL, verdict TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, race TEXT NOT NULL REFERENCES races(id) ON DELETE CASCADE,
    time REAL NOT NULL, kind TEXT NOT NULL, attempt TEXT NOT NULL, data TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS events_of_race ON events(race, number);
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        number: ascending over all races of the store.
        race: whose.
        time: seconds since the epoch.
        kind: what, such as ``"attempt.command"``.
        attempt: whose, or empty.
        data: more about it; JSON values.
    """

    number: int
    race: str
    time: float
    kind: str
    attempt: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RaceRow:
    """What the store knows of a race without its events.

    Attributes:
        id: of the race.
        task: its task's name.
        file: the race file it was started from.
        created: seconds since the epoch.
        status: ``"running"``, or that of its verdict.
        alive: whether the process that runs it is there.
        verdict: once it has ended.
    """

    id: str
    task: str
    file: str
    created: float
    status: str
    alive: bool
    verdict: Verdict | None


class Store:
    """The database of a state folder.

    Calls are short and synchronous: an append in write-ahead mode is tens of microseconds, less than handing it to
    another thread costs.

    Args:
        home: the state folder.

    Raises:
        MachineError: the database cannot be opened, is damaged, or was made by a newer version.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._path = home / "race.db"
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(self._path, timeout=15, isolation_level=None, check_same_thread=False)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA:
                raise MachineError(
                    f"{self._path} was made by a newer version of race (format {version}, this one knows {SCHEMA}); "
                    "upgrade, or set RACE_HOME to another folder"
                )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA foreign_keys = ON")
            if version < SCHEMA:
                self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
        except sqlite3.Error as e:
            raise MachineError(
                f"the store {self._path} cannot be opened: {e}; move it away to begin anew"
            ) from e

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def folder(self, race: str) -> Path:
        """Where the files of a race lie."""
        return self.home / "races" / race

    def begin(self, race: str, task: str, file: str) -> None:
        """A race begins, run by this process."""
        with self._writing():
            self._db.execute(
                "INSERT INTO races VALUES (?, ?, ?, ?, 'running', ?, ?, NULL)",
                (race, task, file, time.time(), os.getpid(), process_start(os.getpid())),
            )
        # After the row: a folder without one is taken for a left-over.
        self._make_folder(race)

    def append(self, race: str, kind: str, attempt: str = "", **data: Any) -> Event:
        """Something happened. Returns it with its number."""
        now = time.time()
        text = json.dumps(data, default=str)
        with self._writing():
            cursor = self._db.execute(
                "INSERT INTO events (race, time, kind, attempt, data) VALUES (?, ?, ?, ?, ?)",
                (race, now, kind, attempt, text),
            )
            number = cursor.lastrowid or 0
        return Event(number, race, now, kind, attempt, json.loads(text))

    def finish(self, verdict: Verdict) -> None:
        """A race has ended."""
        with self._writing():
            self._db.execute(
                "UPDATE races SET status = ?, verdict = ? WHERE id = ?",
                (verdict.status, verdict.model_dump_json(), verdict.race),
            )

    def events(self, race: str, after: int = 0) -> list[Event]:
        """The events of a race with numbers above ``after``, in order."""
        rows = self._read(
            "SELECT number, race, time, kind, attempt, data FROM events WHERE race = ? AND number > ? ORDER BY number",
            (race, after),
        )
        return [
            Event(number, race, at, kind, attempt, json.loads(data))
            for number, race, at, kind, attempt, data in rows
        ]

    def races(self) -> list[RaceRow]:
        """All races, oldest first."""
        rows = self._read(
            "SELECT id, task, file, created, status, owner_pid, owner_start, verdict FROM races ORDER BY created, id",
            (),
        )
        return [_row(r) for r in rows]

    def race(self, name: str) -> RaceRow:
        """The race of an id, or of the beginning of one, or the newest for ``"last"``.

        Raises:
            SpecError: there is none, or more than one; the text lists what there is.
        """
        rows = self.races()
        if not rows:
            raise SpecError("there is no race yet; 'race run FILE' starts one")
        if name == "last":
            return rows[-1]
        found = [r for r in rows if r.id == name] or [r for r in rows if r.id.startswith(name)]
        if len(found) == 1:
            return found[0]
        shown = ", ".join(r.id for r in (found or rows)[-10:])
        raise SpecError(f"there {'are several races' if found else 'is no race'} {name!r}: {shown}")

    def remove(self, race: str) -> None:
        """Forget a race and its events."""
        with self._writing():
            self._db.execute("DELETE FROM races WHERE id = ?", (race,))

    def abandon(self, race: str) -> None:
        """Note that the process which ran a race is gone."""
        with self._writing():
            self._db.execute(
                "UPDATE races SET status = 'interrupted' WHERE id = ? AND status = 'running'", (race,)
            )

    def _make_folder(self, race: str) -> None:
        try:
            self.folder(race).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as e:
            raise MachineError(f"the folder {self.folder(race)} cannot be made: {e.strerror}") from e

    @contextmanager
    def _writing(self) -> Generator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as e:
                raise MachineError(f"the store {self._path} cannot be written to: {e}") from e

    def _read(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as e:
                raise MachineError(f"the store {self._path} cannot be read: {e}") from e


def process_start(pid: int) -> str:
    """What tells a process from a later one of the same number: its start time, empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def owner() -> str:
    """This process, as the label ``owner`` of a sandbox names it."""
    return f"{os.getpid()}:{process_start(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Whether the process that such a label names is still there."""
    pid, _, start = owner.partition(":")
    return pid.isdigit() and bool(start) and process_start(int(pid)) == start


def _row(row: tuple[Any, ...]) -> RaceRow:
    race, task, file, created, status, pid, start, verdict = row
    alive = status == "running" and bool(start) and process_start(pid) == start
    if status == "running" and not alive:
        status = "interrupted"
    return RaceRow(
        race, task, file, created, status, alive, Verdict.model_validate_json(verdict) if verdict else None
    )
