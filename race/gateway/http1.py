"""HTTP/1.1 on both sides of the gateway, with h11: bytes are handed over as they come, and nothing is decoded."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

LARGEST_REQUEST = 64 << 20
"""Bytes of a request's body that are taken."""

_PIECE = 1 << 16
_IDLE = 32  # connections to one server that are kept for later


class Broken(Exception):  # noqa: N818 - what happened to a connection; the caller decides what it means
    """The connection broke, or what came is no HTTP."""


class Accepted:
    """The gateway's end of a connection that an agent made.

    Args:
        connection: accepted, not blocking.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the library's signature
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        self._early: list[bytes] = []

    async def _receive(self) -> bytes:
        if self._early:
            return self._early.pop(0)
        while True:
            try:
                return self._socket.recv(_PIECE)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as e:
                raise Broken(str(e)) from None

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as e:
                raise Broken(str(e)) from None

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as e:
                raise Broken(str(e)) from None
            if event is not h11.NEED_DATA:
                return cast("h11.Event", event)
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await self._send(self._http.send(go_on) or b"")
            self._http.receive_data(await self._receive())

    async def request(self) -> tuple[h11.Request, bytes] | None:
        """The next request and its body; None when the other side wants no more.

        Raises:
            Broken: the connection broke, or the body is too large.
        """
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
            if len(body) > LARGEST_REQUEST:
                raise Broken("the request is too large")
        return head, bytes(body)

    async def gone(self) -> None:
        """Wait until the other side has gone. What it sends meanwhile is kept."""
        while True:
            try:
                data = self._socket.recv(_PIECE)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            except OSError:
                return
            if not data:
                return
            self._early.append(data)

    async def head(self, status: int, headers: Headers) -> None:
        """Begin an answer."""
        await self._send(self._http.send(h11.Response(status_code=status, headers=list(headers))) or b"")

    async def data(self, piece: bytes) -> None:
        """Go on with it."""
        if piece:
            await self._send(self._http.send(h11.Data(data=piece)) or b"")

    async def end(self) -> bool:
        """It is whole. Returns whether the connection can take another request."""
        await self._send(self._http.send(h11.EndOfMessage()) or b"")
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def answer(self, status: int, body: bytes, headers: Headers = ()) -> bool:
        """A whole answer at once. Returns whether the connection can take another request."""
        fields = [*headers, (b"content-length", str(len(body)).encode())]
        parts = [h11.Response(status_code=status, headers=fields), h11.Data(data=body), h11.EndOfMessage()]
        await self._send(b"".join(self._http.send(p) or b"" for p in parts))
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def close(self, *, abruptly: bool = False) -> None:
        """End the connection; ``abruptly`` so that the other side cannot take what it has for the whole."""
        if abruptly:
            linger = b"\1\0\0\0\0\0\0\0"
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._socket.close()


@dataclass(slots=True)
class Answer:
    """The head of an upstream's answer.

    Attributes:
        status: of it.
        headers: names in lower case.
    """

    status: int
    headers: dict[str, str]


class Link:
    """One connection to an upstream."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)

    async def ask(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        """Send a request and wait for the head of the answer.

        Raises:
            Broken: the connection broke, or the answer is no HTTP.
        """
        sent = [(b"content-length", str(len(body)).encode())] if body or method == "POST" else []
        parts: list[h11.Event] = [h11.Request(method=method, target=target, headers=[*headers, *sent])]
        parts += [h11.Data(data=body), h11.EndOfMessage()] if body else [h11.EndOfMessage()]
        try:
            await self._stream.send(b"".join(self._http.send(p) or b"" for p in parts))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as e:
            raise Broken(str(e) or "the connection was closed") from None
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return Answer(event.status_code, {k.decode(): v.decode("latin-1") for k, v in event.headers})
            if not isinstance(event, h11.InformationalResponse):
                raise Broken("the server closed the connection without an answer")

    async def next(self) -> bytes | None:
        """The next bytes of the answer's body; None at its end.

        Raises:
            Broken: it broke off.
        """
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _event(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return cast("h11.Event", event)
                try:
                    data = await self._stream.receive(_PIECE)
                except anyio.EndOfStream:
                    data = b""
                self._http.receive_data(data)
            except (h11.RemoteProtocolError, OSError, anyio.BrokenResourceError, ssl.SSLError) as e:
                raise Broken(str(e.__cause__ or e) or type(e).__name__) from None

    @property
    def again(self) -> bool:
        """Whether it can carry another request; made ready for it if so."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    @property
    def stale(self) -> bool:
        """Whether the server has closed it meanwhile, or said something unasked."""
        waiting = select.poll()
        waiting.register(self._stream.extra(SocketAttribute.raw_socket).fileno(), select.POLLIN)  # noqa: S610 - not Django
        return bool(waiting.poll(0))

    async def aclose(self) -> None:
        """Close it, without waiting for good-byes."""
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self._stream)


class Pool:
    """Connections to upstreams, kept for the next request.

    The proxies that the environment names (``https_proxy``, ``no_proxy``) are used for encrypted upstreams.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int, bool], list[Link]] = {}
        self._context: ssl.SSLContext | None = None

    async def get(self, server: SplitResult) -> Link:
        """A connection to a server.

        Raises:
            Broken: there is none to be had.
        """
        key = _key(server)
        idle = self._idle.get(key, [])
        while idle:
            link = idle.pop()
            if not link.stale:
                return link
            await link.aclose()
        try:
            return Link(await self._connect(*key))
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as e:
            raise Broken(f"{server.hostname} cannot be reached: {e.__cause__ or e}") from None

    async def put(self, server: SplitResult, link: Link) -> None:
        """Give one back."""
        idle = self._idle.setdefault(_key(server), [])
        if len(idle) < _IDLE and link.again:
            idle.append(link)
        else:
            await link.aclose()

    async def aclose(self) -> None:
        """Close all that are kept."""
        for links in self._idle.values():
            for link in links:
                await link.aclose()
        self._idle.clear()

    async def _connect(self, host: str, port: int, encrypted: bool) -> ByteStream:  # noqa: FBT001 - part of the key
        if not encrypted:
            stream = await anyio.connect_tcp(host, port)
            raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stream
        if self._context is None:
            self._context = await anyio.to_thread.run_sync(ssl.create_default_context)
        proxy = getproxies().get("https", "")
        if not proxy or proxy_bypass(host):
            return await anyio.connect_tcp(
                host, port, ssl_context=self._context, tls_hostname=host, tls_standard_compatible=False
            )
        from anyio.streams.tls import TLSStream  # noqa: PLC0415 - few go through a proxy

        way = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        tunnel = await anyio.connect_tcp(way.hostname or "", way.port or 3128)
        await tunnel.send(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        said = b""
        while b"\r\n\r\n" not in said:
            said += await tunnel.receive()
        if b" 200" not in said.split(b"\r\n", 1)[0]:
            await tunnel.aclose()
            raise OSError(f"the proxy {way.hostname} refused: {said.splitlines()[0].decode('latin-1')}")
        return await TLSStream.wrap(
            tunnel, hostname=host, ssl_context=self._context, standard_compatible=False
        )


def _key(server: SplitResult) -> tuple[str, int, bool]:
    encrypted = server.scheme == "https"
    return (server.hostname or "", server.port or (443 if encrypted else 80), encrypted)
