"""``integrity``: whether a submission keeps to the rules of its task. Every race has it, and has it first."""

from __future__ import annotations

import posixpath

from race.policy import refused
from race.project import matching
from race.sandbox import Link
from race.scoring import Replay, Score, ScoreContext
from race.submission import PathChange, Submission
from race.task import Task

SHOWN = 5
"""How many violations a reason names; the rest are counted."""


class Integrity:
    """A gate: protected files are byte-identical, only editable paths changed, links stay inside the project, and
    nothing is handed in that acts without being called or that nobody could read; see `race.policy`.

    It runs nothing: what changed was read from outside the fork, as bytes.
    """

    async def score(self, replay: Replay, context: ScoreContext) -> Score:
        """Judge the submission's paths, modes and links."""
        del context
        found = violations(replay.submission, replay.task)
        found += refused(replay)
        if not found:
            return Score(passed=True)
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        return Score(passed=False, reason="; ".join(found[:SHOWN]) + more)


def violations(submission: Submission, task: Task) -> list[str]:
    """Every rule that a submission breaks, a sentence each, protected files first."""
    changes = submission.changes
    protected = _protected(submission, task)
    found = [f"{c.shown} is protected and was {_verb(c)}" for c in changes if c.path in protected]
    found += submission.problems
    if task.editable:
        allowed = matching(task.editable, (c.path for c in changes))
        found += [
            f"{c.shown} was {_verb(c)}, but only {', '.join(task.editable)} may change"
            for c in changes
            if c.path not in allowed and c.path not in protected
        ]
    for entry in submission.entries:
        if isinstance(entry, Link) and _leaves(entry):
            path = next(c.shown for c in changes if c.path == entry.path)
            target = entry.target.decode("utf-8", "backslashreplace")
            found.append(f"{path} is a link to {target!r}, outside of the project")
    return found


def _protected(submission: Submission, task: Task) -> set[bytes]:
    """The changed paths that were to stay as they are: all that match and were there, and all that were added where
    the task names a whole folder. A new file that merely matches a wildcard is allowed.
    """
    there = {c.path for c in submission.changes if c.status != "A"}
    added = {c.path for c in submission.changes if c.status == "A"}
    plain = [p for p in task.protected if not any(c in p for c in "*?[")]
    return matching(task.protected, there) | matching(plain, added)


def _verb(change: PathChange) -> str:
    if change.status == "D":
        return "deleted"
    if change.status == "A":
        return "added"
    if change.status == "T":
        return "replaced by a link" if change.new_mode == "120000" else "replaced by a file"
    if change.old_blob == change.new_blob:
        return f"given the mode {change.new_mode[3:]}"
    return "changed"


def _leaves(link: Link) -> bool:
    target = link.target.decode("utf-8", "surrogateescape")
    path = link.path.decode("utf-8", "surrogateescape")
    if target.startswith("/"):
        return True
    place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return place == ".." or place.startswith("../") or place.split("/")[0] == ".git"
