"""Writes what comes out of a sandbox as a tar stream, which is not to be believed, to a new place of the host."""

from __future__ import annotations

import tarfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from race.sandboxes.local.exchange import HostSink
from race.sandboxes.local.frames import NO_TIME

_PIECE = 1 << 20


def unpack(members: Iterable[tuple[tarfile.TarInfo, tarfile.TarFile]], target: Path) -> None:
    """Write the members of a stream, of which the first is what was asked for and becomes ``target``.

    Links are written as links; special files and setuid bits are left out. Nothing is left if it fails.
    """
    with _sink(target) as sink:
        top: bytes | None = None
        for member, archive in members:
            name = member.name.encode("utf-8", "surrogateescape").strip(b"/")
            top = name if top is None else top
            _received(sink, member, archive, name[len(top) :].strip(b"/"))
        sink.finish()


@contextmanager
def _sink(target: Path) -> Generator[HostSink]:
    sink = HostSink(target)
    try:
        yield sink
    except BaseException:
        sink.close()
        sink.discard()
        raise
    sink.close()


def _received(sink: HostSink, member: tarfile.TarInfo, archive: tarfile.TarFile, name: bytes) -> None:
    if member.isdir():
        sink.directory(name, member.mode)
    elif member.issym():
        sink.link(name, member.linkname.encode("utf-8", "surrogateescape"))
    elif member.isreg():
        source = archive.extractfile(member)
        sink.file(name, member.mode, NO_TIME)
        while source is not None and (piece := source.read(_PIECE)):
            sink.write(piece)
        sink.end_file()
