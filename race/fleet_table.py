"""Fleets in the store: their members, their policy, and what they have spent."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from race.errors import SpecError
from race.store import Store


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member of a fleet; see `race.fleet.Member`."""

    id: str
    sandbox: str
    defaults: Mapping[str, Any]


class FleetTable:
    """The fleets of a store.

    Args:
        store: where they are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, name: str, spec: str) -> None:
        """A fleet without members.

        Raises:
            SpecError: there is one of this name.
        """
        with self._store.transaction() as db:
            made = db.execute(
                "INSERT INTO fleets (name, created, spec) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING",
                (name, time.time(), spec),
            )
            if made.rowcount == 0:
                raise SpecError(f"there is a fleet {name!r} already; 'race fleet show {name}' shows it")

    def names(self) -> list[str]:
        """All fleets, oldest first."""
        return [name for (name,) in self._store.read("SELECT name FROM fleets ORDER BY rowid", ())]

    def spec(self, name: str) -> str:
        """What its members are made from, as JSON.

        Raises:
            SpecError: there is no fleet of this name.
        """
        found = self._store.read("SELECT spec FROM fleets WHERE name = ?", (name,))
        if not found:
            known = ", ".join(self.names()) or "none"
            raise SpecError(f"there is no fleet {name!r}; there are: {known}")
        return str(found[0][0])

    def age(self, name: str) -> float:
        """Seconds since it was made. A clock that was set back makes it young, not older than it is."""
        ((created,),) = self._store.read("SELECT created FROM fleets WHERE name = ?", (name,))
        return max(time.time() - float(created), 0.0)

    def members(self, name: str) -> list[MemberRow]:
        """Its members, oldest first."""
        rows = self._store.read(
            "SELECT id, sandbox, defaults FROM fleet_members WHERE fleet = ? ORDER BY id", (name,)
        )
        return [MemberRow(i, s, json.loads(d)) for i, s, d in rows]

    def add(self, name: str, member: MemberRow) -> None:
        """A member has been made."""
        with self._store.transaction() as db:
            db.execute(
                "INSERT INTO fleet_members VALUES (?, ?, ?, ?, ?)",
                (name, member.id, member.sandbox, json.dumps(dict(member.defaults)), time.time()),
            )

    def remove(self, name: str, member: str) -> None:
        """A member is gone."""
        with self._store.transaction() as db:
            db.execute("DELETE FROM fleet_members WHERE fleet = ? AND id = ?", (name, member))

    def end(self, name: str) -> None:
        """A fleet is gone."""
        with self._store.transaction() as db:
            db.execute("DELETE FROM fleets WHERE name = ?", (name,))

    def over(self) -> set[str]:
        """The fleets whose lifetime is over."""
        found: set[str] = set()
        for name in self.names():
            lifetime = json.loads(self.spec(name))["policy"]["lifetime"]
            if lifetime is not None and self.age(name) > lifetime:
                found.add(name)
        return found

    def spent(self, name: str) -> float:
        """Dollars that its prompts have cost."""
        rows = self._store.read("SELECT spent FROM fleets WHERE name = ?", (name,))
        return float(rows[0][0]) if rows else 0.0

    def book(self, name: str, cost: float) -> None:
        """A prompt has cost this much."""
        with self._store.transaction() as db:
            db.execute("UPDATE fleets SET spent = spent + ? WHERE name = ?", (cost, name))
