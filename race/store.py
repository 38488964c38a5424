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
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from race.errors import MachineError, SpecError
from race.home import make as make_folder
from race.process import LEASE, boot, is_alive, owner, process_start, steady
from race.tables import SCHEMA, bring_up_to_date
from race.verdict import Verdict

__all__ = ["SCHEMA", "Event", "RaceRow", "Store", "StoreError", "TakenOverError", "is_alive", "owner"]


class StoreError(MachineError):
    """The store cannot be read or written. What was written before is whole, and can be gone on from."""


class TakenOverError(StoreError):
    """Another process has taken this work over; nothing more of this one is written."""


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
    owner: str = ""
    """The process that runs it, or ran it last."""
    parent: str = ""
    """The batch, or the race of several rounds, that it is part of."""
    spec: str | None = None
    """The race file as it was when the race began, as JSON; None of races of earlier versions."""
    replay: tuple[str, ...] = ()
    """The folders that the answers of its models come from, if it is a replay."""


class Store:
    """The database of a state folder.

    Calls are short and synchronous: an append in write-ahead mode is tens of microseconds, less than handing it to
    another thread costs.

    Args:
        home: the state folder; made if it is not there.

    Raises:
        MachineError: the folder cannot be made; the database cannot be opened, is damaged, or was made by a newer
            version.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._path = home / "race.db"
        self._damaged = (
            f"move it away to begin anew; what came of its races is in {home}/races/*/verdict.json"
        )
        self._lock = threading.RLock()
        self._fences: dict[str, int] = {}
        make_folder(home)
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
            if version < SCHEMA:
                bring_up_to_date(self._db)
        except sqlite3.Error as e:
            raise StoreError(
                f"the store {self._path} cannot be opened: {e}; {_remedy(e, self._damaged)}"
            ) from e

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def folder(self, race: str) -> Path:
        """Where the files of a race lie."""
        return self.home / "races" / race

    def begin(
        self,
        race: str,
        task: str,
        file: str,
        *,
        spec: str | None = None,
        parent: str = "",
        replay: Sequence[str] = (),
    ) -> None:
        """A race begins, run by this process, which holds its lease from now on.

        Args:
            race: its id.
            task: its task's name.
            file: its race file.
            spec: the race file as it is now, as JSON, so that the race can be gone on with when the file has changed.
            parent: the batch, or the race of several rounds, that it is part of.
            replay: the folders that the answers of its models come from, if it is a replay.
        """
        with self._writing():
            self._db.execute(
                "INSERT INTO races (id, task, file, created, status, owner_pid, owner_start, boot, beat, fence, spec, "
                "parent, replay) VALUES (?, ?, ?, ?, 'running', ?, ?, ?, ?, 1, ?, ?, ?)",
                (
                    race,
                    task,
                    file,
                    time.time(),
                    *me(),
                    spec,
                    parent,
                    json.dumps(list(replay)) if replay else None,
                ),
            )
            self._fences[race] = 1
        # After the row: a folder without one is taken for a left-over.
        self._make_folder(race)

    def claim(self, race: str) -> RaceRow:
        """Take over a race whose process is gone, or has been silent for `race.process.LEASE` seconds.

        From here on nothing that the other process may still write of it is taken.

        Raises:
            SpecError: it has ended, or the process that runs it is there.
        """
        with self.transaction():
            row = self.race(race)
            if row.verdict is not None:
                raise SpecError(f"{row.id} has ended ({row.status}); there is nothing to go on with")
            beat, where = self._db.execute("SELECT beat, boot FROM races WHERE id = ?", (row.id,)).fetchone()
            if row.alive and is_fresh(beat, where):
                raise SpecError(f"{row.id} is running (process {row.owner.partition(':')[0]})")
            (fence,) = self._db.execute(
                "UPDATE races SET fence = fence + 1, status = 'running', owner_pid = ?, owner_start = ?, boot = ?, "
                "beat = ? WHERE id = ? RETURNING fence",
                (*me(), row.id),
            ).fetchone()
        self._fences[row.id] = fence
        self._make_folder(row.id)
        return row

    def beat(self) -> None:
        """This process is still at work on all that it holds a lease of."""
        pid, start, where, now = me()
        with self._writing():
            for table in ("races", "batch_tasks", "sessions"):
                self._db.execute(
                    f"UPDATE {table} SET beat = ? WHERE owner_pid = ? AND owner_start = ? AND boot = ? "  # noqa: S608 - one of three words
                    "AND status = 'running'",
                    (now, pid, start, where),
                )

    def release(self, race: str) -> None:
        """This process stops in the middle of a race, which can be gone on with."""
        with self._writing():
            self._db.execute(
                "UPDATE races SET status = 'interrupted', owner_start = '' WHERE id = ? AND fence = ? "
                "AND status = 'running'",
                (race, self._fence(race)),
            )
        self._fences.pop(race, None)

    def append(self, race: str, kind: str, attempt: str = "", /, **data: Any) -> Event:
        """Something happened. Returns it with its number.

        Raises:
            TakenOverError: this process ran the race, and another one has taken it over.
        """
        with self._writing():
            return self._append(race, kind, attempt, data)

    def finish(self, verdict: Verdict, error: str = "") -> Event:
        """A race has ended, which is its last event.

        Raises:
            TakenOverError: another process has taken it over.
        """
        with self.transaction():
            event = self._append(
                verdict.race,
                "race.ended",
                "",
                {"status": verdict.status, "winner": verdict.winner, "error": error},
            )
            self._db.execute(
                "UPDATE races SET status = ?, verdict = ? WHERE id = ?",
                (verdict.status, verdict.model_dump_json(), verdict.race),
            )
        self._fences.pop(verdict.race, None)
        return event

    def _append(self, race: str, kind: str, attempt: str, data: dict[str, Any]) -> Event:
        now = time.time()
        text = json.dumps(data, default=str)
        fence = self._fences.get(race)
        cursor = self._db.execute(
            "INSERT INTO events (race, time, kind, attempt, data) SELECT ?, ?, ?, ?, ? "
            "WHERE ? IS NULL OR EXISTS (SELECT 1 FROM races WHERE id = ? AND fence = ?)",
            (race, now, kind, attempt, text, fence, race, fence),
        )
        self._check_fence(race, cursor.rowcount)
        return Event(cursor.lastrowid or 0, race, now, kind, attempt, json.loads(text))

    def _fence(self, race: str) -> int:
        return self._fences.get(race, 0)

    def _check_fence(self, race: str, rows: int) -> None:
        if rows == 0:
            raise TakenOverError(f"another process has taken {race} over; this one stops")

    def events(self, race: str, after: int = 0) -> list[Event]:
        """The events of a race with numbers above ``after``, in order."""
        return self._events("race = ?1", race, after)

    def events_below(self, parent: str, after: int = 0) -> list[Event]:
        """The events of a batch, or of a race of several rounds, and of all races that are part of it."""
        return self._events("race IN (SELECT id FROM races WHERE parent = ?1 UNION SELECT ?1)", parent, after)

    def _events(self, which: str, name: str, after: int) -> list[Event]:
        rows = self.read(
            "SELECT number, race, time, kind, attempt, data FROM events "  # noqa: S608 - one of the two above
            f"WHERE {which} AND number > ?2 ORDER BY number",
            (name, after),
        )
        return [
            Event(number, race, at, kind, attempt, json.loads(data))
            for number, race, at, kind, attempt, data in rows
        ]

    def races(self, parent: str | None = None) -> list[RaceRow]:
        """All races, oldest first; or those that are part of a batch or of a race of several rounds."""
        rows = self.read(
            "SELECT id, task, file, created, status, owner_pid, owner_start, boot, verdict, parent, spec, replay "
            "FROM races WHERE ? IS NULL OR parent = ? ORDER BY rowid",
            (parent, parent),
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
            return next((r for r in reversed(rows) if not r.parent), rows[-1])
        return named(rows, name, "race")

    def remove(self, race: str) -> None:
        """Forget a race and its events."""
        with self.transaction():
            self._db.execute("DELETE FROM races WHERE id = ?", (race,))
            self._db.execute("DELETE FROM events WHERE race = ?", (race,))

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
                raise StoreError(
                    f"the store {self._path} cannot be written to: {e}; {_remedy(e, 'nothing written before is lost')}"
                ) from e

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """All or nothing, and alone: no other process writes in between.

        Raises:
            StoreError: it cannot be written.
        """
        with self._writing():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def read(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        """The rows of a query."""
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as e:
                raise StoreError(
                    f"the store {self._path} cannot be read: {e}; {_remedy(e, self._damaged)}"
                ) from e


def me() -> tuple[int, str, str, float]:
    """This process, as it stands in a lease."""
    return os.getpid(), process_start(os.getpid()), boot(), steady()


def is_fresh(beat: float, where: str) -> bool:
    """Whether a lease was renewed lately; one without a beat is of an earlier version, whose processes renew none."""
    return not beat or (where == boot() and steady() - beat < LEASE)


def held(pid: int, start: str, where: str, beat: float) -> bool:
    """Whether whoever has a lease is there, and has renewed it lately."""
    return bool(start) and where == boot() and process_start(pid) == start and is_fresh(beat, where)


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


Row = TypeVar("Row", bound=_Identified)


def named(rows: Sequence[Row], name: str, kind: str) -> Row:
    """The row of an id, or of the beginning of one.

    Args:
        rows: to choose from.
        name: the id.
        kind: what they are, as one of them is called.

    Raises:
        SpecError: there is none, or more than one; the text lists what there is.
    """
    found = [r for r in rows if r.id == name] or [r for r in rows if r.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(r.id for r in (found or rows)[-10:])
    raise SpecError(f"there {f'are several {kind}s' if found else f'is no {kind}'} {name!r}: {shown}")


def _remedy(error: sqlite3.Error, otherwise: str) -> str:
    """What to do about it."""
    text = str(error)
    if "readonly" in text or "read-only" in text:
        return "make it writable, or set RACE_HOME to a folder that is"
    if "full" in text or "disk I/O" in text:
        return "make room on its disk; nothing written before is lost"
    return otherwise


def _row(row: tuple[Any, ...]) -> RaceRow:
    race, task, file, created, status, pid, start, where, verdict, parent, spec, replay = row
    alive = status == "running" and bool(start) and where in ("", boot()) and process_start(pid) == start
    if status == "running" and not alive:
        status = "interrupted"
    return RaceRow(
        race,
        task,
        file,
        created,
        status,
        alive,
        Verdict.model_validate_json(verdict) if verdict else None,
        f"{pid}:{start}",
        parent,
        spec,
        tuple(json.loads(replay)) if replay else (),
    )
