"""The processes of a sandbox, as its PID 1 sees them in ``/proc``: find, stop, continue and end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple

REAPING = 2.0
"""Seconds to wait for what was killed to be gone, before going on anyway."""
REAPING_CHECK = 0.003

_AT_REST = "TtZX"
_STOPPED = "Tt"
_A_NUMBER = 32
_ROUNDS_BEFORE_STOPPING_ALL = 3
_ROUNDS_OF_KILLING = 10
_LOOKS_AT_ROOT = 20
_PAUSE = 0.001
_SETTLING = 1.0
"""Seconds to wait for stopped processes to come to rest. What is deep in the kernel then stops as it leaves
it."""


def statistics(path: str) -> list[str]:
    """State, parent and so on: the fields of a ``stat`` file from the third on; empty if the process is
    gone.
    """
    try:
        with open(path, "rb") as file:
            return file.read().rsplit(b")", 1)[1].decode().split()
    except (OSError, IndexError):
        return []


def _processes() -> dict[int, list[str]]:
    """What `statistics` says of each process but this one."""
    found: dict[int, list[str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            fields = statistics(f"/proc/{name}/stat")
            if fields:
                found[int(name)] = fields
    return found


def exists(pid: int) -> bool:
    """Whether a process, or its remains, is there."""
    return os.path.exists(f"/proc/{pid}")


def shares_our_command_line(pid: int) -> bool:
    """Whether a process has the command line of this one, as one that still shares its memory."""
    lines: list[bytes] = []
    for each in ("self", pid):
        try:
            with open(f"/proc/{each}/cmdline", "rb") as file:
                lines.append(file.read())
        except OSError:
            return False
    return lines[0] == lines[1]


class RunTimes(NamedTuple):
    """Seconds that a process's main thread has run, and that it has been runnable without running."""

    ran: float = 0.0
    waited: float = 0.0


def run_times(pid: int) -> RunTimes:
    """What the scheduler knows of a process; still known of a zombie."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            ran, waited, _ = file.read().split()
            return RunTimes(int(ran) / 1e9, int(waited) / 1e9)
    except (OSError, ValueError):
        return RunTimes()


def _below(root: int, processes: dict[int, list[str]]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, fields in processes.items():
        children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def descendants(root: int) -> set[int]:
    """All that a process started, and they in turn."""
    return _below(root, _processes())


def tell(pid: int, number: int) -> None:
    """Send a signal, if the process is still there."""
    with contextlib.suppress(OSError):  # it may have ended since
        os.kill(pid, number)


def end_tree(root: int) -> set[int]:
    """Kill a process and all its descendants, even those that are about to start more.

    ``root`` must be a child subreaper, so that no descendant can leave its tree. Everything is stopped first,
    round after round until a round finds nothing new; what starts processes faster than that is caught by
    stopping the whole sandbox for a moment.

    Returns:
        What was killed. It is gone only when it has been reaped.
    """
    tell(root, signal.SIGSTOP)  # else it would report its command's death as an ordinary one
    # What it is just forking appears before it stands still.
    for _ in range(_LOOKS_AT_ROOT):
        if statistics(f"/proc/{root}/stat")[:1] != ["R"]:
            break
        time.sleep(_PAUSE)
    _kill_group_of_first_child(root)
    doomed: set[int] = set()
    before: set[int] | None = None
    for _ in range(_ROUNDS_BEFORE_STOPPING_ALL):
        new = descendants(root) - doomed
        if not new:
            break
        for pid in new:
            tell(pid, signal.SIGSTOP)
        doomed |= new
    else:
        before = stop_all(settling=0.0)
        doomed = descendants(root)
    # The root goes last: as long as it is there, whoever loses its parent comes to it.
    new = doomed
    for _ in range(_ROUNDS_OF_KILLING):
        for pid in new:
            tell(pid, signal.SIGKILL)
        new = descendants(root) - doomed
        if not new:
            break
        doomed |= new
    tell(root, signal.SIGKILL)
    if before is not None:
        continue_all(before)
    return doomed | {root}


def children(pid: int) -> set[int] | None:
    """The processes whose parent this one is; None where the kernel does not tell."""
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    except (OSError, ValueError):
        return None
    return found


def all_numbers() -> set[int]:
    """The numbers of all processes of the sandbox but this one, its PID 1."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"}


def _kill_group_of_first_child(root: int) -> None:
    """Kill, in one step, what has not left the process group of the command, which is nearly always all of it.

    It then takes no time from the search for the rest.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        with open(f"/proc/{root}/task/{root}/children", "rb") as file:
            first = int(file.read(_A_NUMBER).split()[0])
        os.killpg(first, signal.SIGKILL)


def stop_all(*, settling: float = _SETTLING) -> set[int]:
    """Stop every process of the sandbox but this one, its PID 1.

    The kernel signals all of them in one step, in which none can fork. A control group could be frozen instead, but
    either with PID 1 in it, which then keeps no time and answers nobody, or with each command being moved into it,
    which takes the kernel tens of milliseconds.

    Args:
        settling: seconds to wait at most until all have really come to rest.

    Returns:
        Those that had been stopped before, for `continue_all`.
    """
    before = {pid for pid, fields in _processes().items() if fields[0] in _STOPPED}
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        return before
    end = time.monotonic() + settling
    while time.monotonic() < end and not all(_at_rest(pid, each) for pid, each in _processes().items()):
        time.sleep(0.0005)
    return before


def _at_rest(pid: int, fields: list[str]) -> bool:
    if fields[17] == "1":
        return fields[0] in _AT_REST
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    states = [statistics(f"/proc/{pid}/task/{each}/stat") for each in threads]
    return all(not each or each[0] in _AT_REST for each in states)


def continue_all(but: set[int]) -> None:
    """Let every process go on, except those that had been stopped before."""
    for pid in _processes():
        if pid not in but:
            tell(pid, signal.SIGCONT)
