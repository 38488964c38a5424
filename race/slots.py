"""How many agents may work at once, over all processes that work on the same batch."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import anyio

_POLL = 0.1


class Slots:
    """Places for agents to work in. Those of a process that dies are free at once.

    Args:
        folder: where their locks lie, the same for all processes; None for no limit.
        count: how many there are.
    """

    def __init__(self, folder: Path | None = None, count: int = 0) -> None:
        self._folder = folder
        self._count = count
        self._here: anyio.CapacityLimiter | None = None

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[None, None]:
        """Hold a place, waiting for one to be free."""
        if self._folder is None:
            yield
            return
        if self._here is None:
            self._here = anyio.CapacityLimiter(self._count)
        # First one of this process, which waits without polling and in order; then one of all.
        token = object()
        await self._here.acquire_on_behalf_of(token)
        try:
            held = await self._lock(self._folder)
            try:
                yield
            finally:
                held.close()
        finally:
            self._here.release_on_behalf_of(token)

    async def _lock(self, folder: Path) -> IO[str]:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            for number in range(self._count):
                file = (folder / f"slot-{number}").open("a")
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
                file.close()
            await anyio.sleep(_POLL)
