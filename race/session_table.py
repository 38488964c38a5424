"""Sessions in the store: what they are asked with, who answers now, and everything that happened in them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from race.errors import SpecError
from race.store import Event, Store, TakenOverError, held, me, named

SessionStatus: TypeAlias = Literal["idle", "running", "interrupted"]
"""``"interrupted"``: whoever answered a prompt is gone; the next prompt goes on from there."""

_COLUMNS = (
    "id, provider, sandbox, made, workdir, options, created, status, owner_pid, owner_start, boot, beat"
)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What the store knows of a session without its events.

    Attributes:
        id: of the session.
        provider: of its sandbox.
        sandbox: where it works.
        made: when that sandbox was made, which tells it from a later one of the same name.
        workdir: where commands start.
        options: keys of an entry.
        created: seconds since the epoch.
        status: see `SessionStatus`.
        owner: the process that answers, or answered last.
    """

    id: str
    provider: str
    sandbox: str
    made: float
    workdir: str
    options: Mapping[str, Any]
    created: float
    status: SessionStatus
    owner: int


class SessionTable:
    """The sessions of a store.

    Args:
        store: where they are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, row: SessionRow) -> None:
        """A session without prompts."""
        with self._store.transaction() as db:
            db.execute(
                "INSERT INTO sessions (id, provider, sandbox, made, workdir, options, created) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    row.id,
                    row.provider,
                    row.sandbox,
                    row.made,
                    row.workdir,
                    json.dumps(dict(row.options)),
                    time.time(),
                ),
            )
            self._store.append(row.id, "session.opened", sandbox=row.sandbox, options=dict(row.options))

    def all(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        return [_row(r) for r in self._store.read(f"SELECT {_COLUMNS} FROM sessions ORDER BY rowid", ())]  # noqa: S608 - a constant

    def get(self, name: str) -> SessionRow:
        """The session of an id, or of the beginning of one, or the newest for ``"last"``.

        Raises:
            SpecError: there is none, or more than one; the text lists what there is.
        """
        rows = self.all()
        if not rows:
            raise SpecError("there is no session yet; 'race session open SANDBOX' begins one")
        if name == "last":
            return rows[-1]
        return named(rows, name, "session")

    def prompts(self, session: str) -> int:
        """How many prompts it has had."""
        ((count,),) = self._store.read(
            "SELECT count(*) FROM events WHERE race = ? AND kind = 'session.prompted'", (session,)
        )
        return int(count)

    def claim(self, session: str) -> int:
        """Answer a prompt, as the only one. Returns the fence of the lease.

        Raises:
            SpecError: somebody is answering one.
        """
        with self._store.transaction() as db:
            row = self.get(session)
            if row.status == "running":
                raise SpecError(f"the session {session} is answering another prompt (process {row.owner})")
            (fence,) = db.execute(
                "UPDATE sessions SET status = 'running', owner_pid = ?, owner_start = ?, boot = ?, beat = ?, "
                "fence = fence + 1 WHERE id = ? RETURNING fence",
                (*me(), session),
            ).fetchone()
        return int(fence)

    def append(self, session: str, fence: int, kind: str, **data: Any) -> Event:
        """Something happened in the answer to a prompt.

        Raises:
            TakenOverError: another process answers by now.
        """
        with self._store.transaction() as db:
            _check(db, session, fence)
            return self._store.append(session, kind, **data)

    def settle(self, session: str, fence: int, kind: str, **data: Any) -> Event:
        """The answer to a prompt has ended, however it did.

        Raises:
            TakenOverError: another process answers by now.
        """
        with self._store.transaction() as db:
            _check(db, session, fence)
            db.execute("UPDATE sessions SET status = 'idle' WHERE id = ?", (session,))
            return self._store.append(session, kind, **data)

    def remove(self, session: str) -> None:
        """Forget a session and its events.

        Raises:
            SpecError: somebody is answering a prompt of it.
        """
        self.claim(session)
        with self._store.transaction() as db:
            db.execute("DELETE FROM sessions WHERE id = ?", (session,))
            db.execute("DELETE FROM events WHERE race = ?", (session,))


def _check(db: sqlite3.Connection, session: str, fence: int) -> None:
    found = db.execute("SELECT 1 FROM sessions WHERE id = ? AND fence = ?", (session, fence)).fetchone()
    if found is None:
        raise TakenOverError(f"another process has taken the session {session} over; this one stops")


def _row(row: tuple[Any, ...]) -> SessionRow:
    name, provider, sandbox, made, workdir, options, created, status, pid, *lease = row
    if status == "running" and not held(pid, *lease):
        status = "interrupted"
    return SessionRow(name, provider, sandbox, made, workdir, json.loads(options), created, status, pid)
