"""Reads tar files that are not trusted, in one pass: ustar, pax and GNU names, and pax sparse files.

Python's own reader believes what a header says: it reads a header of any size into memory and takes names as they
come. This one bounds everything before it is read, and its errors name the entry.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 512
LONGEST_PATH = 4000
"""Bytes; the kernel takes no path of more than 4,096."""
LONGEST_NAME = 255
LITERAL = b"RACE.literal"
"""The pax record of a file whose name begins like a whiteout's, but is only a name."""
XATTR = b"SCHILY.xattr."
"""What the pax records of extended attributes begin with."""

_PIECE = 1 << 20
_LARGEST_HEADER = 1 << 20
_LARGEST_MAP = 8 << 20
_DIGITS_IN_MAP = 20
_LARGEST_NUMBER = 1 << 62
_LATEST = 1 << 34
_NANO = 10**9

Kind: TypeAlias = Literal["file", "link", "hard link", "directory", "fifo", "device"]

_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard link",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "directory",
    b"6": "fifo",
}


class BadArchiveError(Exception):
    """An archive is damaged or hostile. The text names the entry."""


class Stream(Protocol):
    """What can be read from front to back."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; nothing at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """One entry.

    Attributes:
        path: relative, without ``.``, ``..`` or slashes at its ends; empty for the root itself.
        kind: what it is.
        mode: permission bits, with setuid, setgid and sticky.
        modified: nanoseconds since the epoch.
        size: apparent size of a file.
        target: of a link, as it is; of a hard link, another entry's path.
        attributes: extended ones.
        extents: where a sparse file has data, as offsets and lengths; None if it has no holes.
        literal: see `LITERAL`.
        offset: where its data begins in the stream.
    """

    path: bytes
    kind: Kind
    mode: int
    owner: int
    group: int
    modified: int
    size: int
    target: bytes = b""
    attributes: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    extents: tuple[tuple[int, int], ...] | None = None
    literal: bool = False
    offset: int = 0

    def __str__(self) -> str:
        return shown(self.path)


def shown(path: bytes) -> str:
    """A path as messages name it."""
    return repr(os.fsdecode(path))


class Reader:
    """The entries of a tar file.

    Args:
        stream: at its beginning.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._position = 0
        self._left = 0
        self._padding = 0
        self._where = "at its beginning"

    def __iter__(self) -> Iterator[Member]:
        """The entries in their order. What is not read of an entry's data is passed over.

        Raises:
            BadArchiveError: what comes next is no entry, or there is no end.
        """
        while (member := self._next()) is not None:
            self._where = f"after {member}"
            yield member
            self.skip()

    def skip(self) -> None:
        """Pass over what is left of the present entry's data."""
        while self._left:
            self._data()
        self._exactly(self._padding, "")
        self._padding = 0

    def leap(self) -> int:
        """Take the present entry's data for read. The caller moves the stream by as many bytes as this gives."""
        size, self._left = self._left, 0
        self._position += size
        return size

    def pieces(self, member: Member) -> Iterator[tuple[int, bytes]]:
        """The data of the present entry, each piece with its offset in the file."""
        extents = ((0, member.size),) if member.extents is None else member.extents
        for offset, length in extents:
            position, end = offset, offset + length
            while position < end:
                piece = self._data(end - position)
                yield position, piece
                position += len(piece)

    def _data(self, most: int = _PIECE) -> bytes:
        wanted = min(self._left, _PIECE, most)
        piece = self._stream.read(wanted)
        if not piece:
            raise BadArchiveError(f"it is cut off {self._where}")
        self._left -= len(piece)
        self._position += len(piece)
        return piece

    def _exactly(self, count: int, what: str) -> bytes:
        """That many bytes, a header's worth."""
        parts: list[bytes] = []
        left = count
        while left:
            part = self._stream.read(left)
            if not part:
                raise BadArchiveError(f"it is cut off {what or self._where}")
            parts.append(part)
            left -= len(part)
        self._position += count
        return b"".join(parts)

    def _next(self) -> Member | None:
        records: dict[bytes, bytes] = {}
        name = target = None
        while True:
            header = self._exactly(BLOCK, "")
            if not any(header):
                return None
            _check_sum(header, self._where)
            kind = header[156:157]
            size = _number(header[124:136], "size", self._where)
            if kind not in (b"x", b"g", b"L", b"K"):
                return self._member(header, records, name, target)
            text = self._extension(size)
            if kind == b"x":
                records = _records(text, self._where)
            elif kind == b"g":
                _check_global(_records(text, self._where))
            elif kind == b"L":
                name = text.rstrip(b"\0")
            else:
                target = text.rstrip(b"\0")

    def _extension(self, size: int) -> bytes:
        if size > _LARGEST_HEADER:
            raise BadArchiveError(f"the header {self._where} says that it has {size} bytes")
        text = self._exactly(size, "")
        self._exactly(-size % BLOCK, "")
        return text

    def _member(
        self, header: bytes, records: dict[bytes, bytes], name: bytes | None, target: bytes | None
    ) -> Member:
        prefix = header[345:500] if header[257:263] == b"ustar\0" else b""
        given = _text(header[:100])
        if _text(prefix):
            given = _text(prefix) + b"/" + given
        sparse = any(key.startswith(b"GNU.sparse.") for key in records)
        raw = records.get(b"GNU.sparse.name") or records.get(b"path") or name or given
        self._where = f"at {shown(raw[:LONGEST_PATH])}"
        path = _clean(raw)
        kind = _KINDS.get(header[156:157])
        if kind is None:
            raise BadArchiveError(f"{shown(raw)} is of the kind {header[156:157]!r}, which is not known here")
        if kind == "file" and raw.endswith(b"/"):
            kind = "directory"
        if not path and kind != "directory":
            raise BadArchiveError("its root is not a directory")
        stored = self._numbered(records, b"size", header[124:136])
        if stored and kind != "file":
            raise BadArchiveError(f"{shown(path)} is a {kind} but has {stored} bytes of content")
        self._left, self._padding = stored, -stored % BLOCK
        size, extents = stored, None
        if sparse:
            size, extents = self._sparse(records, path)
        link = records.get(b"linkpath") or target or _text(header[157:257])
        if kind == "hard link":
            link = _clean(link)
        elif kind == "link" and (not link or b"\0" in link or len(link) > LONGEST_PATH):
            raise BadArchiveError(f"the link {shown(path)} leads to {shown(link[:LONGEST_PATH])}")
        return Member(
            path=path,
            kind=kind,
            mode=_number(header[100:108], "mode", self._where) & 0o7777,
            owner=self._numbered(records, b"uid", header[108:116]),
            group=self._numbered(records, b"gid", header[116:124]),
            modified=self._modified(records, header[136:148]),
            size=size,
            target=link if kind in ("link", "hard link") else b"",
            attributes={key[len(XATTR) :]: value for key, value in records.items() if key.startswith(XATTR)},
            extents=extents,
            literal=LITERAL in records,
            offset=self._position,
        )

    def _numbered(self, records: dict[bytes, bytes], key: bytes, header: bytes) -> int:
        if key not in records:
            return _number(header, key.decode(), self._where)
        return _decimal(records[key], key.decode(), self._where)

    def _modified(self, records: dict[bytes, bytes], header: bytes) -> int:
        text = records.get(b"mtime")
        if text is None:
            seconds, nano = _number(header, "time", self._where), 0
        else:
            whole, _, fraction = text.partition(b".")
            seconds = 0 if whole.startswith(b"-") else _decimal(whole, "time", self._where)
            nano = _decimal(fraction[:9].ljust(9, b"0"), "time", self._where) if fraction else 0
        if seconds > _LATEST:
            raise BadArchiveError(f"the time {self._where} is {seconds}")
        return seconds * _NANO + nano

    def _sparse(self, records: dict[bytes, bytes], path: bytes) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The size and the map of a sparse file, whose map stands before its data (version 1.0 of the
        format).
        """
        if (records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor")) != (b"1", b"0"):
            raise BadArchiveError(f"{shown(path)} is sparse in an old format; 1.0 is known here")
        size = _decimal(records.get(b"GNU.sparse.realsize", b""), "size", self._where)
        numbers = self._map(path)
        extents: list[tuple[int, int]] = []
        end = 0
        for offset, length in zip(numbers[::2], numbers[1::2], strict=True):
            if offset < end or offset + length > size:
                raise BadArchiveError(f"the map of the sparse file {shown(path)} contradicts itself")
            end = offset + length
            if length:
                extents.append((offset, length))
        if sum(length for _, length in extents) != self._left:
            raise BadArchiveError(f"the map of the sparse file {shown(path)} is not of its content")
        return size, tuple(extents)

    def _map(self, path: bytes) -> list[int]:
        numbers: list[int] = []
        wanted, rest, taken = 1, b"", 0
        while len(numbers) < wanted:
            line, found, after = rest.partition(b"\n")
            if not found:
                if self._left < BLOCK or taken >= _LARGEST_MAP or len(rest) > _DIGITS_IN_MAP:
                    raise BadArchiveError(f"the map of the sparse file {shown(path)} is damaged")
                rest += self._exactly(BLOCK, "")
                self._left -= BLOCK
                taken += BLOCK
                continue
            rest = after
            numbers.append(_decimal(line, "map", self._where))
            if wanted == 1:
                wanted += 2 * min(numbers.pop(), _LARGEST_MAP) - 1
        return numbers


def _text(field_: bytes) -> bytes:
    return field_.partition(b"\0")[0]


def _decimal(text: bytes, what: str, where: str) -> int:
    if not text.isdigit() or len(text) > _DIGITS_IN_MAP or int(text) > _LARGEST_NUMBER:
        raise BadArchiveError(f"the {what} {where} is {text[:40]!r}")
    return int(text)


def _number(text: bytes, what: str, where: str) -> int:
    """A number of a header: octal digits, or binary after a set first bit."""
    if text[0] == 0x80:  # noqa: PLR2004 - the mark itself
        value = int.from_bytes(text[1:], "big")
    else:
        digits = _text(text).strip(b" ")
        if digits.strip(b"01234567"):
            raise BadArchiveError(f"the {what} {where} is {text!r}")
        value = int(digits or b"0", 8)
    if value > _LARGEST_NUMBER:
        raise BadArchiveError(f"the {what} {where} is {value}")
    return value


def _check_sum(header: bytes, where: str) -> None:
    said = _number(header[148:156], "checksum", where)
    if said != sum(header) - sum(header[148:156]) + 8 * 0x20:
        raise BadArchiveError(f"what comes {where} is not a header of a tar file, or is damaged")


def _records(text: bytes, where: str) -> dict[bytes, bytes]:
    """The records of a pax header: each is its own length, a key and a value."""
    found: dict[bytes, bytes] = {}
    position = 0
    while position < len(text):
        length, _, _ = text[position : position + 10].partition(b" ")
        end = position + int(length) if length.isdigit() else position
        record = text[position:end]
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if not key or not equals or end > len(text) or not record.endswith(b"\n"):
            raise BadArchiveError(f"the pax header {where} is damaged")
        found[key] = value
        position = end
    return found


def _check_global(records: dict[bytes, bytes]) -> None:
    for key in records:
        if key in (b"path", b"linkpath", b"size") or key.startswith((b"GNU.sparse.", XATTR)):
            raise BadArchiveError(
                f"a global header gives all entries the same {key.decode(errors='replace')!r}"
            )


def _clean(path: bytes) -> bytes:
    """A path as a relative one.

    Raises:
        BadArchiveError: it leads out, or cannot be a path.
    """
    if path.startswith(b"/"):
        raise BadArchiveError(f"the name {shown(path[:LONGEST_PATH])} is absolute")
    parts = [each for each in path.split(b"/") if each not in (b"", b".")]
    if b".." in parts:
        raise BadArchiveError(f"the name {shown(path[:LONGEST_PATH])} leads out of the tree")
    if len(path) > LONGEST_PATH or b"\0" in path or any(len(each) > LONGEST_NAME for each in parts):
        raise BadArchiveError(f"the name {shown(path[:LONGEST_PATH])} is too long, or holds a NUL byte")
    return b"/".join(parts)
