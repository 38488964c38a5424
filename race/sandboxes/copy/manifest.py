"""What a folder holds, noted down at one moment and compared with later.

The time of a file's last change of any kind (``ctime``) is the kernel's, and no program sets it: a file that was
written to is told apart whatever its size and its other times say.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from race.errors import SandboxError
from race.sandbox import Change
from race.sandboxes.local.changes import kind_of, within

TICK = 0.012
"""Seconds after which what is changed gets another time than what was noted: kernels stamp at 100 to 1,000 Hz."""


def note(root: Path, file: Path) -> None:
    """Write down what is in a folder."""
    rows = [[os.fsdecode(path), *_key(status)] for path, status in _walked(root)]
    file.write_text(json.dumps(rows), errors="surrogateescape")


def changes(root: Path, file: Path, under: bytes, limit: int) -> list[Change]:
    """What differs from what was noted, below a path, sorted.

    Raises:
        SandboxError: there are more than ``limit`` changes.
    """
    rows = json.loads(file.read_text(errors="surrogateescape"))
    before = {os.fsencode(r[0]): r[1:] for r in rows}
    now = dict(_walked(root))
    found: list[Change] = []
    changed, removed = compared(before, {path: _key(status) for path, status in now.items()}, under)
    for path in changed:
        status = now[path]
        kind = kind_of(status)
        size = status.st_size if kind == "file" else 0
        target = os.readlink(os.path.join(os.fsencode(root), path)) if kind == "link" else b""
        found.append(Change(b"/" + path, kind, stat.S_IMODE(status.st_mode), size, target, path in before))
    found += [Change(b"/" + path, "removed", existed=True) for path in removed]
    if len(found) > limit:
        raise SandboxError(f"there are more than {limit} changes")
    return sorted(found, key=lambda c: c.path)


def compared(
    before: Mapping[bytes, object], now: Mapping[bytes, object], under: bytes
) -> tuple[list[bytes], list[bytes]]:
    """The paths below one that changed or came, and those that went.

    Args:
        before: what each path was, in whatever form.
        now: what each path is, in the same form.
        under: below which path, without a slash at either end, like all of them.
    """
    changed = [p for p, key in now.items() if within(p, under) and (p not in before or before[p] != key)]
    removed: list[bytes] = []
    for path in before.keys() - now.keys():
        above = path.rpartition(b"/")[0]
        # What was below a directory that is gone is told by that.
        if within(path, under) and (not above or above in now or path == under):
            removed.append(path)
    return changed, removed


def _walked(root: Path) -> Iterator[tuple[bytes, os.stat_result]]:
    waiting = [b""]
    top = os.fsencode(root)
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(top, folder)))
        except (FileNotFoundError, NotADirectoryError):
            continue  # it is being changed
        except PermissionError:
            raise SandboxError(f"{os.fsdecode(b'/' + folder)!r} cannot be looked into") from None
        for entry in entries:
            path = folder + b"/" + entry.name if folder else entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)


def _key(status: os.stat_result) -> list[int]:
    """What is the same for as long as nothing changed. Of a directory it is not when something in it did."""
    own = [status.st_mode, status.st_uid, status.st_gid]
    if stat.S_ISDIR(status.st_mode):
        return own
    return [*own, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
