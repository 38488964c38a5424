"""Watches, from a sandbox's PID 1, the limits that the kernel does not keep here: disk space, and memory where there
is no control group.

What is watched may be exceeded for the moment between two looks. Memory: the largest process is ended until the rest
fits, as the kernel would. Disk: everything is ended, and until there is room again commands can remove files but not
make them larger.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from typing import TYPE_CHECKING

from race.sandboxes.local import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

LOOK_EVERY = 0.05
"""Seconds between looks while anything runs in the sandbox."""

_SLICE = 0.004
"""Seconds that PID 1 counts files in one go, before it serves others."""
_RESTING = 20
"""How many times as long as a count took until the next one, unless the file system fills up sooner."""
_LEAST_REST = 1.0
_DEEPEST = 1000
_ROOM_TO_TIDY = 1 << 20
"""How many more bytes may come to be written while the limit is exceeded, before everything is ended again."""
_BLOCK = 512
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the sandbox's own


class TooDeep(Exception):  # noqa: N818 - named for what is wrong with the tree
    """Directories are nested so deep that what is in them cannot be counted."""


def used_by(folders: list[int]) -> Generator[None, None, int]:
    """Count the bytes that trees of files take up on disk; yields after each entry.

    Nothing is opened but directories, and no link is followed.

    Args:
        folders: descriptors of the directories; they may be changed meanwhile.

    Raises:
        TooDeep: a tree cannot be counted.
    """
    total = 0
    linked: set[tuple[int, int]] = set()
    opened: list[int] = []
    waiting: list[list[bytes]] = []
    try:
        for folder in folders:
            opened.append(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder))
            waiting.append([os.fsencode(each) for each in os.listdir(opened[-1])])
            while opened:
                if not waiting[-1]:
                    os.close(opened.pop())
                    waiting.pop()
                    continue
                name = waiting[-1].pop()
                yield
                try:
                    status = os.stat(name, dir_fd=opened[-1], follow_symlinks=False)
                except OSError:
                    continue
                if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                    if (status.st_dev, status.st_ino) in linked:
                        continue
                    linked.add((status.st_dev, status.st_ino))
                total += status.st_blocks * _BLOCK
                if stat.S_ISDIR(status.st_mode):
                    if len(opened) >= _DEEPEST:
                        raise TooDeep
                    with contextlib.suppress(OSError):
                        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                        inner = os.open(name, flags, dir_fd=opened[-1])
                        opened.append(inner)
                        waiting.append([os.fsencode(each) for each in os.listdir(inner)])
    finally:
        for each in opened:
            os.close(each)
    return total


def held_open() -> Generator[None, None, int]:
    """Count the bytes of files that have been removed but are still open; yields after each one.

    What processes that this one may not look into hold is not seen: those of other users inside.
    """
    memory = os.stat(_SHARED_MEMORY).st_dev
    total = 0
    known: set[tuple[int, int]] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        folder = f"/proc/{name}/fd"
        with contextlib.suppress(OSError):
            for each in os.listdir(folder):
                yield
                with contextlib.suppress(OSError):
                    status = os.stat(f"{folder}/{each}")
                    key = (status.st_dev, status.st_ino)
                    if stat.S_ISREG(status.st_mode) and not status.st_nlink and key not in known:
                        known.add(key)
                        if status.st_dev != memory and "/memfd:" not in os.readlink(f"{folder}/{each}"):
                            total += status.st_blocks * _BLOCK
    return total


def _all_used(folders: list[int]) -> Generator[None, None, int]:
    return (yield from used_by(folders)) + (yield from held_open())


class DiskGuard:
    """Watches what a sandbox writes.

    Args:
        limit: bytes.
        folders: descriptors of the directories that it writes to.
    """

    def __init__(self, limit: int, folders: list[int]) -> None:
        self._limit = limit
        self._folders = folders
        self._count: Generator[None, None, int] | None = None
        self._spent = 0.0
        self._next = 0.0
        self._used = 0
        self._filled = self._new_filled = 0
        self._most = limit
        self.is_over = False

    @property
    def file_size(self) -> int:
        """How large a command may make any one file."""
        return 0 if self.is_over else self._limit

    @property
    def is_counting(self) -> bool:
        """Whether it wants to go on soon."""
        return self._count is not None

    def look(self) -> bool:
        """Go on looking for a moment. Returns whether the limit is exceeded now, and everything must end."""
        now = time.monotonic()
        if self._count is None:
            if now < self._next and self._filling() - self._filled < max(self._most - self._used, 0) // 2:
                return False
            self._count = _all_used(self._folders)
            self._new_filled = self._filling()
            self._spent = 0.0
        try:
            while time.monotonic() - now < _SLICE:
                next(self._count)
        except StopIteration as ended:
            return self._counted(int(ended.value), self._spent + time.monotonic() - now)
        except TooDeep:
            return self._counted(self._most + 1, self._spent)
        except OSError:
            self._count = None
            self._next = time.monotonic() + _LEAST_REST
            return False
        self._spent += time.monotonic() - now
        return False

    def _filling(self) -> int:
        """Bytes that the whole file system holds, which is quickly asked."""
        whole = os.fstatvfs(self._folders[0])
        return (whole.f_blocks - whole.f_bfree) * whole.f_frsize

    def _counted(self, used: int, spent: float) -> bool:
        self._count = None
        self._used = used
        self._filled = self._new_filled
        self._next = time.monotonic() + (0.0 if used > self._limit else max(_LEAST_REST, _RESTING * spent))
        if used <= self._limit:
            self.is_over, self._most = False, self._limit
            return False
        exceeded = used > self._most
        if exceeded:
            self._most = used + _ROOM_TO_TIDY
        self.is_over = True
        return exceeded


class Guard:
    """What PID 1 watches.

    Args:
        memory: bytes of memory that all processes may use together; None if that is not watched.
        disk: see `DiskGuard`; None if that is not watched.
    """

    def __init__(self, memory: int | None, disk: DiskGuard | None) -> None:
        self._memory = memory
        self._disk = disk
        self._next = 0.0
        self.ended: dict[str, float] = {}
        """When something was last ended for the sake of a limit, on the monotonic clock."""

    @property
    def watches(self) -> bool:
        """Whether there is any limit that it has to watch."""
        return self._memory is not None or self._disk is not None

    def patience(self) -> float | None:
        """Seconds until the next look; None if there is nothing to watch."""
        if not self.watches or not _anything_runs():
            return None
        return 0.0 if self._is_counting() else LOOK_EVERY

    def _is_counting(self) -> bool:
        return self._disk is not None and self._disk.is_counting

    def look(self, ours: Callable[[], set[int]]) -> None:
        """End what exceeds a limit. Does nothing if it was called a moment ago.

        Args:
            ours: the processes whose memory is this one's.
        """
        now = time.monotonic()
        if now < self._next and not self._is_counting():
            return
        self._next = now + LOOK_EVERY / 2
        if self._disk is not None and self._disk.look():
            self.ended["disk"] = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        if self._memory is not None:
            self._look_at_memory(self._memory, ours())

    @property
    def file_size(self) -> int | None:
        """How large a command may make any one file; None if that is not limited."""
        return None if self._disk is None else self._disk.file_size

    @property
    def disk_is_full(self) -> bool:
        """Whether nothing more may be written."""
        return self._disk is not None and self._disk.is_over

    def _look_at_memory(self, limit: int, ours: set[int]) -> None:
        files = os.statvfs(_SHARED_MEMORY)
        in_files = (files.f_blocks - files.f_bfree) * files.f_frsize
        sizes = {pid: size for pid, size in private_memory().items() if pid not in ours}
        if sum(sizes.values()) + in_files <= limit:
            return
        sizes = {pid: _fair_share(pid, size) for pid, size in sizes.items()}
        used = sum(sizes.values()) + in_files
        while used > limit and sizes:
            largest = max(sizes, key=sizes.__getitem__)
            self.ended["memory"] = time.monotonic()
            processes.tell(largest, signal.SIGKILL)
            used -= sizes.pop(largest)


def private_memory() -> dict[int, int]:
    """The bytes of memory that each process but PID 1 has, without files, as ``/proc/PID/statm`` tells.

    What a process shares with the one that it was forked from is counted for both.
    """
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/statm", "rb") as file,
            ):
                fields = file.read().split()
                found[int(name)] = (int(fields[1]) - int(fields[2])) * _PAGE
    return found


def _fair_share(pid: int, most: int) -> int:
    """The bytes of memory of a process, with its share only of what it has in common with others.

    Args:
        pid: of the process.
        most: what to answer if this process may not look into it.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss_Anon:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return most


def _anything_runs() -> bool:
    """Whether there is any process but PID 1, from which all others descend."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
