"""What an attempt hands in, on disk, and getting it back; what its agent did is kept by `race.trajectories`.

Paths and contents are exact: what is built from a submission that was read back is what would have been built at once.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from race.atomic import write_atomically
from race.repository import ProjectRepository
from race.sandbox import Entry, File, Link, Removed
from race.submission import Package, PathChange, Submission

_GONE = "000000"
_LINK = "120000"
_EXECUTABLE = "100755"


def keep_submission(folder: Path, attempt: str, submission: Submission) -> None:
    """Write what an attempt is judged by; `race.handoff.deposit` has kept its contents.

    Args:
        folder: of the race.
        attempt: whose it is.
        submission: what to keep.
    """
    data: dict[str, Any] = {
        "changes": [{**asdict(c), "path": c.path.hex()} for c in submission.changes],
        "packages": [asdict(p) for p in submission.packages],
        "problems": submission.problems,
        "ignored": submission.ignored,
        "outside": submission.outside,
    }
    write_atomically(folder / f"{attempt}.submission.json", json.dumps(data))


def kept_submission(folder: Path, attempt: str) -> Submission | None:
    """What `keep_submission` wrote; None if that is not there or cannot be read."""
    try:
        data = json.loads((folder / f"{attempt}.submission.json").read_text())
        changes = tuple(PathChange(bytes.fromhex(c.pop("path")), **c) for c in data["changes"])
        patch = (folder / f"{attempt}.patch").read_bytes()
        repository = ProjectRepository(folder / "objects.git") if changes else None
        entries = [_entry(c, repository) for c in changes if repository is not None]
        return Submission(
            changes,
            tuple(sorted(entries, key=lambda e: (not isinstance(e, Removed), e.path))),
            patch,
            tuple(Package(**p) for p in data["packages"]),
            tuple(data["problems"]),
            tuple(data["ignored"]),
            data["outside"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _entry(change: PathChange, repository: ProjectRepository) -> Entry:
    if change.new_mode == _GONE:
        return Removed(change.path)
    content = repository.content(change.new_blob)
    if change.new_mode == _LINK:
        return Link(change.path, content)
    return File(change.path, content, 0o755 if change.new_mode == _EXECUTABLE else 0o644)
