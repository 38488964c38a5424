"""Says in a command's own output that a limit of its sandbox ended it, which it could not otherwise know."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from race.errors import SandboxError
from race.sandboxes.local import talk
from race.sandboxes.local.cgroups import out_of_memory_kills

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from race.sandbox import ExecResult
    from race.sandboxes.local.messages import ControlRequest
    from race.sandboxes.local.record import Record

_NOTES = {
    "memory": b"\n[a process was ended because the memory of the sandbox was used up]\n",
    "disk": b"\n[everything was ended because the disk space of the sandbox was used up]\n",
}


async def told(
    running: Awaitable[ExecResult], folder: Path, record: Record, began: float, *, merged: bool
) -> ExecResult:
    """Wait for a command, and add a note for each limit for whose sake processes were ended meanwhile.

    Args:
        running: the command.
        folder: the sandbox's own.
        record: of the sandbox.
        began: when the command was asked for, on the monotonic clock.
        merged: whether its streams are one.
    """
    limits = record.limits
    if limits.memory is None and limits.disk is None:
        return await running
    before = out_of_memory_kills(record.cgroups)
    done = await running
    exceeded: list[str] = []
    if limits.memory is not None and out_of_memory_kills(record.cgroups) != before:
        exceeded.append("memory")
    else:
        with contextlib.suppress(SandboxError):  # it has ended since
            exceeded += [limit for limit, at in (await _watched(folder, record.name)).items() if at >= began]
    for each in exceeded:
        note = _NOTES[each]
        if merged:
            done = replace(done, stdout=done.stdout + note, stdout_bytes=done.stdout_bytes + len(note))
        else:
            done = replace(done, stderr=done.stderr + note, stderr_bytes=done.stderr_bytes + len(note))
    return done


async def _watched(folder: Path, name: str) -> dict[str, float]:
    """When PID 1 last ended something for the sake of each limit that it watches."""
    async with talk.connected(folder, name) as connection:
        asked: ControlRequest = {"do": "ended"}
        talk.tell(connection, name, asked)
        message, _ = await talk.answer(connection, name)
    ended: dict[str, float] = message["ended"]
    return ended
