"""PID 1 of a sandbox: a small server on a socket that only its owner can reach.

It outlives the orchestrator. It starts commands and file transfers, ends those whose time is up or whose
orchestrator is gone, empties pipes that nobody reads any more, reaps orphans, and stops and continues
everything. It never opens or loads a file of the sandbox itself: what works on files is a forked child.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from race.sandboxes.local import crowds, processes, wire, worker
from race.sandboxes.local.crowds import Crowd, Crowds
from race.sandboxes.local.inner_ports import InnerPorts
from race.sandboxes.local.jobs import Connection, Drains, Job
from race.sandboxes.local.launch import BROKEN
from race.sandboxes.local.launcher import Launcher
from race.sandboxes.local.named import NamedProcesses

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from race.sandboxes.local.guard import Guard
    from race.sandboxes.local.launch import Bounds, Launch
    from race.sandboxes.local.lifetimes import Lifetime
    from race.sandboxes.local.messages import Ended

_LONGEST_WAIT = 3600.0
"""Seconds; epoll_wait(2) takes no more than some weeks."""
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
        self._lifetime = lifetime
        self._guard = guard
        self._connections: dict[int, Connection] = {}
        self._gone: list[Connection] = []
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
        self._launcher = Launcher(bounds)
        self._crowds = Crowds()
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
                elif descriptor in self._drains:
                    self._drains.empty(descriptor)
                elif descriptor in self._named:
                    self._named.ready(descriptor)
                elif descriptor in self._connections:
                    self._serve(self._connections[descriptor])
            self._guard.look(self._shims)
            self._reap()
            self._keep_time()
            self._launcher.settle()
            if self._lifetime.left(in_use=in_use or self._in_use()) == 0:
                return

    def _in_use(self) -> bool:
        """Whether somebody has asked for anything; a connection is one request."""
        return bool(self._connections)

    def _patience(self) -> float | None:
        now = time.monotonic()
        waits = [
            processes.REAPING_CHECK if job.dying else max(0.0, (job.deadline or now) - now)
            for job in self._jobs()
            if job.dying or job.deadline is not None
        ]
        others = (self._lifetime, self._guard, self._launcher, self._crowds)
        waits += [wait for each in others if (wait := each.patience()) is not None]
        return min(*waits, _LONGEST_WAIT) if waits else None

    def _asked(self) -> list[Connection]:
        """All that something was asked on, also those that were closed before it was done."""
        return [*self._connections.values(), *self._gone]

    def _jobs(self) -> list[Job]:
        return [each.job for each in self._asked() if each.job is not None]

    def _launches(self) -> list[tuple[Connection, Job, Launch]]:
        """The commands that run."""
        jobs = [(each, each.job) for each in self._asked()]
        return [
            (each, job, job.launch)
            for each, job in jobs
            if job is not None and job.launch is not None and job.pid
        ]

    def _shims(self) -> set[int]:
        return {launch.pid for _, _, launch in self._launches()}

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
                self._crowds.heard()
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
        # Held for a moment, while files are copied, or while what was killed takes up all room for processes.
        if not self._frozen and (self._stopped_before is not None or self._crowds.are_there):
            waiting = connection.job = Job([])
            self._waiting.append(lambda: self._start(connection, message, descriptors, waiting))
            return
        self._start(connection, message, descriptors)

    def _start(
        self, connection: Connection, message: Any, descriptors: list[int], waiting: Job | None = None
    ) -> None:
        if connection.job is not waiting:  # it was ended or closed while it waited
            _close(descriptors)
            return
        if self._frozen:
            _close(descriptors)
            connection.job = None
            self._answer(connection, {"error": "the sandbox is frozen"})
            return
        try:
            if message["do"] == "exec":
                job = self._launched(connection, message, descriptors)
            else:
                job = self._moving(connection, message, descriptors)
        except OSError as error:
            connection.job = None
            job = Job([])
            self._answer(connection, {"error": f"the sandbox cannot start a process: {error.strerror}"})
        else:
            connection.job = job
        _close([each for each in descriptors if each not in job.readers])

    def _launched(self, connection: Connection, message: Any, descriptors: list[int]) -> Job:
        outputs = 1 if message["merged"] else 2
        streams = [self._null] * 3
        if descriptors:  # else it has a terminal
            source = descriptors[-1] if message["has_input"] else self._null
            streams = [source, descriptors[0], descriptors[outputs - 1]]
        deadline = None if message["timeout"] is None else time.monotonic() + message["timeout"]
        launch = self._launcher.start(message, connection.socket.fileno(), streams, self._guard.file_size)
        job = Job([] if message["named"] else descriptors[outputs : 2 * outputs], deadline, launch)
        job.pid = launch.pid
        return job

    def _moving(self, connection: Connection, message: Any, descriptors: list[int]) -> Job:
        job = Job([])
        job.survives = True
        if message["do"] == "put" and self._guard.disk_is_full:
            self._answer(connection, {"error": worker.DISK_FULL})
            return job
        self._launcher.be_first_to_go()
        job.pid = os.fork()
        if job.pid == 0:
            worker.work(message, descriptors[0], connection.socket, self._guard.file_size)
        return job

    def _signal(self, connection: Connection, message: Any) -> None:
        """Signal a named process, but wake none that is to stand still."""
        if message["number"] == signal.SIGKILL or self._stopped_before is None:
            self._named.serve(connection, message, [])
        elif self._frozen:
            self._answer(connection, {"error": "the sandbox is frozen"})
        else:
            self._waiting.append(lambda: self._signal(connection, message))

    def _end(self, connection: Connection, *, timed_out: bool = False) -> None:
        job = connection.job
        if job is None:
            self._answer(connection, {"done": True})
            return
        if job.dying is not None:
            return
        job.timed_out = timed_out
        job.deadline = None
        job.reaped_by = time.monotonic() + processes.REAPING
        job.dying = set()
        if job.pid:
            self._end_all_below(connection, job)

    def _end_all_below(self, connection: Connection, job: Job) -> None:
        """End the child of a job and all that it started."""
        now = time.monotonic()
        self._crowds.kill()
        below = processes.children(os.getpid())
        if below is None or (below != {job.pid} and not crowds.may_be_many()):
            job.dying = processes.end_tree(job.pid)
            return
        crowd = Crowd(job.pid)
        if crowd.is_large:
            job.cpu, job.max_rss = crowd.used(now)
            self._report_killed(connection, job, is_gone=False)
            self._crowds.add(crowd)
        else:
            job.dying = crowd.end()

    def _keep_time(self) -> None:
        now = time.monotonic()
        if self._crowds.look():
            self._go_on()
        self._gone = [
            each for each in self._gone if each.job is not None and (each.job.pid or each.job.dying)
        ]
        for connection in self._asked():
            job = connection.job
            if job is None:
                continue
            if job.dying is not None:
                gone = not any(map(processes.exists, job.dying))
                if gone or now >= job.reaped_by:
                    self._report_killed(connection, job, is_gone=gone)
            elif job.deadline is not None and now >= job.deadline:
                self._end(connection, timed_out=True)

    def _report_killed(self, connection: Connection, job: Job, *, is_gone: bool) -> None:
        self._report(connection, job, signal.SIGKILL)
        self._forget(job, is_gone=is_gone)
        self._drains.take_over(connection.job)
        connection.job = None

    def _report(self, connection: Connection, job: Job, status: int) -> None:
        ended: Ended = {
            "status": status,
            "timed_out": job.timed_out,
            "cpu": job.cpu,
            "wait": job.wait,
            "max_rss": job.max_rss,
        }
        self._answer(connection, ended)

    def _reap(self) -> None:
        running = self._launches()
        for _, _, launch in running:
            if launch.is_lost:
                launch.tell()
        commands = {launch.command: job for _, job, launch in running if job.dying is None}
        with contextlib.suppress(ChildProcessError):
            while True:
                # Only what is not reaped yet tells how long it has waited.
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) if commands else None
                if seen is not None and seen.si_pid in commands:
                    commands[seen.si_pid].wait = processes.run_times(seen.si_pid).waited
                pid, status, usage = os.wait4(-1 if seen is None else seen.si_pid, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    return
                if os.WIFSTOPPED(status):
                    self._child_stopped(pid)
                    continue
                if pid in commands:
                    commands[pid].status = status
                    commands[pid].add(usage)
                else:
                    self._child_ended(pid, status, usage)

    def _child_stopped(self, pid: int) -> None:
        """Somebody inside stopped a child that works for the orchestrator, which would then wait for ever."""
        if self._stopped_before is None and any(job.pid == pid and job.dying is None for job in self._jobs()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _child_ended(self, pid: int, status: int, usage: resource.struct_rusage) -> None:
        jobs = [(each, each.job) for each in self._asked()]
        for connection, job in jobs:
            if job is not None and job.pid == pid and job.dying is None:
                job.add(usage)
                job.pid = 0
                job.deadline = None
                if job.launch is None:
                    self._moved(connection, status)
                else:
                    self._command_ended(connection, job, job.launch, status)
                return
        for _, job in jobs:
            if job is not None and job.dying is not None and pid in job.dying:
                job.dying.discard(pid)
                job.add(usage)

    def _moved(self, connection: Connection, status: int) -> None:
        """What moved files has reported, or was itself killed."""
        if os.WIFSIGNALED(status):
            full = self._guard.disk_is_full
            text = worker.DISK_FULL if full else "something inside ended the transfer of files"
            self._answer(connection, {"error": text})
        elif os.WEXITSTATUS(status) == BROKEN:
            self._answer(connection, {"error": "the process that moves files in the sandbox broke"})

    def _command_ended(self, connection: Connection, job: Job, launch: Launch, status: int) -> None:
        """The shim has ended: with its command, or because somebody inside killed it."""
        if os.WIFSIGNALED(status):
            self._report(connection, job, status)
            self._forget(job, is_gone=False)
            return
        if job.status is None:
            job.status = self._status_of_command(job, launch)
        failure = launch.failure
        if os.WEXITSTATUS(status) == BROKEN or job.status >> 8 == BROKEN:
            broken = launch.broken()
            failure = failure if broken is None else {"error": broken}
        if failure is None:
            self._report(connection, job, job.status)
        else:
            self._answer(connection, failure)
        self._forget(job, is_gone=True)

    def _forget(self, job: Job, *, is_gone: bool) -> None:
        if job.launch is not None:
            self._launcher.forget(job.launch, is_gone=is_gone)
            job.launch = None

    def _status_of_command(self, job: Job, launch: Launch) -> int:
        """How a command ended that the shim, which has ended, left to be reaped here."""
        if not launch.command:  # it never came to be
            return launch.status
        job.wait = processes.run_times(launch.command).waited
        with contextlib.suppress(ChildProcessError):
            pid, status, usage = os.wait4(launch.command, os.WNOHANG)
            if pid:
                job.add(usage)
                return status
        return launch.status

    def _closed(self, connection: Connection) -> None:
        """The orchestrator is gone, or wants no more: what it had asked for ends."""
        job = connection.job
        self._drains.take_over(job)
        if job is not None and (job.pid or job.dying is not None):
            if not job.survives:
                self._end(connection)
            self._gone.append(connection)
        else:
            connection.job = None  # it has ended, or waits and is not to begin
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
        self._crowds.kill()
        connection.holding = what == "hold"
        self._frozen = self._frozen or what == "freeze"
        if self._stopped_before is None:
            self._stopped_before = processes.stop_all()
        if self._frozen:
            self._begin_what_waits()  # it is told that it cannot

    def _go_on(self) -> None:
        if self._frozen or self._crowds.are_there or any(each.holding for each in self._connections.values()):
            return
        if self._stopped_before is not None:
            # Nobody inside is to stop what works for the orchestrator.
            processes.continue_all(self._stopped_before - {job.pid for job in self._jobs()})
            self._stopped_before = None
        self._begin_what_waits()

    def _begin_what_waits(self) -> None:
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
