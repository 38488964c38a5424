"""Runs a command in a sandbox, seen from the orchestrator: its pipes, its bounded output, its end."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from typing import TYPE_CHECKING

import anyio

from race.errors import SandboxError
from race.sandbox import ExecResult, Usage
from race.sandboxes.local import talk, wire
from race.sandboxes.local.output import Output

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from race.sandboxes.local.messages import Ended, ExecRequest

_READ = 1 << 16
_READS_IN_A_ROW = 16
"""Reads of one pipe before other tasks get their turn."""
_MOST_CELLS = 65535
_ENDING = 5.0
"""Seconds to wait for a cancelled command to be gone."""


def request(
    command: str | Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    timeout: float | None,
    merged: bool,
    has_input: bool,
    terminal: list[int] | None = None,
    named: bool = False,
) -> ExecRequest:
    """What PID 1 is asked for.

    Raises:
        SandboxError: no program could be given this.
    """
    script = command if isinstance(command, str) else None
    argv = None if isinstance(command, str) else list(command)
    texts = [cwd, *env, *env.values(), *(argv if argv is not None else [script or ""])]
    for text in texts:
        if "\0" in text:
            raise SandboxError(
                f"a command, its working directory and environment hold no NUL byte: {text!r:.200}"
            )
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise SandboxError(f"this text cannot be turned into bytes: {text!r:.200}") from None
    if argv is not None and not (argv and argv[0]):
        raise SandboxError("the command is empty")
    if timeout is not None and not math.isfinite(timeout):
        raise SandboxError(f"a time-out is a number of seconds, or None for no limit; not {timeout}")
    if terminal is not None and not all(0 <= each <= _MOST_CELLS for each in terminal):
        raise SandboxError(
            f"a terminal has up to {_MOST_CELLS} rows and columns, not {terminal[0]} and {terminal[1]}"
        )
    for key in env:
        if not key or "=" in key:
            raise SandboxError(f"{key!r} cannot be the name of an environment variable")
    return {
        "do": "exec",
        "argv": argv,
        "script": script,
        "cwd": cwd or "/",
        "env": dict(env),
        "timeout": timeout,
        "merged": merged,
        "has_input": has_input,
        "terminal": terminal,
        "named": named,
    }


async def run(
    folder: Path, name: str, asked: ExecRequest, stdin: bytes | None, output_limit: int
) -> ExecResult:
    """Run a command to its end.

    Args:
        folder: the sandbox's own.
        name: of the sandbox, for errors.
        asked: from `request`.
        stdin: what the command reads.
        output_limit: bytes kept of each stream.

    Raises:
        SandboxError: the sandbox is gone, or could not start the command.
    """
    async with talk.connected(folder, name) as connection:
        running = _Running(connection, name, asked, stdin, output_limit)
        try:
            return await running.result()
        except BaseException:
            await running.end()
            raise
        finally:
            running.close()


class _Running:
    """One command that has been asked for.

    The descriptors are plain numbers: each is either in ``_outputs`` or ``_input``, and closed by `close`.
    """

    def __init__(
        self, connection: socket.socket, name: str, asked: ExecRequest, stdin: bytes | None, limit: int
    ) -> None:
        self._connection = connection
        self._name = name
        self._started = time.monotonic()
        self._outputs: dict[int, Output] = {}
        self._kept: list[Output] = []
        self._open: set[int] = set()
        self._input = -1
        self._to_write = memoryview(stdin or b"")
        self._ended = False
        writers: list[int] = []
        try:
            for _ in range(1 if asked["merged"] else 2):
                reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                writers.append(writer)
                os.set_blocking(writer, True)
                # Its owner is nobody inside; without this, nobody there could open /dev/stdout.
                os.fchmod(writer, 0o666)
                output = Output(limit)
                self._kept.append(output)
                self._outputs[reader] = output
            self._open = set(self._outputs)
            given = [*writers, *self._outputs]
            if stdin is not None:
                source, self._input = os.pipe2(os.O_CLOEXEC)
                writers.append(source)
                given.append(source)
                os.set_blocking(self._input, False)
                os.fchmod(source, 0o666)
            talk.tell(connection, name, asked, given)
        except BaseException:
            self.close()
            raise
        finally:
            for each in writers:
                os.close(each)

    def close(self) -> None:
        """Close what is open. Safe to repeat."""
        for each in self._outputs:
            os.close(each)
        self._outputs = {}
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    async def result(self) -> ExecResult:
        """Wait for the command and gather what it prints."""
        self._feed()
        with talk.Watch() as watch:
            watch.add(self._connection.fileno())
            for each in self._outputs:
                watch.add(each)
            if self._input >= 0:
                watch.add(self._input, writable=True)
            while True:
                ready = await watch.ready()
                for reader in ready & self._open:
                    if not self._read(reader):
                        watch.remove(reader)
                        self._open.discard(reader)
                if self._input in ready:
                    self._feed(watch)
                if self._connection.fileno() in ready:
                    ended = await self._take_answer()
                    break
        return self._finish(ended)

    def _feed(self, watch: talk.Watch | None = None) -> None:
        """Give the command more of its input; close it when there is no more."""
        if self._input < 0:
            return
        try:
            while self._to_write:
                self._to_write = self._to_write[os.write(self._input, self._to_write) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass  # it does not read; that is its own affair
        if watch is not None:
            watch.remove(self._input)
        os.close(self._input)
        self._input = -1

    def _read(self, reader: int) -> bool:
        """Read a good deal of what is there; false at the end of the stream."""
        for _ in range(_READS_IN_A_ROW):
            try:
                data = os.read(reader, _READ)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._outputs[reader].add(data)
        return True

    async def _take_answer(self) -> Ended:
        try:
            message, _ = await talk.answer(self._connection, self._name)
        except SandboxError:
            self._ended = True
            raise
        self._ended = True
        ended: Ended = message
        return ended

    def _finish(self, ended: Ended) -> ExecResult:
        """Take what is left in the pipes, but nothing that background processes print from now on."""
        for reader in self._open:
            left = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
            with contextlib.suppress(BlockingIOError):
                while left > 0 and (data := os.read(reader, min(left, _READ))):
                    self._outputs[reader].add(data)
                    left -= len(data)
        with contextlib.suppress(OSError):
            wire.send(self._connection, {"do": "done"})
        stdout = self._kept[0]
        stderr = self._kept[1] if len(self._kept) > 1 else Output(0)
        return ExecResult(
            exit_code=None if ended["timed_out"] else os.waitstatus_to_exitcode(ended["status"]),
            stdout=stdout.kept(),
            stderr=stderr.kept(),
            stdout_bytes=stdout.total,
            stderr_bytes=stderr.total,
            timed_out=ended["timed_out"],
            seconds=time.monotonic() - self._started,
            usage=Usage(ended["cpu"], ended["wait"], ended["max_rss"]),
        )

    async def end(self) -> None:
        """End the command and all it started, and wait until it is gone, even when this task is cancelled."""
        if self._ended:
            return
        with contextlib.suppress(SandboxError, OSError), anyio.move_on_after(_ENDING, shield=True):
            talk.tell(self._connection, self._name, {"do": "end"})
            await talk.answer(self._connection, self._name)
