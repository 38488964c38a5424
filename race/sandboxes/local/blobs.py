"""The files that an image or an exported sandbox consists of, in a folder or in a tar file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Protocol

from race.sandboxes.local import syscalls
from race.sandboxes.local.tar_reading import BadArchiveError, Reader

if TYPE_CHECKING:
    from collections.abc import Generator

    from race.sandboxes.local.tar_reading import Stream

LARGEST_DOCUMENT = 4 << 20
"""Bytes of a JSON document."""
MOST_FILES = 10_000
"""In one archive of an image, not in the layers."""


class Blob:
    """One file, read from front to back.

    Args:
        descriptor: of the file that holds it; stays the caller's.
        offset: where it begins.
        size: bytes.
    """

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._descriptor = descriptor
        self._position = offset
        self._end = offset + size
        self.size = size

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; nothing at the end."""
        part = os.pread(self._descriptor, min(size, self._end - self._position), self._position)
        self._position += len(part)
        return part


class Blobs(Protocol):
    """Files by their relative names."""

    def opened(self, name: str) -> contextlib.AbstractContextManager[Blob]:
        """One of them.

        Raises:
            BadArchiveError: it is not there, or is no regular file.
        """
        ...

    def __contains__(self, name: object) -> bool:
        """Whether there is one of this name."""
        ...


class FolderBlobs:
    """Files below a folder. No link in it is followed.

    Args:
        folder: an open directory; stays the caller's.
    """

    def __init__(self, folder: int) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def opened(self, name: str) -> Generator[Blob]:
        """One of them."""
        try:
            descriptor = syscalls.openat2(self._folder, os.fsencode(name), os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise BadArchiveError(f"{name!r} cannot be opened: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise BadArchiveError(f"{name!r} is no regular file")
            yield Blob(descriptor, 0, status.st_size)
        finally:
            os.close(descriptor)

    def __contains__(self, name: object) -> bool:
        """Whether there is one of this name."""
        try:
            os.close(syscalls.openat2(self._folder, os.fsencode(str(name)), os.O_PATH))
        except OSError:
            return False
        return True


class TarBlobs:
    """Files in a tar file that is not compressed. Its headers are read once; the content stays where it is.

    Args:
        descriptor: of the open file; stays the caller's.

    Raises:
        BadArchiveError: it is damaged, or is more than an image's archive.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._places: dict[str, tuple[int, int]] = {}
        self._others: dict[str, str] = {}
        stream = _Seeking(descriptor, self._size)
        reader = Reader(stream)
        for member in reader:
            name = os.fsdecode(member.path)
            if name in self._places:
                raise BadArchiveError(f"{member} is there twice")
            if member.kind == "file" and member.extents is None:
                self._places[name] = (member.offset, member.size)
                stream.leap(reader.leap())
            elif member.kind != "directory":
                self._others[name] = member.kind
            if len(self._places) + len(self._others) > MOST_FILES:
                raise BadArchiveError(f"it has more than {MOST_FILES} files beside its layers")

    @contextlib.contextmanager
    def opened(self, name: str) -> Generator[Blob]:
        """One of them."""
        if name not in self._places:
            kind = self._others.get(name)
            raise BadArchiveError(f"{name!r} is " + (f"a {kind}" if kind else "missing"))
        offset, size = self._places[name]
        yield Blob(self._descriptor, offset, size)

    def __contains__(self, name: object) -> bool:
        """Whether there is one of this name."""
        return name in self._places


class _Seeking:
    """A file in which a reader need not read what it passes over."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._position = 0

    def leap(self, size: int) -> None:
        """Pass over some bytes, which must be there."""
        if size > self._size - self._position:
            raise BadArchiveError("it is cut off")
        self._position += size

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; nothing at the end."""
        part = os.pread(self._descriptor, size, self._position)
        self._position += len(part)
        return part


class Hashed:
    """A stream whose bytes are counted and hashed as they are read.

    Args:
        stream: another.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.count = 0

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; nothing at the end."""
        part = self._stream.read(size)
        self._digest.update(part)
        self.count += len(part)
        return part

    def finish(self, wanted: str, what: str) -> None:
        """Read the rest, and compare.

        Args:
            wanted: the digest that all of it must have, in hexadecimal.
            what: the blob, for the error.

        Raises:
            BadArchiveError: it is another one.
        """
        while self.read(1 << 20):
            pass
        if self._digest.hexdigest() != wanted:
            raise BadArchiveError(
                f"{what} is damaged: its checksum is {self._digest.hexdigest()}, not {wanted}"
            )


def document(blobs: Blobs, name: str) -> bytes:
    """A small file as a whole.

    Raises:
        BadArchiveError: it is missing or large.
    """
    with blobs.opened(name) as blob:
        if blob.size > LARGEST_DOCUMENT:
            raise BadArchiveError(
                f"{name!r} has {blob.size} bytes, more than the {LARGEST_DOCUMENT} of a document"
            )
        text = b""
        while part := blob.read(LARGEST_DOCUMENT):
            text += part
        return text
