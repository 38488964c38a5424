"""Control groups: limits on memory and processors, where this process may make them.

Both versions occur in the field, also at once. A sandbox gets a group of its own in each hierarchy that it
needs; its name says whose home it belongs to, so that what a killed process left can be told from anything
else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from race.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from race.sandbox import Limits

_PERIOD = 100_000
"""Microseconds over which the share of processors is counted."""
_LEAST_QUOTA = 1000
_LEAST_MEMORY = 16 << 20
_REMOVAL_PAUSES = (0.001, 0.005, 0.02, 0.1)
_CONTROLLERS = {"memory": "memory", "cpus": "cpu"}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups with one kind of limit can be made.

    Attributes:
        parent: the folder to make them in.
        version: 1 or 2.
    """

    parent: Path
    version: int


class Cgroups:
    """The control groups of one provider's sandboxes.

    Args:
        home: the provider's folder.
    """

    def __init__(self, home: Path) -> None:
        self._mark = f"race-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}-"

    @functools.cached_property
    def hierarchies(self) -> dict[str, Hierarchy]:
        """For each limit of `Limits` that can be set here, where; found out by trying."""
        found: dict[str, Hierarchy] = {}
        for limit, controller in _CONTROLLERS.items():
            for candidate in _candidates(controller):
                if self._works(candidate, limit):
                    found[limit] = candidate
                    break
        return found

    def _works(self, where: Hierarchy, limit: str) -> bool:
        trial = where.parent / f"{self._mark}trial-{secrets.token_hex(4)}"
        try:
            trial.mkdir()
        except OSError:
            return False
        try:
            _set(trial, where.version, limit, 1 << 30 if limit == "memory" else 1.0)
        except OSError:
            return False
        else:
            return (trial / "cgroup.procs").exists()
        finally:
            with contextlib.suppress(OSError):
                trial.rmdir()

    def plan(self, name: str, limits: Limits) -> tuple[str, ...]:
        """The folders that a sandbox with these limits will need.

        Raises:
            SandboxError: this machine cannot set one of them.
        """
        if limits.disk is not None and limits.disk < 1:
            raise SandboxError(f"a sandbox may write at least one byte, not {limits.disk}")
        if limits.cores is not None:
            here = os.sched_getaffinity(0)
            if not limits.cores or not here.issuperset(limits.cores):
                offered = ", ".join(map(str, sorted(here)))
                raise SandboxError(f"a sandbox can run on the processors {offered}, not on {limits.cores}")
        if limits.memory is not None and limits.memory < _LEAST_MEMORY:
            raise SandboxError(
                f"a sandbox needs at least {_LEAST_MEMORY} bytes of memory, not {limits.memory}"
            )
        if limits.cpus is not None and limits.cpus * _PERIOD < _LEAST_QUOTA:
            raise SandboxError(
                f"a sandbox needs at least {_LEAST_QUOTA / _PERIOD} processors, not {limits.cpus}"
            )
        if limits.processes is not None and limits.processes < 1:
            raise SandboxError(f"a sandbox needs at least one process, not {limits.processes}")
        token = secrets.token_hex(4)
        folders: list[str] = []
        for limit, value in (("memory", limits.memory), ("cpus", limits.cpus)):
            if value is None:
                continue
            if limit not in self.hierarchies:
                if limit == "memory":
                    continue  # it is watched
                raise SandboxError(
                    f"the {limit} of a sandbox cannot be limited here: there is no control group with the controller "
                    f"{_CONTROLLERS[limit]!r} that this process may make groups in"
                )
            folder = str(self.hierarchies[limit].parent / f"{self._mark}{name}-{token}")
            if folder not in folders:
                folders.append(folder)
        return tuple(folders)

    def watched_memory(self, limits: Limits) -> int | None:
        """The limit on memory, if no control group keeps it."""
        return None if "memory" in self.hierarchies else limits.memory

    def make(self, folders: Iterable[str], limits: Limits) -> list[str]:
        """Make what was planned.

        Returns:
            The files that a process joins the groups through.

        Raises:
            OSError: it could not be done.
        """
        made: list[str] = []
        for each in folders:
            folder = Path(each)
            folder.mkdir(exist_ok=True)
            for limit, value in (("memory", limits.memory), ("cpus", limits.cpus)):
                where = self.hierarchies.get(limit)
                if value is not None and where is not None and where.parent == folder.parent:
                    _set(folder, where.version, limit, value)
            made.append(str(folder / "cgroup.procs"))
        return made

    def remove(self, folders: Iterable[str]) -> None:
        """Remove groups whose processes have ended; what is still busy is left to `leftover`."""
        for each in folders:
            for pause in _REMOVAL_PAUSES:
                try:
                    Path(each).rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(pause)  # the last process is not quite gone
                else:
                    break

    def leftover(self, used: set[str]) -> list[str]:
        """Groups of this home that no sandbox has."""
        parents = {each.parent for each in self.hierarchies.values()}
        found = [str(each) for parent in parents for each in parent.glob(f"{self._mark}*") if each.is_dir()]
        return sorted(each for each in found if each not in used)


def out_of_memory_kills(folders: Iterable[str]) -> int:
    """How many processes the kernel has ended in these groups because their memory was used up."""
    total = 0
    for folder in folders:
        for file in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in Path(folder, file).read_text().splitlines():
                    if line.startswith("oom_kill "):
                        total += int(line.split()[1])
    return total


def _set(folder: Path, version: int, limit: str, value: float) -> None:
    first = version == 1
    if limit == "memory":
        (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(int(value)))
        with contextlib.suppress(OSError):  # kernels without accounting of swap
            # The first version counts memory and swap together, the second one swap alone.
            swap, most = ("memory.memsw.limit_in_bytes", int(value)) if first else ("memory.swap.max", 0)
            (folder / swap).write_text(str(most))
        return
    quota = int(value * _PERIOD)
    if not first:
        (folder / "cpu.max").write_text(f"{quota} {_PERIOD}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))


def _candidates(controller: str) -> list[Hierarchy]:
    """Where groups with a controller might be made on this machine."""
    return candidates(
        controller, Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )


def candidates(controller: str, mounts: str, groups: str) -> list[Hierarchy]:
    """Where groups with a controller might be made, the nearest to this process's own group first.

    Args:
        controller: as the kernel names it.
        mounts: what is mounted, in the form of ``/proc/self/mountinfo``.
        groups: this process's group in each hierarchy, in the form of ``/proc/self/cgroup``.
    """
    own = _own_groups(groups)
    found: list[Hierarchy] = []
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        top = Path(fields.split()[4])
        if kind == "cgroup" and controller in options.split(","):
            here = top / own.get(controller, "").lstrip("/")
            found += [Hierarchy(each, 1) for each in (here, top) if each.is_dir()]
        elif kind == "cgroup2":
            here = top / own.get("", "").lstrip("/")
            # A group with processes in it, such as our own, cannot have groups with limits below it.
            folders = [each for each in (here.parent, top) if each.is_relative_to(top)]
            found += [Hierarchy(each, 2) for each in folders if controller in _enabled(each)]
    return found


def _own_groups(groups: str) -> dict[str, str]:
    """This process's group in each hierarchy, by controller; the second version's by the empty name."""
    found: dict[str, str] = {}
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        for each in controllers.split(","):
            found[each] = path
    return found


def _enabled(folder: Path) -> list[str]:
    try:
        return (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
