"""Sockets of a sandbox's own network, for use outside."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

import anyio

from race.errors import SandboxError
from race.sandboxes.local import talk

if TYPE_CHECKING:
    from pathlib import Path

    from race.sandboxes.local.messages import ControlRequest


def listening(port: int) -> socket.socket:
    """A socket on the host's loopback, for a sandbox that shares the host's network.

    Raises:
        SandboxError: the port is taken.
    """
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        listener.setblocking(False)  # noqa: FBT003 - the library's signature
    except OSError as error:
        listener.close()
        raise SandboxError(f"port {port} of the loopback: {error.strerror}") from error
    return listener


async def listening_inside(folder: Path, name: str, port: int) -> socket.socket:
    """A socket that listens on the loopback of a sandbox with a network of its own.

    Args:
        folder: the sandbox's own.
        name: of the sandbox, for errors.
        port: 0 takes a free one.

    Raises:
        SandboxError: the sandbox does not run, or the port is taken.
    """
    return await _given(folder, name, {"do": "listen", "port": port})


async def connected(folder: Path, name: str, port: int) -> socket.socket:
    """A connection to a port of a sandbox's loopback, in either version of the protocol.

    Args:
        folder: the sandbox's own.
        name: of the sandbox, for errors.
        port: what a program inside listens on.

    Raises:
        SandboxError: the sandbox does not run, or nothing listens there.
    """
    error = 0
    for family in (socket.AF_INET, socket.AF_INET6):
        made = await _given(folder, name, {"do": "connect", "port": port, "family": family})
        try:
            await anyio.wait_writable(made)
            error = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not error:
                if made.getpeername() != made.getsockname():
                    return made
                error = errno.ECONNREFUSED  # a port that nobody has may be connected to itself (tcp(7))
        except OSError as refused:
            error = refused.errno or error
        except BaseException:
            made.close()
            raise
        made.close()
    raise SandboxError(f"port {port} of the sandbox {name!r}: {os.strerror(error)}")


async def _given(folder: Path, name: str, request: ControlRequest) -> socket.socket:
    async with talk.connected(folder, name) as connection:
        talk.tell(connection, name, request)
        _, (descriptor,) = await talk.answer(connection, name)
    given = socket.socket(fileno=descriptor)
    given.setblocking(False)  # noqa: FBT003 - the library's signature
    return given
