"""Checks of a sandbox's network and of ports."""

from __future__ import annotations

import socket

import anyio

from race.errors import SandboxError
from race.sandbox import Network, Sandbox
from race.testing.conformance.bench import WORK, Bench, Check, expect, refused, same, until

_ANSWER = b"of the host"
_WITHIN = 10.0

_ASK = """
if command -v bash >/dev/null; then bash -c 'exec 3<>/dev/tcp/127.0.0.1/$0 && head -c 11 <&3' {port}
elif command -v nc >/dev/null; then nc 127.0.0.1 {port} </dev/null
else echo no program here can connect to a port; fi
"""
_SERVE = """
if command -v python3 >/dev/null; then exec python3 -c '
import socket
s = socket.create_server(("127.0.0.1", {port}))
while True:
    c = s.accept()[0]; c.sendall(b"inside"); c.close()'
else while :; do printf inside | nc -l -p {port}; done; fi
"""


async def _reached(sandbox: Sandbox, server_port: int) -> bytes:
    """What a command inside gets from a port of its loopback."""
    done = await sandbox.exec(_ASK.format(port=server_port), timeout=5)
    return done.stdout


async def network_is_known(bench: Bench) -> None:
    """Each network that is declared can be had, and is told by what is known of a sandbox and of its forks."""
    networks: dict[str, Network] = {"none": "none", "full": "full", "hosts": ("example.org", "example.net")}
    for kind in sorted(bench.can.networks):
        sandbox = await bench.new(network=networks[kind])
        same((await sandbox.info()).network, networks[kind], "the network")
        for other in sorted(bench.can.networks - {kind}):
            fork = await bench.fork(sandbox, network=networks[other])
            same((await fork.info()).network, networks[other], "the network that a fork was given")


async def network_none(bench: Bench) -> None:
    """Without a network, a sandbox has a loopback of its own and does not reach that of the host."""
    sandbox = await bench.new(network="none")
    await _unreached(sandbox)
    port = 45_871
    await sandbox.exec(f"({_SERVE.format(port=port)}) >/dev/null 2>&1 &", cwd=WORK)

    async def reached() -> bool:
        return await _reached(sandbox, port) == b"inside"

    await until(reached, "a server inside is not reached from inside", seconds=_WITHIN)


async def _unreached(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)  # noqa: FBT003 - the library's signature
        seen = await _reached(sandbox, server.getsockname()[1])
        expect(b"no program" not in seen, "the image has no program that can connect to a port: bash or nc")
        try:
            server.accept()[0].close()
        except BlockingIOError:
            return
    expect(ok=False, what="a server of the host was reached from inside")


async def network_of_a_fork_none(bench: Bench) -> None:
    """A fork without a network has none, whatever its parent has."""
    kind = "full" if "full" in bench.can.networks else "none"
    parent = await bench.new(network=kind)
    await _unreached(await bench.fork(parent, network="none"))


async def network_of_hosts(bench: Bench) -> None:
    """With a list of hosts, a sandbox does not reach the host's loopback."""
    await _unreached(await bench.new(network=("example.org",)))


async def network_changes(bench: Bench) -> None:
    """A living sandbox is given another network, which holds for commands that run after it, and after a start."""
    kinds: list[Network] = [k for k in ("full", "none") if k in bench.can.networks]
    sandbox = await bench.new(network=kinds[0])
    await sandbox.set_network("none")
    same((await sandbox.info()).network, "none", "the network that was set")
    await _unreached(sandbox)
    await sandbox.stop()
    await sandbox.set_network(kinds[0])
    same((await sandbox.info()).network, kinds[0], "the network that was set while it was stopped")
    await sandbox.set_network("none")
    await sandbox.start()
    await _unreached(sandbox)


async def listening(bench: Bench) -> None:
    """What listens on a sandbox's loopback for a caller outside is connected to from inside."""
    sandbox = await bench.new()
    with await sandbox.listen() as listener:
        expect(not listener.getblocking(), "the socket blocks")
        port = listener.getsockname()[1]
        seen: list[bytes] = []

        async def ask() -> None:
            seen.append(await _reached(sandbox, port))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            with anyio.move_on_after(_WITHIN):
                await anyio.wait_readable(listener)
                with listener.accept()[0] as accepted:
                    accepted.sendall(_ANSWER)
        same(seen, [_ANSWER], "what came through the port")
        with refused("a port that is taken"):
            (await sandbox.listen(port)).close()


async def listening_needs_a_running_one(bench: Bench) -> None:
    """Nothing listens in a stopped sandbox."""
    sandbox = await bench.new()
    await sandbox.stop()
    with refused("listening in a stopped sandbox"):
        (await sandbox.listen()).close()


async def connecting(bench: Bench) -> None:
    """A port on which something listens inside is connected to from outside."""
    sandbox = await bench.new()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[
            1
        ]  # free a moment later, also where the sandbox shares the host's loopback
    with refused("connecting to where nothing listens"):
        (await sandbox.connect(port)).close()
    await sandbox.exec(f"({_SERVE.format(port=port)}) >/dev/null 2>&1 &", cwd=WORK)

    async def reached() -> bool:
        return await _received(sandbox, port) == b"inside"

    await until(reached, "a server inside is not reached from outside", seconds=_WITHIN)


async def _received(sandbox: Sandbox, port: int) -> bytes:
    try:
        connection = await sandbox.connect(port)
    except SandboxError:
        return b""
    with connection:
        expect(not connection.getblocking(), "the socket blocks")
        with anyio.move_on_after(1):
            await anyio.wait_readable(connection)
            return connection.recv(100)
        return b""


CHECKS = (
    Check(network_is_known),
    Check(network_none, network="none"),
    Check(network_of_a_fork_none, network="none"),
    Check(network_of_hosts, network="hosts"),
    Check(network_changes, feature="set_network", network="none"),
    Check(listening, feature="listen"),
    Check(listening_needs_a_running_one, feature="listen"),
    Check(connecting, feature="connect"),
)
