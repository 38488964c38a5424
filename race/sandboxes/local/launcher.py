"""What PID 1 keeps from one command to the next: memory for lists, and who goes first when memory is short."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from race.sandboxes.local import processes, sequence, syscalls, wire
from race.sandboxes.local.launch import LONGEST_ARGUMENT, Bounds, Launch
from race.sandboxes.local.sequence import Memory

if TYPE_CHECKING:
    from race.sandboxes.local.messages import ExecRequest

_ROOM: Final = 32 * 1024
"""Bytes for a list and what it refers to, in most cases."""
_KEPT_FREE: Final = 4
_SETTLING: Final = 0.02
"""Seconds between looks whether commands have started."""
_FIRST_TO_GO: Final = 500
"""Of 1,000, which would be all memory of the machine (proc(5), oom_score_adj)."""


class Launcher:
    """Starts commands.

    Args:
        bounds: for each.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._free: list[Memory] = []
        self._running: list[Launch] = []
        self._killed: list[Launch] = []
        self._score = _Score()

    def start(
        self, request: ExecRequest, connection: int, streams: list[int], file_size: int | None
    ) -> Launch:
        """Start a command. `forget` it at its end.

        Args:
            request: what to run.
            connection: a descriptor of where it was asked for.
            streams: of standard input, output and error.
            file_size: see `Bounds`.

        Raises:
            OSError: there is no room for a process.
        """
        encoded = os.fsencode(request["script"] or "")
        script = wire.held(b"exec 3<&-; " + encoded) if len(encoded) > LONGEST_ARGUMENT else -1
        bounds = self._bounds._replace(file_size=file_size)
        self._look_at_killed()
        try:
            memory = self._free.pop() if self._free else Memory(_ROOM)
            while True:
                try:
                    launch = Launch(memory, request, connection, streams, script, bounds)
                    break
                except BufferError:
                    memory.close()
                    memory = Memory(2 * memory.size)
            self.be_first_to_go()
            try:
                launch.start()
            except OSError:
                self._take_back(memory)
                raise
        finally:
            if script >= 0:
                os.close(script)
        self._running.append(launch)
        return launch

    def forget(self, launch: Launch, *, is_gone: bool) -> None:
        """Take note of the end of a command.

        Args:
            launch: from `start`.
            is_gone: whether the shim and the command have ended for sure. They were killed, and one of them may still
                use the memory of the list, if not.
        """
        self._running.remove(launch)
        if is_gone:
            self._take_back(launch.memory)
        else:
            self._killed.append(launch)

    def _look_at_killed(self) -> None:
        for launch in list(self._killed):
            if launch.is_lost:
                launch.tell()
            if not any(map(processes.exists, {launch.pid, launch.command} - {0})) and (
                launch.command or not self._may_be_one_without_a_number()
            ):
                self._killed.remove(launch)
                self._take_back(launch.memory)

    def _may_be_one_without_a_number(self) -> bool:
        """Whether a command may be there that has just been forked, and whose shim was killed before it was known."""
        shims = {each.pid for each in self._running}
        found = processes.children(os.getpid())
        return found is None or any(map(processes.shares_our_command_line, found - shims))

    def _take_back(self, memory: Memory) -> None:
        if memory.size == _ROOM and len(self._free) < _KEPT_FREE:
            memory.clear()
            self._free.append(memory)
        else:
            memory.close()

    def be_first_to_go(self) -> None:
        """Have what is forked from now on go first when the machine runs out of memory.

        PID 1 itself is to stay, so this has to `settle`.
        """
        self._score.set(raised=True)

    def settle(self) -> None:
        """Put PID 1 back in its place, once what was started has what it inherits."""
        if self._score.is_raised and all(each.command for each in self._running):
            self._score.set(raised=False)

    def patience(self) -> float | None:
        """Seconds until the next `settle`; None if there is no need."""
        return _SETTLING if self._score.is_raised else None


class _Score:
    """How soon this process is ended when memory is short, which each process inherits that it forks.

    A process that shares its memory with another cannot have a score of its own. So this one takes that of its commands
    while it starts one, and lays it off again, which needs no privilege as long as it does not go below where it began.
    """

    def __init__(self) -> None:
        self.is_raised = False
        self._file = -1
        # As long as this process may not be looked into, the file belongs to the host's root. Nothing runs yet that
        # could make use of this moment.
        before = syscalls.plainly(sequence.number("prctl"), [syscalls.PR_GET_DUMPABLE])
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        try:
            with contextlib.suppress(OSError):
                self._file = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        finally:
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, before)
        own = int(os.read(self._file, 16)) if self._file >= 0 else 0
        self._scores = {False: b"%d" % own, True: b"%d" % max(own, _FIRST_TO_GO)}

    def set(self, *, raised: bool) -> None:
        """Take the score of commands, or the own one."""
        if self._file >= 0 and raised != self.is_raised:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, self._scores[raised], 0)
                self.is_raised = raised
