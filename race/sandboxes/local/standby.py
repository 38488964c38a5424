"""Children of PID 1 that are there before they are needed, and wait for what they shall do.

To fork a Python program, and for the new process to get hold of the memory that it writes to, takes longer than all
else between a request and its command. So with each request a child is made for one to come. It is forked by the
*nursery*, a process beside PID 1 that does nothing but fork (see `race.sandboxes.local.zygote`), so that PID 1 need
not, and what it has in memory is not copied.

Anybody inside may end or stop either of them: then the next request forks a child of its own, as the first one does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING, Final

from race.sandboxes.local import shim, wire, worker

if TYPE_CHECKING:
    from typing import NoReturn

    from race.sandboxes.local.messages import WorkRequest

TALK, CHILDS_TALK, WAIT, ASK = range(3, 7)
"""The descriptors by which PID 1, the nursery and its children reach each other, where they are made: a pair of
sockets, and the two ends of what the nursery waits at."""

_PATIENCE: Final = 5.0
"""Seconds after the last request for which children are kept: they take some memory."""
_NEARLY: Final = 0.01
"""Seconds that the first request waits for one."""
WANTED: Final = 2
"""How many: one for the next request, and one while that is being replaced."""
_REHEARSED: Final = json.dumps(
    {"request": {"do": "exec", "argv": ["sh"], "env": {"PATH": "/bin"}, "timeout": 1.5}}
)


class Standby:
    """PID 1's side: a few children that wait. The nursery has been asked for the first ones already.

    Args:
        talk: PID 1's end of the pair of sockets.
        ask: where the nursery is asked for a child.
    """

    def __init__(self, talk: int, ask: int) -> None:
        self._talk = socket.socket(fileno=talk)
        os.set_blocking(talk, False)
        self._ask = ask
        self._ready: dict[int, socket.socket] = {}
        self._awaited = WANTED
        self._until = time.monotonic() + _PATIENCE
        self._is_new = True

    def close(self) -> None:
        """Do without, for good; the nursery then ends."""
        self._talk.close()
        os.close(self._ask)
        self._ask = -1

    def fileno(self) -> int:
        """Where to wait for what a new child says."""
        return self._talk.fileno()

    def listen(self) -> set[int]:
        """Take note that a child is ready, or that there is no room for one. Returns its number, if there is one."""
        with contextlib.suppress(OSError):
            received = wire.receive(self._talk)
            if received is not None:
                message, descriptors = received
                self._awaited = max(self._awaited - 1, 0)
                if descriptors:
                    self._ready[message["pid"]] = socket.socket(fileno=descriptors[0])
                    return {message["pid"]}
                self._until = 0.0
        return set()

    def patience(self) -> float | None:
        """Seconds until it wants to be kept or dismissed; None if it does not."""
        if self._until == 0.0:
            return None
        return max(0.0, self._until - time.monotonic()) if self._lacking <= 0 else 0.0

    @property
    def _lacking(self) -> int:
        return WANTED - len(self._ready) - self._awaited

    def expect(self) -> None:
        """Say that another request may come soon."""
        if self._ask >= 0:
            self._until = time.monotonic() + _PATIENCE

    def keep(self) -> None:
        """Ask for children if some are expected to be needed, or dismiss those there are."""
        if self._until == 0.0:
            return
        if time.monotonic() >= self._until:
            self.dismiss_all()
        elif self._lacking > 0:
            try:
                self._awaited += os.write(self._ask, b"x" * self._lacking)
            except OSError:  # the nursery is gone
                self._until = 0.0

    def give(self, asked: WorkRequest, descriptors: list[int]) -> int:
        """Let a child do something. Returns its number; 0 if there is none."""
        if self._is_new and self._ask >= 0:
            # The first ones are about to be ready, sooner than another one could be.
            self._is_new = False
            if select.select([self._talk], [], [], _NEARLY)[0]:
                self.listen()
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


def wait() -> NoReturn:
    """In a child of the nursery: get ready, wait, work, and exit."""
    try:
        worker.get_ready()
        # What is done once takes its memory then, and not when somebody waits for it.
        json.loads(_REHEARSED)
        shim.rehearse()
        os.close(WAIT)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with socket.socket(fileno=CHILDS_TALK) as talk, theirs:
            wire.send(talk, {"pid": os.getpid()}, [theirs.fileno()])
        received = wire.receive(ours)
        if received is not None:
            worker.work(*received)
    finally:
        os._exit(0)


def no_room() -> None:
    """In the nursery: say that it cannot fork now."""
    with socket.socket(fileno=os.dup(CHILDS_TALK)) as talk:
        wire.send(talk, {"pid": 0})
