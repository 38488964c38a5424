"""Writes a layer of a sandbox as a tar file: the same bytes for the same content, sparse files kept sparse.

What is written is a layer as OCI images have them: a whiteout is an empty file ``.wh.NAME``, an opaque directory holds
``.wh..wh..opq``. A file that is really called so carries the pax record `tar_reading.LITERAL`. Sockets and devices,
which nothing could use after a move, are left out.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from typing import TYPE_CHECKING, Protocol

from race.sandboxes.local.layers import Layers, is_opaque, is_whiteout
from race.sandboxes.local.tar_reading import BLOCK, LITERAL, LONGEST_PATH, XATTR, shown
from race.sandboxes.local.unpacking import MOST_APPARENT, OPAQUE, OVERLAY_MARKS, WHITEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PIECE = 1 << 20
_NANO = 10**9
_LONGEST_MAP = 300_000
"""Pieces of a sparse file; one with more is written whole."""


class Sink(Protocol):
    """What can be written to from front to back."""

    def write(self, data: bytes, /) -> object:
        """Take all of it."""
        ...


class UnmovableError(Exception):
    """Something in a sandbox cannot be put into an archive. The text names it."""


class LayerWriter:
    """One tar file being written from one or more layers that lie side by side.

    Args:
        sink: where it goes.
        pulse: called before each entry; what it raises ends the work.
    """

    def __init__(self, sink: Sink, pulse: Callable[[], None]) -> None:
        self._sink = sink
        self._pulse = pulse
        self._as_root = os.geteuid() == 0
        self._links: dict[tuple[int, int], bytes] = {}
        self._apparent = 0
        self.entries = 0
        self.size = 0
        """Bytes of content, without holes."""

    def add(self, folder: str, at: bytes) -> None:
        """Write a layer.

        Args:
            folder: its root.
            at: the path that it has in the tar file; empty for the root.

        Raises:
            UnmovableError: something in it cannot be written.
            OSError: something cannot be read.
        """
        self._links.clear()  # no hard link leads from one file system to another
        with Layers([folder]) as layers:
            waiting = [b""]
            while waiting:
                path = waiting.pop()
                self._pulse()
                if self._entry(layers, path, at):
                    names = sorted(layers.names((0,), path), reverse=True)
                    waiting.extend(path + b"/" + each if path else each for each in names)

    def end(self) -> None:
        """Write the end of the tar file."""
        self._sink.write(bytes(2 * BLOCK))

    def _entry(self, layers: Layers, path: bytes, at: bytes) -> bool:
        """Write one entry; whether it is a directory to go into."""
        opened = layers.open(0, path, os.O_PATH | os.O_NOFOLLOW)
        if opened is None:
            return False
        name = b"/".join(each for each in (at, path) if each) or b"."
        if len(name) > LONGEST_PATH:
            raise UnmovableError(f"the path {shown(name[:200])}... has more than {LONGEST_PATH} bytes")
        try:
            status = os.fstat(opened)
            if path and is_whiteout(opened, status):
                self._mark(name, WHITEOUT)
                return False
            if stat.S_ISDIR(status.st_mode):
                self._header(name, status, tarfile.DIRTYPE, {}, attributes=_attributes(opened))
                if path and is_opaque(opened):
                    self._mark(name + b"/x", OPAQUE)
                return True
        finally:
            os.close(opened)
        self._leaf(layers, path, name, status)
        return False

    def _leaf(self, layers: Layers, path: bytes, name: bytes, status: os.stat_result) -> None:
        """Write what is not a directory."""
        if not (
            stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) or stat.S_ISFIFO(status.st_mode)
        ):
            return
        records: dict[bytes, bytes] = {}
        if name.rpartition(b"/")[2].startswith(WHITEOUT):
            records[LITERAL] = b"1"
        key = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and key in self._links:
            self._header(name, status, tarfile.LNKTYPE, records, target=self._links[key])
            return
        self._links[key] = name
        if stat.S_ISREG(status.st_mode):
            self._file(layers, path, name, records)
        elif stat.S_ISLNK(status.st_mode):
            self._header(name, status, tarfile.SYMTYPE, records, target=layers.link(0, path))
        else:
            self._header(name, status, tarfile.FIFOTYPE, records)

    def _file(self, layers: Layers, path: bytes, name: bytes, records: dict[bytes, bytes]) -> None:
        opened = layers.open(0, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if opened is None:
            raise UnmovableError(f"{shown(name)} vanished")
        try:
            status = os.fstat(opened)
            self._apparent += status.st_size
            if self._apparent > MOST_APPARENT:
                raise UnmovableError(
                    f"with {shown(name)}, of {status.st_size} bytes, its files seem to have more than {MOST_APPARENT}"
                )
            attributes = _attributes(opened)
            extents = list(_extents(opened, status))
            if extents == [(0, status.st_size)] or len(extents) > _LONGEST_MAP:
                self._header(
                    name, status, tarfile.REGTYPE, records, size=status.st_size, attributes=attributes
                )
                self._content(opened, name, [(0, status.st_size)])
                return
            lines = [str(len(extents)), *(str(each) for pair in extents for each in pair), ""]
            text = "\n".join(lines).encode()
            text += bytes(-len(text) % BLOCK)
            records |= {
                b"GNU.sparse.major": b"1",
                b"GNU.sparse.minor": b"0",
                b"GNU.sparse.name": name,
                b"GNU.sparse.realsize": b"%d" % status.st_size,
            }
            size = len(text) + sum(length for _, length in extents)
            self._header(name, status, tarfile.REGTYPE, records, size=size, attributes=attributes)
            self._sink.write(text)
            self._content(opened, name, extents)
        finally:
            os.close(opened)

    def _content(self, opened: int, name: bytes, extents: list[tuple[int, int]]) -> None:
        total = 0
        for offset, length in extents:
            position, end = offset, offset + length
            while position < end:
                piece = os.pread(opened, min(_PIECE, end - position), position)
                if not piece:
                    raise UnmovableError(f"{shown(name)} became shorter")
                self._sink.write(piece)
                position += len(piece)
                self._pulse()
            total += length
        self.size += total
        self._sink.write(bytes(-total % BLOCK))

    def _mark(self, name: bytes, mark: bytes) -> None:
        """Write a whiteout in the place of ``name``, or a directory's mark as opaque."""
        folder, slash, last = name.rpartition(b"/")
        status = os.stat_result((0, 0, 0, 1, 0, 0, 0, 0, 0, 0))
        self._header(folder + slash + (mark if mark == OPAQUE else mark + last), status, tarfile.REGTYPE, {})

    def _header(
        self,
        name: bytes,
        status: os.stat_result,
        kind: bytes,
        records: Mapping[bytes, bytes],
        *,
        size: int = 0,
        target: bytes = b"",
        attributes: Mapping[bytes, bytes] | None = None,
    ) -> None:
        entry = tarfile.TarInfo(os.fsdecode(name))
        entry.type = kind
        entry.mode = stat.S_IMODE(status.st_mode)
        entry.size = size
        entry.linkname = os.fsdecode(target)
        if self._as_root:
            entry.uid, entry.gid = status.st_uid, status.st_gid
        modified = max(status.st_mtime_ns or 0, 0)
        entry.mtime = modified // _NANO
        pax = {os.fsdecode(key): os.fsdecode(value) for key, value in records.items()}
        if modified % _NANO:
            pax["mtime"] = f"{modified // _NANO}.{modified % _NANO:09}"
        for key, value in (attributes or {}).items():
            pax[os.fsdecode(XATTR + key)] = os.fsdecode(value)
        entry.pax_headers = pax
        self._sink.write(entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self.entries += 1


def _attributes(opened: int) -> dict[bytes, bytes]:
    """The extended attributes that programs may set themselves."""
    path = f"/proc/self/fd/{opened}"
    found: dict[bytes, bytes] = {}
    try:
        for name in sorted(os.listxattr(path)):
            encoded = os.fsencode(name)
            if encoded.startswith(b"user.") and not encoded.startswith(OVERLAY_MARKS) and b"=" not in encoded:
                found[encoded] = os.getxattr(path, name)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EACCES, errno.ENODATA):
            raise
    return found


def _extents(opened: int, status: os.stat_result) -> Iterator[tuple[int, int]]:
    """Where a file has data, as offsets and lengths."""
    position = 0
    if status.st_blocks * BLOCK >= status.st_size:
        yield 0, status.st_size
        return
    while position < status.st_size:
        try:
            start = os.lseek(opened, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        position = os.lseek(opened, start, os.SEEK_HOLE)
        yield start, position - start
