"""Children of PID 1 that are there before they are needed, and wait for what they shall do.

To fork a Python program, and for the new process to get hold of the memory that it writes to, takes longer than all
else between a request and its command. So where there have been some requests, children are made for those to come,
forked by the *nursery*, a child of PID 1 that does nothing else, so that PID 1 need not.

A sandbox that is used a few times only has none of this. And a child is made while nothing has run for a moment, as
when an agent thinks, so that no command is disturbed; where requests follow each other at once, it would only take the
processor from them.

Anybody inside may end or stop any of them: then PID 1 forks a child for each request, as it does for the first ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Final

from race.sandboxes.local import shim, syscalls, wire, worker
from race.sandboxes.local.sequence import NEVER, Call, Shared, SystemCalls

if TYPE_CHECKING:
    from typing import NoReturn

    from race.sandboxes.local.messages import WorkRequest

_FIRST_REQUESTS: Final = 2
"""Requests after which more are expected."""
_PATIENCE: Final = 5.0
"""Seconds after the last request for which children are kept: they take some memory."""
_MOMENT: Final = 0.02
"""Seconds without a request after which children are made."""
_WANTED: Final = 2
"""How many: agents ask for two things at once now and then."""
_TALK, _WAIT = 3, 4
"""The nursery's descriptors: on which its children answer, and at which it waits."""
_CLONE_PARENT: Final = 0x8000
_REHEARSED: Final = json.dumps(
    {"request": {"do": "exec", "argv": ["sh"], "env": {"PATH": "/bin"}, "timeout": 1.5}}
)


class Standby:
    """PID 1's side: the nursery, and a few children that wait.

    Args:
        is_wanted: whether there may be any.
    """

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._nursery = 0
        self._talk: socket.socket | None = None
        self._ask = -1
        self._ready: dict[int, socket.socket] = {}
        self._awaited = 0
        self._until = 0.0
        self._requests = 0
        self._idle_since = 0.0

    @property
    def processes(self) -> set[int]:
        """The nursery, and the children that wait."""
        return {self._nursery, *self._ready} - {0}

    @property
    def talk(self) -> int:
        """Where to wait for what a new child says; -1 where none can come."""
        return -1 if self._talk is None else self._talk.fileno()

    def expect(self) -> None:
        """Take note of a request: another one may come soon."""
        now = time.monotonic()
        self._requests += 1
        if self._is_wanted and self._requests > _FIRST_REQUESTS:
            self._until = now + _PATIENCE

    def rest(self) -> None:
        """Take note that no request is being served."""
        self._idle_since = time.monotonic()

    def patience(self, *, busy: bool) -> float | None:
        """Seconds until there is something to do for it; None if there is nothing.

        Args:
            busy: whether anything is being done for the orchestrator.
        """
        if self._until == 0.0:
            return None
        return max(0.0, min(self._asks_at(busy=busy), self._until) - time.monotonic())

    def _asks_at(self, *, busy: bool) -> float:
        """When more children are to be asked for."""
        has_enough = len(self._ready) + self._awaited >= _WANTED
        return math.inf if has_enough or busy else self._idle_since + _MOMENT

    def keep(self, *, busy: bool) -> None:
        """Ask for children if some are expected to be needed, or dismiss those there are."""
        if self._until == 0.0:
            return
        now = time.monotonic()
        if now >= self._until:
            self.dismiss_all()
        elif now >= self._asks_at(busy=busy):
            try:
                if not self._nursery:
                    self._make_nursery()
                self._awaited += os.write(self._ask, b"x" * (_WANTED - len(self._ready) - self._awaited))
            except OSError:  # there is no room for one, or it was ended
                self._until = 0.0

    def _make_nursery(self) -> None:
        talk, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wait, ask = os.pipe2(os.O_CLOEXEC)
        try:
            nursery = os.fork()
            if nursery == 0:
                _be_nursery(theirs.fileno(), wait)
        except OSError:
            os.close(ask)
            talk.close()
            raise
        finally:
            theirs.close()
            os.close(wait)
        talk.setblocking(False)  # noqa: FBT003 - the library's signature
        self._nursery, self._talk, self._ask, self._awaited = nursery, talk, ask, 0

    def listen(self) -> None:
        """Take note that a child is ready, or that there is no room for one."""
        with contextlib.suppress(OSError):
            received = None if self._talk is None else wire.receive(self._talk)
            if received is not None:
                message, descriptors = received
                self._awaited = max(self._awaited - 1, 0)
                if descriptors:
                    self._ready[message["pid"]] = socket.socket(fileno=descriptors[0])
                else:
                    self._until = 0.0

    def give(self, asked: WorkRequest, descriptors: list[int]) -> int:
        """Let a child do something. Returns its number; 0 if there is none."""
        while self._ready:
            pid = next(iter(self._ready))
            try:
                wire.send(self._ready[pid], asked, descriptors)
                os.kill(pid, signal.SIGCONT)
            except OSError:
                self._dismiss(pid)
                continue
            self._dismiss(pid)
            return pid
        return 0

    def ended(self, pid: int) -> None:
        """Take note that a child of PID 1 has ended."""
        if pid in self._ready:
            self.dismiss_all()
        if pid == self._nursery:
            self.dismiss_all()
            self._nursery = 0
            if self._talk is not None:
                self._talk.close()
                self._talk = None
                os.close(self._ask)

    def dismiss_all(self) -> None:
        """Do without until the next request.

        Also for when somebody inside ends processes: one that is about to die would still take what it is given.
        """
        self._until = 0.0
        for pid in list(self._ready):
            self._dismiss(pid)

    def _dismiss(self, pid: int) -> None:
        """Forget a child. One that has nothing to do ends when it hears no more."""
        self._ready.pop(pid).close()


def _be_nursery(talk: int, wait: int) -> NoReturn:
    """In the nursery, and in each child that it forks, which is PID 1's."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        spare = [syscalls.duplicate_above(each, 16) for each in (talk, wait)]
        for place, descriptor in zip((_TALK, _WAIT), spare, strict=True):
            os.dup2(descriptor, place, inheritable=False)
        syscalls.close_from(_WAIT + 1)
        calls = SystemCalls(
            [
                Call("read", (_WAIT, Shared().address, 1), least=1, label="next"),
                Call("clone", (_CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0), least=1, label="child"),
                Call("getpid", least=NEVER, instead="next"),
            ]
        )
        answers = socket.socket(fileno=_TALK)
        while (ended := calls.run()).call is not None and ended.call.label == "child":
            if ended.result == 0:
                _wait_for_work(answers)
                break
            wire.send(answers, {"pid": 0})
    finally:
        os._exit(0)


def _wait_for_work(answers: socket.socket) -> None:
    """In a child: get ready, wait, and work."""
    worker.get_ready()
    # What is done once takes its memory then, and not when somebody waits for it.
    json.loads(_REHEARSED)
    shim.rehearse()
    os.close(_WAIT)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with answers, theirs:
        wire.send(answers, {"pid": os.getpid()}, [theirs.fileno()])
    received = wire.receive(ours)
    if received is not None:
        worker.work(*received)
