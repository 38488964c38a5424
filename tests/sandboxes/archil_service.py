"""A small service that speaks what Archil's SDK speaks, HTTP and websocket, with local sandboxes behind it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from race.errors import SandboxError
from race.sandbox import Network, SandboxSpec
from race.sandboxes.local import LocalProvider
from race.sandboxes.local.client import LocalSandbox
from race.sandboxes.local.terminal import LocalTerminal

KEY = "key-of-the-tests"

_JOINED = """
exec 3<>/dev/tcp/127.0.0.1/$1 4<>/dev/tcp/127.0.0.1/$2 || exit 126
exec sh -c "$0" <&3 >&3 2>&4 3>&- 4>&-
"""
_PIECE = 1 << 16


@dataclass
class Machine:
    """A sandbox of the service."""

    id: str
    name: str
    image: str
    inner: LocalSandbox
    status: str = "running"
    parent: str = ""
    network: dict[str, Any] = field(default_factory=dict)
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    def told(self, status: str = "") -> dict[str, Any]:
        now = self.created.isoformat()
        return {
            "sandbox_id": self.id,
            "name": self.name,
            "status": status or self.status,
            "vcpu_count": 1,
            "mem_size_mib": 2048,
            "max_ttl_seconds": 86400,
            "max_concurrent_execs": 100,
            "base_image": self.image,
            "created_at": now,
            "last_active_at": now,
            "checkpoint": f"checkpoint-of-{self.id}" if self.status == "paused" else None,
        }


class RefusedError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Service:
    """The account's sandboxes."""

    def __init__(self, home: Path) -> None:
        self.provider = LocalProvider(home)
        self.machines: dict[str, Machine] = {}
        self.terminals: dict[str, LocalTerminal] = {}
        self.calls: list[str] = []
        self._numbers = itertools.count(1)

    def machine(self, name: str) -> Machine:
        if name not in self.machines:
            raise RefusedError(404, f"sandbox {name} not found")
        return self.machines[name]

    async def create(self, body: dict[str, Any]) -> Machine:
        name = f"sbx-{next(self._numbers)}"
        network = body.get("network") or {}
        inner = await self.provider.create(SandboxSpec(name, network=_network(network)))
        made = Machine(name, body.get("name") or name, body["base_image"], inner, network=network)
        self.machines[name] = made
        return made

    async def fork(self, parent: Machine, body: dict[str, Any]) -> Machine:
        if parent.status not in ("stopped", "paused"):
            raise RefusedError(409, "sandbox must be paused or stopped")
        name = f"sbx-{next(self._numbers)}"
        inner = await parent.inner.fork(name)
        made = Machine(
            name, body.get("name") or name, parent.image, inner, parent=parent.id, network=parent.network
        )
        self.machines[name] = made
        return made

    async def set_network(self, machine: Machine, body: dict[str, Any]) -> None:
        """Living sandboxes here keep their network, so another one takes its place."""
        machine.network = body
        inner = await machine.inner.fork(f"{machine.inner.name}-n", network=_network(body))
        if machine.status == "stopped":
            await inner.stop()
        machine.inner = inner

    async def delete(self, machine: Machine) -> None:
        if any(m.parent == machine.id for m in self.machines.values()):
            raise RefusedError(409, "sandbox has dependent forks")
        if machine.status not in ("stopped", "exited"):
            raise RefusedError(409, "sandbox must be stopped")
        del self.machines[machine.id]

    async def close(self) -> None:
        for info in reversed(await self.provider.list()):
            await (await self.provider.get(info.name)).delete()
        await self.provider.aclose()


def _network(body: dict[str, Any]) -> Network:
    egress = body.get("egress")
    if not egress:
        return "full"
    return tuple(egress["allow"]) if egress.get("allow") else "none"


def _application(service: Service) -> Starlette:
    async def answered(request: Request) -> Response:
        service.calls.append(f"{request.method} {request.url.path}")
        if request.headers.get("authorization") != KEY:
            return JSONResponse({"success": False, "error": "invalid API key"}, 401)
        body = json.loads(await request.body() or b"{}") or {}
        try:
            data = await _done(service, request, body)
        except RefusedError as e:
            return JSONResponse({"success": False, "error": str(e)}, e.status)
        return JSONResponse({"success": True, "data": data})

    async def connected(websocket: WebSocket) -> None:
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect, SandboxError):
            await _spoken(service, websocket)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await websocket.close()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await service.close()

    routes = [
        Route("/api/{rest:path}", answered, methods=["GET", "POST", "PUT", "DELETE"]),
        WebSocketRoute("/connect/{id}", connected),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def _done(service: Service, request: Request, body: dict[str, Any]) -> Any:  # noqa: C901, PLR0911, PLR0912 - one for each call
    method = request.method
    parts = request.path_params["rest"].split("/")
    match method, parts[1:]:
        case "GET", []:
            return {"sandboxes": [m.told() for m in service.machines.values()]}
        case "POST", []:
            return (await service.create(body)).told()
        case _, [name, *rest]:
            machine = service.machine(name)
        case _:
            raise RefusedError(404, "not found")
    match method, rest:
        case "GET", []:
            return machine.told()
        case "DELETE", []:
            return await service.delete(machine)
        case "POST", ["start"]:
            await machine.inner.start()
            machine.status = "running"
        case "POST", ["stop"]:
            await machine.inner.stop()
            machine.status = "stopped"
        case "POST", ["pause"]:
            if machine.status == "running":
                await machine.inner.freeze()
                machine.status = "paused"
                return machine.told("pausing")
        case "POST", ["resume"]:
            await machine.inner.thaw()
            machine.status = "running"
        case "POST", ["fork"]:
            return (await service.fork(machine, body)).told()
        case "PUT", ["network"]:
            await service.set_network(machine, body)
            return body
        case "GET", ["network"]:
            return machine.network
        case "POST", ["connections"]:
            if machine.status != "running":
                raise RefusedError(409, f"sandbox is {machine.status}")
            host = request.headers["host"]
            return {"url": f"ws://{host}/connect/{machine.id}"}
        case _:
            raise RefusedError(404, "not found")
    return machine.told()


async def _spoken(service: Service, websocket: WebSocket) -> None:
    machine = service.machine(websocket.path_params["id"])
    asked = json.loads(await websocket.receive_text())
    if asked["type"] == "resize":
        await service.terminals[asked["process_id"]].resize(asked["rows"], asked["cols"])
        await websocket.send_text(json.dumps({"type": "resized"}, separators=(",", ":")))
    elif asked["type"] == "start":
        speaking = _Speaking(websocket, f"process-{time.monotonic_ns()}")
        if asked["terminal"]:
            await _on_terminal(service, machine, asked, speaking)
        else:
            await _with_pipes(machine, asked, speaking)


class _Speaking:
    def __init__(self, websocket: WebSocket, name: str) -> None:
        self.websocket = websocket
        self.name = name
        self.position = 0

    async def started(self) -> None:
        await self.websocket.send_text(json.dumps({"type": "started", "process_id": self.name}))

    async def printed(self, stream: int, data: bytes) -> None:
        position, self.position = self.position, self.position + len(data)
        await self.websocket.send_bytes(bytes([stream]) + position.to_bytes(8, "big") + data)

    async def ended(self, code: int) -> None:
        status = 128 - code if code < 0 else code
        event = {
            "type": "exit",
            "status": "failed" if status else "completed",
            "exit_code": status,
            "cursor": self.position,
        }
        await self.websocket.send_text(json.dumps(event))


async def _on_terminal(
    service: Service, machine: Machine, asked: dict[str, Any], speaking: _Speaking
) -> None:
    size = asked["terminal"] if isinstance(asked["terminal"], dict) else {"rows": 24, "cols": 80}
    terminal = await machine.inner.terminal(
        ["sh", "-c", asked["command"]], env=asked["env"], rows=size["rows"], columns=size["cols"]
    )
    service.terminals[speaking.name] = terminal
    await speaking.started()

    async def typed() -> None:
        while True:
            message = await speaking.websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await terminal.send(message.get("bytes") or (message.get("text") or "").encode())

    typing = asyncio.create_task(typed())
    try:
        while data := await terminal.receive():
            await speaking.printed(1, data)
        await speaking.ended(await terminal.wait())
        await typing
    finally:
        typing.cancel()
        del service.terminals[speaking.name]
        await terminal.aclose()


async def _with_pipes(machine: Machine, asked: dict[str, Any], speaking: _Speaking) -> None:
    listeners = [await machine.inner.listen() for _ in range(2)]
    ports = [str(each.getsockname()[1]) for each in listeners]
    loop = asyncio.get_running_loop()
    command = ["bash", "-c", _JOINED, asked["command"], *ports]
    running = asyncio.create_task(machine.inner.exec(command, cwd=asked.get("cwd") or "/", env=asked["env"]))
    with listeners[0], listeners[1]:
        sockets = [(await loop.sock_accept(each))[0] for each in listeners]
    await speaking.started()

    async def taken(number: int) -> None:
        while data := await loop.sock_recv(sockets[number], _PIECE):
            await speaking.printed(number + 1, data)

    async def given() -> None:
        with contextlib.suppress(OSError, WebSocketDisconnect):
            while True:
                message = await speaking.websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                if message.get("bytes") is not None:
                    await loop.sock_sendall(sockets[0], message["bytes"])
                else:  # the only text there is closes the input
                    sockets[0].shutdown(socket.SHUT_WR)

    tasks = [asyncio.create_task(each) for each in (taken(0), taken(1), given())]
    try:
        done = await running
        # What is still open is held by processes that the command left.
        await asyncio.wait(tasks[:2], timeout=0.2)
        await speaking.ended(done.exit_code or 0)
        await tasks[2]
    finally:
        for task in (*tasks, running):
            task.cancel()
        await asyncio.gather(*tasks, running, return_exceptions=True)
        for each in sockets:
            each.close()


@contextmanager
def serving(home: Path) -> Generator[tuple[str, Service]]:
    """Run the service in a thread; gives its address."""
    service = Service(home)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(_application(service), log_level="error", ws="websockets-sansio")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", service
        finally:
            server.should_exit = True
            thread.join(30)
