"""Timing commands of this machine, each in a session of its own, with all that they start.

Nothing here is a sandbox. A small process runs the commands, below which everything stays that they start; whatever is
left when a command ends, or when its time is up, is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from race.errors import MachineError

PROGRAM = Path(__file__).with_name("program.py")
_LONGEST_ANSWER = 128 << 20


@dataclass(frozen=True, slots=True)
class Timing:
    """How a command ran.

    Attributes:
        seconds: wall time, from before it was started until it had ended.
        exit_code: its status; minus the signal's number if one ended it; None when its time was up.
        cpu_seconds: user and system time of it and all its reaped descendants.
        wait: share of the wall time, in [0, 1), that its threads were runnable and had no processor.
        max_rss_bytes: the most memory that all its processes together were seen to have, or any one of them had.
        output: the end of what it printed to standard output, if that was to be kept.
        errors: the end of what it printed to standard error.
    """

    seconds: float
    exit_code: int | None
    cpu_seconds: float
    wait: float
    max_rss_bytes: int
    output: bytes
    errors: bytes


class Stopwatch:
    """Runs commands, one at a time; made by `stopwatch`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        if process.stdin is None or process.stdout is None:
            raise MachineError("the process that runs commands has no pipes")
        self._requests = process.stdin
        self._answers = BufferedByteReceiveStream(process.stdout)
        self._lock = anyio.Lock()

    async def time(
        self,
        command: str,
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        cpus: Sequence[int] | None = None,
        keep_output: int = 0,
    ) -> Timing:
        """Run a command with ``/bin/sh`` and time it. Its standard input is empty.

        Args:
            command: for the shell.
            timeout: seconds after which it, and all that it has started, is killed.
            env: added to this process's environment.
            cwd: its working directory; default: this process's.
            cpus: the processors that it may use; default: those of this process.
            keep_output: bytes of the end of its standard output to keep.

        Raises:
            MachineError: the process that runs commands is gone.
        """
        request = {
            "command": command,
            "timeout": timeout,
            "env": {**os.environ, **(env or {})},
            "cwd": str(cwd or Path.cwd()),
            "cpus": list(cpus) if cpus is not None else None,
            "keep_output": keep_output,
        }
        async with self._lock:
            try:
                await self._requests.send(json.dumps(request).encode() + b"\n")
                answer = json.loads(await self._answers.receive_until(b"\n", _LONGEST_ANSWER))
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await (
                        self._requests.aclose()
                    )  # ends the command; its answer must not be taken for the next one's
                raise
            except (
                anyio.EndOfStream,
                anyio.ClosedResourceError,
                anyio.IncompleteRead,
                anyio.BrokenResourceError,
            ) as e:
                raise MachineError("the process that runs the commands has died; try again") from e
        return _timing(answer)


def _timing(answer: Mapping[str, Any]) -> Timing:
    seconds = float(answer["seconds"])
    return Timing(
        seconds,
        answer["exit_code"],
        float(answer["cpu"]),
        wait_of(seconds, float(answer["ran"]), float(answer["waited"])),
        int(answer["max_rss"]),
        str(answer["output"]).encode("latin-1"),
        str(answer["errors"]).encode("latin-1"),
    )


def wait_of(seconds: float, ran: float, waited: float) -> float:
    """The share of a command's time that waiting for a processor took.

    Of one thread this is what it waited over the wall time. Threads that wait at the same moment do not wait one after
    another: of several, the part of the time in which they were busy is taken to be stretched like all they did.

    Args:
        seconds: wall time.
        ran: processor time of the threads that were seen.
        waited: time in which those had none.
    """
    busy = ran + waited
    if seconds <= 0 or busy <= 0:
        return 0.0
    return min(min(busy / seconds, 1.0) * waited / busy, 0.95)


@asynccontextmanager
async def stopwatch() -> AsyncGenerator[Stopwatch, None]:
    """The process that runs commands; when the block ends, it and all that they started is gone.

    Raises:
        MachineError: this system cannot do it.
    """
    if not Path("/proc/self/schedstat").exists() or not hasattr(os, "pidfd_open"):
        raise MachineError("measuring commands needs Linux 5.3 or newer with /proc")
    command = [sys.executable, "-I", "-S", str(PROGRAM)]
    process = await anyio.open_process(command, stderr=None, start_new_session=True, stdout=subprocess.PIPE)
    try:
        yield Stopwatch(process)
    finally:
        with anyio.CancelScope(shield=True):
            if process.stdin is not None:
                await process.stdin.aclose()  # it kills what is left, and exits
            with anyio.move_on_after(10):
                await process.wait()
            if process.returncode is None:
                process.kill()
            await process.aclose()
