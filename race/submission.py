"""What an attempt is judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from race.sandbox import Entry


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that an attempt added to the machine.

    Attributes:
        name: as in its metadata.
        version: likewise.
        site: absolute path of the directory it was installed into.
        replaces: the version that the base had, if it had one.
    """

    name: str
    version: str
    site: str
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class PathChange:
    """One path of the project that a submission adds, changes, or removes.

    Attributes:
        path: relative to the project's folder.
        status: ``"A"``, ``"M"``, ``"D"`` or ``"T"`` (its type changed), as git names them.
        old_mode: git's mode in the base, such as ``"100644"``; ``"000000"`` where it was not there.
        new_mode: likewise, in the submission.
        old_blob: git's object name of the content in the base.
        new_blob: likewise, in the submission.
        size: bytes of the new content.
    """

    path: bytes
    status: str
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str
    size: int = 0

    @property
    def shown(self) -> str:
        """The path for people: printable, unambiguous."""
        return printable(self.path)


MachineKind: TypeAlias = Literal["startup", "programs", "bytecode", "services", "settings", "other"]


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What an attempt touched outside of the project.

    Attributes:
        paths: by kind, the first of them, printable. ``"startup"``: what an interpreter, a shell or a linker runs
            or reads by itself; ``"programs"``: what was added to a folder of programs, and programs and libraries that
            were replaced; ``"bytecode"``: compiled Python; ``"services"``: what starts by itself later, and keys that
            let somebody in; ``"settings"``: of the system or its tools; ``"other"``: the rest.
        counts: how many there are, by kind.
    """

    paths: Mapping[MachineKind, Sequence[str]] = field(default_factory=dict[MachineKind, Sequence[str]])
    counts: Mapping[MachineKind, int] = field(default_factory=dict[MachineKind, int])


@dataclass(frozen=True, slots=True)
class Submission:
    """The change of the project's files, and the packages that were added.

    Attributes:
        changes: every path that differs, sorted.
        entries: what to write into a replay to make the same change; paths are relative to the project's folder.
        patch: the same for people and for ``git apply``: binary, full object names, bytes of any encoding.
        packages: Python packages that were added.
        problems: why this cannot be judged at all: special files, nested repositories, more than can be held.
        ignored: paths that changed but are no part of it: git ignores them, or they are known left-overs.
        outside: how many paths outside of the project's folder changed.
        machine: what they are.
        additions: with ``carry = "machine"``: what was added to the machine and may be carried over if the base's
            own programs are not hidden by it; absolute paths.
    """

    changes: tuple[PathChange, ...] = ()
    entries: tuple[Entry, ...] = ()
    patch: bytes = b""
    packages: tuple[Package, ...] = ()
    problems: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    outside: int = 0
    machine: MachineReport = MachineReport()
    additions: tuple[Entry, ...] = ()

    @property
    def files_changed(self) -> tuple[str, ...]:
        """The changed paths for people, sorted."""
        return tuple(c.shown for c in self.changes)


def printable(text: bytes | str) -> str:
    """Text that an agent may have chosen, made safe to show: control, bidirectional and invisible characters, and
    bytes that are not UTF-8, appear as escapes.
    """
    decoded = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in decoded
    )


def printable_lines(text: str) -> str:
    """Text of many lines that a sandbox printed, made safe to show."""
    return "\n".join(printable(line.rstrip("\r")) for line in text.replace("\t", "    ").split("\n"))
