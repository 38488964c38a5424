"""A command of a sandbox on a terminal of its own."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios

import anyio

from race.sandboxes.copy.running import Running

_PIECE = 1 << 16


class CopyTerminal:
    """See `race.sandbox.Terminal`.

    Args:
        rows: of the window.
        columns: likewise.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._master, slave = os.openpty()
        self._size(rows, columns)
        os.set_blocking(self._master, False)
        self.running = Running([slave, os.dup(slave), os.dup(slave)], [])
        self._status: int | None = None

    def _size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def receive(self) -> bytes:
        """What it wrote since the last call, at least one byte; nothing at its end."""
        while self._master >= 0:
            await anyio.wait_readable(self._master)
            try:
                return os.read(self._master, _PIECE)
            except BlockingIOError:
                continue
            except OSError as e:
                if e.errno == errno.EIO:  # nobody holds the inner side any more
                    return b""
                raise
        return b""

    async def send(self, data: bytes) -> None:
        """Type something."""
        rest = memoryview(data)
        while rest:
            await anyio.wait_writable(self._master)
            rest = rest[os.write(self._master, rest) :]

    async def resize(self, rows: int, columns: int) -> None:
        """The window has another size."""
        self._size(rows, columns)

    async def wait(self) -> int:
        """The exit status, once it has ended."""
        if self._status is None:
            ended = await self.running.answer()
            self._status = os.waitstatus_to_exitcode(ended["status"])
        return self._status

    async def aclose(self) -> None:
        """End it with all it started, and wait until it is gone. Safe to repeat."""
        if self._master < 0:
            return
        master, self._master = self._master, -1
        try:
            await self.running.end()
        finally:
            self.running.close()
            os.close(master)
