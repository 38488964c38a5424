"""The tables of the store, and bringing those of an earlier version up to date."""

from __future__ import annotations

import sqlite3

SCHEMA = 3
"""Version of the tables, kept in ``PRAGMA user_version``."""

_FIRST = """
CREATE TABLE IF NOT EXISTS races (
    id TEXT PRIMARY KEY, task TEXT NOT NULL, file TEXT NOT NULL, created REAL NOT NULL,
    status TEXT NOT NULL, owner_pid INTEGER NOT NULL, owner_start TEXT NOT NULL, verdict TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, race TEXT NOT NULL REFERENCES races(id) ON DELETE CASCADE,
    time REAL NOT NULL, kind TEXT NOT NULL, attempt TEXT NOT NULL, data TEXT NOT NULL
) STRICT;
"""

# Leases, the race file as it was, and events that belong to a batch: so no longer to a row of races alone.
_SECOND = """
ALTER TABLE races ADD COLUMN boot TEXT NOT NULL DEFAULT '';
ALTER TABLE races ADD COLUMN beat REAL NOT NULL DEFAULT 0;
ALTER TABLE races ADD COLUMN fence INTEGER NOT NULL DEFAULT 1;
ALTER TABLE races ADD COLUMN spec TEXT;
ALTER TABLE races ADD COLUMN parent TEXT NOT NULL DEFAULT '';
CREATE TABLE new_events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, race TEXT NOT NULL,
    time REAL NOT NULL, kind TEXT NOT NULL, attempt TEXT NOT NULL, data TEXT NOT NULL
) STRICT;
INSERT INTO new_events SELECT number, race, time, kind, attempt, data FROM events;
DROP TABLE events;
ALTER TABLE new_events RENAME TO events;
CREATE INDEX events_of_race ON events(race, number);
CREATE INDEX races_of_parent ON races(parent);
CREATE TABLE batches (
    id TEXT PRIMARY KEY, key TEXT NOT NULL UNIQUE, hash TEXT NOT NULL, name TEXT NOT NULL, file TEXT NOT NULL,
    request TEXT NOT NULL, created REAL NOT NULL, status TEXT NOT NULL, result TEXT
) STRICT;
CREATE TABLE batch_tasks (
    batch TEXT NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL, race TEXT NOT NULL, status TEXT NOT NULL,
    owner_pid INTEGER NOT NULL DEFAULT 0, owner_start TEXT NOT NULL DEFAULT '', boot TEXT NOT NULL DEFAULT '',
    beat REAL NOT NULL DEFAULT 0, fence INTEGER NOT NULL DEFAULT 0, tries INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '', PRIMARY KEY (batch, number)
) STRICT;
CREATE TABLE fleets (
    name TEXT PRIMARY KEY, created REAL NOT NULL, spec TEXT NOT NULL, spent REAL NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE fleet_members (
    fleet TEXT NOT NULL, id TEXT NOT NULL, sandbox TEXT NOT NULL, defaults TEXT NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (fleet, id)
) STRICT;
"""

# Where the answers of a race come from that is a replay; and sessions: what one is asked with, and the lease of whoever
# answers its prompt.
_THIRD = """
ALTER TABLE races ADD COLUMN replay TEXT;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, provider TEXT NOT NULL, sandbox TEXT NOT NULL, made REAL NOT NULL, workdir TEXT NOT NULL,
    options TEXT NOT NULL, created REAL NOT NULL, status TEXT NOT NULL DEFAULT 'idle',
    owner_pid INTEGER NOT NULL DEFAULT 0, owner_start TEXT NOT NULL DEFAULT '', boot TEXT NOT NULL DEFAULT '',
    beat REAL NOT NULL DEFAULT 0, fence INTEGER NOT NULL DEFAULT 0
) STRICT;
"""


def bring_up_to_date(db: sqlite3.Connection) -> None:
    """Make the tables, or change those of an earlier version, all or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]  # another process may have been faster
        steps = [_FIRST, _SECOND, _THIRD][version:]
        for statement in ";".join(steps).split(";"):
            if statement.strip():
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
