"""A small HTTP/1.1 server for tests, which can misbehave on purpose. Standard library only."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, Literal, TypeAlias, cast

_POLL = 0.02  # seconds that `HTTPServer.close` may wait for the thread that accepts
_COMMENT = 1.0  # seconds between the comment lines of an answer that stalls

How: TypeAlias = Literal["answer", "hang", "stall", "reset"]


@dataclass(frozen=True, slots=True)
class Response:
    """What to do about a request.

    Attributes:
        status: of the answer.
        body: its content, or the chunks of it to be sent one by one.
        headers: its headers, besides those about its length.
        how: ``"answer"`` sends it; ``"hang"`` sends nothing; ``"stall"`` sends only headers and then a
            comment line a second; ``"reset"`` breaks the connection.
        delay: seconds before any of it.
    """

    status: int = 200
    body: bytes | Iterator[bytes] = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    how: How = "answer"
    delay: float = 0.0


Respond: TypeAlias = Callable[[str, str, Mapping[str, str], bytes], Response]
"""Called with the method, the path, the headers (names in lower case) and the body; in a thread of the
connection."""


class HTTPServer:
    """Serves on loopback, a thread for each connection, from its construction until it is closed.

    Args:
        port: to listen on; 0 takes a free one.
        respond: says what to do about a request.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int, respond: Respond) -> None:
        self._server = _Server(port, respond)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL,), name="http-server")
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Break off what is under way, and wait for every thread to end."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(
    socketserver.ThreadingTCPServer
):  # http.server's own looks its host's name up, which may take long
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, respond: Respond) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.respond = respond
        self.closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        self.closing.set()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client has gone, which is its right
            super().handle()

    def _serve(self) -> None:
        server = cast("_Server", self.server)  # the only one that makes this handler
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        response = server.respond(self.command, self.path, headers, body)
        if response.delay and server.closing.wait(response.delay):
            self.close_connection = True
        elif response.how == "answer":
            self._answer(response)
        else:
            self.close_connection = True
            self._misbehave(response, server.closing)

    do_GET: ClassVar = _serve  # noqa: N815 - the library's name
    do_POST: ClassVar = _serve  # noqa: N815 - the library's name

    def _answer(self, response: Response) -> None:
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if isinstance(response.body, bytes):
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in response.body:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def _misbehave(self, response: Response, closing: threading.Event) -> None:
        if response.how == "reset":
            # Closed with nothing lingering, the kernel sends RST. The fd is taken from the socket, whose own
            # close would first say good-bye.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
            return
        if response.how == "stall":
            self.send_response(response.status)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
        while not closing.wait(_COMMENT) and not self._hung_up():
            if response.how == "stall":
                self.wfile.write(b": still here\n\n")

    def _hung_up(self) -> bool:
        self.connection.setblocking(False)  # noqa: FBT003 - the library's signature
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        finally:
            self.connection.setblocking(True)  # noqa: FBT003 - the library's signature

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's signature
        """Say nothing: the caller keeps its own record."""
