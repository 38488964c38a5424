"""A command on a terminal of its own, seen from the orchestrator."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import termios
from typing import TYPE_CHECKING

import anyio

from race.errors import SandboxError
from race.sandboxes.local import talk

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from race.sandboxes.local.messages import Ended, ExecRequest

_READ = 1 << 16
_ENDING = 5.0
"""Seconds to wait for a command that was closed to be gone."""


async def opened(folder: Path, name: str, asked: ExecRequest) -> LocalTerminal:
    """Start a command on a terminal.

    Args:
        folder: the sandbox's own.
        name: of the sandbox, for errors.
        asked: from `race.sandboxes.local.command.request`.

    Raises:
        SandboxError: the sandbox is gone, or could not start the command.
    """
    stack = contextlib.AsyncExitStack()
    async with stack:
        connection = await stack.enter_async_context(talk.connected(folder, name))
        talk.tell(connection, name, asked)
        _, (master,) = await talk.answer(connection, name)
        os.set_blocking(master, False)
        return LocalTerminal(connection, name, master, stack.pop_all())
    raise AssertionError


class LocalTerminal:
    """See `race.sandbox.Terminal`.

    Args:
        connection: on which the command was asked for; closing it ends the command.
        name: of the sandbox, for errors.
        master: the terminal's other side.
        stack: closes the connection.
    """

    def __init__(
        self, connection: socket.socket, name: str, master: int, stack: contextlib.AsyncExitStack
    ) -> None:
        self._connection = connection
        self._name = name
        self._master = master
        self._stack = stack
        self._status: int | None = None

    async def receive(self) -> bytes:
        """What it wrote since the last call, at least one byte; nothing at its end."""
        while self._master >= 0:
            await anyio.wait_readable(self._master)
            try:
                return os.read(self._master, _READ)
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno == errno.EIO:  # nobody holds the inner side any more
                    return b""
                raise
        return b""

    async def send(self, data: bytes) -> None:
        """Type something."""
        rest = memoryview(data)
        while rest:
            await anyio.wait_writable(self._master)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._master, rest) :]

    async def resize(self, rows: int, columns: int) -> None:
        """The window has another size."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        """The exit status, once it has ended."""
        if self._status is None:
            message, _ = await talk.answer(self._connection, self._name)
            ended: Ended = message
            self._status = os.waitstatus_to_exitcode(ended["status"])
        return self._status

    async def aclose(self) -> None:
        """End it, and wait until it is gone."""
        if self._master < 0:
            return
        os.close(self._master)
        self._master = -1
        if self._status is None:
            with contextlib.suppress(SandboxError), anyio.move_on_after(_ENDING, shield=True):
                talk.tell(self._connection, self._name, {"do": "end"})
                await self.wait()
        await self._stack.aclose()
