"""Batches in the store: one row for a key, one for each task, and which process works on it."""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import time
from dataclasses import dataclass

from race.batch_spec import BatchSpec
from race.errors import SpecError
from race.store import Event, Store, TakenOverError, held, me


@dataclass(frozen=True, slots=True)
class BatchRow:
    """What the store knows of a batch.

    Attributes:
        id: of the batch.
        key: that it was asked for with.
        name: of the batch.
        file: it was started from.
        created: seconds since the epoch.
        status: ``"running"``, ``"cancelling"``, ``"ended"`` or ``"cancelled"``.
        alive: whether any process works on it.
        result: once it has ended, as JSON.
    """

    id: str
    key: str
    name: str
    file: str
    created: float
    status: str
    alive: bool
    result: str | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task of a batch.

    Attributes:
        batch: its batch.
        number: its place, from 0.
        name: of the task.
        race: id of its race.
        status: ``"pending"``, ``"running"``, ``"done"`` or ``"failed"``.
        fence: of the lease on it.
        tries: how many races it has had.
        error: why it failed.
    """

    batch: str
    number: int
    name: str
    race: str
    status: str
    fence: int
    tries: int
    error: str


_TASK = "batch, number, name, race, status, fence, tries, error"
_BATCH = "id, key, name, file, created, status, result"


class BatchTable:
    """The batches of a store.

    Args:
        store: where they are.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def open(self, spec: BatchSpec, key: str | None) -> BatchRow:
        """The batch of a key: begun now if there is none, else the one that there is.

        Raises:
            SpecError: the key belongs to another request.
        """
        batch = f"{spec.name[:20]}-batch-{secrets.token_hex(3)}"
        key = key if key is not None else batch
        with self.store.transaction() as db:
            made = db.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, 'running', NULL) ON CONFLICT (key) DO NOTHING",
                (batch, key, spec.hash, spec.name, str(spec.path), spec.model_dump_json(), time.time()),
            ).rowcount
            if made:
                rows = [
                    (batch, i, t.task.name, _race_id(batch, i, t.task.name, 1))
                    for i, t in enumerate(spec.tasks)
                ]
                db.executemany(
                    "INSERT INTO batch_tasks (batch, number, name, race, status) VALUES (?, ?, ?, ?, 'pending')",
                    rows,
                )
                attempts = sum(len(e.attempt_names()) for t in spec.tasks for e in t.entries)
                self.store.append(
                    batch,
                    "batch.started",
                    name=spec.name,
                    key=key,
                    tasks=[t.task.name for t in spec.tasks],
                    attempts=attempts,
                    concurrency=spec.concurrency,
                )
            found, known = db.execute("SELECT id, hash FROM batches WHERE key = ?", (key,)).fetchone()
        if known != spec.hash:
            raise SpecError(
                f"the key {key!r} belongs to another request (batch {found}); the file has changed since, "
                "so give it a key of its own"
            )
        return self.get(found)

    def get(self, name: str) -> BatchRow:
        """The batch of an id, of a key, or of the beginning of an id, or the newest for ``"last"``.

        Raises:
            SpecError: there is none, or more than one.
        """
        rows = self.all()
        found = rows[-1:] if name == "last" else [r for r in rows if name in (r.id, r.key)]
        found = found or [r for r in rows if r.id.startswith(name)]
        if len(found) == 1:
            return found[0]
        shown = ", ".join(f"{r.id} (key {r.key!r})" for r in (found or rows)[-10:]) or "there is none yet"
        raise SpecError(f"there {'are several batches' if found else 'is no batch'} {name!r}: {shown}")

    def all(self) -> list[BatchRow]:
        """All batches, oldest first."""
        rows = self.store.read(f"SELECT {_BATCH} FROM batches ORDER BY rowid", ())  # noqa: S608 - a constant
        return [BatchRow(i, k, n, f, c, s, self._alive(i), r) for i, k, n, f, c, s, r in rows]

    def status(self, batch: str) -> str:
        """See `BatchRow.status`."""
        ((status,),) = self.store.read("SELECT status FROM batches WHERE id = ?", (batch,))
        return str(status)

    def spec(self, batch: str) -> BatchSpec:
        """The batch file as it was."""
        ((text,),) = self.store.read("SELECT request FROM batches WHERE id = ?", (batch,))
        return BatchSpec.model_validate_json(text)

    def tasks(self, batch: str) -> list[TaskRow]:
        """Its tasks, in order."""
        query = f"SELECT {_TASK} FROM batch_tasks WHERE batch = ? ORDER BY number"  # noqa: S608 - a constant
        return [TaskRow(*row) for row in self.store.read(query, (batch,))]

    def claim(self, batch: str) -> TaskRow | None:
        """Take the next task that nobody works on, as this process's own; None if there is none now."""
        with self.store.transaction() as db:
            if db.execute("SELECT status FROM batches WHERE id = ?", (batch,)).fetchone()[0] != "running":
                return None
            number = next((n for n in _free(db, batch)), None)
            if number is None:
                return None
            row = db.execute(
                "UPDATE batch_tasks SET status = 'running', owner_pid = ?, owner_start = ?, boot = ?, beat = ?, "  # noqa: S608 - a constant
                f"fence = fence + 1 WHERE batch = ? AND number = ? RETURNING {_TASK}",
                (*me(), batch, number),
            ).fetchone()
        return TaskRow(*row)

    def settle(self, task: TaskRow, status: str, error: str = "", **data: object) -> Event:
        """A task is done, or has failed.

        Raises:
            TakenOverError: another process has taken the task over.
        """
        with self.store.transaction() as db:
            self._update(db, task, "status = ?, error = ?", status, error)
            return self.store.append(
                task.batch, "task.ended", task=task.name, race=task.race, status=status, error=error, **data
            )

    def again(self, task: TaskRow, reason: str) -> Event:
        """A task gets another race, because the machinery broke its last one."""
        race = _race_id(task.batch, task.number, task.name, task.tries + 2)
        with self.store.transaction() as db:
            self._update(db, task, "status = 'pending', tries = tries + 1, race = ?", race)
            return self.store.append(task.batch, "task.retry", task=task.name, race=task.race, reason=reason)

    def release(self, task: TaskRow) -> None:
        """This process stops in the middle of a task."""
        with self.store.transaction() as db:
            self._update(db, task, "status = 'pending'")

    def cancel(self, batch: str) -> None:
        """Nobody is to begin a further task."""
        with self.store.transaction() as db:
            db.execute(
                "UPDATE batches SET status = 'cancelling' WHERE id = ? AND status = 'running'", (batch,)
            )

    def end(self, batch: str, status: str, result: str) -> BatchRow:
        """A batch has ended. Of several processes that say so, one is heard."""
        with self.store.transaction() as db:
            done = db.execute(
                "UPDATE batches SET status = ?, result = ? WHERE id = ? AND result IS NULL",
                (status, result, batch),
            ).rowcount
            if done:
                self.store.append(batch, "batch.ended", status=status, totals=json.loads(result)["totals"])
        return self.get(batch)

    def remove(self, batch: str) -> None:
        """Forget a batch, its tasks and its events; its races stay."""
        with self.store.transaction() as db:
            db.execute("DELETE FROM batches WHERE id = ?", (batch,))
            db.execute("DELETE FROM batch_tasks WHERE batch = ?", (batch,))
            db.execute("DELETE FROM events WHERE race = ?", (batch,))
            db.execute("UPDATE races SET parent = '' WHERE parent = ?", (batch,))

    def _update(self, db: sqlite3.Connection, task: TaskRow, values: str, *given: object) -> None:
        done = db.execute(
            f"UPDATE batch_tasks SET {values} WHERE batch = ? AND number = ? AND fence = ?",  # noqa: S608 - constants
            (*given, task.batch, task.number, task.fence),
        )
        if done.rowcount == 0:
            raise TakenOverError(f"another process has taken the task {task.name!r} of {task.batch} over")

    def _alive(self, batch: str) -> bool:
        rows = self.store.read(
            "SELECT owner_pid, owner_start, boot, beat FROM batch_tasks WHERE batch = ? AND status = 'running'",
            (batch,),
        )
        return any(held(*row) for row in rows)


def _free(db: sqlite3.Connection, batch: str) -> list[int]:
    """Tasks that wait, or whose process is gone; in order."""
    rows = db.execute(
        "SELECT number, status, owner_pid, owner_start, boot, beat FROM batch_tasks "
        "WHERE batch = ? AND status IN ('pending', 'running') ORDER BY number",
        (batch,),
    ).fetchall()
    return [n for n, status, *lease in rows if status == "pending" or not held(*lease)]


def _race_id(batch: str, number: int, task: str, attempt: int) -> str:
    """Follows from the batch, so that whoever goes on with a task finds its race."""
    text = f"{batch}/{number}/{attempt}"
    return f"{task[:20]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
