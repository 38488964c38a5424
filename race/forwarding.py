"""Ports of a sandbox, reached from the host: which there are, and forwarding of connections to them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, Callable

import anyio

from race.errors import MachineError, SandboxError
from race.sandbox import Sandbox

_LISTENING = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_PIECE = 1 << 16
_PAUSE = 0.01


async def listening(sandbox: Sandbox) -> list[int]:
    """The ports on which programs in a sandbox listen, in order; those of the host, if it shares its network.

    Raises:
        SandboxError: it is not running, or has no program ``cat``.
    """
    done = await sandbox.exec(["cat", *_TABLES], output_limit=64 << 20)
    if not done.stdout:
        raise SandboxError(
            f"the ports of the sandbox {sandbox.name!r} cannot be listed: "
            f"{done.stderr.decode(errors='replace').strip()[:200] or 'it printed nothing'}"
        )
    return ports_of(done.stdout.decode("ascii", "replace"))


def ports_of(table: str) -> list[int]:
    """The ports in state "listening" in a table such as ``/proc/net/tcp``; see proc_net(5)."""
    found: set[int] = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTENING:  # noqa: PLR2004 - slot, local, remote, state
            with contextlib.suppress(ValueError):
                found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


@contextlib.asynccontextmanager
async def forwarded(
    sandbox: Sandbox, inside: int, *, outside: int = 0, refused: Callable[[SandboxError], None]
) -> AsyncGenerator[int]:
    """Forward connections to a port of the host's loopback into a sandbox as long as the block runs.

    Args:
        sandbox: where to.
        inside: the port of its loopback.
        outside: the port of the host's loopback; 0 takes a free one.
        refused: is told of each connection that could not be forwarded.

    Yields:
        The port of the host's loopback.

    Raises:
        MachineError: the port is taken.
    """
    listener = socket.socket()
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", outside))
            listener.listen(128)
        except (OSError, OverflowError) as error:
            raise MachineError(
                f"port {outside} of the loopback cannot be listened on: {error}; name another one"
            ) from None
        listener.setblocking(False)  # noqa: FBT003 - the library's signature
        async with anyio.create_task_group() as group:

            async def serve(client: socket.socket) -> None:
                with client:
                    try:
                        inner = await sandbox.connect(inside)
                    except SandboxError as error:
                        refused(error)
                        return
                    with inner:
                        await _relay(client, inner)

            async def accept() -> None:
                while True:
                    await anyio.wait_readable(listener)
                    try:
                        client, _ = listener.accept()
                    except OSError:  # it has gone again, or there are too many
                        await anyio.sleep(_PAUSE)
                        continue
                    client.setblocking(False)  # noqa: FBT003 - the library's signature
                    group.start_soon(serve, client)

            group.start_soon(accept)
            yield listener.getsockname()[1]
            group.cancel_scope.cancel()


async def _relay(one: socket.socket, other: socket.socket) -> None:
    """Pass on what each side sends until both have sent all, or one of them breaks."""
    async with anyio.create_task_group() as group:

        async def pump(source: socket.socket, sink: socket.socket) -> None:
            try:
                while data := await _received(source):
                    await _send(sink, data)
                sink.shutdown(socket.SHUT_WR)
            except OSError:
                group.cancel_scope.cancel()

        group.start_soon(pump, one, other)
        group.start_soon(pump, other, one)


async def _received(source: socket.socket) -> bytes:
    while True:
        await anyio.wait_readable(source)
        with contextlib.suppress(BlockingIOError):
            return source.recv(_PIECE)


async def _send(sink: socket.socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        with contextlib.suppress(BlockingIOError):
            rest = rest[sink.send(rest) :]
        if rest:
            await anyio.wait_writable(sink)
