"""Removing what is not needed any more: the sandboxes of a race, and what killed processes left.

Every sandbox that a race makes carries the race's id and its owner's process in its labels, so whoever comes later can
tell what is in use from what was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Generator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio.to_thread

from race.errors import SandboxError, SpecError
from race.fleet_table import FleetTable
from race.plugins import names
from race.plugins import provider as make_provider
from race.sandbox import SandboxInfo, SandboxProvider
from race.session_table import SessionTable
from race.store import Store, is_alive


async def delete_sandboxes(home: Path, races: AbstractSet[str]) -> list[str]:
    """Delete every sandbox of some races, kept ones too.

    Returns:
        A line about each one that could not be deleted.
    """
    problems: list[str] = []
    for name in _used(home):
        provider = make_provider(name, home, name)
        try:
            mine: list[SandboxInfo] = []
            names = set[str]()
            for info in await provider.list():
                # What a later round began from was forked from a winner, and goes with it.
                if info.labels.get("race") in races or (
                    info.labels.get("role") == "base" and info.parent in names
                ):
                    mine.append(info)
                    names.add(info.name)
            problems += (await _delete(provider, mine))[1]
        finally:
            await provider.aclose()
    return problems


async def collect(home: Path, *, bases: bool = False) -> tuple[list[str], list[str]]:
    """Remove what killed processes left, and nothing that a living one uses or that is kept.

    Args:
        home: the state folder.
        bases: also remove cached bases that nothing was forked from.

    Returns:
        A line about each thing removed, and a line about each that could not be.
    """
    store = Store(home)
    held: list[str] = []
    try:
        for row in store.races():
            if row.status == "interrupted":
                with contextlib.suppress(SpecError):  # somebody has just gone on with it
                    store.claim(row.id)
                    held.append(row.id)
        return await _collect(home, store, set(held), bases=bases)
    finally:
        for race in held:
            store.release(race)
        store.close()


async def _collect(
    home: Path, store: Store, held: AbstractSet[str], *, bases: bool
) -> tuple[list[str], list[str]]:
    rows = store.races()
    alive = {r.id for r in rows if r.alive} - held
    known = {r.id for r in rows}
    table = FleetTable(store)
    over = table.over()
    fleets = set(table.names()) - over
    removed: list[str] = []
    problems: list[str] = []
    left_over: set[str] = set()
    for name in _used(home):
        provider = make_provider(name, home, name)
        try:
            removed += await provider.collect()
            infos = await provider.list()
            left = [i for i in infos if _left_behind(home, i, alive, known) or _of_no_fleet(i, fleets)]
            done, failed = await _delete(provider, left)
            if bases and not alive:  # a race that has just begun may be about to fork from any of them
                gone = {i.name for i in left}
                parents = {i.parent for i in infos if i.name not in gone}
                unused = [i for i in infos if i.labels.get("role") == "base" and i.name not in parents | gone]
                more, failed_too = await _delete(provider, unused)
                done, failed = done + more, failed + failed_too
            removed += done
            problems += failed
            left_over |= {i.name for i in await provider.list()}
        finally:
            await provider.aclose()
    for name in over:
        for member in table.members(name):
            if member.sandbox not in left_over:
                table.remove(name, member.id)
        if not table.members(name):
            table.end(name)
    removed += await anyio.to_thread.run_sync(_orphaned_files, home, left_over)
    return removed, problems


def _used(home: Path) -> list[str]:
    """The providers that have a folder in this home, those that are plugins by name."""
    return [n for n in names("sandboxes") if (home / "sandboxes" / n).is_dir()]


def _left_behind(home: Path, info: SandboxInfo, alive: AbstractSet[str], known: AbstractSet[str]) -> bool:
    race, owner = info.labels.get("race", ""), info.labels.get("owner", "")
    if is_alive(owner):
        return False
    if info.labels.get("role") == "base":
        return not _is_current_base(home, info)
    if info.labels.get("role") == "trial":
        return True
    if not race:
        return False  # somebody made it by hand
    if info.labels.get("keep") == "yes":
        return race not in known
    return race not in alive


def _of_no_fleet(info: SandboxInfo, fleets: AbstractSet[str]) -> bool:
    """Whether a sandbox is a member of a fleet that is gone, or whose lifetime is over."""
    fleet = info.labels.get("fleet", "")
    return bool(fleet) and fleet not in fleets


def _is_current_base(home: Path, info: SandboxInfo) -> bool:
    try:
        record = json.loads((home / "bases" / info.labels.get("base", "") / "base.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(record.get("sandbox") == info.name)


async def _delete(provider: SandboxProvider, infos: list[SandboxInfo]) -> tuple[list[str], list[str]]:
    """Delete sandboxes, children before parents."""
    removed: list[str] = []
    problems: list[str] = []
    for info in reversed(infos):
        try:
            await (await provider.get(info.name)).delete()
            removed.append(f"sandbox {info.name}")
        except SandboxError as e:
            problems.append(f"the sandbox {info.name} could not be deleted: {e}")
    return removed, problems


def _orphaned_files(home: Path, sandboxes: AbstractSet[str]) -> list[str]:
    """Remove files of bases whose sandbox is gone, of bases that were never finished, and of unknown races."""
    removed: list[str] = []
    for folder in sorted((home / "bases").glob("*")):
        with _unlocked(folder / "lock") as free:
            if free:
                removed += _clean_base(folder, sandboxes)
    # What npm was still unpacking counts for nothing once nobody holds the lock of its tool.
    for part in sorted(p for p in (home / "tools").glob("*.*") if p.suffix[1:].isdigit()):
        with _unlocked(part.with_suffix(".lock")) as free:
            if free:
                shutil.rmtree(part, ignore_errors=True)
                removed.append(f"the half of the tool {part.stem}")
    # Folders before rows: a race writes its row first, so every folder seen here has one if its race is known.
    folders = sorted((home / "races").glob("*"))
    of_sessions = sorted((home / "sessions").glob("*"))
    store = Store(home)
    known = {r.id for r in store.races()} | {r.id for r in SessionTable(store).all()}
    store.close()
    for kind, found in (("race", folders), ("session", of_sessions)):
        for folder in found:
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(f"files of the {kind} {folder.name}")
    return removed


def _clean_base(folder: Path, sandboxes: AbstractSet[str]) -> list[str]:
    record: dict[str, str] = {}
    with suppress(OSError, ValueError):
        record = json.loads((folder / "base.json").read_text())
    if record.get("sandbox") not in sandboxes:
        shutil.rmtree(folder, ignore_errors=True)
        return [f"files of the base {folder.name}"]
    # A race that began with an earlier one may still be at work in its forks.
    used: set[str] = {str(record.get("files"))} | {
        s.rpartition("-")[2] for s in sandboxes if s.startswith(f"base-{folder.name}-")
    }
    old = [g for g in folder.iterdir() if g.is_dir() and g.name not in used]
    for generation in old:
        shutil.rmtree(generation, ignore_errors=True)
    return [f"files of an earlier base {folder.name}" for _ in old]


@contextmanager
def _unlocked(path: Path) -> Generator[bool]:
    """Whether nobody holds a lock; if so, it is held for the block."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
