"""A command of a sandbox of Archil on a terminal of its own."""

from __future__ import annotations

import secrets
import shlex
from typing import TYPE_CHECKING

import anyio

from race.errors import SandboxError
from race.sandboxes.archil import execution
from race.sandboxes.archil.service import Running, Service

if TYPE_CHECKING:
    from race.sandboxes.local.messages import ExecRequest

_SIGNALLED = 128
_ON_IT = 'cd "$1" || exit 125; shift; exec "$@"'


class ArchilTerminal:
    """See `race.sandbox.Terminal`.

    Args:
        service: of the sandbox.
        handle: of the sandbox.
    """

    def __init__(self, service: Service, handle: str) -> None:
        self._service = service
        self._handle = handle
        self._mark = secrets.token_hex(8)
        self._running = Running(service, handle)
        self._closed = False
        self._over = False
        self._status: int | None = None

    async def start(self, asked: ExecRequest, rows: int, columns: int) -> None:
        """Start the command."""
        argv = ["sh", "-c", _ON_IT, "sh", asked["cwd"], *(asked["argv"] or [])]
        size = self._service.sdk.SandboxTerminal(cols=columns, rows=rows)
        environment = {"TERM": "xterm", **asked["env"], "RACE_EXEC": self._mark}
        command = " ".join(map(shlex.quote, argv))
        await self._service.call(lambda: self._running.start(command, environment, size))

    async def receive(self) -> bytes:
        """What it wrote since the last call, at least one byte; nothing at its end."""
        if self._closed or self._over:
            return b""
        piece = await self._service.call(self._running.next, abandon=True)
        if piece is None:
            self._over = True
            return b""
        return piece[1]

    async def send(self, data: bytes) -> None:
        """Type something."""
        await self._service.call(lambda: self._running.process.send_input(data))

    async def resize(self, rows: int, columns: int) -> None:
        """The window has another size."""
        await self._service.call(lambda: self._running.process.resize(cols=columns, rows=rows))

    async def wait(self) -> int:
        """The exit status, once it has ended."""
        if self._status is None:
            code = await self._service.call(self._running.wait, abandon=True)
            if code is None or code == 125:  # noqa: PLR2004 - as the script above
                raise SandboxError(
                    "the command on the terminal was lost, or its working directory is missing"
                )
            self._status = _SIGNALLED - code if code > _SIGNALLED else code
        return self._status

    async def aclose(self) -> None:
        """End it with all it started, and wait until it is gone. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            await execution.end(self._service, self._handle, self._mark)
            await self._service.call(self._running.let_go)
