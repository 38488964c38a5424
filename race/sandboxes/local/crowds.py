"""Ends commands that have become so many processes that the kernel takes long to end them.

To take a process apart takes the kernel some 60 microseconds, so a fork bomb of 4,096 takes it a quarter of a second on
two processors, and keeps everybody else from them. But to stop all of them is a matter of milliseconds. So they are
stopped, which is the end of them as far as anybody can see; that is told, and then they are killed.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from race.sandboxes.local import processes

_MANY: Final = 500
"""Processes of which the kernel cannot end many more in the time that a time-out may take."""
_MANY_THREADS: Final = 1000
"""Threads of the whole machine among which there may be so many processes of one sandbox."""
_ASKING: Final = 0.05
"""Seconds after the end of its time until which a crowd is asked what it has used."""
_HEARING: Final = 0.05
"""Seconds to wait at most until somebody has heard that a crowd is no more, before it is ended."""
_GOING_ON: Final = 0.01
"""Seconds to leave the processor to whoever has heard it."""
_READINGS: Final = 5
_ASKED_FOR_SIZE: Final = 20
"""One of how many is asked how large it is, as they are mostly alike."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def may_be_many() -> bool:
    """Whether there can be many processes in the sandbox, as far as is known without looking for them."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[3].partition(b"/")[2]) > _MANY_THREADS


class Crowd:
    """A command that has become, perhaps, so many processes that the kernel takes long to end them.

    All of the sandbox is stopped in one step, which is quick, and from then on the command does nothing any more.

    Args:
        root: the process at the top of it, a child of this one and a child subreaper.
    """

    def __init__(self, root: int) -> None:
        others = _families(root)
        self._stopped = {pid for pid in others if processes.statistics(f"/proc/{pid}/stat")[:1] == ["T"]}
        self._root = root
        processes.tell(-1, signal.SIGSTOP)
        self._all = processes.all_numbers() - _settled_families(root)

    @property
    def is_large(self) -> bool:
        """Whether it takes long to end it."""
        return len(self._all) > _MANY

    def used(self, since: float) -> tuple[float, int]:
        """Seconds of processor time that it has used, and bytes of its largest process.

        Of as many processes as can be asked in a moment, so both are the least that it may have been.

        Args:
            since: when it was to end.
        """
        end = since + _ASKING
        ran = 0.0
        largest = 0
        for place, pid in enumerate(sorted(self._all)):  # those that began first have mostly done more
            ran += processes.run_times(pid).ran
            if place % _ASKED_FOR_SIZE == 0:
                largest = max(largest, *map(int, processes.statistics(f"/proc/{pid}/stat")[21:22]), 0)
            if time.monotonic() > end:
                break
        return ran, largest * _PAGE

    def end(self) -> set[int]:
        """Kill it, and let all else go on. Returns what was killed, which is gone only when it has been reaped."""
        others = _settled_families(self._root)
        self._all |= processes.all_numbers() - others  # with what was just being forked
        # One signal for all that end meanwhile is enough.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        try:
            for pid in self._all if others else [-1]:
                processes.tell(pid, signal.SIGKILL)
            for pid in others - self._stopped:
                processes.tell(pid, signal.SIGCONT)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self._all


def _settled_families(root: int) -> set[int]:
    """The same, when all are stopped: one that was just ending hands its children over meanwhile."""
    found = _families(root)
    for _ in range(_READINGS):
        again = _families(root)
        if again == found:
            break
        found = again
    return found


def _families(root: int) -> set[int]:
    """All that descends from this process's children but one."""
    found: set[int] = set()
    waiting = (processes.children(os.getpid()) or set()) - {root}
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting |= (processes.children(pid) or set()) - found
    return found


class Crowds:
    """Those that have been stopped and not been killed yet, or are being taken apart."""

    def __init__(self) -> None:
        self._stopped: Crowd | None = None
        self._killed: set[int] = set()
        self._until = 0.0

    @property
    def are_there(self) -> bool:
        """Whether there are any, which take up the room for new processes."""
        return self._stopped is not None or bool(self._killed)

    def add(self, crowd: Crowd) -> None:
        """Take care of another one, after `kill`."""
        self._stopped = crowd
        self._until = time.monotonic() + _HEARING

    def heard(self) -> None:
        """Take note that somebody has heard of an end."""
        if self._stopped is not None:
            self._until = min(self._until, time.monotonic() + _GOING_ON)

    def kill(self) -> None:
        """Kill what is stopped only."""
        if self._stopped is not None:
            self._killed |= self._stopped.end()
            self._until = time.monotonic() + processes.REAPING
            self._stopped = None

    def patience(self) -> float | None:
        """Seconds until the next `look`; None if there is no need."""
        if self._stopped is not None:
            return max(0.0, self._until - time.monotonic())
        return processes.REAPING_CHECK if self._killed else None

    def look(self) -> bool:
        """Go on. Returns whether the last one is gone now."""
        if self._stopped is not None:
            if time.monotonic() >= self._until:
                self.kill()
        elif self._killed and (
            time.monotonic() >= self._until or not any(map(processes.exists, self._killed))
        ):
            self._killed.clear()
            return True
        return False
