"""Waiting for what other processes do, which set no event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from race.background import Process

_PATIENCE = 20.0
"""Seconds: the machine may be busy."""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so."""
    with anyio.fail_after(_PATIENCE):
        while not await condition():  # noqa: ASYNC110 - a process is watched, which sets no event
            await anyio.sleep(0.01)


async def output(process: Process, *texts: bytes) -> bytes:
    """What a named process has written, once one of these texts is in it."""
    seen = b""

    async def is_there() -> bool:
        nonlocal seen
        seen = await process.read()
        return any(each in seen for each in texts)

    await until(is_there)
    return seen
