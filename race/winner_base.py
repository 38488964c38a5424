"""The kept winner of a race as the project of another: ``project = "race:ID"``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from race.errors import SpecError
from race.handoff import deltas
from race.project import Project, ProjectFile
from race.repository import ProjectRepository
from race.spec import RaceSpec
from race.store import Store

PREFIX = "race:"


@dataclass(frozen=True, slots=True)
class Winner:
    """A winner to begin from.

    Attributes:
        race: whose.
        attempt: its name.
        sandbox: where it was kept.
        repository: the project that its race began with.
        folder: of its race.
    """

    race: str
    attempt: str
    sandbox: str
    repository: Path
    folder: Path


def find_winner(spec: RaceSpec, home: Path) -> Winner | None:
    """The winner that a race file names as its project, or None if it names none.

    Raises:
        SpecError: there is no such race, it has no winner, or that was not kept as a rebuilt sandbox.
    """
    project = spec.base.project
    if not project.startswith(PREFIX):
        return None
    where = spec.place("base", "project")
    store = Store(home)
    try:
        row = store.race(project.removeprefix(PREFIX))
        verdict = row.verdict
        if verdict is not None and verdict.lineage:
            won = [r.race for r in verdict.lineage if r.winner is not None]
            row = store.race(won[-1]) if won else row
            verdict = row.verdict
        ready = [e for e in store.events(row.id) if e.kind == "base.ready"]
        folder = store.folder(row.id)
    except SpecError as e:
        raise SpecError(f"{where}: {e}") from e
    finally:
        store.close()
    winner = verdict.attempt(verdict.winner) if verdict is not None and verdict.winner else None
    if winner is None:
        raise SpecError(f"{where}: the race {row.id} has no winner")
    if winner.sandbox_state != "kept" or winner.sandbox is None or not winner.sandbox.endswith("-replay"):
        raise SpecError(
            f'{where}: the winner of {row.id} was not kept as a rebuilt sandbox; [keep] winner must be "replay" there'
        )
    known = ready[-1].data
    if known["workdir"] != spec.base.workdir:
        raise SpecError(
            f"{spec.place('base', 'workdir')}: the project of {row.id} lies in {known['workdir']!r}, so it must here"
        )
    generation = str(known["sandbox"]).rpartition("-")[2]
    repository = home / "bases" / str(known["key"]) / generation / "project.git"
    if not repository.is_dir():
        raise SpecError(f"{where}: the base of {row.id} is gone")
    return Winner(row.id, winner.name, winner.sandbox, repository, folder)


@contextmanager
def materialized(winner: Winner) -> Generator[Project, None, None]:
    """The project with a winner's change in it, as files that exist until the block ends."""
    base = ProjectRepository(winner.repository)
    found = {p: (e.mode, base.content(e.blob)) for p, e in base.entries().items()}
    for change in deltas(winner.folder, winner.attempt):
        if change.new is None or change.new_mode is None:
            found.pop(change.path, None)
        else:
            found[change.path] = (change.new_mode, change.new)
    with tempfile.TemporaryDirectory(prefix="race-winner-") as place:
        files: list[ProjectFile] = []
        for number, (path, (mode, content)) in enumerate(sorted(found.items())):
            source = Path(place) / str(number)
            source.write_bytes(content)
            target = content if mode == "120000" else None
            permissions = 0 if target is not None else 0o755 if mode == "100755" else 0o644
            files.append(ProjectFile(path, os.fsencode(source), permissions, target))
        yield Project(tuple(files))
