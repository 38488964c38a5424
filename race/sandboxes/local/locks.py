"""Locks between processes, on files or folders. The kernel lets go of them when their holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from pathlib import Path

_BEING_BORN = 10.0
"""Seconds after which a folder without a lock file is not about to get one."""


async def wait(descriptor: int, kind: int) -> None:
    """Take a lock without holding up the event loop.

    Args:
        descriptor: of what to lock; closing it lets go.
        kind: ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``.
    """
    pause = 0.0005
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.02)
        else:
            return


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock of a folder at this moment.

    Args:
        path: the lock file in it. A folder that is only just there may not have it yet.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        try:
            return time.time() - path.parent.stat().st_mtime < _BEING_BORN
        except FileNotFoundError:
            return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
