"""A project as `race init` sees it: its files' names, the text of those it needs, and how to name them."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from race.project import collected
from race.spec import from_data

READ_LIMIT = 256 << 10
"""Bytes that are read of a file."""

FEW = 8
"""Up to so many files or folders are named one by one, more of them by a pattern."""

_THIRD_PARTY = frozenset({"node_modules", "vendor", "third_party", "site-packages", ".tox", ".nox"})
_SECRETS = re.compile(r"(?:.*/)?\.env(?:\.local)?")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """How a project is tested, as far as its files tell.

    Attributes:
        language: for people, such as ``"Python"``.
        test: the command that runs the tests; None if there are none.
        name: what the project calls itself, or nothing.
        setup: commands that make its tests run in a fresh sandbox.
        env: what the sandbox's environment needs.
        protected: patterns of what the tests are made of.
        advice: sentences for the agents.
        notes: sentences for whoever edits the race file.
    """

    language: str
    test: str | None
    name: str = ""
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    protected: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceTree:
    """The files that a race in a folder would start from.

    Attributes:
        folder: where they are.
        name: a name for a task, made from the folder's.
        paths: relative to the folder, sorted; bytes that are not UTF-8 are surrogates, as from `os.fsdecode`.
        links: those that are links; they are never read.
        exclude: patterns of what had better stay out of the sandbox: virtual environments, secrets.
    """

    folder: Path
    name: str
    paths: tuple[str, ...]
    links: frozenset[str]
    exclude: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path) -> SourceTree:
        """Look at a folder.

        Raises:
            SpecError: there is nothing to race on, or its repository has no commit.
        """
        minimal = {"task": {"prompt": "-"}, "entries": [{"name": "nothing", "agent": "nop"}]}
        spec = from_data(minimal, folder / "race.toml")
        with collected(spec) as project:
            links = frozenset(os.fsdecode(f.path) for f in project.files if f.target is not None)
            paths = [os.fsdecode(f.path) for f in project.files]
        out = _left_out(paths)
        kept = tuple(p for p in paths if not any(p == o or p.startswith(f"{o}/") for o in out))
        exclude = tuple(pattern_of(o, folder=o not in paths) for o in out)
        return cls(folder, spec.task.name, kept, links, exclude)

    def own(self) -> list[str]:
        """The paths that are the project's own work, without copies of other projects."""
        return [p for p in self.paths if not _THIRD_PARTY.intersection(p.split("/")[:-1])]

    def has(self, path: str) -> bool:
        """Whether there is a file or a link of that path."""
        return path in self.paths

    def first(self, *paths: str) -> str | None:
        """The first of some paths that is there."""
        return next((p for p in paths if p in self.paths), None)

    def text(self, path: str) -> str:
        """The beginning of a file; nothing if it is a link, is not there, or cannot be read."""
        if path in self.links or path not in self.paths:
            return ""
        try:
            with (self.folder / path).open("rb") as file:
                return file.read(READ_LIMIT).decode("utf-8", "replace").replace("\r\n", "\n")
        except OSError:
            return ""

    def toml(self, path: str) -> dict[str, Any]:
        """The content of a TOML file; empty if there is none or it is not valid."""
        try:
            return tomllib.loads(self.text(path))
        except tomllib.TOMLDecodeError:
            return {}


def _left_out(paths: Iterable[str]) -> list[str]:
    """Folders and files that a race should not take along, outermost ones only."""
    found: set[str] = set()
    for path in paths:
        parts = path.split("/")
        if parts[-1] == "pyvenv.cfg" and len(parts) > 1:
            found.add("/".join(parts[:-1]))
        if "node_modules" in parts[:-1]:
            found.add("/".join(parts[: parts.index("node_modules") + 1]))
        if _SECRETS.fullmatch(path):
            found.add(path)
    return sorted(f for f in found if not any(f.startswith(f"{other}/") for other in found))


def pattern_of(path: str, *, folder: bool = False) -> str:
    """A pattern of the race file that names a path, whatever characters it is made of."""
    safe = "".join("?" if c in "*?[" or "\ud800" <= c <= "\udfff" else c for c in path)
    return f"{safe}/" if folder else safe


def typable(path: str) -> bool:
    """Whether a path can be written in a command of the race file."""
    return not any("\ud800" <= c <= "\udfff" for c in path)


def argument(path: str) -> str:
    """A path as an argument of a shell command, also if it begins with a dash."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def protect(
    tree: SourceTree, is_test: Callable[[str], bool], *, folders: Iterable[str], wildcards: Iterable[str]
) -> list[str]:
    """Patterns that name all test files.

    Folders that are there for tests are named whole, since what tests read lies in them too.

    Args:
        tree: the project.
        is_test: whether a path is that of a test file.
        folders: what folders for tests are called.
        wildcards: stand for files outside of such folders if there are many of them.
    """
    names = set(folders)
    whole: set[str] = set()
    loose: set[str] = set()
    for path in filter(is_test, tree.own()):
        parts = path.split("/")
        depth = next((i for i, part in enumerate(parts[:-1], 1) if part in names), None)
        if depth is None:
            loose.add(path)
        else:
            whole.add("/".join(parts[:depth]))
    if len(whole) > FEW:
        patterns = [f"**/{name}/" for name in sorted({posixpath.basename(w) for w in whole})]
    else:
        patterns = [pattern_of(w, folder=True) for w in sorted(whole)]
    if len(loose) > FEW:
        for wildcard in wildcards:
            if found := {p for p in loose if fnmatchcase(posixpath.basename(p), wildcard)}:
                patterns.append(wildcard)
                loose -= found
    return patterns + [pattern_of(p) for p in sorted(loose)]
