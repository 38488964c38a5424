"""Locks between processes that the kernel lets go when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

_POLL = 0.05


@asynccontextmanager
async def locked(path: Path, on_wait: Callable[[], None]) -> AsyncGenerator[int]:
    """Hold an exclusive lock on a file (flock(2)), which is made if it is not there.

    Its descriptor is given out for a child that inherits it, and so holds the lock until it has ended as well.

    Args:
        path: the file; its folder exists.
        on_wait: called once if another holder has to be waited for.
    """
    with path.open("a") as file:
        waited = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waited:
                    on_wait()
                    waited = True
                await anyio.sleep(_POLL)
        yield file.fileno()
