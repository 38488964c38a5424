"""The base: the prepared sandbox that everything in a race is forked from.

A base is made once and cached by the content of everything that went into it: the image, the project's files, the
set-up commands, the environment. It lies stopped, and nothing ever writes to it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from race.atomic import write_atomically
from race.bash import shown
from race.errors import SandboxError, SpecError
from race.locking import locked
from race.project import Project, ProjectFile, collected, matching
from race.repository import ProjectRepository, TreeEntry
from race.sandbox import (
    Directory,
    Entry,
    File,
    Limits,
    Link,
    Removed,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
)
from race.spec import RaceSpec, nearest
from race.store import owner
from race.submission import printable
from race.tools import Tool, install, put
from race.winner_base import Winner, find_winner, materialized

FORMAT = 1
"""Raised when bases made by an earlier version cannot be used any more."""


@dataclass(frozen=True, slots=True)
class Base:
    """A prepared base.

    Attributes:
        key: hash of all that went into it.
        sandbox: name of its sandbox, which is stopped.
        workdir: where the project lies inside.
        repository: the framework's own git of the project.
        entries: the project's files as they were committed.
        rules: a folder with the project's ``.gitignore`` files and nothing else.
        commit: the commit that a git URL was resolved to.
        cached: whether it was there already.
    """

    key: str
    sandbox: str
    workdir: str
    repository: ProjectRepository
    entries: Mapping[bytes, TreeEntry]
    rules: Path
    commit: str | None
    cached: bool = True
    paths: Sequence[bytes] = field(init=False)
    """Of the project's files, sorted."""

    def __post_init__(self) -> None:
        """Sort the paths once, for what looks for those below a folder."""
        object.__setattr__(self, "paths", sorted(self.entries))

    def original(self, path: bytes) -> File | Link:
        """What to write into a sandbox to have a project's file as it was.

        Raises:
            KeyError: the base has nothing at this path.
        """
        entry = self.entries[path]
        content = self.repository.content(entry.blob)
        place = self.workdir.encode() + b"/" + path
        if entry.mode == "120000":
            return Link(place, content)
        return File(place, content, 0o755 if entry.mode == "100755" else 0o644)


async def prepare(
    spec: RaceSpec,
    provider: SandboxProvider,
    home: Path,
    *,
    fresh: bool = False,
    on_progress: Callable[[str], None] | None = None,
    tools: Sequence[Tool] = (),
) -> Base:
    """The base of a race, from the cache or made now.

    Args:
        spec: of the race.
        provider: makes its sandbox.
        home: ``$RACE_HOME``; bases lie in ``bases/`` below it.
        fresh: make it anew even if it is cached.
        on_progress: told what is being done.
        tools: programs that agents need inside.

    Raises:
        SpecError: the project cannot be collected, a protected path is not in it, or a set-up command failed; the
            text has its output, and nothing is left behind.
        MachineError: this machine cannot run sandboxes.
    """
    tell = on_progress or _ignore
    image = spec.base.image
    if image != "host":
        image = str(spec.folder / Path(image).expanduser())
    winner = await anyio.to_thread.run_sync(find_winner, spec, home)
    image_id = await provider.image_id(image) if winner is None else winner.sandbox
    async with _collected(spec, winner) as project:
        check_patterns(spec, project)
        key = await anyio.to_thread.run_sync(_key, spec, project, image_id, [t.key for t in tools])
        folder = home / "bases" / key
        folder.mkdir(parents=True, exist_ok=True)
        async with locked(
            folder / "lock", lambda: tell("waiting for another process that prepares the same base")
        ):
            if not fresh and (base := await _cached(folder, provider)) is not None:
                return base
            return await _make(spec, provider, folder, project, winner or image, tools, tell)


async def reopen(provider: SandboxProvider, home: Path, known: Mapping[str, Any]) -> Base | None:
    """The very base that a race began with, or None if it is gone.

    Args:
        provider: of its sandbox.
        home: ``$RACE_HOME``.
        known: ``key``, ``sandbox``, ``workdir`` and ``commit`` of it.
    """
    place = home / "bases" / known["key"] / str(known["sandbox"]).rpartition("-")[2]
    if not (place / "project.git").is_dir():
        return None
    try:
        await (await provider.get(known["sandbox"])).info()
    except SandboxError:
        return None
    return await anyio.to_thread.run_sync(_opened, known["key"], place, known)


def check_patterns(spec: RaceSpec, project: Project) -> None:
    """Refuse a protected path or editable pattern that names nothing in the project.

    Raises:
        SpecError: with the nearest path that there is.
    """
    paths = [f.path for f in project.files]
    for i, pattern in enumerate(spec.task.protected):
        if not matching([pattern], paths):
            raise SpecError(
                f"{spec.place('task', 'protected', i)}: {pattern!r} is not in the project; "
                f"{nearest(pattern, [printable(p) for p in paths][:50])}"
            )


def _ignore(_: str) -> None:
    """Nobody wants to be told."""


async def _cached(folder: Path, provider: SandboxProvider) -> Base | None:
    try:
        record = json.loads((folder / "base.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    if record.get("format") != FORMAT:
        return None
    try:
        await (await provider.get(record["sandbox"])).info()
    except SandboxError:
        return None
    place = folder / record["files"]
    return await anyio.to_thread.run_sync(_opened, folder.name, place, record)


def _opened(key: str, place: Path, record: Mapping[str, Any]) -> Base:
    repository = ProjectRepository(place / "project.git")
    return Base(
        key,
        record["sandbox"],
        record["workdir"],
        repository,
        repository.entries(),
        place / "rules",
        record.get("commit"),
    )


async def _make(
    spec: RaceSpec,
    provider: SandboxProvider,
    folder: Path,
    project: Project,
    source: str | Winner,
    tools: Sequence[Tool],
    tell: Callable[[str], None],
) -> Base:
    generation = secrets.token_hex(3)
    name = f"base-{folder.name}-{generation}"
    place = folder / generation
    try:
        tell(f"copying the project ({len(project.files):,} files)")
        await anyio.to_thread.run_sync(_write_repository, place, project)
        labels = {"role": "base", "base": folder.name, "owner": owner()}
        network = spec.base.network.setup
        if isinstance(source, Winner):
            # The machine, with its environment and all that was set up, comes along.
            kept = await provider.get(source.sandbox)
            sandbox = await kept.fork(name, network=network, limits=limits(spec), labels=labels)
            await sandbox.write([Removed(f"{spec.base.workdir}/.git".encode())])
        else:
            sandbox = await provider.create(
                SandboxSpec(
                    name,
                    image=source,
                    env=spec.base.env,
                    limits=limits(spec),
                    network=network,
                    labels=labels,
                )
            )
        await sandbox.write(_project_entries(spec.base.workdir, project.files))
        await sandbox.upload(place / "worktree.git", f"{spec.base.workdir}/.git")
        await anyio.to_thread.run_sync(shutil.rmtree, place / "worktree.git")
        await _put_tools(sandbox, spec, tools, folder.parent.parent, tell)
        for i, command in enumerate(spec.base.setup):
            tell(f"setup: {command}")
            done = await sandbox.exec(
                command, cwd=spec.base.workdir, timeout=spec.base.setup_timeout, merge_stderr=True
            )
            if done.exit_code != 0:
                how = (
                    f"timed out after {spec.base.setup_timeout:g} s"
                    if done.timed_out
                    else f"exit status {done.exit_code}"
                )
                output = printable_lines(shown(done.stdout, done.stdout_bytes, 6000))
                raise SpecError(  # noqa: TRY301 - the clean-up below is for this failure too
                    f"{spec.place('base', 'setup', i)}: {command!r} failed ({how})\n{output}".rstrip()
                )
        await sandbox.stop()
        await sandbox.label({"ready": "yes"})
        record: dict[str, Any] = {
            "format": FORMAT,
            "sandbox": name,
            "workdir": spec.base.workdir,
            "files": generation,
            "commit": project.commit,
            "created": time.time(),
        }
        previous = _record(folder)
        write_atomically(folder / "base.json", json.dumps(record, indent=1))
        base = replace(await anyio.to_thread.run_sync(_opened, folder.name, place, record), cached=False)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _remove(provider, name)
            gone = place if (folder / "base.json").exists() else folder
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(gone, ignore_errors=True))
        raise
    if previous:
        # Another race may still be forking from the one before; then `race gc` takes it later.
        await _remove(provider, previous["sandbox"])
    return base


async def _put_tools(
    sandbox: Sandbox, spec: RaceSpec, tools: Sequence[Tool], home: Path, tell: Callable[[str], None]
) -> None:
    """Put the programs in that agents bring along."""
    for tool in tools:
        tell(f"putting in {tool.name}")
        await put(tool, await install(tool, home), sandbox)
        for command in tool.setup:
            done = await sandbox.exec(command, timeout=spec.base.setup_timeout, merge_stderr=True)
            if done.exit_code != 0:
                output = printable_lines(shown(done.stdout, done.stdout_bytes, 6000))
                raise SpecError(
                    f"the agent {tool.name!r} cannot be installed in the base: {command!r}\n{output}"
                )


async def _remove(provider: SandboxProvider, name: str) -> None:
    try:
        await (await provider.get(name)).delete()
    except SandboxError:
        return


@asynccontextmanager
async def _collected(spec: RaceSpec, winner: Winner | None) -> AsyncGenerator[Project]:
    manager = collected(spec) if winner is None else materialized(winner)
    project = await anyio.to_thread.run_sync(manager.__enter__)
    try:
        yield project
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(manager.__exit__, None, None, None)


def limits(spec: RaceSpec) -> Limits:
    """The limits that a race's sandboxes get."""
    table = spec.base.limits
    return Limits(table.cpus, table.memory, table.disk, table.processes, table.cores)


def printable_lines(text: str) -> str:
    """Text of many lines that a sandbox printed, made safe to show."""
    return "\n".join(printable(line.rstrip("\r")) for line in text.replace("\t", "    ").split("\n"))


def _key(spec: RaceSpec, project: Project, image_id: str, tools: Sequence[str]) -> str:
    sums = [
        (f.path.hex(), f.mode, f.target.hex() if f.target is not None else _sum(f.source))
        for f in project.files
    ]
    made_of = [
        FORMAT,
        spec.base.sandbox,
        image_id,
        spec.base.workdir,
        spec.base.setup,
        sorted(spec.base.env.items()),
        spec.base.network.setup,
        asdict(limits(spec)),
        sums,
        *tools,
    ]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


def _sum(path: bytes) -> str:
    with open(path, "rb") as file:  # noqa: PTH123 - the path is bytes
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_repository(place: Path, project: Project) -> None:
    repository = ProjectRepository.create(place / "project.git")
    files = [f for f in project.files if f.target is None]
    blobs = dict(zip((f.path for f in files), repository.store_files([f.source for f in files]), strict=True))
    entries = {
        f.path: TreeEntry(f.git_mode, blobs[f.path] if f.target is None else repository.store(f.target))
        for f in project.files
    }
    repository.commit(entries, "baseline")
    repository.write_worktree_git(place / "worktree.git")
    rules = place / "rules"
    rules.mkdir()
    for file in files:
        if file.path.rpartition(b"/")[2] == b".gitignore":
            target = rules / os.fsdecode(file.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(repository.content(blobs[file.path]))


def _project_entries(workdir: str, files: tuple[ProjectFile, ...]) -> list[Entry]:
    root = os.fsencode(workdir)
    entries: list[Entry] = [Directory(root)]
    for file in files:
        path = root + b"/" + file.path
        if file.target is not None:
            entries.append(Link(path, file.target))
        else:
            entries.append(File(path, Path(os.fsdecode(file.source)), file.mode))
    return entries


def _record(folder: Path) -> dict[str, str] | None:
    try:
        record: dict[str, str] = json.loads((folder / "base.json").read_text())
    except (OSError, ValueError):
        return None
    return record
