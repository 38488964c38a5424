"""The gateway in front of an encrypted upstream, with a certificate made for the test."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from race.gateway import Exchange
from race.testing import ScriptedModel
from tests.test_gateway import ask, opened

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate"),
]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that signs itself, and its key in one file."""
    folder = tmp_path_factory.mktemp("certificate")
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True)
    both = (folder / "key.pem").read_bytes() + (folder / "certificate.pem").read_bytes()
    (folder / "both.pem").write_bytes(both)
    return folder / "both.pem"


@contextmanager
def encrypted(certificate: Path, behind: str) -> Generator[int]:
    """A port that speaks TLS and passes on what it gets to the port of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))
    target = int(behind.rpartition(":")[2].partition("/")[0])
    threads: list[threading.Thread] = []

    def serve(accepted: socket.socket) -> None:
        try:
            with (
                context.wrap_socket(accepted, server_side=True) as outer,
                socket.create_connection(("127.0.0.1", target)) as inner,
            ):
                while True:
                    ready = [outer] if outer.pending() else select.select([outer, inner], [], [])[0]
                    source, sink = (outer, inner) if outer in ready else (inner, outer)
                    if not (piece := source.recv(1 << 16)):
                        return
                    sink.sendall(piece)
        except OSError:  # the other side does not trust us
            accepted.close()

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_certificate_that_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with ScriptedModel() as server:
        with encrypted(certificate, server.url) as port:
            async with opened(f"https://localhost:{port}/v1") as (line, account):
                status, body = await ask(line, "chat", "touch", stream=stream)
                assert (status, b"echo hello" in body) == (200, True)
                assert (await ask(line, "chat", "touch", stream=stream))[0] == 200
            assert account.purse.usage == server.usage["touch"]


@pytest.mark.parametrize(
    ("trusted", "host", "why"),
    [(False, "localhost", "self-signed certificate"), (True, "127.0.0.1", "not valid for '127.0.0.1'")],
)
async def test_one_that_is_not_is_the_reason(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, host: str, why: str
) -> None:
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    seen: list[Exchange] = []
    async with ScriptedModel() as server:
        with encrypted(certificate, server.url) as port:
            async with opened(f"https://{host}:{port}/v1") as (line, account):
                account.on_exchange = seen.append
                status, body = await ask(line, "chat", "touch")
        assert server.requests == []
    assert status == 502
    assert why in body.decode().replace("self signed", "self-signed")
    assert account.trouble.startswith(f"the connection failed: {host} cannot be reached: ")
    assert [e.outcome for e in seen] == ["failed"]
