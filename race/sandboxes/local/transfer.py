"""The half of a file transfer that runs inside the sandbox, as its root, in a child of PID 1.

Whatever links the sandbox has, they lead no further than the sandbox itself.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from race.sandboxes.local import frames

if TYPE_CHECKING:
    from race.sandboxes.local.messages import Done, Failure


def put(pipe: int, _path: str) -> Done | Failure:
    """Write what a stream says.

    Args:
        pipe: where to read the stream.
    """
    writer = _Writer()
    feed = frames.Feed(writer)
    try:
        while not feed.complete:
            data = os.read(pipe, frames.PIECE)
            if not data:
                return {"error": "what was to be written ended early"}
            feed.feed(data)
    except OSError as error:
        return {"error": _told(error)}
    finally:
        writer.tidy_up()
    return {"done": True}


def take(pipe: int, path: str) -> Done | Failure:
    """Send a file or a tree as a stream, the path itself being named with nothing.

    Args:
        pipe: where to write the stream.
        path: what to send.
    """
    try:
        for part in frames.tree(os.fsencode(path), b""):
            _write_all(pipe, part)
        _write_all(pipe, frames.end())
    except OSError as error:
        return {"error": _told(error)}
    return {"done": True}


def _told(error: OSError) -> str:
    name = error.filename
    return f"{os.fsdecode(name)!r}: {error.strerror}" if name is not None else str(error.strerror)


def _write_all(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


class _Writer:
    """Puts entries into the sandbox's own file system."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._path = b""
        self._temporary = b""
        self._mode = 0
        self._modified = 0
        self._known_parent = b""

    def file(self, path: bytes, mode: int, modified: int) -> None:
        self._make_parents(path)
        # Written beside its place and renamed into it: whoever reads sees the old file or the new one, and
        # one that is being executed can be replaced.
        self._temporary = os.path.join(os.path.dirname(path), b".race-%d" % os.getpid())
        _remove(self._temporary)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._temporary, flags, 0o600)
        self._path, self._mode, self._modified = path, mode, modified

    def write(self, piece: bytes) -> None:
        _write_all(self._descriptor, piece)

    def end_file(self) -> None:
        os.fchmod(self._descriptor, self._mode)
        if self._modified != frames.NO_TIME:
            os.utime(self._descriptor, ns=(self._modified, self._modified))
        _make_way(self._path)
        os.rename(self._temporary, self._path)
        os.close(self._descriptor)
        self._descriptor = -1

    def tidy_up(self) -> None:
        """Leave no half of a file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            _remove(self._temporary)

    def link(self, path: bytes, target: bytes) -> None:
        self._make_parents(path)
        _remove(path)
        os.symlink(target, path)
        self._known_parent = b""

    def directory(self, path: bytes, mode: int) -> None:
        if path.strip(b"/"):
            self._make_parents(path)
            if not _is_directory(path, follow=False):
                _remove(path)
                os.mkdir(path)
        os.chmod(path, mode)

    def removed(self, path: bytes) -> None:
        _remove(path)
        self._known_parent = b""

    def _make_parents(self, path: bytes) -> None:
        parent = os.path.dirname(path.rstrip(b"/"))
        if parent == self._known_parent:
            return
        missing: list[bytes] = []
        above = parent
        while not _is_directory(above, follow=True):
            missing.append(above)
            above = os.path.dirname(above)
        for each in reversed(missing):
            _remove(each)  # a file or a dangling link is in the way
            os.mkdir(each, 0o755)
        self._known_parent = parent


def _is_directory(path: bytes, *, follow: bool) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path, follow_symlinks=follow).st_mode)
    except OSError:
        return False


def _make_way(path: bytes) -> None:
    """Remove a directory at ``path``, over which nothing can be renamed."""
    if _is_directory(path, follow=False):
        _remove(path)


def _remove(path: bytes) -> None:
    """Remove a path with everything below it; nothing if it is not there."""
    if not _is_directory(path, follow=False):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
        return
    for folder, folders, files in os.walk(path, topdown=False):
        for each in files:
            os.unlink(os.path.join(folder, each))
        for each in folders:
            name = os.path.join(folder, each)
            if os.path.islink(name):
                os.unlink(name)
            else:
                os.rmdir(name)
    os.rmdir(path)
