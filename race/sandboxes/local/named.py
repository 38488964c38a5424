"""The named processes of a sandbox, kept by its PID 1, which go on when whoever asked for them has gone.

Each is run like any other command, by a connection whose other end PID 1 holds itself. What it writes goes into a
file that has no name: it was opened outside, so that nothing inside can reach it, and ends with PID 1.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from race.sandboxes.local import processes, wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandboxes.local.jobs import Connection
    from race.sandboxes.local.messages import ProcessState

KEPT = 8 << 20
"""Bytes of a named process's output that are kept: the last ones."""

_MOST = 1000
_READ = 1 << 18
_ROUNDS_OF_SIGNALS = 8


class Ring:
    """The last bytes of a stream, in a file that grows no larger.

    Args:
        file: a descriptor, open for reading and writing; becomes this object's.
        size: bytes to keep.
    """

    def __init__(self, file: int, size: int = KEPT) -> None:
        self._file = file
        self._size = size
        self._unwritten = 0
        self.total = 0
        """How many bytes there were."""

    @property
    def lost(self) -> int:
        """How many of the first bytes are kept no more."""
        return max(self.total - self._size, self._unwritten, 0)

    def add(self, data: bytes) -> None:
        """Take in the next bytes."""
        end = self.total + len(data)
        for start in range(0, len(data), self._size):
            part = memoryview(data)[start : start + self._size]
            place = (self.total + start) % self._size
            here = part[: self._size - place]
            try:
                os.pwrite(self._file, here, place)
                os.pwrite(self._file, part[len(here) :], 0)
            except OSError:
                self._unwritten = end  # the disk is full
        self.total = end

    def read(self, position: int, limit: int) -> bytes:
        """Bytes from a position that is not lost on."""
        end = min(self.total, position + max(limit, 0))
        parts: list[bytes] = []
        while position < end:
            place = position % self._size
            part = os.pread(self._file, min(end - position, self._size - place), place)
            if not part:
                break
            parts.append(part)
            position += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Forget it all."""
        os.close(self._file)


class _Named:
    """One named process.

    Attributes:
        asked: waits to be told whether it could be started, until it has been.
        waiting: wait for its end.
    """

    def __init__(self, name: str, command: list[str], ring: Ring) -> None:
        self.name = name
        self.command = command
        self.ring = ring
        self.started = time.time()
        self.status: int | None = None
        self.output = -1
        self.input = -1
        self.link: socket.socket | None = None
        self.inner: Connection | None = None
        self.asked: Connection | None = None
        self.waiting: list[Connection] = []

    def state(self) -> ProcessState:
        return {
            "name": self.name,
            "command": self.command,
            "running": self.link is not None,
            "status": self.status,
            "started": self.started,
            "output_bytes": self.ring.total,
            "lost_bytes": self.ring.lost,
        }


class NamedProcesses:
    """All of a sandbox.

    Args:
        epoll: of PID 1's loop.
        answer: sends a message, with descriptors, to a connection.
        adopt: makes a socket a connection like those of the orchestrator.
        begin: starts a command for a connection.
        end: ends the command of a connection, and all it started.
    """

    def __init__(
        self,
        epoll: select.epoll,
        answer: Callable[[Connection, Any, list[int]], None],
        adopt: Callable[[socket.socket], Connection],
        begin: Callable[[Connection, Any, list[int]], None],
        end: Callable[[Connection], None],
    ) -> None:
        self._epoll = epoll
        self._answer = answer
        self._adopt = adopt
        self._begin = begin
        self._end = end
        self._all: dict[str, _Named] = {}
        self._watched: dict[int, Callable[[], None]] = {}

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._watched

    def ready(self, descriptor: int) -> None:
        """Something is there to be read from a descriptor of theirs."""
        self._watched[descriptor]()

    @property
    def running(self) -> bool:
        """Whether any runs."""
        return any(each.link is not None for each in self._all.values())

    def serve(self, connection: Connection, message: Any, descriptors: list[int]) -> None:
        """Do what was asked, and answer."""
        if message["do"] == "spawn":
            self._spawn(connection, message, descriptors)
            return
        if message["do"] == "processes":
            self._answer(connection, {"processes": [each.state() for each in self._all.values()]}, [])
            return
        process = self._all.get(message["name"])
        if process is None:
            known = ", ".join(repr(each) for each in self._all) or "none"
            text = f"there is no named process {message['name']!r}; there are: {known}"
            self._answer(connection, {"error": text}, [])
            return
        match message["do"]:
            case "output":
                self._give_output(connection, process, message["position"], message["limit"])
            case "input":
                self._give_input(connection, process, end=message["end"])
            case "wait" if process.link is not None:
                process.waiting = [each for each in process.waiting if each.socket.fileno() >= 0]
                process.waiting.append(connection)
            case "signal":
                self._signal(process, message["number"])
                self._answer(connection, {"process": process.state()}, [])
            case _:
                self._answer(connection, {"process": process.state()}, [])

    # Life

    def _spawn(self, connection: Connection, message: Any, descriptors: list[int]) -> None:
        name = message["name"]
        ring = Ring(descriptors[0])
        before = self._all.get(name)
        refusal = None
        if before is not None and before.link is not None:
            refusal = f"a process named {name!r} runs already"
        elif before is None and len(self._all) >= _MOST:
            refusal = f"it has {_MOST} named processes, which is the limit until it is stopped"
        if refusal is not None:
            ring.close()
            self._answer(connection, {"error": refusal}, [])
            return
        if before is not None:
            self._forget(before)
        process = _Named(name, message["command"], ring)
        process.asked = connection
        self._all[name] = process
        try:
            self._start(process, message)
        except OSError as error:
            self._forget(process)
            self._answer(connection, {"error": f"a process cannot be started: {error.strerror}"}, [])

    def _start(self, process: _Named, message: Any) -> None:
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process.output, output = os.pipe2(os.O_CLOEXEC)
        source, process.input = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(process.output, False)
        os.set_blocking(process.input, False)
        for each in (output, source):
            os.fchmod(each, 0o666)  # or other users inside could not open /dev/stdout
        process.link = link
        self._watch(link.fileno(), lambda: self._hear(process, link))
        self._watch(process.output, lambda: self._drain(process))
        process.inner = self._adopt(theirs)
        self._begin(process.inner, message["exec"], [output, source])

    def _watch(self, descriptor: int, work: Callable[[], None]) -> None:
        self._watched[descriptor] = work
        self._epoll.register(descriptor, select.EPOLLIN)

    def _unwatch(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        del self._watched[descriptor]

    def _hear(self, process: _Named, link: socket.socket) -> None:
        """The command has started, could not be, or has ended."""
        try:
            received = wire.receive(link, wait=False)
        except BlockingIOError:
            return
        message: Any = received[0] if received is not None else {"error": "its connection broke"}
        asked, process.asked = process.asked, None
        if "done" in message:
            if asked is not None:
                self._answer(asked, {"process": process.state()}, [])
            return
        if "error" in message and asked is not None:
            self._close(process, link)
            self._forget(process)
            self._answer(asked, message, [])
            return
        self._drain(process)
        process.status = message.get("status", signal.SIGKILL)
        self._close(process, link)
        for each in ([asked] if asked is not None else []) + process.waiting:
            self._answer(each, {"process": process.state()}, [])
        process.waiting = []

    def _close(self, process: _Named, link: socket.socket) -> None:
        """Keep of it only what it wrote and how it ended."""
        with contextlib.suppress(OSError):
            wire.send(link, {"do": "done"})  # what it left running goes on
        self._unwatch(link.fileno())
        link.close()
        process.link = process.inner = None
        self._close_input(process)

    def _close_input(self, process: _Named) -> None:
        if process.input >= 0:
            os.close(process.input)
            process.input = -1

    def _forget(self, process: _Named) -> None:
        del self._all[process.name]
        self._close_output(process)
        if process.link is not None:
            self._close(process, process.link)
        self._close_input(process)
        process.ring.close()

    # Input, output, signals

    def _drain(self, process: _Named) -> None:
        """Keep what it has written so far: what is in the pipe, but nothing that is written meanwhile."""
        if process.output < 0:
            return
        left = fcntl.fcntl(process.output, fcntl.F_GETPIPE_SZ)
        with contextlib.suppress(BlockingIOError):
            while left > 0:
                data = os.read(process.output, min(left, _READ))
                if not data:
                    self._close_output(process)
                    return
                process.ring.add(data)
                left -= len(data)

    def _close_output(self, process: _Named) -> None:
        if process.output >= 0:
            self._unwatch(process.output)
            os.close(process.output)
            process.output = -1

    def _give_output(self, connection: Connection, process: _Named, position: int, limit: int) -> None:
        self._drain(process)
        if position < process.ring.lost:
            text = f"the output of {process.name!r} is kept from byte {process.ring.lost} on, not from {position}"
            self._answer(connection, {"error": text}, [])
            return
        held = os.memfd_create("output", os.MFD_CLOEXEC)
        try:
            data = memoryview(process.ring.read(position, limit))
            while data:
                data = data[os.write(held, data) :]
            self._answer(connection, {"process": process.state()}, [held])
        finally:
            os.close(held)

    def _give_input(self, connection: Connection, process: _Named, *, end: bool) -> None:
        if process.input < 0:
            what = "has ended" if process.link is None else "has its input closed"
            self._answer(connection, {"error": f"the process {process.name!r} {what}"}, [])
            return
        self._answer(connection, {"process": process.state()}, [] if end else [process.input])
        if end:
            self._close_input(process)

    def _signal(self, process: _Named, number: int) -> None:
        """Signal the command and all it started; new ones too, as long as new ones come."""
        job = process.inner.job if process.inner is not None else None
        if job is None or not job.pid or process.inner is None:
            return
        if number == signal.SIGKILL:
            self._end(process.inner)
            return
        told: set[int] = set()
        for _ in range(_ROUNDS_OF_SIGNALS):
            new = processes.descendants(job.pid) - told
            if not new:
                return
            for pid in new:
                processes.tell(pid, number)
            told |= new
