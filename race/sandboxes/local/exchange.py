"""The half of a file transfer that runs outside of the sandbox."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, assert_never

import anyio

from race.errors import SandboxError
from race.sandbox import Directory, Entry, File, Link, Removed
from race.sandboxes.local import frames, syscalls, talk
from race.sandboxes.local.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PIPE_SIZE = 1 << 20
_BATCH = 1 << 16
_PERMISSIONS = 0o777


async def put(folder: Path, name: str, stream: Iterable[bytes]) -> None:
    """Send a stream, without its closing frame, into a sandbox.

    Args:
        folder: the sandbox's own.
        name: of the sandbox, for errors.
        stream: from `entries` or `frames.tree`.

    Raises:
        SandboxError: the sandbox does not run, or something could not be written.
    """
    reader, writer = _pipe()
    try:
        async with talk.connected(folder, name) as connection:
            try:
                talk.tell(connection, name, {"do": "put", "path": ""}, [reader])
            finally:
                os.close(reader)
                reader = -1
            with contextlib.suppress(BrokenPipeError):  # it has ended; the answer says why
                await _write(writer, stream)
            os.close(writer)
            writer = -1
            await talk.answer(connection, name)
    finally:
        for each in (reader, writer):
            if each >= 0:
                os.close(each)


async def take(folder: Path, name: str, source: str, target: Path) -> None:
    """Copy a file or a tree of a sandbox to a place on the host where nothing is yet.

    Args:
        folder: the sandbox's own.
        name: of the sandbox, for errors.
        source: what to copy.
        target: where to; nothing is left there if the copy fails.

    Raises:
        FileExistsError: something is there.
        SandboxError: the sandbox does not run, or something could not be read.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists")
    writer = -1
    sink = HostSink(target)
    reader, writer = _pipe()
    complete = False
    try:
        async with talk.connected(folder, name) as connection:
            try:
                talk.tell(connection, name, {"do": "take", "path": source}, [writer])
            finally:
                os.close(writer)
                writer = -1
            feed = frames.Feed(sink)
            os.set_blocking(reader, False)
            await _read(reader, feed)
            await talk.answer(connection, name)
            if not feed.complete:
                raise SandboxError(f"sandbox {name!r}: {source!r} could not be copied: the copy ended early")
            sink.finish()
            complete = True
    except frames.BrokenStream as error:
        raise SandboxError(f"sandbox {name!r}: {source!r} could not be copied: {error}") from error
    finally:
        for each in (reader, writer):
            if each >= 0:
                os.close(each)
        sink.close()
        if not complete:
            sink.discard()


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # beyond what this user may have in pipes
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    return reader, writer


async def _write(writer: int, stream: Iterable[bytes]) -> None:
    os.set_blocking(writer, False)
    for batch in _batches(stream):
        view = memoryview(batch)
        while view:
            try:
                view = view[os.write(writer, view) :]
            except BlockingIOError:
                await anyio.wait_writable(writer)


def _batches(stream: Iterable[bytes]) -> Iterator[bytes]:
    held = bytearray()
    for part in stream:
        held += part
        if len(held) >= _BATCH:
            yield bytes(held)
            held.clear()
    yield bytes(held) + frames.end()


async def _read(reader: int, feed: frames.Feed) -> None:
    while True:
        await anyio.wait_readable(reader)
        try:
            data = os.read(reader, _PIPE_SIZE)
        except BlockingIOError:
            continue
        if not data:
            return
        feed.feed(data)


def entries(given: Iterable[Entry]) -> Iterator[bytes]:
    """The stream of what `Sandbox.write` is given.

    Raises:
        SandboxError: a path is not absolute, or holds a NUL byte.
        OSError: a file of the host cannot be read.
    """
    for entry in given:
        path = _checked(entry.path)
        match entry:
            case File(content=bytes() as content):
                yield frames.header(frames.FILE, path, mode=entry.mode)
                yield from frames.whole(content)
            case File(content=source):
                with open(source, "rb", buffering=0) as file:
                    yield frames.header(frames.FILE, path, mode=entry.mode)
                    yield from frames.pieces(file.fileno())
            case Link():
                if not entry.target or b"\0" in entry.target:
                    raise SandboxError(f"a link cannot point to {entry.target!r}")
                yield frames.header(frames.LINK, path, target=entry.target)
            case Directory():
                yield frames.header(frames.DIRECTORY, path, mode=entry.mode)
            case Removed():
                yield frames.header(frames.REMOVED, path)
            case _:
                assert_never(entry)


def _checked(path: bytes) -> bytes:
    parts = path.split(b"/")
    if not path.startswith(b"/") or b"\0" in path or b".." in parts:
        raise SandboxError(f"{path!r} is not an absolute path without '..'")
    clean = b"/" + b"/".join(each for each in parts if each not in (b"", b"."))
    if clean == b"/":
        raise SandboxError("the root of a sandbox cannot be written or removed")
    return clean


class HostSink:
    """Writes what comes out of a sandbox, which is not to be believed, below one new place on the host.

    No link that came out is followed, no name leads out, and nothing gets permissions beyond the ordinary
    ones.

    Args:
        target: the new place.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._top = -1
        self._file = -1
        self._mode = 0
        self._modified = frames.NO_TIME
        self._made = False
        self._modes: list[tuple[bytes, int]] = []

    def _place(self, path: bytes) -> tuple[int, bytes]:
        """An open directory, the caller's to close, and a name in it."""
        if not path:
            if self._made:
                raise frames.BrokenStream("the stream names its own top twice")
            self._made = True
            return os.dup(self._parent), os.fsencode(self._target.name)
        parts = path.split(b"/")
        if self._top < 0 or any(each in (b"", b".", b"..") for each in parts) or b"\0" in path:
            raise frames.BrokenStream(f"the stream names {path!r}, which is not in it")
        folder = b"/".join(parts[:-1]) or b"."
        return syscalls.openat2(self._top, folder, os.O_RDONLY | os.O_DIRECTORY), parts[-1]

    def file(self, path: bytes, mode: int, modified: int) -> None:
        """A regular file begins."""
        folder, name = self._place(path)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(name, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        self._mode, self._modified = mode & _PERMISSIONS, modified

    def write(self, piece: bytes) -> None:
        """The next bytes of the file."""
        view = memoryview(piece)
        while view:
            view = view[os.write(self._file, view) :]

    def end_file(self) -> None:
        """The file is complete."""
        os.fchmod(self._file, self._mode)
        if self._modified != frames.NO_TIME:
            os.utime(self._file, ns=(self._modified, self._modified))
        os.close(self._file)
        self._file = -1

    def link(self, path: bytes, target: bytes) -> None:
        """A symbolic link."""
        folder, name = self._place(path)
        try:
            os.symlink(target, name, dir_fd=folder)
        finally:
            os.close(folder)

    def directory(self, path: bytes, mode: int) -> None:
        """A directory; it gets its mode when all is there."""
        folder, name = self._place(path)
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
            if not path:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                self._top = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
        self._modes.append((path, mode & _PERMISSIONS))

    def removed(self, path: bytes) -> None:
        """Nothing that comes out says so."""
        raise frames.BrokenStream(f"the stream wants to remove {path!r}")

    def finish(self) -> None:
        """Give the directories their modes, the innermost first."""
        for path, mode in reversed(self._modes):
            opened = syscalls.openat2(self._top, path or b".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fchmod(opened, mode)
            finally:
                os.close(opened)

    def close(self) -> None:
        """Close what is open."""
        for each in (self._file, self._top, self._parent):
            if each >= 0:
                os.close(each)
        self._file = self._top = self._parent = -1

    def discard(self) -> None:
        """Remove what was written."""
        if not self._made or not os.path.lexists(self._target):
            return
        if self._target.is_dir() and not self._target.is_symlink():
            remove_tree(self._target)
        else:
            self._target.unlink()
