"""Bringing the winners of a batch home: each onto a branch of its own repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import git

from race.batch_table import BatchTable
from race.errors import SpecError
from race.handoff import apply_to_branch, deltas
from race.project import is_url
from race.spec import RaceSpec
from race.store import Store
from race.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Landing:
    """What became of one task's winner.

    Attributes:
        task: its name.
        folder: the repository, if there is one.
        branch: that it is on; empty if it is on none.
        commit: on that branch.
        problem: why it is on none.
    """

    task: str
    folder: str = ""
    branch: str = ""
    commit: str = ""
    problem: str = ""


def apply_all(
    store: Store, batch: str, *, prefix: str = "race/", to: Path | None = None
) -> Sequence[Landing]:
    """Put the winner of each task of a batch on a new branch of its repository. What is in the way of one is named, and
    does not keep the others.

    Args:
        store: that knows the batch.
        batch: its id.
        prefix: of the branches, which are named after the tasks.
        to: a folder for clones of the projects that are git URLs, each in a folder named after its task; None leaves
            those where they are.
    """
    table = BatchTable(store)
    spec = table.spec(batch)
    verdicts = {r.id: r.verdict for r in store.races(batch)}
    landings: list[Landing] = []
    for task, race in zip(table.tasks(batch), spec.tasks, strict=True):
        verdict = verdicts.get(task.race)
        try:
            landings.append(_land(store, race, verdict, f"{prefix}{task.name}", task.error, to))
        except SpecError as e:
            landings.append(Landing(task.name, problem=str(e)))
    return landings


def _land(
    store: Store, spec: RaceSpec, verdict: Verdict | None, branch: str, error: str, to: Path | None
) -> Landing:
    if verdict is None or verdict.winner is None:
        raise SpecError(error or (verdict.decided_by if verdict else "it has not ended"))
    changes = deltas(store.folder(verdict.race), verdict.winner)
    if not changes:
        raise SpecError(f"{verdict.winner!r} changed nothing")
    project = spec.base.project
    if is_url(project):
        if to is None:
            raise SpecError(f"its project is {project!r}; name a folder for its clone with --to")
        folder = to / spec.task.name
        _clone(project, folder, _commit(store, verdict.race))
    else:
        folder = spec.folder / Path(project).expanduser()
    message = f"{spec.task.name}: {verdict.winner}\n\nFrom race {verdict.race}.\n"
    commit = apply_to_branch(folder, branch, changes, message)
    return Landing(spec.task.name, str(folder), branch, commit)


def _commit(store: Store, race: str) -> str | None:
    """The commit that the race was run on."""
    ready = [e for e in store.events(race) if e.kind == "base.ready"]
    return ready[-1].data.get("commit") if ready else None


def _clone(url: str, folder: Path, commit: str | None) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise SpecError(f"{folder} is there already, and not empty")
    try:
        repository = git.Repo.clone_from(url, folder)
        if commit is not None:
            repository.git.checkout("--quiet", commit)
        repository.close()
    except git.GitCommandError as e:
        raise SpecError(f"{url!r} cannot be cloned: {str(e.stderr).strip()}") from e
