"""Looks into a stack of layers from outside, the way overlay shows it inside.

The upper ones are written by a sandbox, perhaps at this very moment, so nothing here follows a link, and
no path is walked twice: each is opened below its layer in one system call that refuses links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from race.sandboxes.local import syscalls
from race.sandboxes.local.permissions import readable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_PREFIXES = ("user.overlay.", "trusted.overlay.")
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors that mean "not there". The last one: what was a directory a moment ago has become a link."""


class BelowLink(Exception):  # noqa: N818 - a fact about a path
    """A part of the path, other than its last, is a link."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a stack of layers shows at one path.

    Attributes:
        layer: which layer it comes from.
        status: of the thing itself.
        folders: the layers whose directories are merged here; empty if it is not a directory.
        covers: whether it hides what lower layers have at this path.
    """

    layer: int
    status: os.stat_result
    folders: tuple[int, ...]
    covers: bool


@dataclass(frozen=True, slots=True)
class Whiteout:
    """A layer says that there is nothing."""


class Layers:
    """A stack of layers.

    Args:
        folders: the roots, the top one first. Those that are not there are taken for empty.
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]]) -> None:
        self._roots: list[int] = []
        try:
            for each in folders:
                self._roots.append(_opened_root(os.fspath(each)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the roots."""
        for each in self._roots:
            if each >= 0:
                os.close(each)
        self._roots = []

    @property
    def all(self) -> tuple[int, ...]:
        """The layers that are there."""
        return tuple(index for index, root in enumerate(self._roots) if root >= 0)

    def find(self, path: bytes) -> Found | None:
        """What is at a path relative to the stack's root; None if there is nothing.

        Raises:
            BelowLink: a part of the path is a link.
        """
        found = self.root()
        parts = path.split(b"/") if path else []
        for depth in range(len(parts)):
            if found is None:
                return None
            if stat.S_ISLNK(found.status.st_mode):
                raise BelowLink(b"/".join(parts[:depth]))
            step = self.step(found.folders, b"/".join(parts[: depth + 1]))
            found = None if isinstance(step, Whiteout) else step
        return found

    def root(self) -> Found | None:
        """The stack's own root."""
        found = self._merged(self.all, b"", whiteouts=False)
        return None if isinstance(found, Whiteout) else found

    def step(self, among: tuple[int, ...], path: bytes) -> Found | Whiteout | None:
        """What is at a path whose parent is a directory merged from the layers ``among``."""
        return self._merged(among, path, whiteouts=True)

    def _merged(self, among: tuple[int, ...], path: bytes, *, whiteouts: bool) -> Found | Whiteout | None:
        folders: list[int] = []
        top: tuple[int, os.stat_result] | None = None
        covers = False
        for layer in among:
            opened = self.open(layer, path, os.O_PATH | os.O_NOFOLLOW)
            if opened is None:
                continue
            try:
                status = os.fstat(opened)
                if whiteouts and is_whiteout(opened, status):
                    if top is None:
                        return Whiteout()
                    covers = True
                    break
                if not stat.S_ISDIR(status.st_mode):
                    covers = True
                    if top is None:
                        top = (layer, status)
                    break
                folders.append(layer)
                top = top or (layer, status)
                if is_opaque(opened):
                    covers = True
                    break
            finally:
                os.close(opened)
        return None if top is None else Found(*top, tuple(folders), covers)

    def open(self, layer: int, path: bytes, flags: int) -> int | None:
        """A descriptor of what one layer has at a path; None if it has nothing there.

        Raises:
            OSError: it cannot be opened.
        """
        try:
            return self._open(layer, path, flags)
        except OSError as error:
            if error.errno in _MISSING:
                return None
            raise

    def _open(self, layer: int, path: bytes, flags: int) -> int:
        try:
            return syscalls.openat2(self._roots[layer], path or b".", flags)
        except PermissionError:
            if os.geteuid() == 0:
                raise
        # A sandbox of an ordinary user forbade its owner to look.
        parts = path.split(b"/")
        prefixes = [b"/".join(parts[:depth]) or b"." for depth in range(len(parts) + 1)]
        with contextlib.ExitStack() as restored:
            for prefix in prefixes:
                opened = syscalls.openat2(self._roots[layer], prefix, os.O_PATH | os.O_NOFOLLOW)
                restored.callback(os.close, opened)
                restored.enter_context(readable(f"/proc/self/fd/{opened}"))
            return syscalls.openat2(self._roots[layer], path or b".", flags)

    def names(self, layers: tuple[int, ...], path: bytes) -> set[bytes]:
        """All names that these layers have in a directory, whiteouts included."""
        found: set[bytes] = set()
        for layer in layers:
            opened = self.open(layer, path, os.O_RDONLY | os.O_DIRECTORY)
            if opened is not None:
                try:
                    found.update(os.fsencode(each) for each in os.listdir(opened))
                finally:
                    os.close(opened)
        return found

    def link(self, layer: int, path: bytes) -> bytes:
        """Where a link points; empty if it has become something else."""
        opened = self.open(layer, path, os.O_PATH | os.O_NOFOLLOW)
        if opened is None:
            return b""
        try:
            return os.readlink(b"", dir_fd=opened)
        except OSError:
            return b""
        finally:
            os.close(opened)


def is_whiteout(opened: int, status: os.stat_result) -> bool:
    """Whether an entry of a layer says "nothing here": a device 0/0, or an empty file marked as one."""
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    return stat.S_ISREG(status.st_mode) and status.st_size == 0 and _attribute(opened, "whiteout") is not None


def is_opaque(opened: int) -> bool:
    """Whether a directory of a layer hides those below it."""
    return _attribute(opened, "opaque") == b"y"


def _attribute(opened: int, name: str) -> bytes | None:
    # Through /proc, because a descriptor that was opened for its path only has no attributes.
    path = f"/proc/self/fd/{opened}"
    for prefix in _PREFIXES:
        try:
            return os.getxattr(path, prefix + name)
        except PermissionError:
            with contextlib.suppress(OSError), readable(path):
                return os.getxattr(path, prefix + name)
        except OSError:
            continue
    return None


def _opened_root(folder: str) -> int:
    try:
        return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return -1
