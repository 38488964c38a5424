"""The Linux system calls that Python's standard library does not offer, through ctypes.

All of them raise `OSError` with the kernel's error number. Numbers differ between processors only for the
calls older than 2019. This module is loaded by the single-threaded helpers inside and outside of sandboxes,
so it imports next to nothing.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import struct

MACHINE = os.uname().machine
"""The processor as the kernel names it: ``x86_64`` or ``aarch64``."""


CLONE_PARENT_SETTID = 0x00100000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19

PR_SET_PDEATHSIG = 1
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_OPEN_TREE = 428
_MOVE_MOUNT = 429
_CLOSE_RANGE = 436
_OPENAT2 = 437
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446

AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_MNT_DETACH = 2
_MOUNT_ATTR_IDMAP = 0x00100000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MESSAGES = 20
_RESOLVE_NO_MAGICLINKS = 2
_RESOLVE_NO_SYMLINKS = 4
_RESOLVE_BENEATH = 8
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1

_libc = ctypes.CDLL(None, use_errno=True)
_at_once = ctypes.PyDLL(None, use_errno=True).syscall
"""Without letting go of the interpreter's lock, which would have the kernel copy more memory of a new process."""
_at_once.restype = ctypes.c_long
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
    return result


def _call(number: int, what: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_syscall(ctypes.c_long(number), *converted), what)


def kernel() -> tuple[int, int]:
    """The first two numbers of the kernel's version."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(itertools.takewhile(str.isdigit, minor)) or 0)


def unshare(flags: int) -> None:
    """Leave the namespaces of ``flags`` for new ones."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def plainly(number: int, arguments: list[int]) -> int:
    """Make a system call. Returns its result, or the negative number of an error."""
    result = int(_at_once(*map(ctypes.c_long, (number, *arguments))))
    return -ctypes.get_errno() if result == -1 else result


def map_memory(size: int, protection: int, flags: int) -> int:
    """The address of new memory that belongs to no file."""
    address = _mmap(None, size, protection, flags, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "mmap")
    return int(address)


def protect(address: int, size: int, protection: int) -> None:
    """Say what memory may be used for."""
    _checked(_libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), protection), "mprotect")


def prctl(option: int, argument: int) -> None:
    """Set one property of this process."""
    _checked(_libc.prctl(option, *(ctypes.c_ulong(each) for each in (argument, 0, 0, 0))), f"prctl {option}")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    """The old mount call: for file systems without layers, binds, and propagation."""
    encoded = [each if each is None else os.fsencode(each) for each in (source, target, kind)]
    _checked(
        _libc.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(data) if data else None), f"mount {target}"
    )


def detach(target: str) -> None:
    """Unmount lazily: nothing waits for those who still use it."""
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"umount {target}")


def clone_mount(path: str) -> int:
    """A descriptor of a detached copy of the mount at ``path``, without what is mounted below it."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    return _call(_OPEN_TREE, f"open_tree {path}", AT_FDCWD, os.fsencode(path), flags)


def map_mount(mount_fd: int, namespace_fd: int) -> None:
    """Shift the owners of a detached mount as the user namespace maps them; nothing on disk changes."""
    request = struct.pack("QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, namespace_fd)
    _call(_MOUNT_SETATTR, "mount_setattr", mount_fd, b"", _AT_EMPTY_PATH, request, len(request))


def attach_mount(mount_fd: int, target: str) -> None:
    """Put a detached mount into the file tree."""
    _call(
        _MOVE_MOUNT,
        f"move_mount {target}",
        mount_fd,
        b"",
        AT_FDCWD,
        os.fsencode(target),
        _MOVE_MOUNT_F_EMPTY_PATH,
    )


def kernel_messages(context: int) -> str:
    """What the kernel says about a refused mount, one message a read; nothing if the descriptor is of none."""
    said: list[str] = []
    try:
        while len(said) < _MESSAGES:
            said.append(os.read(context, 4096).decode("utf-8", "replace").strip())
    except OSError:
        pass
    return "".join(f"; {each}" for each in said)


def openat2(directory: int, path: bytes, flags: int) -> int:
    """Open ``path`` below the directory descriptor, refusing any link in it and any way out of it.

    Raises:
        OSError: with ELOOP if a part of the path is a link, EXDEV if it leads out.
    """
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
    request = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, resolve)
    return _call(_OPENAT2, os.fsdecode(path), directory, path, request, len(request))


def duplicate_above(descriptor: int, lowest: int) -> int:
    """A duplicate of a descriptor, numbered ``lowest`` or higher, that no started program inherits."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)


def close_from(first: int) -> None:
    """Close all descriptors from ``first`` on."""
    _call(_CLOSE_RANGE, "close_range", first, 0xFFFFFFFF, 0)


def landlock_version() -> int:
    """The version of Landlock that the kernel offers; 0 if there is none."""
    try:
        return _call(_LANDLOCK_CREATE_RULESET, "landlock", None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    except OSError:
        return 0


def landlock_confine(handled: int, allowed: list[tuple[str, int]], scope: int) -> None:
    """Forbid this process and all it will start to access files but as allowed. Needs
    no-new-privileges and nothing else.

    Args:
        handled: the kinds of access that are forbidden unless allowed, as ``LANDLOCK_ACCESS_FS`` bits.
        allowed: what is allowed at and below a path.
        scope: what outside is out of reach besides, as ``LANDLOCK_SCOPE`` bits; 0 on kernels before 6.12.
    """
    request = struct.pack("QQQ", handled, 0, scope) if scope else struct.pack("Q", handled)
    ruleset = _call(_LANDLOCK_CREATE_RULESET, "landlock_create_ruleset", request, len(request), 0)
    try:
        for path, access in allowed:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = struct.pack("=Qi", access, opened)
                _call(_LANDLOCK_ADD_RULE, f"landlock {path}", ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)
            finally:
                os.close(opened)
        _call(_LANDLOCK_RESTRICT_SELF, "landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
