"""A program inside a sandbox, whose standard streams are in the hands of whoever started it, outside.

`Sandbox.exec` gives a program its whole input at once, and its output at the end. Agents that report what they do as
they do it need more: their streams are joined to a socket on the sandbox's loopback that is accepted from outside.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio

from race.errors import SandboxError
from race.sandbox import ExecResult, Sandbox

LONGEST_LINE = 16 << 20
"""Bytes of a line of output; what is over is dropped."""

_PIECE = 1 << 16
_CONNECTED_WITHIN = 30.0

# A descriptor of its own holds the socket. `cat` stands between, because some programs do not wait for a socket to take
# what they wrote before they exit, as they do for a pipe; and it is waited for only briefly, because a process that was
# left behind may hold the other end of that pipe for ever.
_JOIN = """
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 126
printf '%s\\n' "$2" >&3
shift 2
exec 4> >(exec cat >&3)
reader=$!
"$@" <&3 >&4 3>&- 4>&-
code=$?
exec 4>&-
for _ in {1..40}; do kill -0 "$reader" 2>/dev/null || break; sleep 0.05; done
exit "$code"
"""


class Program:
    """A program that runs; from `program`.

    Attributes:
        result: how it ended; None while it runs.
    """

    def __init__(self) -> None:
        self.result: ExecResult | None = None
        self.ended = anyio.Event()
        self._socket: socket.socket | None = None
        self._held = b""

    def joined(self, connection: socket.socket, first: bytes) -> None:
        """Its streams are there."""
        self._socket = connection
        self._held = first

    async def send(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
            SandboxError: it does not read any more.
        """
        if self._socket is None:
            raise SandboxError("the program has no input")
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as e:
                raise SandboxError(f"the program does not read any more: {e.strerror}") from None

    def send_end(self) -> None:
        """Its standard input ends here."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of its streams."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def line(self) -> bytes | None:
        """The next line that it writes to its standard output, without its end; None once there is no more."""
        while self._socket is not None:
            line, newline, rest = self._held.partition(b"\n")
            if newline:
                self._held = rest
                return line
            piece = await _receive(self._socket)
            if not piece:
                break
            if len(self._held) < LONGEST_LINE or b"\n" in piece:
                self._held += piece
        held, self._held = self._held, b""
        return held or None


@asynccontextmanager
async def program(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    cwd: str = "/",
    env: Mapping[str, str] | None = None,
) -> AsyncGenerator[Program]:
    """Run a program inside a sandbox. At the end of the block it is ended, with all it started.

    Args:
        sandbox: where; it needs ``bash``.
        argv: the program and its arguments.
        cwd: working directory.
        env: added to the sandbox's environment.

    Raises:
        SandboxError: the sandbox is lost, or has no bash.
    """
    word = secrets.token_hex(16)
    made = Program()
    async with anyio.create_task_group() as group:
        listener = await sandbox.listen(0)

        async def execute() -> None:
            port = str(listener.getsockname()[1])
            command = ["bash", "-c", _JOIN, "program", port, word, *argv]
            try:
                made.result = await sandbox.exec(command, cwd=cwd, env=env)
            finally:
                made.ended.set()

        try:
            group.start_soon(execute)
            joined = await _accept(listener, word.encode(), made.ended)
            if joined is not None:
                made.joined(*joined)
            yield made
        finally:
            listener.close()
            made.close()
            group.cancel_scope.cancel()


async def _accept(
    listener: socket.socket, word: bytes, ended: anyio.Event
) -> tuple[socket.socket, bytes] | None:
    """The connection that says the word, and what came after it; None if the program ended without one."""
    found: list[tuple[socket.socket, bytes]] = []

    async def look() -> None:
        while not found:
            await anyio.wait_readable(listener)
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                continue
            connection.setblocking(False)  # noqa: FBT003 - the library's signature
            held = b""
            while b"\n" not in held and len(held) <= len(word) and (piece := await _receive(connection)):
                held += piece
            said, _, rest = held.partition(b"\n")
            if secrets.compare_digest(said, word):
                found.append((connection, rest))
            else:
                connection.close()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        with anyio.move_on_after(_CONNECTED_WITHIN):
            await ended.wait()
        group.cancel_scope.cancel()
    return found[0] if found else None


async def _receive(connection: socket.socket) -> bytes:
    while True:
        try:
            return connection.recv(_PIECE)
        except BlockingIOError:
            await anyio.wait_readable(connection)
        except OSError:
            return b""
