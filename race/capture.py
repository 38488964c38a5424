"""Taking a submission out of a fork, from outside.

The fork belongs to its agent: its git, its programs and its clock may lie. So what changed is read from the layer that
holds the fork's writes, file by file, without following a link and without running anything; the framework's own
git (`race.repository`) turns it into a patch.
"""

from __future__ import annotations

import bisect
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser

import anyio.to_thread

from race.base import Base
from race.errors import SandboxError
from race.machine import may_be_carried, report
from race.project import is_left_over
from race.repository import TreeEntry
from race.sandbox import Change, Entry, File, Link, Removed, Sandbox
from race.submission import Package, PathChange, Submission, printable

MAX_FILE = 16 << 20
"""Bytes of the largest file that a submission may hold."""
MAX_TOTAL = 64 << 20
"""Bytes of all its files together."""
MAX_PATHS = 10_000
"""How many paths it may change."""

_METADATA = re.compile(rb"(/.+/(?:site|dist)-packages)/([^/]+)\.(?:dist-info/METADATA|egg-info/PKG-INFO)")
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,80}")


@dataclass(frozen=True, slots=True)
class _Found:
    """What is at a changed path of the project now: a tree entry and its content, or nothing."""

    entry: TreeEntry | None
    size: int
    write: Entry


async def capture(sandbox: Sandbox, base: Base, *, machine: bool = False) -> Submission:
    """What a fork changed, compared with the base that it was forked from.

    Args:
        sandbox: the fork, stopped or frozen.
        base: its base.
        machine: whether what was added outside of the project is taken as well.

    Raises:
        SandboxError: the fork cannot be read.
    """
    try:
        changes = await sandbox.changes("/", limit=1_000_000)
    except SandboxError as e:
        return Submission(problems=(f"its changes cannot be listed: {e}",))
    root = base.workdir.encode() + b"/"
    inside: list[Change] = []
    outside: list[Change] = []
    for change in changes:
        if change.path.startswith(root):
            inside.append(change)
        elif change.path != root[:-1]:
            outside.append(change)
        elif change.kind != "directory":
            return Submission(
                problems=(f"the project's folder {base.workdir} is gone",), outside=len(outside)
            )
    packages = await _packages(sandbox, changes)
    found, ignored, problems = await _project_changes(sandbox, base, inside)
    changed = {p: f for p, f in found.items() if f.entry != base.entries.get(p)}
    additions: tuple[Entry, ...] = ()
    if machine:
        additions, more = await _additions(sandbox, outside)
        problems += more
    patch = await anyio.to_thread.run_sync(_patch, base, {p: f.entry for p, f in changed.items()})
    return Submission(
        changes=tuple(_described(p, base.entries.get(p), f) for p, f in sorted(changed.items())),
        entries=tuple(f.write for _, f in sorted(changed.items(), key=_removals_first)),
        patch=patch,
        packages=packages,
        problems=tuple(problems),
        ignored=tuple(printable(p) for p in sorted(ignored)),
        outside=len(outside),
        machine=report(outside),
        additions=additions,
    )


async def _additions(sandbox: Sandbox, outside: Iterable[Change]) -> tuple[tuple[Entry, ...], list[str]]:
    """What was added to the machine and neither starts by itself nor sets anything."""
    entries: list[Entry] = []
    total = 0
    for change in outside:
        if not may_be_carried(change, frozenset(), frozenset()):
            continue
        if change.size > MAX_FILE or total + change.size > MAX_TOTAL or len(entries) >= MAX_PATHS:
            return (), [
                f"more was added to its machine than can be carried over, such as {printable(change.path)}"
            ]
        total += change.size
        if change.kind == "link":
            entries.append(Link(change.path, change.target))
        else:
            content = await sandbox.read(change.path, limit=MAX_FILE)
            if change.path.endswith(b".dist-info/entry_points.txt") and b"pytest11" in content:
                continue
            entries.append(File(change.path, content, change.mode & 0o755))
    return tuple(entries), []


def _removals_first(item: tuple[bytes, _Found]) -> tuple[bool, bytes]:
    # A folder may have become a file, or a file a folder: what was there has to go before what comes.
    return item[1].entry is not None, item[0]


async def _project_changes(
    sandbox: Sandbox, base: Base, inside: Iterable[Change]
) -> tuple[dict[bytes, _Found], set[bytes], list[str]]:
    root = base.workdir.encode() + b"/"
    now: dict[bytes, Change | None] = {}
    sorted_paths = base.paths
    for seen in inside:
        path = seen.path[len(root) :]
        if path == b".git" or path.startswith(b".git/"):
            continue
        if seen.kind != "directory":
            for below in _below(path, sorted_paths):
                now.setdefault(below, None)
        elif path in base.entries:
            now[path] = None  # a folder took a file's place
        if seen.kind != "directory" and (seen.kind != "removed" or path in base.entries):
            now[path] = None if seen.kind == "removed" else seen
    new = [p for p in now if p not in base.entries]
    ignored = {p for p in new if is_left_over(p)}
    ignored |= await anyio.to_thread.run_sync(base.repository.ignored, base.rules, sorted(set(new) - ignored))
    found: dict[bytes, _Found] = {}
    problems: list[str] = []
    total = 0
    wanted = sorted(set(now) - ignored)
    if len(wanted) > MAX_PATHS:
        problems.append(f"more than {MAX_PATHS:,} paths changed ({len(wanted):,})")
        wanted = wanted[:0]  # none of it is read: that alone would take minutes
    for path in wanted:
        change = now[path]
        if change is None:
            found[path] = _Found(None, 0, Removed(path))
            continue
        problem = _problem(path, change, total)
        if problem:
            problems.append(problem)
            continue
        total += change.size
        found[path] = await _read(sandbox, base, path, change)
    return found, ignored, problems


def _below(path: bytes, sorted_paths: Sequence[bytes]) -> list[bytes]:
    first = bisect.bisect_left(sorted_paths, path + b"/")
    after = bisect.bisect_left(sorted_paths, path + b"0")  # what sorts right after every path below
    return list(sorted_paths[first:after])


def _problem(path: bytes, change: Change, total: int) -> str | None:
    """Why a path cannot be part of any submission."""
    shown = printable(path)
    if b".git" in path.lower().split(b"/"):
        return f"{shown} lies in a repository of its own; submissions cannot hold one"
    if change.kind == "special":
        return f"{shown} is a FIFO, socket or device; submissions hold files and links"
    if change.size > MAX_FILE:
        return f"{shown} has {change.size:,} bytes; a file may have {MAX_FILE:,}"
    if total + change.size > MAX_TOTAL:
        return f"with {shown} the changed files have over {MAX_TOTAL:,} bytes"
    return None


async def _read(sandbox: Sandbox, base: Base, path: bytes, change: Change) -> _Found:
    store = base.repository.store
    if change.kind == "link":
        blob = await anyio.to_thread.run_sync(store, change.target)
        return _Found(TreeEntry("120000", blob), len(change.target), Link(path, change.target))
    content = await sandbox.read(change.path, limit=MAX_FILE)
    blob = await anyio.to_thread.run_sync(store, content)
    executable = bool(change.mode & stat.S_IXUSR)
    entry = TreeEntry("100755" if executable else "100644", blob)
    return _Found(entry, len(content), File(path, content, 0o755 if executable else 0o644))


def _described(path: bytes, old: TreeEntry | None, found: _Found) -> PathChange:
    nothing = TreeEntry("000000", "0" * 40)
    before, after = old or nothing, found.entry or nothing
    if old is None:
        status = "A"
    elif found.entry is None:
        status = "D"
    else:
        status = "T" if before.mode[:3] != after.mode[:3] else "M"
    return PathChange(path, status, before.mode, after.mode, before.blob, after.blob, found.size)


def _patch(base: Base, changes: Mapping[bytes, TreeEntry | None]) -> bytes:
    if not changes:
        return b""
    repository = base.repository
    return repository.patch("refs/heads/main^{tree}", repository.changed(changes))


async def _packages(sandbox: Sandbox, changes: Iterable[Change]) -> tuple[Package, ...]:
    """The Python packages that were added, from the metadata that installers leave."""
    removed: dict[tuple[str, str], str] = {}
    added: list[tuple[str, str, str]] = []
    for change in changes:
        gone = re.fullmatch(rb"(/.+/(?:site|dist)-packages)/([^/]+)-([^/-]+)\.dist-info", change.path)
        if gone and change.kind == "removed":
            removed[gone[1].decode(errors="replace"), normalized(gone[2].decode(errors="replace"))] = gone[
                3
            ].decode(errors="replace")
        match = _METADATA.fullmatch(change.path)
        if match is None or change.kind != "file":
            continue
        try:
            text = await sandbox.read(change.path, limit=1 << 20)
        except (SandboxError, FileNotFoundError):
            continue
        headers = BytesHeaderParser().parsebytes(text)
        name, version = str(headers.get("Name", "")), str(headers.get("Version", ""))
        if _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version):
            added.append((match[1].decode(errors="replace"), name, version))
    return tuple(
        Package(name, version, site, removed.get((site, normalized(name))))
        for site, name, version in sorted(added)
    )


def normalized(name: str) -> str:
    """A package's name in the one spelling that compares equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
