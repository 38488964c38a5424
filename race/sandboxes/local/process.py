"""A named process of a sandbox, as the framework uses it."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import anyio

from race.background import ProcessInfo
from race.errors import SandboxError
from race.sandboxes.local import talk
from race.sandboxes.local.record import check_name

if TYPE_CHECKING:
    from pathlib import Path

    from race.sandboxes.local.messages import ExecRequest, NamedRequest, ProcessRequest, ProcessState


async def spawned(folder: Path, sandbox: str, name: str, asked: ExecRequest) -> LocalProcess:
    """Start a named process.

    Args:
        folder: the sandbox's own.
        sandbox: its name, for errors.
        name: of the process.
        asked: from `race.sandboxes.local.command.request`.

    Raises:
        SandboxError: the sandbox is gone, could not start it, or has a process of this name that runs.
    """
    check_name(name, "process")
    command = asked["argv"] or ["sh", "-c", asked["script"] or ""]
    request: NamedRequest = {"do": "spawn", "name": name, "command": command, "exec": asked}
    async with talk.connected(folder, sandbox) as connection:
        kept = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            talk.tell(connection, sandbox, request, [kept])
        finally:
            os.close(kept)
        await talk.answer(connection, sandbox)
    return LocalProcess(folder, sandbox, name)


async def all_of(folder: Path, sandbox: str) -> list[ProcessInfo]:
    """The named processes of a running sandbox, oldest first."""
    async with talk.connected(folder, sandbox) as connection:
        asked: ProcessRequest = {"do": "processes"}
        talk.tell(connection, sandbox, asked)
        message, _ = await talk.answer(connection, sandbox)
    return [_info(each) for each in message["processes"]]


def _info(state: ProcessState) -> ProcessInfo:
    status = state["status"]
    return ProcessInfo(
        name=state["name"],
        command=tuple(state["command"]),
        state="running" if state["running"] else "ended",
        exit_code=None if status is None else os.waitstatus_to_exitcode(status),
        started=state["started"],
        output_bytes=state["output_bytes"],
        lost_bytes=state["lost_bytes"],
    )


class LocalProcess:
    """See `race.background.Process`.

    Args:
        folder: the sandbox's own.
        sandbox: its name, for errors.
        name: of the process.
    """

    def __init__(self, folder: Path, sandbox: str, name: str) -> None:
        self._folder = folder
        self._sandbox = sandbox
        self._name = name

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    async def _ask(self, request: ProcessRequest) -> tuple[ProcessState, list[int]]:
        asked: dict[str, Any] = {**request, "name": self._name}
        async with talk.connected(self._folder, self._sandbox) as connection:
            talk.tell(connection, self._sandbox, asked)
            message, descriptors = await talk.answer(connection, self._sandbox)
        state: ProcessState = message["process"]
        return state, descriptors

    async def info(self) -> ProcessInfo:
        """What is known of it now."""
        return _info((await self._ask({"do": "process"}))[0])

    async def read(self, position: int = 0, *, limit: int = 1 << 20) -> bytes:
        """Output from a byte position on, at most ``limit`` bytes; nothing if it has not written so far yet."""
        _, (held,) = await self._ask({"do": "output", "position": position, "limit": limit})
        try:
            return os.pread(held, max(limit, 0), 0)  # memory, so this does not wait
        finally:
            os.close(held)

    async def send(self, data: bytes, *, end: bool = False) -> None:
        """Write to its standard input; with ``end``, close the input after that."""
        _, (descriptor,) = await self._ask({"do": "input", "end": False})
        try:
            rest = memoryview(data)
            while rest:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(descriptor, rest) :]
                if rest:
                    await anyio.wait_writable(descriptor)
        except BrokenPipeError:
            raise SandboxError(
                f"the process {self._name!r} of the sandbox {self._sandbox!r} has ended, or closed its input"
            ) from None
        finally:
            os.close(descriptor)
        if end:
            await self._ask({"do": "input", "end": True})

    async def signal(self, number: int) -> None:
        """Send a signal to it and all it started. Does nothing if it has ended."""
        try:
            known = signal.Signals(number)
        except ValueError:
            raise SandboxError(f"{number!r} is not the number of a signal") from None
        await self._ask({"do": "signal", "number": known})

    async def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end. Returns the exit status, or None if it still runs after ``timeout`` seconds."""
        with anyio.move_on_after(timeout):
            return _info((await self._ask({"do": "wait"}))[0]).exit_code
        return None
