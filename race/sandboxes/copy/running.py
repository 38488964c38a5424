"""A command of a sandbox, seen from the orchestrator: its runner, its pipes, its bounded output, its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from race.errors import MachineError, SandboxError
from race.sandbox import ExecResult, Usage
from race.sandboxes.copy import descendants
from race.sandboxes.local.output import Output

_BOOT = Path(__file__).parent.parent / "local" / "boot.py"
_PIECE = 1 << 16
_ENDING = 10.0
"""Seconds to wait for a cancelled command to be gone."""
_CONTROL = 3


class Running:
    """A command whose runner has been started.

    Args:
        streams: that the command reads and writes, as 0, 1 and 2; they are closed here.
        drains: the other ends of what it writes to, for the runner.
    """

    def __init__(self, streams: list[int], drains: list[int]) -> None:
        self._socket, theirs = socket.socketpair()
        self._held = b""
        self._ended = True  # until it has been told what to run
        placed = [*streams, theirs.fileno(), *drains]
        # Out of the way of the places that they are to take.
        spare = [fcntl.fcntl(d, fcntl.F_DUPFD, 64) for d in placed]
        command = [sys.executable, "-I", "-S", "-X", "utf8", str(_BOOT), "copy.runner", str(_CONTROL)]
        actions: list[tuple[int, int] | tuple[int, int, int]] = [
            *((os.POSIX_SPAWN_DUP2, d, place) for place, d in enumerate(spare)),
            *((os.POSIX_SPAWN_CLOSE, d) for d in spare),
        ]
        try:
            environment = {"LC_ALL": "C.UTF-8", "PATH": os.defpath}
            self._pid = os.posix_spawn(sys.executable, command, environment, file_actions=actions)
        except OSError as e:
            self._socket.close()
            raise MachineError(
                f"Python, as {sys.executable!r}, cannot be started to run a command: {e}"
            ) from e
        finally:
            theirs.close()
            for descriptor in (*spare, *streams):
                os.close(descriptor)
        self._socket.setblocking(False)  # noqa: FBT003 - the library's signature

    async def begin(self, asked: Mapping[str, object]) -> None:
        """Say what is to be run, and wait until the runner can be found by others.

        Raises:
            SandboxError: the runner is gone.
        """
        self._ended = False
        left = memoryview(json.dumps(asked).encode() + b"\n")
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError:
                break
        await self.answer()
        self._reap()

    async def answer(self) -> Any:
        """The runner's next message.

        Raises:
            SandboxError: the command could not be started, or the runner was ended with its sandbox.
        """
        while b"\n" not in self._held:
            await anyio.wait_readable(self._socket)
            try:
                piece = self._socket.recv(_PIECE)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                piece = b""
            if not piece:
                self._ended = True
                raise SandboxError("the command was ended with its sandbox")
            self._held += piece
        line, _, self._held = self._held.partition(b"\n")
        message = json.loads(line)
        if "error" in message:
            self._ended = True
            raise SandboxError(message["error"])
        self._ended = "status" in message
        return message

    async def end(self) -> None:
        """End the command with all it started, and wait until it is gone, even when this task is cancelled."""
        if not self._ended:
            with contextlib.suppress(SandboxError, OSError), anyio.move_on_after(_ENDING, shield=True):
                self._socket.send(b"end")
                while not self._ended:
                    await self.answer()

    def close(self) -> None:
        """What the command left goes on without us."""
        self._socket.close()
        self._reap()

    def _reap(self) -> None:
        """What was started has forked and ended by now, or is about to."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


class Command:
    """One call of `Sandbox.exec`.

    Args:
        merged: whether standard error goes to standard output.
        stdin: what the command reads.
        limit: bytes kept of each stream.
    """

    def __init__(self, *, merged: bool, stdin: bytes | None, limit: int) -> None:
        self._began = time.monotonic()
        self._readers: dict[int, Output] = {}
        writers: list[int] = []
        drains: list[int] = []
        for _ in range(1 if merged else 2):
            reader, writer = os.pipe()
            self._readers[reader] = Output(limit)
            writers.append(writer)
            drains.append(os.dup(reader))
            os.set_blocking(reader, False)
        self._outputs = list(self._readers.values())
        self._to_write = memoryview(stdin or b"")
        self._input = -1
        if stdin is None:
            source = os.open(os.devnull, os.O_RDONLY)
        else:
            source, self._input = os.pipe()
            os.set_blocking(self._input, False)
        second = os.dup(writers[0]) if merged else writers[1]
        try:
            self.running = Running([source, writers[0], second], drains)
        finally:
            for drain in drains:
                os.close(drain)

    async def result(self) -> ExecResult:
        """Wait for the command and gather what it prints."""
        ended: dict[str, Any] = {}
        try:
            async with anyio.create_task_group() as group:
                if self._input >= 0:
                    group.start_soon(self._feed)
                for reader in self._readers:
                    group.start_soon(self._gather, reader)
                ended = await self.running.answer()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as e:
            raise e.exceptions[0] from None
        for reader, kept in self._readers.items():
            self._rest(reader, kept)
        empty = Output(0)
        stdout, stderr = (*self._outputs, empty)[:2]
        return ExecResult(
            exit_code=None if ended["timed_out"] else os.waitstatus_to_exitcode(ended["status"]),
            stdout=stdout.kept(),
            stderr=stderr.kept(),
            stdout_bytes=stdout.total,
            stderr_bytes=stderr.total,
            timed_out=ended["timed_out"],
            seconds=time.monotonic() - self._began,
            usage=Usage(ended["cpu"], ended["wait"], ended["max_rss"]),
        )

    async def _feed(self) -> None:
        while self._to_write:
            try:
                self._to_write = self._to_write[os.write(self._input, self._to_write) :]
            except BlockingIOError:
                await anyio.wait_writable(self._input)
            except BrokenPipeError:
                break  # it does not read; that is its own affair
        os.close(self._input)
        self._input = -1

    async def _gather(self, reader: int) -> None:
        while True:
            await anyio.wait_readable(reader)
            try:
                data = os.read(reader, _PIECE)
            except BlockingIOError:
                continue
            if not data:
                return
            self._readers[reader].add(data)

    def _rest(self, reader: int, kept: Output) -> None:
        """What is left in a pipe, but nothing that background processes print from now on."""
        left = 1 << 20
        with contextlib.suppress(BlockingIOError):
            while left > 0 and (data := os.read(reader, min(left, _PIECE))):
                kept.add(data)
                left -= len(data)

    def close(self) -> None:
        """Close what is open."""
        self.running.close()
        for descriptor in (*self._readers, *([self._input] if self._input >= 0 else [])):
            os.close(descriptor)


async def stop(runners: Path) -> None:
    """End all commands of a sandbox, with all that they left."""
    await anyio.to_thread.run_sync(_stop, runners)


def living(runners: Path) -> set[int]:
    """The runners that are alive: those who hold the lock of their file. What others left is removed."""
    found: set[int] = set()
    for path in runners.glob("*"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.add(int(path.name))
            else:
                path.unlink(missing_ok=True)
    return found


def _stop(runners: Path) -> None:
    last = time.monotonic() + _ENDING
    while (pids := living(runners)) and time.monotonic() < last:
        descendants.tell(pids, signal.SIGSTOP)  # else it would report its command's death as an ordinary one
        descendants.end(pids)
        descendants.tell(pids, signal.SIGKILL)
        time.sleep(0.001)
    if pids:
        raise SandboxError(f"the processes {sorted(pids)} were killed but do not end")
