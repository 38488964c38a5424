"""Whether a scored command changed what was to stay: protected files are looked at again after every step."""

from __future__ import annotations

from race.errors import SandboxError
from race.project import matching
from race.sandbox import Change, Link
from race.scoring import Replay
from race.submission import printable

SHOWN = 3
"""How many paths are named."""


async def moved(replay: Replay) -> str:
    """Which protected files are not those of the base any more, as a sentence; nothing if all are.

    Read from the layer that holds what was written since the replay began, so its cost does not grow with the project.

    Raises:
        SandboxError: there is too much to look through, or the sandbox broke.
    """
    task = replay.task
    if not task.protected or replay.original is None:
        return ""
    root = task.workdir.encode() + b"/"
    changes = {c.path.removeprefix(root): c for c in await replay.sandbox.changes(task.workdir)}
    # What is gone takes along what was below it.
    gone = {p for p, c in changes.items() if c.kind != "directory" and p not in replay.paths}
    below = {k for k in replay.paths if any(k.startswith(g + b"/") for g in gone)} if gone else set[bytes]()
    candidates = matching(task.protected, (changes.keys() & set(replay.paths)) | below)
    found = [p for p in sorted(candidates) if p in below or await _differs(replay, p, changes[p])]
    if not found:
        return ""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"while it ran, {', '.join(printable(p) for p in found[:SHOWN])}{more} was changed, which is protected"


async def _differs(replay: Replay, path: bytes, change: Change) -> bool:
    if replay.original is None:
        return False
    original = replay.original(path)
    if isinstance(original, Link):
        return change.kind != "link" or change.target != original.target
    if change.kind != "file" or not isinstance(original.content, bytes):
        return True
    if change.size != len(original.content):
        return True
    try:
        return await replay.sandbox.read(change.path, limit=change.size) != original.content
    except (FileNotFoundError, SandboxError):
        return True
