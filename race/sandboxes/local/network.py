"""The orchestrator's side of a sandbox's network: what its commands are told, and the proxy's helper
process.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import anyio

from race.errors import SandboxError
from race.sandboxes.local import talk, wire
from race.sandboxes.local.inner_ports import PROXY_PORT
from race.sandboxes.local.spawner import Helper

if TYPE_CHECKING:
    from pathlib import Path

    from race.sandbox import Network
    from race.sandboxes.local.record import Record

_CUT_WITHIN = 5.0
"""Seconds in which every proxy that serves a sandbox must have closed its connections."""
_PAUSE = 0.02
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(:[0-9]{1,5})?")


def check_network(network: Network) -> None:
    """Refuse what is no network.

    Raises:
        SandboxError: it is none of the kinds, or lists something that is no host.
    """
    if isinstance(network, str):
        if network not in ("full", "none"):
            raise SandboxError(f"{network!r} is no network: 'full', 'none' or a tuple of hosts")
        return
    for host in network:
        if not _HOST.fullmatch(host):
            raise SandboxError(
                f"{host!r} is no host that could be allowed: 'example.org', '*.example.org' or 'example.org:8080'"
            )


def network_environment(network: Network) -> dict[str, str]:
    """What tells programs how to reach the network, or not to try."""
    if network == "full":
        return {}
    if network == "none":
        return {"PIP_RETRIES": "0"}  # pip would try for 8 seconds
    proxy = f"http://127.0.0.1:{PROXY_PORT}"
    names = (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "npm_config_proxy",
        "npm_config_https_proxy",
    )
    local = "localhost,127.0.0.1,::1"
    return {**dict.fromkeys(names, proxy), "no_proxy": local, "NO_PROXY": local}


class Gatekeeper:
    """Serves the sandboxes that may reach some hosts only, through one helper process for all of them."""

    def __init__(self) -> None:
        self._proxy: Helper | None = None
        self._served: set[tuple[int, int, tuple[str, ...]]] = set()

    async def serve(self, folder: Path, record: Record) -> None:
        """Let a running sandbox reach the hosts of its list. Safe to repeat.

        Raises:
            SandboxError: the sandbox ended.
        """
        if isinstance(record.network, str) or record.init is None:
            return
        key = (record.init.pid, record.init.start, record.network)
        if key in self._served and self._proxy is not None and self._proxy.owner == os.getpid():
            return
        async with talk.connected(folder, record.name) as connection:
            talk.tell(connection, record.name, {"do": "listen"})
            _, descriptors = await talk.answer(connection, record.name)
        try:
            descriptors.append(os.pidfd_open(record.init.pid))  # the proxy stops when the sandbox does
            # Where the proxy sees, when the port is shut, whether connections may go on.
            descriptors.append(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            self._tell({"hosts": list(record.network)}, descriptors)
        finally:
            for each in descriptors:
                os.close(each)
        self._served.add(key)

    async def change(self, folder: Path, record: Record) -> None:
        """Let a running sandbox reach what its record says by now, and nothing that it said before.

        Raises:
            SandboxError: the sandbox ended, or its connections do not.
        """
        with anyio.move_on_after(_CUT_WITHIN) as patience:
            while await self._connections(folder, record.name) and record.network == "none":  # noqa: ASYNC110 - other processes close them
                await anyio.sleep(_PAUSE)
        if patience.cancelled_caught:
            raise SandboxError(
                f"the network of the sandbox {record.name!r} is shut, but a process that served it holds connections "
                "of it open: end that process, or stop the sandbox"
            )
        if record.init is not None:
            own = (record.init.pid, record.init.start)
            self._served = {each for each in self._served if each[:2] != own}
        await self.serve(folder, record)

    async def _connections(self, folder: Path, name: str) -> int:
        """Shut the port, and see how many connections there still are."""
        async with talk.connected(folder, name) as connection:
            talk.tell(connection, name, {"do": "unlisten"})
            message, _ = await talk.answer(connection, name)
        return int(message["connections"])

    def _tell(self, message: dict[str, list[str]], descriptors: list[int]) -> None:
        if self._proxy is None or self._proxy.owner != os.getpid():
            self._proxy = Helper("proxy")
        try:
            wire.send(self._proxy.socket, message, descriptors)
        except OSError:
            self._proxy.close()
            self._proxy = Helper("proxy")
            wire.send(self._proxy.socket, message, descriptors)

    def close(self) -> None:
        """End the helper."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        self._served.clear()
