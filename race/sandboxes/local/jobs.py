"""What PID 1 keeps track of: connections, what they asked for, and pipes that nobody reads any more."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from resource import struct_rusage

    from race.sandboxes.local.launch import Launch

_READ = 1 << 18


class Job:
    """A command or transfer that a connection has asked for.

    Attributes:
        pid: of the child that runs it; 0 before it is started and after it has ended.
        readers: the read ends of its output, to be emptied when the orchestrator has gone.
        survives: whether it may see for itself that the orchestrator has gone, and tidy up.
        deadline: when its time is up, on the monotonic clock.
        launch: of the command, if it is one and has been started.
        status: how the command itself ended, once PID 1 has reaped it.
        wait: seconds that its main thread was runnable without running.
        dying: what was killed and has not been reaped.
        reaped_by: when to answer at the latest.
        timed_out: why it was killed.
        cpu: seconds that what has been reaped had used.
        max_rss: bytes of the largest process that has been reaped.
    """

    def __init__(
        self, readers: list[int], deadline: float | None = None, launch: Launch | None = None
    ) -> None:
        self.pid = 0
        self.readers = readers
        self.survives = False
        self.deadline = deadline
        self.launch = launch
        self.status: int | None = None
        self.wait = 0.0
        self.dying: set[int] | None = None
        self.reaped_by = 0.0
        self.timed_out = False
        self.cpu = 0.0
        self.max_rss = 0

    def add(self, usage: struct_rusage) -> None:
        """Count what a process used."""
        self.cpu += usage.ru_utime + usage.ru_stime
        self.max_rss = max(self.max_rss, usage.ru_maxrss * 1024)


class Connection:
    """One request of the orchestrator's, from when it connects until it closes.

    Attributes:
        socket: to the orchestrator.
        job: what it asked for, until that has been reported.
        holding: whether everything stands still for its sake.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.job: Job | None = None
        self.holding = False


class Drains:
    """Pipes whose reader has gone, and which are emptied so that what still writes there neither blocks nor dies.

    Args:
        epoll: tells when there is something to read.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._readers: set[int] = set()

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._readers

    def take_over(self, job: Job | None) -> None:
        """Empty from now on what a job's processes may still write."""
        if job is None:
            return
        for reader in job.readers:
            os.set_blocking(reader, False)
            self._readers.add(reader)
            self._epoll.register(reader, select.EPOLLIN)
        job.readers = []

    def empty(self, reader: int) -> None:
        """Throw away what is there; close the pipe when nobody can write to it any more."""
        try:
            if os.read(reader, _READ):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._epoll.unregister(reader)
        self._readers.discard(reader)
        os.close(reader)
