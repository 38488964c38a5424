"""Runs a command in a sandbox of Archil, with a shell around it that tells how it ended."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from race.errors import SandboxError
from race.sandbox import ExecResult
from race.sandboxes import scripts
from race.sandboxes.archil.service import Running, Service
from race.sandboxes.local.output import Output
from race.sandboxes.marked import Marked

if TYPE_CHECKING:
    from race.sandboxes.local.messages import ExecRequest

_PLAIN = {"LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_ENDING = 20.0
_ALONE = 0.3


async def run(
    service: Service, handle: str, asked: ExecRequest, stdin: bytes | None, output_limit: int
) -> ExecResult:
    """Run a command to its end.

    Args:
        service: of the sandbox.
        handle: of the sandbox.
        asked: from `race.sandboxes.local.command.request`.
        stdin: what the command reads.
        output_limit: bytes kept of each stream.

    Raises:
        SandboxError: the sandbox does not run, or the command cannot be started.
    """
    mark = secrets.token_hex(8)
    merged = bool(asked["merged"])
    marked = Marked(mark, [Output(output_limit) for _ in range(1 if merged else 2)])
    script = "-"
    if asked["script"] is not None:
        script = f"{scripts.OWN}/{mark}.script"
        await plain(
            service,
            handle,
            f"mkdir -p {scripts.OWN}; cat >{script}",
            asked["script"].encode("utf-8", "surrogateescape"),
        )
    argv = [
        mark,
        asked["cwd"],
        script,
        "-" if stdin is None else "=",
        str(int(merged)),
        *(asked["argv"] or []),
    ]
    call = _Call(service, handle, mark, marked)
    command = _line(["sh", "-c", scripts.AROUND, "sh", *argv])
    began = time.monotonic()
    try:
        await service.call(lambda: call.running.start(command, asked["env"]))
        began = time.monotonic()
        async with anyio.create_task_group() as group:
            group.start_soon(call.wait)
            if stdin is not None:
                group.start_soon(_feed, service, call.running, stdin)
            with anyio.move_on_after(asked["timeout"]):
                await call.gather()
            await call.settle()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as e:
        await call.end()
        raise e.exceptions[0] from None
    except BaseException:
        await call.end()
        raise
    finally:
        with anyio.CancelScope(shield=True), contextlib.suppress(SandboxError):
            await service.call(call.running.let_go)
    seconds = time.monotonic() - began
    return marked.result(seconds, asked["cwd"], timed_out=call.timed_out, status=call.status)


class _Call:
    """A command that runs.

    Args:
        service: of the sandbox.
        handle: of the sandbox.
        mark: of the command.
        marked: takes its output in.
    """

    def __init__(self, service: Service, handle: str, mark: str, marked: Marked) -> None:
        self.running = Running(service, handle)
        self.timed_out = False
        self.status: int | None = None
        self._service = service
        self._handle = handle
        self._mark = mark
        self._marked = marked
        self._gathered = False
        self._ended = anyio.Event()

    async def wait(self) -> None:
        """Wait for the end of the shell around it."""
        self.status = await self._service.call(self.running.wait, abandon=True)
        self._ended.set()

    async def gather(self) -> None:
        """Take in what it prints, up to its end."""
        while not self._marked.complete:
            piece = await self._service.call(self.running.next, abandon=True)
            if piece is None:
                break
            self._marked.take(*piece)
        self._gathered = True

    async def settle(self) -> None:
        """End it if its time was up; else let the shell around it end, which something that it left may hold up."""
        if not self._gathered:
            self.timed_out = True
            await end(self._service, self._handle, self._mark)
            return
        with anyio.move_on_after(_ALONE):
            await self._ended.wait()
        if not self._ended.is_set():
            await plain(self._service, self._handle, f": >{scripts.OWN}/{self._mark}.done")

    async def end(self) -> None:
        """End it with all it started, even when this task is cancelled."""
        with anyio.move_on_after(_ENDING, shield=True):
            await end(self._service, self._handle, self._mark)


async def _feed(service: Service, running: Running, data: bytes) -> None:
    with contextlib.suppress(SandboxError):  # it does not read; that is its own affair
        await service.call(lambda: running.feed(data), abandon=True)


def _line(argv: Sequence[str]) -> str:
    return " ".join(shlex.quote(a) for a in argv)


async def plain(service: Service, handle: str, command: str, stdin: bytes = b"") -> bytes:
    """Run something of ours to its end, and return what it printed.

    Raises:
        SandboxError: it failed.
    """
    status, out, err = await status_of(service, handle, command, stdin)
    if status != 0:
        raise SandboxError(f"the sandbox cannot do it: {err.decode(errors='replace').strip() or status}")
    return out


async def status_of(
    service: Service, handle: str, command: str, stdin: bytes
) -> tuple[int | None, bytes, bytes]:
    """Run something of ours to its end: its status, and what it printed."""

    def work() -> tuple[int | None, bytes, bytes]:
        running = Running(service, handle)
        running.start(command, _PLAIN)
        running.feed(stdin)
        status = running.wait()
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        while (piece := running.next()) is not None:
            parts[piece[0]].append(piece[1])
        return status, b"".join(parts[0]), b"".join(parts[1])

    return await service.call(work)


async def end(service: Service, handle: str, mark: str) -> None:
    """End a command and all that it started."""
    with contextlib.suppress(SandboxError):  # it is not running any more
        await plain(service, handle, _line(["sh", "-c", scripts.END, "sh", mark]))
