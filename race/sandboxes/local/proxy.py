"""The helper that lets sandboxes reach the hosts of their list, and no others.

For each such sandbox it is given a socket that listens inside the sandbox's network, which has no other way
out, and
speaks HTTP proxy on it: ``CONNECT`` for what is encrypted, and plain requests. Names are looked up here,
outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
from urllib.parse import urlsplit

from race.sandboxes.local import syscalls, wire

_LONGEST_HEAD = 1 << 16
_PIECE = 1 << 16
_PATIENCE = 30.0
"""Seconds for a request to arrive and for a connection to be made."""
_LOOK_EVERY = 0.05
"""Seconds between looks whether connections from before a change of the network may still go on."""
_PAUSE = 0.01
"""Seconds until the next try, when a connection could not be accepted."""
_STANDARD_PORTS = (80, 443)
_DROPPED = (b"proxy-", b"connection:", b"keep-alive:")


def main(descriptor: int) -> None:
    """Serve until the orchestrator is gone."""
    syscalls.close_from(descriptor + 1)
    with socket.socket(fileno=descriptor) as orders, contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(orders))


async def _serve(orders: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    def take_order() -> None:
        received = wire.receive(orders)
        if received is None:
            over.set()
            return
        message, (listener, process, folder) = received
        task = loop.create_task(_Gate(message["hosts"], folder).serve(listener, process))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_reader(orders.fileno(), take_order)
    await over.wait()
    loop.remove_reader(orders.fileno())


def is_allowed(host: str, port: int, allowed: list[str]) -> bool:
    """Whether a list of hosts has this one: by name, ``*.`` and a domain, or either with a port of its
    own.
    """
    host = host.lower().rstrip(".")
    for each in allowed:
        name, _, its_port = each.lower().partition(":")
        if port not in ((int(its_port),) if its_port else _STANDARD_PORTS):
            continue
        if host == name or (name.startswith("*.") and host.endswith(name[1:])):
            return True
    return False


class _Refused(Exception):  # noqa: N818 - what the proxy answers, not an error of ours
    """The request is not served; the text is for the one who asked."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Gate:
    """One sandbox's way out.

    Args:
        allowed: its list of hosts.
        folder: descriptor of its folder, whose record says what its network is when the port has been shut.
    """

    def __init__(self, allowed: list[str], folder: int) -> None:
        self._allowed = allowed
        self._folder = folder

    async def serve(self, listener: int, process: int) -> None:
        """Serve until the sandbox ends, or its port is shut.

        Args:
            listener: descriptor of the listening socket.
            process: descriptor that becomes readable when the sandbox's PID 1 ends.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(process, ended.set)
        over = loop.create_task(ended.wait())
        work = loop.create_task(self._accept(listener))
        try:
            await asyncio.wait((over, work), return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(process)
            for each in (over, work):
                each.cancel()
            os.close(process)
            os.close(self._folder)

    async def _accept(self, listener: int) -> None:
        """Serve clients until the port is shut, and those that came before that until they may not go on."""
        loop = asyncio.get_running_loop()
        clients: set[asyncio.Task[None]] = set()
        try:
            with socket.socket(fileno=listener) as port:
                port.setblocking(False)  # noqa: FBT003 - the library's signature
                while True:
                    try:
                        accepted, _ = await loop.sock_accept(port)
                    except OSError as error:
                        if error.errno == errno.EINVAL:  # it listens no more
                            break
                        await asyncio.sleep(_PAUSE)
                        continue
                    client = loop.create_task(self._serve_client(accepted))
                    clients.add(client)
                    client.add_done_callback(clients.discard)
            while clients and not self._is_cut_off():
                await asyncio.wait(clients, timeout=_LOOK_EVERY)
        finally:
            for each in clients:
                each.cancel()

    async def _serve_client(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted, limit=_LONGEST_HEAD)
        await self._client(reader, writer)

    def _is_cut_off(self) -> bool:
        """Whether connections may not go on either."""
        try:
            record = os.open("record.json", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return True
        with open(record, encoding="utf-8") as file:
            return bool(json.load(file)["network"] == "none")

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._request(reader, writer)
        except _Refused as refused:
            text = f"{refused}\n".encode()
            head = f"HTTP/1.1 {refused.status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            with contextlib.suppress(OSError):
                writer.write(head.encode() + text)
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # a broken connection, or one that does not speak HTTP
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head[:-4].split(b"\r\n")
        method, target, _ = line.split(b" ", 2)
        if method == b"CONNECT":
            host, _, port = target.decode("ascii").rpartition(":")
            upstream = await self._connect(host.strip("[]"), int(port))
            first = b""
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            address = urlsplit(target.decode("ascii"))
            if address.scheme != "http" or not address.hostname:
                raise _Refused("400 Bad Request", "this is a proxy for http:// addresses and CONNECT")
            upstream = await self._connect(address.hostname, address.port or 80)
            path = (address.path or "/") + (f"?{address.query}" if address.query else "")
            kept = [each for each in fields if not each.lower().startswith(_DROPPED)]
            first = b"\r\n".join(
                [b"%b %b HTTP/1.1" % (method, path.encode()), *kept, b"Connection: close", b"", b""]
            )
        await _relay(reader, writer, *upstream, first)

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not is_allowed(host, port, self._allowed):
            raise _Refused(
                "403 Forbidden",
                f"{host}:{port} is not among the hosts that this sandbox may reach: {', '.join(self._allowed)}",
            )
        try:
            async with asyncio.timeout(_PATIENCE):
                return await asyncio.open_connection(host, port)
        except OSError as error:
            raise _Refused("502 Bad Gateway", f"{host}:{port} cannot be reached: {error}") from error


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
    first: bytes,
) -> None:
    try:
        far_writer.write(first)
        ways = [
            asyncio.create_task(_pump(reader, far_writer)),
            asyncio.create_task(_pump(far_reader, writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for each in ways:
            each.cancel()
    finally:
        far_writer.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_PIECE):
            sink.write(data)
            await sink.drain()
