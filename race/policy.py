"""What no submission may hold, whatever its task: files that act without being called, or that hide what they are."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator

from race.sandbox import File
from race.scoring import Replay
from race.submission import PathChange, printable
from race.task import Task

_RUNNERS = frozenset(
    {"pytest", "_pytest", "pluggy", "iniconfig", "pip", "setuptools", "sitecustomize", "usercustomize"}
)
_ORDINARY = frozenset({"test", "this", "antigravity", "__main__", "__init__"})
"""Names of modules of Python that projects have themselves, and that nobody imports from Python."""
_AUTOMATIC = re.compile(r".*\.pth|(?:.*/)?(?:site|user)customize\.py|(?:.*/)?pyvenv\.cfg")
_MODULE = re.compile(r"([A-Za-z_]\w*)(?:/__init__)?(?:\.[\w-]+)*\.(?:py|so|pyd)")
_OPAQUE_NAMES = re.compile(
    r".*\.(?:whl|egg|pkl|pickle|joblib|pyc|pyo|class|jar|so|dylib|dll|pyd|o|a|exe|wasm)"
)
_OPAQUE_STARTS = (
    b"\x7fELF",
    b"MZ\x90",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",
    b"\x80\x04\x95",
    b"\x80\x03",
    b"\x80\x05\x95",
)
"""First bytes of compiled programs and of pickles."""
_BIDIRECTIONAL = re.compile("[\u202a-\u202e\u2066-\u2069]")
_LONE_RETURN = re.compile(rb"\r(?!\n|$)")


def refused(replay: Replay) -> list[str]:
    """Every reason for which no task takes a submission, a sentence each. What the base's own file has as well is no
    reason.
    """
    submission = replay.submission
    found = [
        f"the package {p.name}=={p.version} takes the place of {p.replaces or 'that of the base'}, which runs the tests"
        for p in submission.packages
        if p.replaces is not None and p.name.lower() in _RUNNERS
    ]
    found += [reason for change in submission.changes if change.status != "D" for reason in _path(change)]
    for entry in submission.entries:
        if isinstance(entry, File) and isinstance(entry.content, bytes):
            old = replay.original(entry.path) if replay.original and entry.path in replay.paths else None
            before = old.content if isinstance(old, File) and isinstance(old.content, bytes) else b""
            found += _content(entry.path, entry.content, before, replay.task)
    return found


def _path(change: PathChange) -> Iterator[str]:
    path = change.path.decode("utf-8", "surrogateescape")
    if _AUTOMATIC.fullmatch(path):
        yield f"{change.shown} is loaded by every interpreter that finds it, whoever calls it"
    if posixpath.basename(path) == ".gitmodules":
        yield f"{change.shown} names repositories that a later checkout would fetch"
    match = _MODULE.fullmatch(path)
    if match and change.status == "A":
        name = match[1]
        if name in _RUNNERS or (name in sys.stdlib_module_names and name not in _ORDINARY):
            yield f"{change.shown} hides the module {name!r} that Python or its test runner has"


def _content(path: bytes, content: bytes, before: bytes, task: Task) -> Iterator[str]:
    shown = printable(path)
    opaque = _OPAQUE_NAMES.fullmatch(shown) or content.startswith(_OPAQUE_STARTS)
    if opaque and task.binaries == "refuse":
        yield f"{shown} ({len(content):,} bytes) is a binary that nobody can read; the task does not allow any"
        return
    if b"\0" in content[:8192]:
        return
    if _BIDIRECTIONAL.search(content.decode("utf-8", "replace")) and not _BIDIRECTIONAL.search(
        before.decode("utf-8", "replace")
    ):
        yield f"{shown} holds characters that change the direction of text, so that it reads otherwise than it runs"
    if _LONE_RETURN.search(content) and b"\n" in content and not _LONE_RETURN.search(before):
        yield f"{shown} holds carriage returns inside of lines, which hide what is before them"
