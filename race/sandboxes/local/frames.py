"""The stream in which files travel into a sandbox and out of it, through a pipe.

One frame an entry: a header, the path, for a link its target, for a file its bytes in pieces. A closing frame
says that the stream is whole. The parser does no input or output itself, so that the same one works on a
blocking pipe inside a sandbox and on an event loop outside.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

FILE = b"F"
LINK = b"L"
DIRECTORY = b"D"
REMOVED = b"R"
_END = b"."

NO_TIME = -1
"""In place of a time of modification: leave it at now."""

PIECE = 1 << 18
"""Bytes of a file in one piece, at most."""

_HEADER = struct.Struct("<cIqII")  # kind, mode, nanoseconds of modification, length of path, length of target
_LENGTH = struct.Struct("<I")
_LONGEST_NAME = 1 << 20


class Sink(Protocol):
    """What the entries of a stream are given to. A file is begun, written to, and ended."""

    def file(self, path: bytes, mode: int, modified: int) -> None:
        """A regular file begins."""
        ...

    def write(self, piece: bytes) -> None:
        """The next bytes of the file."""
        ...

    def end_file(self) -> None:
        """The file is complete."""
        ...

    def link(self, path: bytes, target: bytes) -> None:
        """A symbolic link."""
        ...

    def directory(self, path: bytes, mode: int) -> None:
        """A directory, which may be there already."""
        ...

    def removed(self, path: bytes) -> None:
        """A path that must not be there."""
        ...


class BrokenStream(Exception):  # noqa: N818 - named for what it is
    """The stream ended early or does not make sense: whoever wrote it failed."""


def header(kind: bytes, path: bytes, *, mode: int = 0, modified: int = NO_TIME, target: bytes = b"") -> bytes:
    """The beginning of an entry; for a file, `pieces` must follow."""
    return _HEADER.pack(kind, mode, modified, len(path), len(target)) + path + target


def pieces(descriptor: int) -> Iterator[bytes]:
    """The content of an open file, and the mark that ends it."""
    while piece := os.read(descriptor, PIECE):
        yield _LENGTH.pack(len(piece)) + piece
    yield _LENGTH.pack(0)


def whole(content: bytes) -> Iterator[bytes]:
    """The content of a file that is in memory, and the mark that ends it."""
    for start in range(0, len(content), PIECE):
        piece = content[start : start + PIECE]
        yield _LENGTH.pack(len(piece)) + piece
    yield _LENGTH.pack(0)


def end() -> bytes:
    """The closing frame."""
    return _HEADER.pack(_END, 0, NO_TIME, 0, 0)


def parse(sink: Sink) -> Generator[int, bytes, None]:
    """Give the entries of a stream to ``sink``.

    A generator that yields how many bytes it needs next and must be sent exactly those; it returns after the
    closing frame.

    Raises:
        BrokenStream: the stream makes no sense.
    """
    while True:
        kind, mode, modified, path_length, target_length = _HEADER.unpack((yield _HEADER.size))
        if kind == _END:
            return
        if path_length > _LONGEST_NAME or target_length > _LONGEST_NAME:
            raise BrokenStream("a name in the stream is too long")
        path = yield path_length
        target = yield target_length
        if kind == FILE:
            sink.file(path, mode, modified)
            while length := _LENGTH.unpack((yield _LENGTH.size))[0]:
                if length > PIECE:
                    raise BrokenStream("a piece of a file in the stream is too long")
                sink.write((yield length))
            sink.end_file()
        elif kind == LINK:
            sink.link(path, target)
        elif kind == DIRECTORY:
            sink.directory(path, mode)
        elif kind == REMOVED:
            sink.removed(path)
        else:
            raise BrokenStream(f"the stream has an entry of unknown kind {kind!r}")


class Feed:
    """Hands bytes, as they come, to a parser.

    Args:
        sink: what gets the entries.
    """

    def __init__(self, sink: Sink) -> None:
        self._parser = parse(sink)
        self._needed = next(self._parser)
        self._held = bytearray()
        self.complete = False
        """Whether the closing frame has come."""

    def feed(self, data: bytes) -> None:
        """Take in the next bytes.

        Raises:
            BrokenStream: the stream makes no sense.
            OSError: the sink could not do something.
        """
        self._held += data
        used = 0
        try:
            while not self.complete and len(self._held) - used >= self._needed:
                part = bytes(self._held[used : used + self._needed])
                used += self._needed
                self._needed = self._parser.send(part)
        except StopIteration:
            self.complete = True
        del self._held[:used]


def tree(source: bytes, target: bytes) -> Iterator[bytes]:
    """The stream, without its closing frame, of a file, a link, or a directory with everything below it.

    Modes, links and times of files are kept; special files are left out.

    Args:
        source: what to read. It is not followed if it is a link.
        target: the path that the stream gives it.

    Raises:
        OSError: something cannot be read.
    """
    waiting = [(source, target)]
    while waiting:
        path, name = waiting.pop()
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            yield header(LINK, name, target=os.readlink(path))
        elif stat.S_ISDIR(status.st_mode):
            yield header(DIRECTORY, name, mode=stat.S_IMODE(status.st_mode))
            below = sorted(os.listdir(path), reverse=True)
            prefix = name.rstrip(b"/") + b"/" if name else b""
            waiting.extend((os.path.join(path, each), prefix + each) for each in below)
        elif stat.S_ISREG(status.st_mode):
            yield from _regular(path, name)


def _regular(path: bytes, name: bytes) -> Iterator[bytes]:
    # The file may have been replaced since it was looked at: by a link, or by a pipe that would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            yield header(FILE, name, mode=stat.S_IMODE(status.st_mode), modified=status.st_mtime_ns)
            yield from pieces(descriptor)
    finally:
        os.close(descriptor)
