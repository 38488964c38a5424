"""What an attempt did to the machine outside of the project, told from the names of what it touched.

A fork is layers, so every path that was written is known without looking inside and without running anything.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from race.sandbox import Change
from race.submission import MachineKind, MachineReport, printable

SHOWN = 20
"""How many paths of a kind are kept; the rest are counted."""

_STARTUP = re.compile(
    r".*\.pth|.*/(?:site|user)customize\.py|.*/\.(?:profile|bash_profile|bash_login|bash_logout|bashrc|zshrc|zshenv|"
    r"zprofile|kshrc|inputrc|pdbrc|vimrc|exrc|nanorc|lesskey|xprofile|xinitrc|pythonrc(?:\.py)?)|/etc/profile(?:\.d/.*)?|"
    r"/etc/bash\.bashrc|/etc/zsh/.*|/etc/environment|.*\.dist-info/entry_points\.txt|/etc/ld\.so\.preload"
)
_SERVICES = re.compile(
    r"/etc/cron[^/]*(?:/.*)?|/var/spool/(?:cron|at)(?:/.*)?|/etc/(?:systemd|init\.d|init|rc[^/]*|inittab|xinetd\.d)(?:/.*)?|"
    r"(?:/usr)?/lib/systemd/.*|.*/\.config/(?:systemd|autostart)/.*|.*/\.ssh/.*|/etc/ssh/.*"
)
_SETTINGS = re.compile(
    r"/etc/.*|.*/\.gitconfig|.*/\.config/.*|.*/\.(?:pypirc|netrc|npmrc|curlrc|wgetrc|condarc|editorconfig|pip/.*)|"
    r".*/glibc-hwcaps/.*"
)
_PROGRAM_FOLDER = re.compile(r".*/s?bin/[^/]+")
_LIBRARY = re.compile(r".*\.so(?:\.[\d.]+)?|.*/lib(?:64)?/python[\d.]+/.*\.py")
_SCRATCH = re.compile(
    r"/(?:tmp|var/tmp|dev|run|proc|sys|var/cache|var/lib/apt|var/log)(?:/.*)?|.*/\.cache(?:/.*)?"
)


_WORDS: dict[MachineKind, str] = {
    "startup": "left start-up files on its machine",
    "programs": "replaced or added programs on its machine",
    "services": "left services or keys on its machine",
    "settings": "changed settings of its machine",
}


def described(report: MachineReport) -> list[str]:
    """A report for people: a line for each kind that acts by itself."""
    out: list[str] = []
    for kind, words in _WORDS.items():
        shown = list(report.paths.get(kind, ()))[:3]
        if shown:
            more = report.counts[kind] - len(shown)
            out.append(f"{words}: {', '.join(shown)}{f' and {more} more' if more else ''}")
    return out


def report(changes: Iterable[Change]) -> MachineReport:
    """Sort what was touched outside of the project by kind."""
    paths: dict[MachineKind, list[str]] = {}
    counts: dict[MachineKind, int] = {}
    for change in changes:
        if change.kind == "directory":
            continue
        kind = kind_of(change)
        counts[kind] = counts.get(kind, 0) + 1
        shown = paths.setdefault(kind, [])
        if len(shown) < SHOWN:
            shown.append(printable(change.path))
    return MachineReport(dict(paths), counts)


def kind_of(change: Change) -> MachineKind:
    """What kind of thing is at a path."""
    path = change.path.decode("utf-8", "surrogateescape")
    if path.endswith((".pyc", ".pyo")):
        return "bytecode"
    if _STARTUP.fullmatch(path):
        return "startup"
    if _SERVICES.fullmatch(path):
        return "services"
    if _SETTINGS.fullmatch(path):
        return "settings"
    if _PROGRAM_FOLDER.fullmatch(path) or (change.existed and _LIBRARY.fullmatch(path)):
        return "programs"
    return "other"


def is_scratch(path: bytes) -> bool:
    """Whether a path is where any program may leave something that no other loads."""
    return _SCRATCH.fullmatch(path.decode("utf-8", "surrogateescape")) is not None


def may_be_carried(change: Change, programs: frozenset[str], modules: frozenset[str]) -> bool:
    """Whether what an attempt added to its machine may be put into a replay: it adds, and neither changes nor hides
    anything that the base's interpreter, test runner, shell or git load.

    Args:
        change: what was added.
        programs: names of the base's programs.
        modules: names of what the base's interpreter can import.
    """
    path = change.path.decode("utf-8", "surrogateescape")
    if change.existed or change.kind not in ("file", "link") or _SCRATCH.fullmatch(path):
        return False
    kind = kind_of(change)
    if kind == "programs":
        return posixpath.basename(path) not in programs
    if kind != "other":
        return False
    site = re.fullmatch(r".*/(?:site|dist)-packages/([^/]+)(?:/.*)?", path)
    return site is None or site[1].partition(".")[0] not in modules
