"""Whether a process that was noted down is still the same one, and how to end it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import anyio
from pydantic import BaseModel, ConfigDict

from race.errors import SandboxError

_DEAD = "ZXx"
_ENDING = 30.0
"""Seconds to wait for a killed process; only one that is stuck in the kernel takes so long."""
_STATE = 0
_START = 19


class Init(BaseModel):
    """A sandbox's PID 1, such that a later process with the same number is not taken for it."""

    model_config = ConfigDict(frozen=True)

    pid: int
    start: int
    """When it started, in clock ticks since the machine did."""
    boot: str
    """Which start of the machine that was."""


def boot_id() -> str:
    """A name for the present run of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []


def noted(pid: int) -> Init:
    """What to note down of a process that is alive now.

    Raises:
        ProcessLookupError: it is not.
    """
    fields = _fields(pid)
    if not fields or fields[_STATE] in _DEAD:
        raise ProcessLookupError(pid)
    return Init(pid=pid, start=int(fields[_START]), boot=boot_id())


def alive(init: Init | None) -> bool:
    """Whether the process is there. Remains that nobody has reaped are not."""
    if init is None:
        return False
    fields = _fields(init.pid)
    return (
        bool(fields)
        and fields[_STATE] not in _DEAD
        and int(fields[_START]) == init.start
        and boot_id() == init.boot
    )


def started(init: Init) -> float:
    """When it was started, in seconds since the machine was."""
    return init.start / os.sysconf("SC_CLK_TCK")


async def end(init: Init | None) -> None:
    """Kill the process and wait until it, and with it everything in its PID namespace, is gone.

    Raises:
        SandboxError: it does not end.
    """
    if init is None:
        return
    try:
        handle = os.pidfd_open(init.pid)
    except ProcessLookupError:
        return
    try:
        if not alive(init):  # looked at after it was opened, so that the handle is the right process's
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        with anyio.move_on_after(_ENDING, shield=True) as patience:
            await anyio.wait_readable(handle)
        if patience.cancelled_caught:
            raise SandboxError(f"process {init.pid}, a sandbox's PID 1, was killed but does not end")
    finally:
        os.close(handle)
