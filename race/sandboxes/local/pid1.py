"""PID 1 of a sandbox: a small server on a socket that only its owner can reach.

It outlives the orchestrator. It starts commands and file transfers, ends those whose time is up or whose
orchestrator is gone, empties pipes that nobody reads any more, reaps orphans, and stops and continues
everything. It never opens or loads a file of the sandbox itself: what works on files is a forked child.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from race.sandboxes.local import processes, wire, worker
from race.sandboxes.local.inner_ports import InnerPorts
from race.sandboxes.local.jobs import Connection, Drains, Job
from race.sandboxes.local.named import NamedProcesses
from race.sandboxes.local.standby import Standby

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from race.sandboxes.local.guard import Guard
    from race.sandboxes.local.lifetimes import Lifetime
    from race.sandboxes.local.messages import Ended, WorkRequest
    from race.sandboxes.local.shim import Bounds

_REAPING = 2.0
"""Seconds to wait for what was killed to be gone before answering anyway."""
_REAPING_CHECK = 0.003
_OUT_OF_DESCRIPTORS_PAUSE = 0.01


class Server:
    """The event loop of PID 1.

    Args:
        listener: where the orchestrator connects.
        bounds: for commands; PID 1's own are wider, so that it can act against a fork bomb.
        lifetime: at whose end it ends itself, and everything with it.
        guard: watches what is used.
    """

    def __init__(self, listener: socket.socket, bounds: Bounds, lifetime: Lifetime, guard: Guard) -> None:
        self._listener = listener
        self._bounds = bounds
        self._lifetime = lifetime
        self._guard = guard
        self._connections: dict[int, Connection] = {}
        self._waiting: list[Callable[[], None]] = []
        self._stopped_before: set[int] | None = None
        self._frozen = False
        self._ports = InnerPorts()
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        self._epoll = select.epoll()
        self._drains = Drains(self._epoll)
        # What is watched counts whatever runs, which is to belong to the sandbox then.
        self._standby = Standby(is_wanted=not guard.watches)
        self._named = NamedProcesses(self._epoll, self._answer, self._adopt, self._begin, self._end)
        for descriptor in (listener.fileno(), self._wake):
            self._epoll.register(descriptor, select.EPOLLIN)

    def run(self) -> None:
        """Serve until the lifetime is over."""
        # Nothing may be imported any more: the file system now belongs to the sandbox.
        for each in (sys.path, sys.meta_path, sys.path_hooks):
            each.clear()
        while True:
            in_use = self._in_use()
            for descriptor, _ in self._epoll.poll(self._patience()):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif descriptor == self._standby.talk:
                    self._standby.listen()
                elif descriptor in self._drains:
                    self._drains.empty(descriptor)
                elif descriptor in self._named:
                    self._named.ready(descriptor)
                elif descriptor in self._connections:
                    self._serve(self._connections[descriptor])
            self._guard.look()
            self._reap()
            self._keep_time()
            self._keep_standby()
            if self._lifetime.left(in_use=in_use or self._in_use()) == 0:
                return

    def _in_use(self) -> bool:
        """Whether somebody has asked for anything; a connection is one request."""
        return bool(self._connections)

    def _patience(self) -> float | None:
        now = time.monotonic()
        waits = [
            _REAPING_CHECK if job.dying else max(0.0, (job.deadline or now) - now)
            for job in self._jobs()
            if job.dying or job.deadline is not None
        ]
        others = [self._lifetime.patience(), self._guard.patience()]
        if not self._is_pressed():
            others.append(self._standby.patience(busy=self._is_busy()))
        waits += [each for each in others if each is not None]
        return min(waits, default=None)

    def _jobs(self) -> list[Job]:
        return [each.job for each in self._connections.values() if each.job is not None]

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            time.sleep(_OUT_OF_DESCRIPTORS_PAUSE)
            return
        connection = self._adopt(accepted)
        self._serve(connection)  # what it asks for mostly comes with it

    def _adopt(self, accepted: socket.socket) -> Connection:
        connection = Connection(accepted)
        self._connections[accepted.fileno()] = connection
        self._epoll.register(accepted.fileno(), select.EPOLLIN)
        return connection

    def _serve(self, connection: Connection) -> None:
        try:
            received = wire.receive(connection.socket, wait=False)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            received = None
        if received is None:
            self._closed(connection)
            return
        message, descriptors = received
        match message["do"]:
            case "exec" | "put" | "take":
                self._begin(connection, message, descriptors)
            case "end":
                self._end(connection)
            case "done":
                self._drains.take_over(connection.job)
                connection.job = None
                self._standby.rest()
            case "freeze" | "hold" | "thaw":
                self._freeze_or_thaw(connection, message["do"])
                self._answer(connection, {"done": True})
            case "listen" | "unlisten" | "connect":
                self._make_socket(connection, message)
            case "ended":
                self._answer(connection, {"ended": self._guard.ended})
            case "signal":
                self._signal(connection, message)
            case "spawn" | "process" | "processes" | "output" | "input" | "wait":
                self._named.serve(connection, message, descriptors)
            case unknown:
                self._answer(connection, {"error": f"the sandbox does not know how to {unknown!r}"})

    def _answer(self, connection: Connection, message: Any, descriptors: list[int] | None = None) -> None:
        with contextlib.suppress(OSError):  # the orchestrator is gone; its connection will say so
            wire.send(connection.socket, message, descriptors)

    # Commands and transfers

    def _begin(self, connection: Connection, message: Any, descriptors: list[int]) -> None:
        if self._frozen:
            _close(descriptors)
            self._answer(connection, {"error": "the sandbox is frozen"})
            return
        if self._stopped_before is not None:  # held for a moment, while its files are copied
            connection.job = Job([], None)
            self._waiting.append(lambda: self._start(connection, message, descriptors))
            return
        self._start(connection, message, descriptors)

    def _start(self, connection: Connection, message: Any, descriptors: list[int]) -> None:
        if connection.socket.fileno() < 0:  # it was closed while it waited
            _close(descriptors)
            return
        readers: list[int] = []
        deadline = None
        if message["do"] == "exec":
            outputs = 1 if message["merged"] else 2
            readers = [] if message["named"] else descriptors[outputs : 2 * outputs]
            if message["timeout"] is not None:
                deadline = time.monotonic() + message["timeout"]
        job = Job(readers, deadline)
        job.survives = message["do"] != "exec"
        asked: WorkRequest = {
            "request": message,
            "processes": self._bounds.processes,
            "files": self._bounds.files,
            "file_size": self._guard.file_size,
            "is_full": self._guard.disk_is_full,
        }
        given = [connection.socket.fileno(), self._null, *descriptors]
        self._standby.expect()
        job.pid = self._standby.give(asked, given)
        if not job.pid:
            try:
                job.pid = os.fork()
            except OSError as error:
                _close(descriptors)
                connection.job = None
                self._answer(connection, {"error": f"the sandbox cannot start a process: {error.strerror}"})
                return
            if job.pid == 0:
                try:
                    signal.set_wakeup_fd(-1)
                    worker.get_ready()
                    worker.work(asked, given)
                finally:
                    os._exit(worker.BROKEN)
        connection.job = job
        _close([each for each in descriptors if each not in readers])

    def _is_pressed(self) -> bool:
        """Whether there is something more urgent than to get ready for the next request."""
        return self._stopped_before is not None or any(job.dying is not None for job in self._jobs())

    def _is_busy(self) -> bool:
        """Whether anything is being done for the orchestrator."""
        return any(job.pid for job in self._jobs())

    def _keep_standby(self) -> None:
        if not self._is_pressed():
            before = self._standby.talk
            self._standby.keep(busy=self._is_busy())
            if self._standby.talk not in {before, -1}:
                self._epoll.register(self._standby.talk, select.EPOLLIN)

    def _signal(self, connection: Connection, message: Any) -> None:
        """Signal a named process, but wake none that is to stand still."""
        if message["number"] == signal.SIGKILL or self._stopped_before is None:
            self._named.serve(connection, message, [])
        elif self._frozen:
            self._answer(connection, {"error": "the sandbox is frozen"})
        else:
            self._waiting.append(lambda: self._named.serve(connection, message, []))

    def _end(self, connection: Connection, *, timed_out: bool = False) -> None:
        job = connection.job
        if job is None:
            self._answer(connection, {"done": True})
            return
        if job.dying is not None:
            return
        job.timed_out = timed_out
        job.deadline = None
        job.dying = self._end_below(job.pid) if job.pid else set()
        job.reaped_by = time.monotonic() + _REAPING

    def _end_below(self, pid: int) -> set[int]:
        """End a child and all that it started: with all else if there is nothing else, which is so much faster."""
        below = processes.children(os.getpid())
        if below is not None and below - self._standby.processes <= {pid}:
            self._standby.dismiss_all()
            return processes.end_all()
        return processes.end_tree(pid)

    def _keep_time(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            job = connection.job
            if job is None:
                continue
            if job.dying is not None:
                if not any(map(processes.exists, job.dying)) or now >= job.reaped_by:
                    self._report_killed(connection, job)
            elif job.deadline is not None and now >= job.deadline:
                self._end(connection, timed_out=True)

    def _report_killed(self, connection: Connection, job: Job) -> None:
        ended: Ended = {
            "status": signal.SIGKILL,
            "timed_out": job.timed_out,
            "cpu": job.cpu,
            "wait": 0.0,
            "max_rss": job.max_rss,
        }
        self._answer(connection, ended)
        self._drains.take_over(connection.job)
        connection.job = None

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._child_stopped(pid)
                continue
            self._standby.ended(pid)
            for connection in list(self._connections.values()):
                job = connection.job
                if job is None:
                    continue
                if job.dying is not None and pid in job.dying:
                    job.dying.discard(pid)
                    job.cpu += usage.ru_utime + usage.ru_stime
                    job.max_rss = max(job.max_rss, usage.ru_maxrss * 1024)
                elif job.pid == pid:
                    self._child_ended(connection, job, status)

    def _child_stopped(self, pid: int) -> None:
        """Somebody inside stopped a child that works for the orchestrator, which would then wait for ever."""
        if self._stopped_before is None and any(job.pid == pid and job.dying is None for job in self._jobs()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _child_ended(self, connection: Connection, job: Job, status: int) -> None:
        """The child has reported and gone, or was itself killed: then this is all that there is to report."""
        job.pid = 0
        job.deadline = None
        self._standby.rest()
        if os.WIFSIGNALED(status):
            self._standby.dismiss_all()
        if os.WIFSIGNALED(status) and job.survives:
            text = (
                worker.DISK_FULL
                if self._guard.disk_is_full
                else "something inside ended the transfer of files"
            )
            self._answer(connection, {"error": text})
        elif not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) == worker.BROKEN:
            self._answer(connection, {"error": "the process that runs commands in the sandbox broke"})
        elif os.WIFSIGNALED(status):
            ended = {"status": status, "timed_out": False, "cpu": 0.0, "wait": 0.0, "max_rss": 0}
            self._answer(connection, ended)

    def _closed(self, connection: Connection) -> None:
        """The orchestrator is gone, or wants no more: what it had asked for ends."""
        if connection.job is not None and not connection.job.survives:
            self._end(connection)
        self._drains.take_over(connection.job)
        self._epoll.unregister(connection.socket.fileno())
        del self._connections[connection.socket.fileno()]
        connection.socket.close()
        if connection.holding and not self._frozen:
            self._go_on()

    # Freezing

    def _freeze_or_thaw(self, connection: Connection, what: str) -> None:
        if what == "thaw":
            self._frozen = False
            self._go_on()
            return
        connection.holding = what == "hold"
        self._frozen = self._frozen or what == "freeze"
        if self._stopped_before is None:
            self._stopped_before = processes.stop_all()

    def _go_on(self) -> None:
        if self._frozen or any(each.holding for each in self._connections.values()):
            return
        if self._stopped_before is not None:
            processes.continue_all(self._stopped_before)
            self._stopped_before = None
        waiting, self._waiting = self._waiting, []
        for start in waiting:
            start()

    # Sockets for use outside

    def _make_socket(self, connection: Connection, message: Any) -> None:
        answer, made = self._ports.serve(message)
        if made is None:
            self._answer(connection, answer)
            return
        with made:
            self._answer(connection, answer, [made.fileno()])


def _wake_up(_number: int, _frame: object) -> None:
    """Let the signal interrupt the wait; without a handler it would be ignored."""


def _close(descriptors: list[int]) -> None:
    for each in descriptors:
        os.close(each)
