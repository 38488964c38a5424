"""Sockets that PID 1 makes in its sandbox's network, for use outside."""

from __future__ import annotations

import socket
from typing import Any

PROXY_PORT = 3128
"""Where a sandbox with a list of allowed hosts finds its proxy."""

_ESTABLISHED = b"01"
_LOOPBACK: dict[int, str] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


class InnerPorts:
    """Makes them, and keeps the proxy's, which is always the same socket."""

    def __init__(self) -> None:
        self._proxy: socket.socket | None = None

    def serve(self, message: Any) -> tuple[dict[str, object], socket.socket | None]:
        """Do what was asked.

        Returns:
            The answer, and the socket whose descriptor goes with it, to be closed after that; the proxy's stays.
        """
        port = message.get("port", PROXY_PORT)
        try:
            if message["do"] == "unlisten":
                self._unlisten()
                return {"done": True, "connections": _proxied()}, None
            if message["do"] == "connect":
                return {"done": True}, _connecting(port, message["family"])
            if port != PROXY_PORT:
                return {"done": True}, _listening(port)
            if self._proxy is None:
                self._proxy = _listening(port)
            return {"done": True}, self._proxy.dup()
        except (OSError, OverflowError) as error:
            return {"error": f"port {port} of the sandbox: {getattr(error, 'strerror', None) or error}"}, None

    def _unlisten(self) -> None:
        """Let nobody in at the proxy's port any more, whoever holds its socket too."""
        if self._proxy is not None:
            self._proxy.shutdown(socket.SHUT_RDWR)
            self._proxy.close()
            self._proxy = None


def _proxied() -> int:
    """How many connections to the proxy there are, as its side of them is in the sandbox's network too."""
    mine = b":%04X" % PROXY_PORT
    with open("/proc/net/tcp", "rb") as file:  # as bytes: a codec could no longer be loaded
        entries = [line.split() for line in file]
    return sum(each[1].endswith(mine) and each[3] == _ESTABLISHED for each in entries)


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_LOOPBACK[socket.AF_INET], port))
        listener.listen(128)
        # Several may accept from it at once, and what one of them takes the others must not wait for.
        listener.setblocking(False)  # noqa: FBT003 - the library's signature
    except BaseException:
        listener.close()
        raise
    return listener


def _connecting(port: int, family: int) -> socket.socket:
    """A socket that is being connected; whoever gets it sees what comes of it."""
    made = socket.socket(family)
    try:
        made.setblocking(False)  # noqa: FBT003 - the library's signature
        made.connect_ex((_LOOPBACK[family], port))
    except BaseException:
        made.close()
        raise
    return made
