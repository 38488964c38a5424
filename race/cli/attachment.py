"""A named process on this terminal or pipe: its output from a position on, and its input."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import anyio
import anyio.to_thread

from race.background import Process, ProcessInfo
from race.cli import wording
from race.cli.running import tell
from race.errors import SandboxError

_LOOK_EVERY = 0.05
"""Seconds between looks at what it has written."""
_PIECE = 1 << 16


async def follow(
    process: Process, position: int | None, *, show: Callable[[bytes], object], typed: bool
) -> ProcessInfo:
    """Show what a process writes until it ends, and send it what comes from the standard input.

    Args:
        process: it goes on if this is cancelled.
        position: the first byte of its output to show; None for all that is kept.
        show: is given the output.
        typed: whether the standard input is sent. It is closed where the standard input ends, except at its very
            beginning: a program that was given none does not mean to say anything by that.

    Returns:
        What is known of it at its end.
    """
    async with anyio.create_task_group() as group:
        if typed and (await process.info()).state == "running":
            group.start_soon(_type, process)
        at = (await process.info()).lost_bytes if position is None else position
        while True:
            info = (
                await process.info()
            )  # before the output is read: what it had written at its end is then read
            while data := await _next(process, at):
                at, piece = data
                await anyio.to_thread.run_sync(show, piece)
                await anyio.to_thread.run_sync(sys.stdout.flush)
            if info.state == "ended":
                group.cancel_scope.cancel()
                return info
            await process.wait(_LOOK_EVERY)
    raise AssertionError


async def _next(process: Process, at: int) -> tuple[int, bytes] | None:
    """The next piece of output and where it ends; what is kept no more is skipped, and that is said."""
    while True:
        try:
            piece = await process.read(at)
        except SandboxError:
            lost = (await process.info()).lost_bytes
            if lost <= at:
                raise
            tell(f"{wording.count(lost - at, 'byte')} of the output are kept no more")
            at = lost
        else:
            return (at + len(piece), piece) if piece else None


async def _type(process: Process) -> None:
    sent = False
    try:
        while True:
            await _readable()
            data = await anyio.to_thread.run_sync(os.read, sys.stdin.fileno(), _PIECE)
            if not data:
                break
            await process.send(data)
            sent = True
        if sent:
            await process.send(b"", end=True)
    except SandboxError:
        return  # it reads no more


async def _readable() -> None:
    """Wait for standard input, where it can be waited for; a file always is readable."""
    try:
        await anyio.wait_readable(sys.stdin)
    except (OSError, ValueError):
        return
