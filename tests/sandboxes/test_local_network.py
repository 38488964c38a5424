"""The way out of sandboxes of this machine that may reach some hosts only."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING

import pytest

from race.errors import SandboxError
from race.sandbox import SandboxSpec
from race.sandboxes.local import LocalProvider, proxy
from tests.sandboxes.waiting import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from race.sandbox import Sandbox

_ASK = """
import http.client, sys
how, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
connection = http.client.HTTPConnection("127.0.0.1", 3128, timeout=5)
try:
    if how == "tunnel":
        connection.set_tunnel(address, port)
        connection.request("GET", "/path")
    else:
        connection.request("GET", f"http://{address}:{port}/path?query")
    answer = connection.getresponse()
    print(answer.status, answer.read().decode())
except OSError as error:
    print(error)
"""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept

    def do_GET(self) -> None:
        text = f"{self.path} {self.headers.get('Proxy-Connection')}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a web server on the host's loopback."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True

        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


async def _ask(sandbox: Sandbox, how: str, host: str, port: int) -> str:
    done = await sandbox.exec(["python3", "-c", _ASK, how, host, str(port)])
    return done.stdout.decode().strip()


@pytest.mark.anyio
async def test_only_the_hosts_of_the_list_can_be_reached(
    provider: LocalProvider, new_name: Callable[[], str], port: int
) -> None:
    made = await provider.create(SandboxSpec(new_name(), network=(f"localhost:{port}", "example.org")))
    assert await _ask(made, "plain", "localhost", port) == "200 /path?query None"
    assert await _ask(made, "tunnel", "LOCALHOST", port) == "200 /path None"
    refused = await _ask(made, "plain", "127.0.0.1", port)
    assert refused.startswith("403 ")
    assert "example.org" in refused
    assert "403" in await _ask(made, "tunnel", "localhost", port + 1)
    direct = await made.exec(
        ["python3", "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"]
    )
    assert direct.exit_code != 0
    assert b"http://127.0.0.1:3128" in (await made.exec("echo $https_proxy")).stdout
    fork = await made.fork(new_name())
    assert await _ask(fork, "plain", "localhost", port) == "200 /path?query None"
    shut = await made.fork(new_name(), network="none")
    assert "refused" in await _ask(shut, "plain", "localhost", port)
    assert (await shut.exec("echo $https_proxy")).stdout == b"\n"


@pytest.mark.anyio
async def test_the_way_out_comes_back_with_the_next_orchestrator(
    provider: LocalProvider, new_name: Callable[[], str], port: int
) -> None:
    first = LocalProvider(provider.home)
    made = await first.create(SandboxSpec(new_name(), network=(f"localhost:{port}",)))
    await first.aclose()
    taken = await provider.get(made.name)
    assert await _ask(taken, "plain", "localhost", port) == "200 /path?query None"
    await taken.stop()
    await taken.start()
    assert await _ask(taken, "plain", "localhost", port) == "200 /path?query None"


def test_hosts_are_matched_by_name_domain_and_port() -> None:
    allowed = ["example.org", "*.pypi.org", "local:8080"]
    assert proxy.is_allowed("example.org", 443, allowed)
    assert proxy.is_allowed("EXAMPLE.org.", 80, allowed)
    assert proxy.is_allowed("files.pypi.org", 443, allowed)
    assert proxy.is_allowed("local", 8080, allowed)
    assert not proxy.is_allowed("local", 443, allowed)
    assert not proxy.is_allowed("example.org", 22, allowed)
    assert not proxy.is_allowed("pypi.org", 443, allowed)
    assert not proxy.is_allowed("evilpypi.org", 443, allowed)
    assert not proxy.is_allowed("example.org.evil.net", 443, allowed)


_HOLD = """
import socket, sys
with socket.create_connection(("127.0.0.1", 3128)) as connection:
    connection.sendall(b"CONNECT localhost:%d HTTP/1.1\\r\\n\\r\\n" % int(sys.argv[1]))
    print(connection.recv(1000).split()[1].decode(), flush=True)
    for line in sys.stdin:
        got = b""
        try:
            connection.sendall(b"GET /again HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            while b"/again None" not in got and (piece := connection.recv(1000)):
                got += piece
        except OSError:
            pass
        print("answered" if got else "cut", flush=True)
"""


@pytest.mark.anyio
async def test_the_network_of_a_living_sandbox_can_be_changed(
    provider: LocalProvider, new_name: Callable[[], str], port: int
) -> None:
    made = await provider.create(SandboxSpec(new_name()))
    other = LocalProvider(provider.home)
    watching = await other.get(made.name)
    kept = await made.spawn("kept", "sleep 1000")
    assert "refused" in await _ask(watching, "plain", "localhost", port)
    await made.set_network((f"localhost:{port}",))
    assert (await watching.info()).network == (f"localhost:{port}",)
    assert await _ask(made, "plain", "localhost", port) == "200 /path?query None"
    assert b"3128" in (await watching.exec("echo $https_proxy")).stdout
    holding = await made.spawn("holding", ["python3", "-c", _HOLD, str(port)])
    await output(holding, b"200\n")
    await made.set_network(("example.org",))
    assert "403" in await _ask(watching, "plain", "localhost", port)
    await holding.send(b"go\n")
    await output(holding, b"answered\n")  # what it has it keeps
    await made.set_network("none")
    await holding.send(b"go\n")
    await output(holding, b"cut\n")
    assert "refused" in await _ask(watching, "plain", "localhost", port)
    assert (await watching.exec("echo $https_proxy")).stdout == b"\n"
    assert (await kept.info()).state == "running"
    await made.exec("echo here >/file")
    await made.set_network("full")
    direct = ["python3", "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"]
    assert (await watching.exec(direct)).exit_code == 0
    assert (await made.exec("cat /file")).stdout == b"here\n"
    assert await made.processes() == []
    await made.freeze()
    with pytest.raises(SandboxError, match="thaw"):
        await made.set_network("none")
    await made.stop()
    await made.set_network("none")
    await made.start()
    assert (await watching.exec(direct)).exit_code != 0
    with pytest.raises(SandboxError, match="no network"):
        await made.set_network("some")  # type: ignore[arg-type]
    await other.aclose()
