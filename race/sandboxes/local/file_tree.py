"""The file tree of a new sandbox: its overlays, ``/proc``, ``/dev`` and ``/sys``, and the change into it.

Runs in the processes that the zygote forks, inside the sandbox's own user and mount namespaces. Paths are
relative to the working directory, because the sandbox's root need not be able to walk to it from ``/``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from race.sandboxes.local import syscalls
from race.sandboxes.local.syscalls import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_REC

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandboxes.local.messages import MountPlan

NEW_ROOT = "root"
"""The directory, in the working directory, over which the sandbox's root is mounted."""

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_SHOWN_HARDWARE = ("devices/system/cpu", "devices/system/node")


def mount_overlays(mounts: list[MountPlan], found: Callable[[str], str]) -> None:
    """Mount the layers of a sandbox over `NEW_ROOT`.

    Args:
        mounts: ``/`` first, then what is mounted inside it.
        found: gives the path, here, of a layer.

    Raises:
        OSError: with the kernel's own words where it has some.
    """
    syscalls.mount(None, "/", flags=MS_REC | MS_PRIVATE)
    for plan in mounts:
        target = NEW_ROOT if plan["at"] == "/" else NEW_ROOT + plan["at"]
        lower = [found(each) for each in plan["lower"]]
        syscalls.mount_overlay(target, lower, found(plan["upper"]), found(plan["work"]))


def enter(shared_memory: int | None) -> None:
    """Complete the tree over `NEW_ROOT` and make it this process's root. Must be PID 1 of its PID
    namespace.

    Args:
        shared_memory: bytes that files in ``/dev/shm`` may take up; None leaves that to the kernel.
    """
    os.chdir(NEW_ROOT)
    for name in ("proc", "dev", "sys"):
        if not os.path.isdir(name):
            os.mkdir(name, 0o755)
    syscalls.mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _make_devices(shared_memory)
    _show_hardware()
    syscalls.pivot_root(".", ".")
    syscalls.detach(".")
    os.chdir("/")


def _make_devices(shared_memory: int | None) -> None:
    """A ``/dev`` with what every program expects and nothing of the host's hardware."""
    syscalls.mount("dev", "dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name in _DEVICES:
        os.close(os.open(f"dev/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        syscalls.mount(f"/dev/{name}", f"dev/{name}", flags=MS_BIND)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"dev/{name}")
    os.mkdir("dev/pts")
    os.mkdir("dev/shm")
    options = "newinstance,ptmxmode=0666,mode=620"
    syscalls.mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    options = "mode=1777" if shared_memory is None else f"mode=1777,size={shared_memory}"
    syscalls.mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, options)


def _show_hardware() -> None:
    """A ``/sys`` with the processors and memory nodes, which numeric libraries look for, and nothing else."""
    syscalls.mount("sys", "sys", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=64k")
    for name in _SHOWN_HARDWARE:
        os.makedirs(f"sys/{name}")
        try:
            shown = syscalls.clone_mount(f"/sys/{name}")
        except OSError:
            continue  # no NUMA, or a container without /sys
        try:
            syscalls.make_read_only(shown)
            syscalls.attach_mount(shown, f"sys/{name}")
        finally:
            os.close(shown)
