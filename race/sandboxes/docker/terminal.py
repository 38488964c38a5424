"""A command of a container on a terminal of its own."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import anyio

from race.errors import SandboxError
from race.sandboxes.docker import execution
from race.sandboxes.docker.engine import Engine
from race.sandboxes.docker.execution import Stream

if TYPE_CHECKING:
    from race.sandboxes.local.messages import ExecRequest

_POLL = 0.05
_SIGNALLED = 128
_ON_IT = """
cd "$1" || exit 125
stty rows "$2" cols "$3" 2>/dev/null
shift 3
exec "$@"
"""


class DockerTerminal:
    """See `race.sandbox.Terminal`.

    Args:
        engine: of the container.
        handle: of the container.
        asked: what to run.
        rows: of the window.
        columns: likewise.
    """

    def __init__(self, engine: Engine, handle: str, asked: ExecRequest, rows: int, columns: int) -> None:
        self._engine = engine
        self._handle = handle
        self._mark = secrets.token_hex(8)
        self._status: int | None = None
        self._closed = False
        argv = ["sh", "-c", _ON_IT, "sh", asked["cwd"], str(rows), str(columns), *(asked["argv"] or [])]
        environment = {"TERM": "xterm", **asked["env"], "RACE_EXEC": self._mark}
        self._stream = Stream(engine, handle, argv, environment, tty=True)

    async def start(self) -> None:
        """Start the command."""
        await self._engine.call(self._stream.start)

    async def receive(self) -> bytes:
        """What it wrote since the last call, at least one byte; nothing at its end."""
        return b"" if self._closed else await self._engine.call(self._stream.read, abandon=True)

    async def send(self, data: bytes) -> None:
        """Type something."""
        await self._engine.call(lambda: self._stream.write(data))

    async def resize(self, rows: int, columns: int) -> None:
        """The window has another size."""
        await self._engine.call(lambda: self._stream.resize(rows, columns))

    async def wait(self) -> int:
        """The exit status, once it has ended."""
        while self._status is None:
            code = await self._engine.call(self._stream.status)
            if code is None:
                await anyio.sleep(_POLL)
            elif code == 125:  # noqa: PLR2004 - as the script above
                raise SandboxError("the working directory cannot be used")
            else:
                self._status = _SIGNALLED - code if code > _SIGNALLED else code
        return self._status

    async def aclose(self) -> None:
        """End it with all it started, and wait until it is gone. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            await execution.end(self._engine, self._handle, self._mark)
        self._stream.close()
