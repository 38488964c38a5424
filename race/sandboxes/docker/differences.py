"""What a container changed: the engine's ``diff``, completed by what the API says of each path.

Docker's own ``diff`` goes by size and time of modification, which a command can put back, and garbles names that are
not UTF-8. So below a folder the contents are compared as well; for the whole file system that would take too long.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from race.errors import SandboxError
from race.sandbox import Change
from race.sandboxes import scripts
from race.sandboxes.docker.engine import Engine, Status
from race.sandboxes.local.changes import kind_of, within

_PIECE = 1 << 20
_MODIFIED, _ADDED, _REMOVED = 0, 1, 2
_APART = (b"proc", b"sys", b"dev", scripts.OWN[1:].encode())
_BY_THE_ENGINE = frozenset(
    {b"etc/hosts", b"etc/resolv.conf", b"etc/hostname", b"run/.containerenv", b".dockerenv", b"run/secrets"}
)


class Differences:
    """Compares a container with what it was made from.

    Args:
        engine: of both.
        handle: of the container.
        before: gives, for as long as a block runs, a container that nothing was ever run in, of the same image.
        under: below which path.
    """

    def __init__(
        self, engine: Engine, handle: str, before: Callable[[], AbstractContextManager[str]], under: bytes
    ) -> None:
        self._engine = engine
        self._handle = handle
        self._before = before
        self._under = under
        self._links: dict[bytes, dict[bytes, bytes]] = {}

    def found(self, limit: int) -> list[Change]:
        """The changes, sorted by path.

        Raises:
            SandboxError: there are more than ``limit``.
        """
        told: list[dict[str, Any]] = self._engine.container(self._handle).diff() or []
        kinds = {d["Path"].encode("utf-8", "surrogateescape").strip(b"/"): int(d["Kind"]) for d in told}
        kinds = {p: k for p, k in kinds.items() if p and not self._apart(p)}
        if len(kinds) > 2 * limit + 1000:
            raise SandboxError(f"there are more than {limit} changes")
        wanted = {p: k for p, k in kinds.items() if within(p, self._under) or within(self._under, p)}
        by_content = bool(self._under) and not self._engine.is_podman
        if not wanted and not by_content:
            return []
        with self._before() as before:
            if by_content:
                wanted |= self._by_content(before)
            changes = {c.path: c for p, k in wanted.items() for c in self._compared(p, k, before, wanted)}
        out = [
            c
            for c in changes.values()
            if within(c.path[1:], self._under) and self._shown(c.path[1:], changes)
        ]
        if len(out) > limit:
            raise SandboxError(f"there are more than {limit} changes")
        return sorted(out, key=lambda c: c.path)

    def _apart(self, path: bytes) -> bool:
        return path in _BY_THE_ENGINE or any(within(path, a) for a in _APART)

    def _shown(self, path: bytes, changes: dict[bytes, Change]) -> bool:
        """What is gone below a directory that is gone is told by that."""
        mine = changes[b"/" + path]
        if mine.kind != "removed" or path == self._under:
            return True
        above = changes.get(b"/" + path.rpartition(b"/")[0])
        return above is None or above.kind != "removed"

    def _compared(self, path: bytes, kind: int, before: str, wanted: dict[bytes, int]) -> Iterator[Change]:
        now = self._engine.status(self._handle, b"/" + path)
        was = self._engine.status(before, b"/" + path) if kind != _ADDED else None
        if now is None:
            if was is not None:
                yield Change(b"/" + path, "removed", existed=True)
            return
        replaced = kind == _REMOVED  # and made again
        if was is None or not (stat.S_ISDIR(now.mode) and stat.S_ISDIR(was.mode)) or now.mode != was.mode:
            yield self._change(path, now, existed=was is not None)
        if was is not None and stat.S_ISDIR(was.mode) and (replaced or not stat.S_ISDIR(now.mode)):
            for name in self._listed(before, path):
                below = path + b"/" + name
                if below not in wanted and self._engine.status(self._handle, b"/" + below) is None:
                    yield Change(b"/" + below, "removed", existed=True)

    def _by_content(self, before: str) -> dict[bytes, int]:
        """What differs below the folder."""
        was, now = self._contents(before), self._contents(self._handle)
        found = dict.fromkeys(was.keys() - now.keys(), _REMOVED)
        found |= dict.fromkeys(now.keys() - was.keys(), _ADDED)
        return found | {p: _MODIFIED for p in now.keys() & was.keys() if now[p] != was[p]}

    def _contents(self, handle: str) -> dict[bytes, tuple[bytes, int, bytes]]:
        """The kind, the mode and a digest of each path below the folder, without that itself."""
        found: dict[bytes, tuple[bytes, int, bytes]] = {}
        with contextlib.suppress(FileNotFoundError):
            for below, member, archive in self._members(handle, self._under):
                digest = hashlib.blake2b(member.linkname.encode("utf-8", "surrogateescape"))
                if member.isreg() and (file := archive.extractfile(member)) is not None:
                    while piece := file.read(_PIECE):
                        digest.update(piece)
                if below:
                    found[self._under + b"/" + below] = (member.type, member.mode, digest.digest())
        return found

    def _members(self, handle: str, path: bytes) -> Iterator[tuple[bytes, tarfile.TarInfo, tarfile.TarFile]]:
        """What is at a path and below it, each with its path from there."""
        with self._engine.archive(handle, b"/" + path) as members:
            top: bytes | None = None
            for member, archive in members:
                name = member.name.encode("utf-8", "surrogateescape").strip(b"/")
                top = name if top is None else top
                yield name[len(top) :].strip(b"/"), member, archive

    def _listed(self, handle: str, path: bytes) -> set[bytes]:
        """The names in a directory."""
        return {n.partition(b"/")[0] for n in self._targets(handle, path)} - {b""}

    def _targets(self, handle: str, path: bytes) -> dict[bytes, bytes]:
        """What is below a directory, and where the links among it point."""
        return {
            below: member.linkname.encode("utf-8", "surrogateescape") if member.issym() else b""
            for below, member, _ in self._members(handle, path)
        }

    def _change(self, path: bytes, status: Status, *, existed: bool) -> Change:
        result = os.stat_result((status.mode, 0, 0, 0, 0, 0, status.size, 0, 0, 0))
        kind = kind_of(result)
        target = b""
        if kind == "link":
            above, _, name = path.rpartition(b"/")
            if above not in self._links:
                self._links[above] = self._targets(self._handle, above)
            target = self._links[above].get(name, b"")
        size = status.size if kind == "file" else 0
        return Change(b"/" + path, kind, stat.S_IMODE(status.mode), size, target, existed)
