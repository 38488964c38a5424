"""Confines a command to writing below one folder, where the kernel can (Linux 5.13 and newer)."""

from __future__ import annotations

import os
import sys

from race.sandboxes.local import syscalls

WRITE_FILE = 1 << 1
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER, _REFER_SINCE = 1 << 13, 2
_TRUNCATE, _TRUNCATE_SINCE = 1 << 14, 3
_SCOPES, _SCOPES_SINCE = 0b11, 6
"""Abstract sockets and signals of processes outside."""
_DEVICES = ("null", "zero", "full", "tty", "ptmx", "pts", "shm", "fd")


def version() -> int:
    """Of the kernel's Landlock, 0 if it has none."""
    return syscalls.landlock_version() if sys.platform == "linux" else 0


def confine(folder: str) -> None:
    """Let this process and all it will start write below ``folder`` and to ordinary devices only.

    Raises:
        OSError: the kernel refuses.
    """
    known = version()
    if known == 0:
        return
    handled = WRITE_FILE | _REMOVE_AND_MAKE
    if known >= _REFER_SINCE:
        handled |= _REFER
    if known >= _TRUNCATE_SINCE:
        handled |= _TRUNCATE
    of_files = handled & (WRITE_FILE | _TRUNCATE)
    allowed = [(folder, handled)]
    for name in _DEVICES:
        path = f"/dev/{name}"
        if os.path.exists(path):
            allowed.append((path, handled if os.path.isdir(path) else of_files))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.landlock_confine(handled, allowed, _SCOPES if known >= _SCOPES_SINCE else 0)
