"""The orchestrator's end of the zygote: starts it when it is first needed and asks it for sandboxes."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from race.errors import MachineError
from race.sandboxes.local import diagnosis, wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from race.sandboxes.local.messages import SpawnRequest

_BOOT = Path(__file__).with_name("boot.py")


class Helper:
    """A helper process with few imports, and the socket to it. It ends when the socket closes.

    Args:
        module: of this package, whose ``main`` it runs.
        arguments: for it.

    Raises:
        MachineError: it cannot be started.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.owner = os.getpid()
        with theirs:
            null = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3),
            ]
            command = [
                sys.executable,
                "-I",
                "-S",
                "-X",
                "utf8",
                str(_BOOT),
                f"local.{module}",
                "3",
                *arguments,
            ]
            try:
                self.pid = os.posix_spawn(
                    sys.executable,
                    command,
                    {"LC_ALL": "C.UTF-8", "PATH": os.defpath},
                    file_actions=null,
                    setsid=True,  # what is typed at the terminal is not for it
                )
            except (OSError, ValueError) as error:
                self.socket.close()
                raise MachineError(
                    f"Python, as {sys.executable!r}, cannot be started for a helper process: {error}"
                ) from error

    def close(self) -> None:
        """Let it end, and wait for that."""
        self.socket.close()
        if self.owner == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


class Spawner:
    """Brings sandboxes to life.

    Args:
        home: the provider's folder.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._zygote: Helper | None = None
        self._starting = threading.Lock()

    @contextlib.asynccontextmanager
    async def spawn(self, request: SpawnRequest) -> AsyncGenerator[int]:
        """Make a sandbox and give the process number of its PID 1.

        It stays only if the block ends without an error: until then it dies with this process.

        Raises:
            MachineError: this machine cannot; the text says what is missing.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                self._ask(request, theirs)
            ours.setblocking(False)  # noqa: FBT003 - the library's signature
            yield await _born(ours, self._home)
            wire.send(ours, {"done": True})

    def _ask(self, request: SpawnRequest, answers: socket.socket) -> None:
        with self._starting:
            if self._zygote is None or self._zygote.owner != os.getpid():
                self._zygote = Helper("zygote", str(self._home))
            try:
                wire.send(self._zygote.socket, request, [answers.fileno()])
            except OSError:
                self._zygote.close()  # it was killed; another one will do
                self._zygote = Helper("zygote", str(self._home))
                wire.send(self._zygote.socket, request, [answers.fileno()])

    def close(self) -> None:
        """End the zygote. Sandboxes go on."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


async def _born(answers: socket.socket, home: Path) -> int:
    """Wait until the zygote's side has told the process number and PID 1 that it is ready."""
    pid, ready = 0, False
    while not (pid and ready):
        await anyio.wait_readable(answers)
        received = wire.receive(answers)
        if received is None:
            raise MachineError("a sandbox ended while it was being made, without a word: memory may be short")
        message, _ = received
        if "error" in message:
            raise MachineError(diagnosis.explain(message["error"], message.get("call", ""), home))
        pid = message.get("pid", pid)
        ready = ready or "done" in message
    return pid
