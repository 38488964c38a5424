"""What a sandbox may not do although it is root inside: capabilities, system calls, the host's abstract
sockets.

Applied once, by the sandbox's PID 1 to itself, and inherited by everything in it.
"""

from __future__ import annotations

import ctypes
import struct

from race.sandboxes.local import syscalls
from race.sandboxes.local.sequence import WHATEVER, Call

CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 31})
"""What root keeps: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service,
net_raw, sys_chroot, setfcap. All of them count only for what belongs to the sandbox."""

_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION_3 = 0x20080522
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
_FREE = 3
"""The first free descriptor."""

_SCOPE_ABSTRACT_SOCKETS = 1
_SCOPE_VERSION = 6

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink; AF_VSOCK would ignore the network namespace
_X32 = 0x40000000

_EPERM = 1
_ENOSYS = 38
_EAFNOSUPPORT = 97

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER_EQUAL = 0x35
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_OFFSET_NUMBER = 0
_OFFSET_ARCHITECTURE = 4
_OFFSET_FIRST_ARGUMENT = 16

DENIED = {
    # The numbers are those of x86_64 and of aarch64.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
}
"""System calls that answer "not permitted": those that reach the kernel's rarely trodden parts, other
processes' memory, or the machine as a whole. Most need a capability that is gone anyway; this is the second
lock."""

PRETENDED = {
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setgroups": (116, 159),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
}
"""System calls that answer "done" without doing anything where a sandbox has only one user id, so that
package managers, which give files to many users, work."""


def confinement(program: bytes, *, share_network: bool) -> list[Call]:
    """The system calls by which a process confines itself and everything it will start. Cannot be undone.

    Descriptor 3 has to be the first free one.

    Args:
        program: from `system_call_filter`.
        share_network: it has the host's network, and with it the host's abstract sockets, unless Landlock
            hides them (Linux 6.12 and newer).
    """
    dropped = [each for each in range(64) if each not in CAPABILITIES]
    # Those beyond the last capability that this kernel knows fail, which does not matter.
    calls = [Call("prctl", (_PR_CAPBSET_DROP, each), least=WHATEVER) for each in dropped]
    low = sum(1 << each for each in CAPABILITIES)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    calls.append(Call("capset", (header, struct.pack("6I", low, low, 0, 0, 0, 0))))
    calls.append(Call("prctl", (syscalls.PR_SET_NO_NEW_PRIVS, 1)))
    if share_network and syscalls.landlock_version() >= _SCOPE_VERSION:
        scope = struct.pack("QQQ", 0, 0, _SCOPE_ABSTRACT_SOCKETS)
        calls.append(Call("landlock_create_ruleset", (scope, len(scope)), least=_FREE))
        calls.append(Call("landlock_restrict_self", (_FREE,)))
        calls.append(Call("close", (_FREE,)))
    held = ctypes.create_string_buffer(program, len(program))
    _held.append(held)
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(held))
    # Without this flag older kernels slow the filtered process down against speculative attacks, which would
    # falsify every measurement made in a sandbox.
    calls.append(Call("seccomp", (_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW, header)))
    # Root inside could otherwise read this process through /proc, or trace it.
    calls.append(Call("prctl", (syscalls.PR_SET_DUMPABLE, 0)))
    return calls


_held: list[ctypes.Array[ctypes.c_char]] = []
"""The filters that lists of system calls point to."""


PINNED = {"sched_setaffinity": (203, 122)}
"""System calls that answer "not permitted" where a sandbox may use some of the machine's processors only."""


def system_call_filter(machine: str, *, pretend_owners: bool, pinned: bool = False) -> bytes:
    """The seccomp program for a processor, as the kernel takes it.

    Programs of any other processor, such as 32-bit ones, find no system calls at all.

    Args:
        machine: as the kernel names it.
        pretend_owners: see `PRETENDED`.
        pinned: see `PINNED`.

    Raises:
        OSError: the processor is not one of the two that the tables know.
    """
    if machine not in _ARCHITECTURE:
        raise OSError(_ENOSYS, f"sandboxes run on {' and '.join(_ARCHITECTURE)}, not on {machine!r}")
    column = list(_ARCHITECTURE).index(machine)
    program = [
        (_LOAD_WORD, 0, 0, _OFFSET_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        (_LOAD_WORD, 0, 0, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        # The x32 calls are the same ones under other numbers.
        program += [(_JUMP_GREATER_EQUAL, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    answers: list[tuple[int | None, int]] = [(each[column], _EPERM) for each in DENIED.values()]
    if pinned:
        answers += [(each[column], _EPERM) for each in PINNED.values()]
    if pretend_owners:
        answers += [(each[column], 0) for each in PRETENDED.values()]
    for number, error in answers:
        if number is not None:
            program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    program += [(_JUMP_EQUAL, 1, 0, _SOCKET[machine]), (_RETURN, 0, 0, _ALLOW)]
    program.append((_LOAD_WORD, 0, 0, _OFFSET_FIRST_ARGUMENT))
    for family in _FAMILIES:
        program += [(_JUMP_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    program.append((_RETURN, 0, 0, _ERRNO | _EAFNOSUPPORT))
    return b"".join(struct.pack("HBBI", *each) for each in program)
