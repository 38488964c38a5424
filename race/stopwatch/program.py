"""The process that runs commands and times them, one at a time; only the standard library, run by its path.

It reads a request a line (JSON) from standard input and answers with a line. It is the child subreaper (prctl(2)), so
all that a command ever starts is below it: when a command ends, takes too long, or nobody listens any more, whatever
is left of it is killed. See `race.stopwatch` for what the numbers mean.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO, Any

PR_SET_CHILD_SUBREAPER = 36
LOOK_EVERY = 0.1
"""Seconds between looks at the processes of a command; a look costs some 50 microseconds for each of them."""
TAIL = 2048
PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Answer requests until standard input ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; whoever asked decides
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        sys.stdout.write(json.dumps(run(request)) + "\n")
        sys.stdout.flush()


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run one command to its end, and end all that it started."""
    if request["cpus"] is not None:
        os.sched_setaffinity(0, request["cpus"])
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        began = time.monotonic()
        child = subprocess.Popen(  # noqa: S603 - what the user wants to be measured
            ["/bin/sh", "-c", request["command"]],
            stdin=subprocess.DEVNULL,
            stdout=output if request["keep_output"] else subprocess.DEVNULL,
            stderr=errors,
            env=request["env"],
            cwd=request["cwd"],
            start_new_session=True,
        )
        seen = Seen()
        ended = wait(child.pid, began + request["timeout"], seen)
        timed_out = ended is None
        if ended is None:
            ended = time.monotonic()
        else:
            seen.look_at(child.pid)  # a zombie: its main thread's account is still there
        end_all()
        _, status, usage = os.wait4(child.pid, 0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # orphans
                pass
        child.returncode = os.waitstatus_to_exitcode(status)
        return {
            "exit_code": None if timed_out else child.returncode,
            "seconds": ended - began,
            "cpu": usage.ru_utime + usage.ru_stime,
            "max_rss": max(seen.most_rss, usage.ru_maxrss * 1024),
            "ran": sum(ran for ran, _ in seen.tasks.values()) / 1e9,
            "waited": sum(waited for _, waited in seen.tasks.values()) / 1e9,
            "output": kept(output, request["keep_output"]) if request["keep_output"] else "",
            "errors": kept(errors, TAIL),
        }


def kept(file: IO[bytes], most: int) -> str:
    """The last bytes of a file, as text of one byte a character."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - most, 0))
    return file.read(most).decode("latin-1")


class Seen:
    """What the kernel accounts to the threads of a command, as last seen."""

    def __init__(self) -> None:
        self.tasks: dict[int, tuple[int, int]] = {}
        self.most_rss = 0

    def look(self, pid: int) -> None:
        """Look at a process and all its descendants."""
        rss, below = 0, [pid]
        while below:
            at = below.pop()
            rss += self.look_at(at)
            with suppress(OSError):
                for task in os.listdir(f"/proc/{at}/task"):  # noqa: PTH208 - this runs beside what is measured
                    below += map(int, text(f"/proc/{at}/task/{task}/children").split())
        self.most_rss = max(self.most_rss, rss)

    def look_at(self, pid: int) -> int:
        """Look at the threads of a process; the bytes that it has in memory."""
        with suppress(OSError, ValueError, IndexError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - likewise
                ran, waited = text(f"/proc/{pid}/task/{task}/schedstat").split()[:2]
                self.tasks[int(task)] = (int(ran), int(waited))
            return int(text(f"/proc/{pid}/statm").split()[1]) * PAGE
        return 0


def text(path: str) -> str:
    """The content of a file."""
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - likewise
        return file.read()


def wait(pid: int, deadline: float, seen: Seen) -> float | None:
    """Wait until a child has ended, without reaping it; when that was, or None when its time is up.

    On a busy machine this process gets a processor late to see it; how late the kernel knows, and it is taken off.
    """
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(0, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            before = own_wait()
            ready = {number for number, _ in poll.poll(max(min(left, LOOK_EVERY), 0.001) * 1000)}
            if handle in ready:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                return time.monotonic() - max(own_wait() - before, 0.0)
            if 0 in ready:  # standard input ended: whoever asked is gone, or has given up
                end_all()
                sys.exit(0)
            seen.look(pid)
    finally:
        os.close(handle)


def own_wait() -> float:
    """Seconds that this process has waited for a processor since it began."""
    return int(text("/proc/self/schedstat").split()[1]) / 1e9


def end_all() -> None:
    """Kill everything below this process until nothing is there; all but zombies that `run` still needs are reaped."""
    me = os.getpid()
    while True:
        living = [pid for pid, state in children(me) if state != "Z"]
        if not living:
            return
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def children(of: int) -> list[tuple[int, str]]:
    """The children of this process and their states; orphans below it become its children."""
    found: list[tuple[int, str]] = []
    for pid in map(int, text(f"/proc/{of}/task/{of}/children").split()):
        with suppress(OSError):
            found.append((pid, text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]))
    return found


if __name__ == "__main__":
    main()
