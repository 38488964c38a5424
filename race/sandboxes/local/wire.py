"""Messages between the processes of the provider: one JSON object per packet, with descriptors beside it.

What does not fit a packet travels in an anonymous file whose descriptor comes last.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DONE = b'={"done": true}'
"""What `send` makes of "it is done", for those who send it without Python."""
_PACKET = 64 * 1024
_DESCRIPTORS = 16


def send(
    connection: socket.socket, message: Mapping[str, object], descriptors: list[int] | None = None
) -> None:
    """Send one message.

    Args:
        connection: a ``SOCK_SEQPACKET`` socket.
        message: one of `race.sandboxes.local.messages`; must survive JSON.
        descriptors: duplicated into the receiver.

    Raises:
        OSError: the other side is gone.
    """
    given = list(descriptors or ())
    data = json.dumps(message).encode()
    if len(data) <= _PACKET:
        _send_packet(connection, b"=" + data, given)
        return
    spill = held(data)
    try:
        _send_packet(connection, b"+", [*given, spill])
    finally:
        os.close(spill)


def _send_packet(connection: socket.socket, data: bytes, descriptors: list[int]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def receive(connection: socket.socket, *, wait: bool = True) -> tuple[Any, list[int]] | None:
    """The next message with its descriptors, which are the caller's to close; None when the other side is
    gone.

    Args:
        connection: a ``SOCK_SEQPACKET`` socket.
        wait: for a message to come, if the socket blocks.

    Raises:
        BlockingIOError: nothing is there yet.
    """
    flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
    try:
        data, ancillary, _, _ = connection.recvmsg(_PACKET + 1, socket.CMSG_SPACE(_DESCRIPTORS * 4), flags)
    except ConnectionResetError:
        return None
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    if not data:
        return None
    given = list(descriptors)
    if data[:1] == b"+":
        spill = given.pop()
        try:
            data = b"=" + whole(spill)
        finally:
            os.close(spill)
    return json.loads(data[1:]), given


def held(data: bytes) -> int:
    """A descriptor of a file in memory that holds these bytes, at its beginning."""
    descriptor = os.memfd_create("held", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def whole(descriptor: int) -> bytes:
    """All bytes of a file."""
    size = os.fstat(descriptor).st_size
    parts: list[bytes] = []
    offset = 0
    while offset < size:
        part = os.pread(descriptor, size - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
