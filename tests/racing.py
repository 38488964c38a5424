"""A tiny project to race on, whose benchmark prints what a file says: exact, and a few milliseconds a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import race
from race.spec import RaceSpec, from_data
from race.store import Event
from race.verdict import Verdict
from tests.test_project import git

SCORERS: list[dict[str, Any]] = [
    {"use": "tests", "run": "sh check.sh"},
    {"use": "benchmark", "run": "sh bench.sh", "unit": "points"},
]


def project(folder: Path) -> Path:
    """Make the project, a repository with one commit."""
    place = folder / "project"
    place.mkdir()
    (place / "value.txt").write_text("100\n")
    (place / "status.txt").write_text("ok\n")
    (place / "check.sh").write_text("grep -q ok status.txt || { echo status is broken >&2; exit 1; }\n")
    (place / "bench.sh").write_text("cat value.txt\n")
    git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "one")
    return place


def script(name: str, *commands: str, **more: Any) -> dict[str, Any]:
    """An entry that runs commands."""
    return {"name": name, "agent": "script", "commands": list(commands), **more}


def spec(folder: Path, entries: Sequence[dict[str, Any]], **tables: Any) -> RaceSpec:
    """A race on the project in ``folder``."""
    data: dict[str, Any] = {
        "task": {"name": "tiny", "prompt": "Make it less.", "protected": ["check.sh", "bench.sh"]},
        "base": {"project": "project", "network": {"agent": "none", "setup": "none"}},
        "entries": list(entries),
        "scorers": SCORERS,
        "finals": {"mode": "quick"},
    }
    for name, table in tables.items():
        data[name] = {**data[name], **table} if isinstance(table, dict) and name in data else table
    return from_data(data, folder / "race.toml")


async def run(home: Path, made: RaceSpec, events: list[Event] | None = None, **options: Any) -> Verdict:
    """Run a race with its state in ``home``."""
    sink = events if events is not None else []
    return await race.run(made, home=home, on_event=sink.append, **options)
