"""Connections to the PID 1 of a sandbox, from any event loop."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import TYPE_CHECKING, Any, Self

import anyio

from race.errors import SandboxError
from race.sandboxes.local import wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from race.sandboxes.local.messages import ControlRequest

_BUSY_PAUSE = 0.002


@contextlib.asynccontextmanager
async def connected(folder: Path, name: str) -> AsyncGenerator[socket.socket]:
    """A non-blocking connection. Closing it ends what was asked for on it and is not done.

    Args:
        folder: the sandbox's own.
        name: of the sandbox, for errors.

    Raises:
        SandboxError: the sandbox does not run.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as connection:
        try:
            inside = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise SandboxError(f"there is no sandbox {name!r} any more") from None
        try:
            while True:
                try:
                    # A socket's path may be no longer than 107 bytes; this one always is short.
                    connection.connect(f"/proc/self/fd/{inside}/socket")
                    break
                except BlockingIOError:  # too many connect at once
                    await anyio.sleep(_BUSY_PAUSE)
        except (FileNotFoundError, ConnectionRefusedError):
            raise SandboxError(f"the sandbox {name!r} is not running") from None
        finally:
            os.close(inside)
        yield connection


async def answer(connection: socket.socket, name: str) -> tuple[Any, list[int]]:
    """The next message, with its descriptors.

    Raises:
        SandboxError: the sandbox ended, or says that it cannot.
    """
    while True:
        with contextlib.suppress(BlockingIOError):
            received = wire.receive(connection)
            break
        await anyio.wait_readable(connection)
    if received is None:
        raise SandboxError(f"the sandbox {name!r} has ended")
    message, descriptors = received
    if "error" in message:
        raise SandboxError(f"sandbox {name!r}: {message['error']}")
    return message, descriptors


def tell(connection: socket.socket, name: str, request: Any, descriptors: list[int] | None = None) -> None:
    """Ask for something.

    Raises:
        SandboxError: the sandbox ended.
    """
    try:
        wire.send(connection, request, descriptors)
    except OSError:
        raise SandboxError(f"the sandbox {name!r} has ended") from None


async def control(folder: Path, name: str, request: ControlRequest) -> None:
    """Ask PID 1 for one thing and wait until it is done.

    Raises:
        SandboxError: the sandbox does not run, or cannot.
    """
    async with connected(folder, name) as connection:
        tell(connection, name, request)
        await answer(connection, name)


class Watch:
    """Waits for any of several descriptors at once, without a task for each.

    It is one ``epoll`` descriptor, which is readable itself when one of those in it is ready.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()

    def add(self, descriptor: int, *, writable: bool = False) -> None:
        """Wait for this one too."""
        self._epoll.register(descriptor, select.EPOLLOUT if writable else select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        """Wait for this one no longer. To be called before it is closed."""
        self._epoll.unregister(descriptor)

    async def ready(self) -> set[int]:
        """Those that can be read from or written to, at least one."""
        while True:
            await anyio.wait_readable(self._epoll.fileno())
            found = {descriptor for descriptor, _ in self._epoll.poll(0)}
            if found:
                return found
