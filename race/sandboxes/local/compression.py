"""Reads what may be compressed, a bounded piece at a time, however much a piece would grow to."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import zlib
from typing import TYPE_CHECKING, Protocol

from race.sandboxes.local.tar_reading import BadArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandboxes.local.tar_reading import Stream

_PIECE = 1 << 18
_MOST_MEMORY = 512 << 20
"""Bytes that unpacking xz may take; the most that the program xz itself ever asks for is 65 MiB at its best."""
_LONGEST_MAGIC = 6
_GZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


def is_compressed(begin: bytes) -> bool:
    """Whether these are the first bytes of something compressed."""
    return begin.startswith((_GZIP, _BZIP2, _XZ, _ZSTD))


def uncompressed(stream: Stream) -> Stream:
    """The content of a stream that is compressed with gzip, bzip2, xz or zstd, or not at all.

    Raises:
        BadArchiveError: this Python cannot read zstd.
    """
    rest = _Rest(stream)
    begin = rest.begin
    if begin.startswith(_GZIP):
        return _Checked(gzip.GzipFile(fileobj=io.BufferedReader(rest, _PIECE)))
    if begin.startswith(_XZ):
        return _Checked(_Inflated(rest, lambda: lzma.LZMADecompressor(memlimit=_MOST_MEMORY)))
    if begin.startswith(_BZIP2):
        return _Checked(_Inflated(rest, bz2.BZ2Decompressor))
    if begin.startswith(_ZSTD):
        return _Checked(_Inflated(rest, _zstd()))
    return rest


def _zstd() -> Callable[[], _Decompressor]:
    try:
        new: Callable[[], _Decompressor] = importlib.import_module("compression.zstd").ZstdDecompressor
    except ModuleNotFoundError:
        raise BadArchiveError(
            "it is compressed with zstd, which Python reads from version 3.14 on: unpack it with `zstd -d`"
        ) from None
    return new


class _Rest(io.RawIOBase):
    """A stream whose first bytes were looked at."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.begin = b""
        while len(self.begin) < _LONGEST_MAGIC and (part := stream.read(_LONGEST_MAGIC - len(self.begin))):
            self.begin += part
        self._held = self.begin

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if self._held:
            part, self._held = self._held[:size], self._held[size:]
            return part
        return self._stream.read(size)

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


class _Inflated:
    """What one or more compressed streams, one after the other, hold."""

    def __init__(self, stream: Stream, new: Callable[[], _Decompressor]) -> None:
        self._stream = stream
        self._new = new
        self._decompressor = new()
        self._held = b""

    def read(self, size: int, /) -> bytes:
        while True:
            if self._decompressor.eof:
                self._held = self._decompressor.unused_data or self._stream.read(_PIECE)
                if not self._held.strip(b"\0"):
                    return b""
                self._decompressor = self._new()
            if self._decompressor.needs_input and not self._held:
                self._held = self._stream.read(_PIECE)
                if not self._held:
                    raise EOFError("the compressed data is cut off")
            part = self._decompressor.decompress(self._held, size)
            self._held = b""
            if part:
                return part


class _Checked:
    """A stream whose errors are an archive's."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        try:
            return self._stream.read(size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise BadArchiveError(f"its compressed data is damaged: {error}") from None
        except Exception as error:
            if type(error).__name__ == "ZstdError":
                raise BadArchiveError(f"its compressed data is damaged: {error}") from None
            raise
