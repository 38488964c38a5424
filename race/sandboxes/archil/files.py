"""Files of a sandbox of Archil. They can only be reached by running something there."""

from __future__ import annotations

import base64
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from race.errors import SandboxError
from race.sandbox import Change, Directory, Entry, File, Link, Removed
from race.sandboxes import scripts
from race.sandboxes.archil.execution import status_of
from race.sandboxes.archil.service import Service
from race.sandboxes.copy.manifest import compared
from race.sandboxes.local.changes import kind_of, normal
from race.sandboxes.scripts import quoted
from race.sandboxes.unpacking import unpack

_LARGE = 4 << 20
_MISSING, _NO_FILE, _TOO_LARGE, _LINKED = 3, 4, 5, 6
_REASONS = {
    _NO_FILE: "is not a regular file",
    _TOO_LARGE: "is larger than {limit} bytes",
    _LINKED: "is below a link",
}

_READ = rb"""
for above; do [ ! -L "$above" ] || exit 6; done
if [ -L "$path" ] || { [ -e "$path" ] && [ ! -f "$path" ]; }; then exit 4; fi
[ -e "$path" ] || exit 3
[ "$(wc -c <"$path")" -le "$limit" ] || exit 5
cat "$path"
"""
_LIST = rb"""
mkdir -p /.race && cd / && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./.race \) -prune -o \
  ! -name . -print0 >/.race/names
xargs -0 stat -c '%f %u %g %s %i %z' </.race/names
printf '\0'
cat /.race/names
rm -f /.race/names
"""
"""What there is on the machine: a line of what each path is, a NUL byte, and the paths, each with one at its end."""


async def _ran(service: Service, handle: str, script: bytes) -> tuple[int | None, bytes, bytes]:
    """Run a script of ours, whose words need not be UTF-8."""
    return await status_of(service, handle, "sh -s", script)


async def _must(service: Service, handle: str, script: bytes) -> bytes:
    status, out, err = await _ran(service, handle, script)
    if status != 0:
        raise SandboxError(f"the sandbox cannot do it: {err.decode(errors='replace').strip() or status}")
    return out


async def write(service: Service, handle: str, entries: Iterable[Entry]) -> None:
    """Write entries in order: as scripts that hold the contents, a few megabytes each."""
    head = b"mkdir -p /.race\n" + scripts.PLACE.encode()
    steps: list[bytes] = []
    for entry in entries:
        path = normal(entry.path)
        if not path:
            if isinstance(entry, Directory):
                continue
            raise SandboxError("the root of a sandbox cannot be written or removed")
        steps.append(_step(entry, quoted(b"/" + path)))
        if sum(map(len, steps)) > _LARGE:
            await _must(service, handle, head + b"".join(steps))
            steps = []
    if steps:
        await _must(service, handle, head + b"".join(steps))


def _step(entry: Entry, path: bytes) -> bytes:
    match entry:
        case File():
            content = entry.content if isinstance(entry.content, bytes) else entry.content.read_bytes()
            lines = [b": >/.race/taken\n"]
            for start in range(0, len(content), _LARGE):
                piece = base64.encodebytes(content[start : start + _LARGE])
                lines.append(b"base64 -d >>/.race/taken <<'END' || exit 1\n%bEND\n" % piece)
            return b"".join(lines) + b"file /.race/taken %b %o\n" % (path, entry.mode)
        case Link():
            if not entry.target or b"\0" in entry.target:
                raise SandboxError(f"a link cannot point to {entry.target!r}")
            return b"link %b %b\n" % (path, quoted(entry.target))
        case Directory():
            return b"folder %b %o\n" % (path, entry.mode)
        case Removed():
            return b"gone %b\n" % path


async def read(service: Service, handle: str, path: bytes, limit: int) -> bytes:
    """The bytes of a regular file; no link is followed.

    Raises:
        FileNotFoundError: nothing is there.
        SandboxError: it is not a regular file, is larger than ``limit``, or is below a link.
    """
    parts = path.split(b"/")
    above = [quoted(b"/" + b"/".join(parts[:depth])) for depth in range(1, len(parts))]
    words = b"path=%b limit=%d\nset -- %b\n" % (quoted(b"/" + path), limit, b" ".join(above))
    status, out, err = await _ran(service, handle, words + _READ)
    shown = os.fsdecode(b"/" + path)
    if status == _MISSING:
        raise FileNotFoundError(shown)
    if status != 0:
        why = _REASONS.get(status or -1, err.decode(errors="replace").strip() or "cannot be read")
        raise SandboxError(f"{shown!r} {why.format(limit=limit)}")
    if len(out) > limit:
        raise SandboxError(f"{shown!r} is larger than {limit} bytes")
    return out


async def download(service: Service, handle: str, path: bytes, target: Path) -> None:
    """Copy a file or tree to a new place of the host.

    Raises:
        FileExistsError: something is there.
        SandboxError: nothing is at ``path``, or it cannot be copied.
    """
    shown = os.fsdecode(b"/" + path)
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists")
    above, _, name = (b"/" + path).rpartition(b"/")
    script = b"cd %b && [ -e ./%b -o -L ./%b ] && exec tar -cf - -- ./%b" % (
        quoted(above or b"/"),
        *[quoted(name)] * 3,
    )
    stream = await _must(service, handle, script)

    def unpacked() -> None:
        with tarfile.open(fileobj=io.BytesIO(stream), errors="surrogateescape") as archive:
            unpack(((m, archive) for m in archive), target)

    try:
        await service.call(unpacked)
    except (OSError, tarfile.TarError) as e:
        raise SandboxError(f"{shown!r} could not be copied: {e}") from e
    if not os.path.lexists(target):
        raise SandboxError(f"{shown!r} is neither a file, a link nor a directory")


async def listing(service: Service, handle: str) -> bytes:
    """What there is on the machine of a sandbox, to be compared with later."""
    return await _must(service, handle, _LIST)


def _parsed(text: bytes) -> dict[bytes, tuple[bytes, ...]]:
    lines, _, names = text.partition(b"\0")
    paths = [n[2:] for n in names.split(b"\0")[:-1]]
    found: dict[bytes, tuple[bytes, ...]] = {}
    for path, line in zip(paths, lines.split(b"\n"), strict=False):
        fields = tuple(line.split(b" ", 5))
        # Of a directory, only what it is itself: what changes in it is told of what is in it.
        found[path] = fields[:3] if stat.S_ISDIR(int(fields[0], 16)) else fields
    return found


async def changes(service: Service, handle: str, before: bytes, under: bytes, limit: int) -> list[Change]:
    """What differs from an earlier listing, below a path, sorted.

    Raises:
        SandboxError: there are more than ``limit`` changes.
    """
    old, now = _parsed(before), _parsed(await listing(service, handle))
    changed, removed = compared(old, now, under)
    if len(changed) + len(removed) > limit:
        raise SandboxError(f"there are more than {limit} changes")
    links = [p for p in changed if stat.S_ISLNK(int(now[p][0], 16))]
    targets = dict(zip(links, await _targets(service, handle, links), strict=True))
    found = [_change(path, now, old, targets) for path in changed]
    found += [Change(b"/" + p, "removed", existed=True) for p in removed]
    return sorted(found, key=lambda c: c.path)


def _change(
    path: bytes,
    now: Mapping[bytes, tuple[bytes, ...]],
    old: Mapping[bytes, object],
    targets: Mapping[bytes, bytes],
) -> Change:
    mode = int(now[path][0], 16)
    kind = kind_of(os.stat_result((mode, *[0] * 9)))
    size = int(now[path][3]) if kind == "file" else 0
    return Change(b"/" + path, kind, stat.S_IMODE(mode), size, targets.get(path, b""), path in old)


async def _targets(service: Service, handle: str, links: list[bytes]) -> list[bytes]:
    if not links:
        return []
    script = b"".join(b"readlink -n %b; printf '\\0'\n" % quoted(b"/" + p) for p in links)
    return (await _must(service, handle, script)).split(b"\0")[: len(links)]
