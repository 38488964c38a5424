"""The file tree of a new sandbox: its overlays, ``/proc``, ``/dev`` and ``/sys``, and the change into it.

As lists of system calls for its PID 1, inside the sandbox's own user and mount namespaces. Paths are relative to the
working directory, because the sandbox's root need not be able to walk to it from ``/``.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Final

from race.sandboxes.local import syscalls
from race.sandboxes.local.sequence import NEVER, WHATEVER, Call
from race.sandboxes.local.syscalls import (
    AT_FDCWD,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandboxes.local.messages import MountPlan, SpawnRequest

NEW_ROOT = "root"
"""The directory, in the working directory, over which the sandbox's root is mounted."""
FREE: Final = 3
"""The first free descriptor, while these calls are carried out. What describes an overlay is there if it fails."""

LAYERS_ONE_BY_ONE = syscalls.kernel() >= (6, 8)
"""Whether the kernel takes any number of layers. Others take a text, of a page at most."""

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_SHOWN_HARDWARE = ("devices/system/cpu", "devices/system/node")
_LEAST_PID_MAX = 1024
_CORES_IN_A_MASK: Final = 1024
_PAGE: Final = 4096

_AT_EMPTY_PATH: Final = 0x1000
_CLOEXEC: Final = 1
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 0, 1, 6
_MOVE_MOUNT_F_EMPTY_PATH: Final = 4
_MOUNT_ATTR_RDONLY: Final = 1
_MNT_DETACH: Final = 2
_OPEN_TREE_CLONE: Final = 1
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP_RUNNING: Final = 0x41


def plan(request: SpawnRequest, found: Callable[[str], str]) -> list[Call]:
    """What differs from one sandbox to the next.

    It is entered at its first call, and again at its second one. It leaves, the first time, for ``tree``, which is to
    be `tree`, and for ``built`` at last.

    Args:
        request: what is asked for.
        found: gives the path, here, of a layer.
    """
    calls = [
        Call("getpid", least=NEVER, instead="overlays"),
        Call("getpid", least=NEVER, instead="rest"),
        Call("mount", (0, b"/\0", 0, MS_REC | MS_PRIVATE, 0), label="overlays", about="mount /"),
    ]
    for each in request["mounts"]:
        calls += _overlay(each, found)
    calls.append(Call("getpid", least=NEVER, instead="tree"))
    size = "" if request["shared_memory"] is None else f",size={request['shared_memory']}"
    rest = [
        _mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777{size}"),
        Call("pivot_root", (b".\0", b".\0"), about="pivot_root"),
        Call("umount2", (b".\0", _MNT_DETACH), about="umount ."),
        Call("chdir", (b"/\0",), about="chdir /"),
        Call("sethostname", (name := os.fsencode(request["hostname"]), len(name))),
        *([] if request["share_network"] else _loopback()),
        *([] if request["cores"] is None else [_cores(request["cores"])]),
        # Nobody inside can raise it again, for lack of the capability.
        *written("/proc/sys/user/max_user_namespaces", "0"),
        *_limit_on_numbers(request["processes"]),
        Call("getpid", least=NEVER, instead="built"),
    ]
    return [*calls, rest[0]._replace(label="rest"), *rest[1:]]


def overlay_options(lower: list[str], upper: str, work: str) -> str:
    """The layers of an overlay as one text, for kernels before 6.8, which take no more than a page of it."""
    escaped = [
        each.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,") for each in (*lower, upper, work)
    ]
    *layers, upper, work = escaped
    return f"lowerdir={':'.join(layers)},upperdir={upper},workdir={work},userxattr"


def _overlay(plan: MountPlan, found: Callable[[str], str]) -> list[Call]:
    """An overlay whose own attributes are kept as ``user.overlay.*``, which needs no privilege on the host."""
    target = NEW_ROOT if plan["at"] == "/" else NEW_ROOT + plan["at"]
    lower, upper, work = [found(each) for each in plan["lower"]], found(plan["upper"]), found(plan["work"])
    about = f"overlay at {target}"
    if not LAYERS_ONE_BY_ONE:
        options = overlay_options(lower, upper, work)
        if len(os.fsencode(options)) < _PAGE:
            return [_mount("overlay", target, "overlay", data=options)._replace(about=about)]
        text = f"this kernel takes no more than a page of layers; {len(lower)} are too many"
        return [Call("getpid", least=NEVER, label=about, about=text)]
    context, made = FREE, FREE + 1
    calls = [Call("fsopen", (b"overlay\0", _CLOEXEC), least=context, about="fsopen overlay")]
    for key, value in [("lowerdir+", each) for each in lower] + [("upperdir", upper), ("workdir", work)]:
        arguments = (context, _FSCONFIG_SET_STRING, _text(key), _text(value), 0)
        calls.append(Call("fsconfig", arguments, about=f"overlay {key}={value}"))
    return [
        *calls,
        Call("fsconfig", (context, _FSCONFIG_SET_FLAG, b"userxattr\0", 0, 0), about="overlay userxattr"),
        Call("fsconfig", (context, _FSCONFIG_CMD_CREATE, 0, 0, 0), about=about),
        Call("fsmount", (context, _CLOEXEC, 0), least=made, about="overlay fsmount"),
        Call("close", (context,)),
        _attached(made, target),
        Call("close", (made,)),
    ]


def tree() -> list[Call]:
    """What all sandboxes have in common, after their overlays and before their shared memory."""
    return [
        Call("chdir", (_text(NEW_ROOT),), about=f"chdir {NEW_ROOT}"),
        # They may be there already.
        *(_folder(name, 0o755)._replace(least=WHATEVER) for name in ("proc", "dev", "sys")),
        _mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC),
        *_devices(),
        *_hardware(),
    ]


def _devices() -> list[Call]:
    """A ``/dev`` with what every program expects and nothing of the host's hardware."""
    calls = [_mount("dev", "dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")]
    flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
    for name in _DEVICES:
        calls += [
            Call(
                "openat",
                (AT_FDCWD, _text(f"dev/{name}"), flags, 0o666),
                least=FREE,
                about=f"open dev/{name}",
            ),
            Call("close", (FREE,)),
            _mount(f"/dev/{name}", f"dev/{name}", flags=MS_BIND),
        ]
    for name, target in _DEVICE_LINKS.items():
        calls.append(
            Call("symlinkat", (_text(target), AT_FDCWD, _text(f"dev/{name}")), about=f"symlink dev/{name}")
        )
    options = "newinstance,ptmxmode=0666,mode=620"
    return [
        *calls,
        _folder("dev/pts"),
        _folder("dev/shm"),
        _mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options),
    ]


def _hardware() -> list[Call]:
    """A ``/sys`` with the processors and memory nodes, which numeric libraries look for, and nothing else."""
    calls = [_mount("sys", "sys", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=64k")]
    read_only = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    parents = {os.path.dirname(name)[:end] for name in _SHOWN_HARDWARE for end in (None, name.index("/"))}
    calls += [_folder(f"sys/{each}") for each in sorted(parents)]
    for name in _SHOWN_HARDWARE:
        shown, target = f"/sys/{name}", f"sys/{name}"
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
        calls += [
            _folder(target),
            # There may be no NUMA, or a container without /sys.
            Call("open_tree", (AT_FDCWD, _text(shown), flags), least=FREE, instead=f"after {name}"),
            Call(
                "mount_setattr",
                (FREE, b"\0", _AT_EMPTY_PATH, read_only, len(read_only)),
                about=f"mount_setattr of {shown}",
            ),
            _attached(FREE, target),
            Call("close", (FREE,)),
            Call("getpid", label=f"after {name}"),
        ]
    return calls


def written(path: str, text: str) -> list[Call]:
    """Write to a file of the kernel's."""
    return [
        Call("openat", (AT_FDCWD, _text(path), os.O_WRONLY | os.O_CLOEXEC), least=FREE, about=path),
        Call("write", (FREE, text.encode(), len(text)), least=len(text), about=path),
        Call("close", (FREE,)),
    ]


def _limit_on_numbers(processes: int | None) -> list[Call]:
    """The limit on processes counts for each user; all users together are limited by the numbers there are.

    Since Linux 6.14, each sandbox has numbers of its own.
    """
    if processes is None:
        return []
    opened, put, closed = written("/proc/sys/kernel/pid_max", str(max(2 * processes, _LEAST_PID_MAX)))
    return [
        opened._replace(instead="no limit"),
        put._replace(least=WHATEVER),
        closed,
        Call("getpid", label="no limit"),
    ]


def _loopback() -> list[Call]:
    up = struct.pack("16sH22x", b"lo", _IFF_UP_RUNNING)
    return [
        Call("socket", (socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0), least=FREE),
        Call("ioctl", (FREE, _SIOCSIFFLAGS, up), about="ioctl SIOCSIFFLAGS"),
        Call("close", (FREE,)),
    ]


def _cores(cores: list[int]) -> Call:
    mask = sum(1 << each for each in set(cores)).to_bytes(max(_CORES_IN_A_MASK, *cores) // 8 + 8, "little")
    return Call("sched_setaffinity", (0, len(mask), mask))


def _text(text: str) -> bytes:
    return os.fsencode(text) + b"\0"


def _folder(path: str, mode: int = 0o777) -> Call:
    return Call("mkdirat", (AT_FDCWD, _text(path), mode), about=f"mkdir {path}")


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> Call:
    arguments = (_text(source), _text(target), _text(kind) if kind else 0, flags, _text(data) if data else 0)
    return Call("mount", arguments, about=f"mount {target}")


def _attached(mounted: int, target: str) -> Call:
    arguments = (mounted, b"\0", AT_FDCWD, _text(target), _MOVE_MOUNT_F_EMPTY_PATH)
    return Call("move_mount", arguments, about=f"move_mount {target}")
