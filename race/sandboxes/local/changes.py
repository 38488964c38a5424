"""What a sandbox changed, told from its layers alone."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from race.errors import SandboxError
from race.sandbox import Change, ChangeKind
from race.sandboxes.local.layers import BelowLink, Found, Layers, Whiteout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of one mount of a sandbox.

    Attributes:
        at: where it is mounted, without a slash at either end.
        own: what the sandbox wrote, the top one first.
        base: what it began with.
        apart: paths in it that are not part of it: other mounts, and what the kernel shows.
    """

    at: bytes
    own: Sequence[str | os.PathLike[str]]
    base: Sequence[str | os.PathLike[str]]
    apart: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class _Folder:
    """A directory to compare: its layers on either side, and whether the base's view of it is hidden."""

    path: bytes
    own: tuple[int, ...]
    base: tuple[int, ...]
    replaced: bool


def normal(path: str | bytes) -> bytes:
    """A path inside a sandbox without a slash at either end.

    Raises:
        SandboxError: it is not absolute, or goes up, or holds a NUL byte.
    """
    encoded = os.fsencode(path) if isinstance(path, str) else path
    parts = [each for each in encoded.split(b"/") if each not in (b"", b".")]
    if not encoded.startswith(b"/") or b".." in parts or b"\0" in encoded:
        raise SandboxError(f"{path!r} is not an absolute path without '..'")
    return b"/".join(parts)


def changes(stacks: Iterable[Stack], under: bytes, limit: int) -> list[Change]:
    """What differs between the own layers and the base, below ``under``, sorted by path.

    Raises:
        SandboxError: there are more than ``limit`` changes.
    """
    found: list[Change] = []
    for stack in stacks:
        if not (within(stack.at, under) or within(under, stack.at)):
            continue
        start = relative(under, stack.at)
        with Layers(stack.own) as own, Layers(stack.base) as base:
            for each in _Comparison(own, base, stack).below(start):
                found.append(each)
                if len(found) > limit:
                    raise SandboxError(f"there are more than {limit} changes")
    return sorted(found, key=lambda each: each.path)


def within(path: bytes, folder: bytes) -> bool:
    """Whether a path is a folder or below it; all without a slash at either end."""
    return not folder or path == folder or path.startswith(folder + b"/")


def relative(path: bytes, mount: bytes) -> bytes:
    """``path`` as the mount calls it; empty if the mount is itself below ``path``."""
    if path == mount or not within(path, mount):
        return b""
    return path[len(mount) + 1 :] if mount else path


class _Comparison:
    def __init__(self, own: Layers, base: Layers, stack: Stack) -> None:
        self._own = own
        self._base = base
        self._stack = stack
        self._prefix = b"/" + stack.at if stack.at else b""

    def below(self, start: bytes) -> Iterator[Change]:
        """The changes at and below a path."""
        folder = self._root()
        parts = start.split(b"/") if start else []
        for depth in range(len(parts)):
            path = b"/".join(parts[: depth + 1])
            if path in self._stack.apart:
                return
            entered = list(self._entry(folder, path))
            if depth == len(parts) - 1:
                yield from (each for each in entered if isinstance(each, Change))
            further = [each for each in entered if isinstance(each, _Folder)]
            if not further:
                if depth < len(parts) - 1:
                    yield from self._gone_below(folder, path, start)
                return
            folder = further[0]
        waiting = [folder]
        while waiting:
            for each in self._in(waiting.pop()):
                if isinstance(each, Change):
                    yield each
                else:
                    waiting.append(each)

    def _root(self) -> _Folder:
        own, base = self._own.root(), self._base.root()
        return _Folder(b"", own.folders if own else (), base.folders if base else (), replaced=False)

    def _gone_below(self, folder: _Folder, path: bytes, start: bytes) -> Iterator[Change]:
        """What ``start`` was, when a directory above it is gone or replaced by something else."""
        own = self._own.step(folder.own, path)
        if own is None and not folder.replaced:
            return
        try:
            was = self._base.find(start)
        except BelowLink:
            return
        if was is not None and folder.base:
            yield self._removed(start)

    def _in(self, folder: _Folder) -> Iterator[Change | _Folder]:
        names = self._own.names(folder.own, folder.path)
        if folder.replaced:
            names |= self._base.names(folder.base, folder.path)
        for name in names:
            path = folder.path + b"/" + name if folder.path else name
            if path not in self._stack.apart:
                yield from self._entry(folder, path)

    def _entry(self, folder: _Folder, path: bytes) -> Iterator[Change | _Folder]:
        own = self._own.step(folder.own, path)
        before = self._base.step(folder.base, path)
        was = before if isinstance(before, Found) else None
        if own is None or isinstance(own, Whiteout):
            if was is not None and (folder.replaced or own is not None):
                yield self._removed(path)
            return
        is_directory = stat.S_ISDIR(own.status.st_mode)
        was_directory = was is not None and stat.S_ISDIR(was.status.st_mode)
        if not is_directory or was is None or not was_directory or _differs(own.status, was.status):
            yield self._change(path, own, existed=was is not None)
        if is_directory:
            base = was.folders if was is not None else ()
            yield _Folder(path, own.folders, base, replaced=folder.replaced or own.covers)
        elif was is not None and was_directory:
            yield _Folder(path, (), was.folders, replaced=True)

    def _removed(self, path: bytes) -> Change:
        return Change(self._prefix + b"/" + path, "removed", existed=True)

    def _change(self, path: bytes, found: Found, *, existed: bool) -> Change:
        status = found.status
        kind = kind_of(status)
        return Change(
            path=self._prefix + b"/" + path,
            kind=kind,
            mode=stat.S_IMODE(status.st_mode),
            size=status.st_size if kind == "file" else 0,
            target=self._own.link(found.layer, path) if kind == "link" else b"",
            existed=existed,
        )


def _differs(now: os.stat_result, before: os.stat_result) -> bool:
    return (now.st_mode, now.st_uid, now.st_gid) != (before.st_mode, before.st_uid, before.st_gid)


def kind_of(status: os.stat_result) -> ChangeKind:
    """What a thing is, in the contract's words."""
    if stat.S_ISREG(status.st_mode):
        return "file"
    if stat.S_ISLNK(status.st_mode):
        return "link"
    if stat.S_ISDIR(status.st_mode):
        return "directory"
    return "special"
