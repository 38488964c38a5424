"""Files of a container, written and read through the API's archives."""

from __future__ import annotations

import os
import secrets
import stat
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from race.errors import SandboxError
from race.sandbox import Directory, Entry, File, Link, Removed
from race.sandboxes import scripts
from race.sandboxes.docker.engine import Engine
from race.sandboxes.docker.execution import plain
from race.sandboxes.local.changes import normal
from race.sandboxes.scripts import quoted
from race.sandboxes.unpacking import unpack

_IN_MEMORY = 32 << 20


def write(engine: Engine, handle: str, entries: Iterable[Entry]) -> None:
    """Write entries in order: they are staged beside their places, which a script inside then moves them to.

    Raises:
        SandboxError: a path cannot be written, or the container does not run.
    """
    token = secrets.token_hex(8)
    stage = f"{scripts.OWN}/{token}".encode()
    steps: list[bytes] = [scripts.PLACE.encode()]
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as held:
        with tarfile.open(fileobj=held, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for number, entry in enumerate(entries):
                path = normal(entry.path)
                if not path:
                    if isinstance(entry, Directory):
                        continue
                    raise SandboxError("the root of a sandbox cannot be written or removed")
                steps.append(_step(entry, quoted(b"/" + path), quoted(stage + b"/%d" % number)))
                if isinstance(entry, File):
                    _add(archive, stage.decode() + f"/{number}", entry.content)
            _add(archive, stage.decode() + "/script", b"\n".join(steps) + b"\n")
        held.seek(0)
        engine.client.api.put_archive(handle, "/", held)
    name = stage.decode()
    code, said = plain(engine, handle, ["sh", "-c", f"sh {name}/script; s=$?; rm -rf {name}; exit $s"])
    if code != 0:
        raise SandboxError(f"files could not be written: {said.decode(errors='replace').strip()}")


def _step(entry: Entry, path: bytes, staged: bytes) -> bytes:
    match entry:
        case File():
            return b"file %b %b %o" % (staged, path, entry.mode)
        case Link():
            if not entry.target or b"\0" in entry.target:
                raise SandboxError(f"a link cannot point to {entry.target!r}")
            return b"link %b %b" % (path, quoted(entry.target))
        case Directory():
            return b"folder %b %o" % (path, entry.mode)
        case Removed():
            return b"gone " + path


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    member = tarfile.TarInfo(name)
    member.mode = 0o600
    if isinstance(content, bytes):
        member.size = len(content)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as source:
            source.write(content)
            source.seek(0)
            archive.addfile(member, source)
        return
    with content.open("rb") as source:
        member.size = os.fstat(source.fileno()).st_size
        archive.addfile(member, source)


def read(engine: Engine, handle: str, path: bytes, limit: int) -> bytes:
    """The bytes of a regular file; no link is followed.

    Raises:
        FileNotFoundError: nothing is there.
        SandboxError: it is not a regular file, is larger than ``limit``, or is below a link.
    """
    shown = os.fsdecode(b"/" + path)
    parts = path.split(b"/")
    for depth in range(1, len(parts)):
        above = engine.status(handle, b"/" + b"/".join(parts[:depth]))
        if above is None:
            raise FileNotFoundError(shown)
        if stat.S_ISLNK(above.mode):
            raise SandboxError(f"{shown!r} is below a link: {os.fsdecode(parts[depth - 1])!r}")
    status = engine.status(handle, b"/" + path)
    if status is None:
        raise FileNotFoundError(shown)
    if not stat.S_ISREG(status.mode):
        raise SandboxError(f"{shown!r} is not a regular file")
    if status.size > limit:
        raise SandboxError(f"{shown!r} is larger than {limit} bytes")
    with engine.archive(handle, b"/" + path) as members:
        for member, archive in members:
            source = archive.extractfile(member) if member.isreg() else None
            if source is None:
                break
            data = source.read(limit + 1)
            if len(data) > limit:
                raise SandboxError(f"{shown!r} is larger than {limit} bytes")
            return data
    raise SandboxError(f"{shown!r} is not a regular file")


def download(engine: Engine, handle: str, path: bytes, target: Path) -> None:
    """Copy a file or tree to a new place of the host. Links are copied as links; special files and
    setuid bits are left out.

    Raises:
        FileExistsError: something is there.
        SandboxError: nothing is at ``path``, or it cannot be copied.
    """
    shown = os.fsdecode(b"/" + path)
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists")
    try:
        with engine.archive(handle, b"/" + path) as members:
            unpack(members, target)
    except (OSError, tarfile.TarError) as e:
        raise SandboxError(f"{shown!r} could not be copied: {e}") from e
    if not os.path.lexists(target):
        raise SandboxError(f"{shown!r} is neither a file, a link nor a directory")
