"""The processes below another one: find, hold, continue and end them. Works where ``/proc`` is not, through ``ps``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection

_ROUNDS_BETWEEN = 0.001
_SETTLING = 3.0
"""Seconds in which a tree that keeps growing is held; what starts processes for longer is killed as it comes."""
_ENDING = 5.0


def table() -> dict[int, tuple[int, str]]:
    """The parent and the state of every process."""
    if os.path.isdir("/proc/self"):
        return _from_proc()
    shown = subprocess.run(["/bin/ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, check=False)
    rows = [line.split() for line in shown.stdout.decode().splitlines()]
    return {int(r[0]): (int(r[1]), r[2][:1]) for r in rows if len(r) >= 3}  # noqa: PLR2004 - as asked


def _from_proc() -> dict[int, tuple[int, str]]:
    found: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/stat", "rb") as file,
            ):
                state, parent = file.read().rsplit(b")", 1)[1].split()[:2]
                found[int(name)] = (int(parent), state.decode())
    return found


def below(roots: Collection[int]) -> set[int]:
    """The living processes below some, without these themselves."""
    processes = table()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return {pid for pid in found if processes[pid][1] not in "ZX"} - {os.getpid()}


def tell(pids: Collection[int], number: int) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def hold(roots: Collection[int]) -> set[int]:
    """Stop all below some processes, round after round until a round finds nothing new.

    Returns:
        Those that had been stopped before, for `release`.
    """
    processes = table()
    held: set[int] = set()
    before: set[int] = set()
    end = time.monotonic() + _SETTLING
    while new := below(roots) - held:
        before |= {pid for pid in new if processes.get(pid, (0, ""))[1] in ("T", "t")}
        tell(new, signal.SIGSTOP)
        held |= new
        if time.monotonic() > end:
            break
    while time.monotonic() < end and not all(s[1] in "TtZX" for p, s in table().items() if p in held):
        time.sleep(_ROUNDS_BETWEEN)
    return before


def release(roots: Collection[int], before: Collection[int]) -> None:
    """Let all below some processes go on, but for those that had been stopped before."""
    tell(below(roots) - set(before), signal.SIGCONT)


def end(roots: Collection[int]) -> None:
    """Kill all below some processes, also what they start meanwhile, and wait until it is gone or being reaped."""
    doomed = below(roots)
    last = time.monotonic() + _ENDING
    while doomed and time.monotonic() < last:
        for _ in range(20):
            tell(doomed, signal.SIGSTOP)  # who is stopped starts nothing more
            if not (new := below(roots) - doomed):
                break
            doomed |= new
        tell(doomed, signal.SIGKILL)
        time.sleep(_ROUNDS_BETWEEN)
        doomed = below(roots)
