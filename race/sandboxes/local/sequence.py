"""Lists of system calls that are carried out one after the other with nothing between them.

A process that Python forks and that goes on in Python copies some hundred pages of memory before it has done anything,
because counting references is writing. One that carries out a list copies next to none; so the first process of a
sandbox, which may sleep for long, takes a fraction of the memory, and is there sooner.

The loop over the list is a few dozen bytes of machine code for each processor. Where a machine does not let programs
make code, the same loop in Python does as well.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import sys
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from race.sandboxes.local import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

WHATEVER: Final = -(1 << 63)
"""As ``least`` of a call whose result does not matter."""
NEVER: Final = (1 << 63) - 1
"""As ``least`` of a call after which it always goes on elsewhere."""

_WORDS: Final = 10
_WORD: Final = 8
RECORD: Final = _WORDS * _WORD
"""Bytes from one call of a list to the next."""
_END: Final = -1
_ARGUMENTS: Final = 6
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_PRIVATE, _MAP_ANONYMOUS = 2, 0x20
_PAGE = os.sysconf("SC_PAGE_SIZE")

LOOP: Final = {
    # A record is ten words: number, six arguments, the least good result, the record to go on with after a worse one,
    # and where to put the worse one. Either of the last two may be zero. The loop ends at a number below zero, or after
    # a worse result with no such record, which it then writes over the number. It returns the address of the record
    # where it ended. It uses no stack once it has begun.
    "x86_64": bytes.fromhex(
        "53"  # push rbx
        "4889fb"  # mov rbx, rdi
        "488b03"  # next: mov rax, [rbx]
        "4885c0"  # test rax, rax
        "7843"  # js done
        "488b7b08"  # mov rdi, [rbx+8]
        "488b7310"  # mov rsi, [rbx+16]
        "488b5318"  # mov rdx, [rbx+24]
        "4c8b5320"  # mov r10, [rbx+32]
        "4c8b4328"  # mov r8, [rbx+40]
        "4c8b4b30"  # mov r9, [rbx+48]
        "0f05"  # syscall
        "483b4338"  # cmp rax, [rbx+56]
        "7c06"  # jl less
        "4883c350"  # add rbx, 80
        "ebd2"  # jmp next
        "488b4b48"  # less: mov rcx, [rbx+72]
        "4885c9"  # test rcx, rcx
        "7403"  # jz over
        "488901"  # mov [rcx], rax
        "488b4b40"  # over: mov rcx, [rbx+64]
        "4885c9"  # test rcx, rcx
        "7405"  # jz stop
        "4889cb"  # mov rbx, rcx
        "ebb8"  # jmp next
        "488903"  # stop: mov [rbx], rax
        "4889d8"  # done: mov rax, rbx
        "5b"  # pop rbx
        "c3"  # ret
    ),
    "aarch64": b"".join(
        word.to_bytes(4, "little")
        for word in (
            0xAA0003E9,  # mov x9, x0
            0xF9400128,  # next: ldr x8, [x9]
            0xB7F80228,  # tbnz x8, #63, done
            0xA9408520,  # ldp x0, x1, [x9, #8]
            0xA9418D22,  # ldp x2, x3, [x9, #24]
            0xA9429524,  # ldp x4, x5, [x9, #40]
            0xD4000001,  # svc #0
            0xA943AD2A,  # ldp x10, x11, [x9, #56]
            0xEB0A001F,  # cmp x0, x10
            0x5400006B,  # b.lt less
            0x91014129,  # add x9, x9, #80
            0x17FFFFF6,  # b next
            0xF940252C,  # less: ldr x12, [x9, #72]
            0xB400004C,  # cbz x12, over
            0xF9000180,  # str x0, [x12]
            0xB400006B,  # over: cbz x11, stop
            0xAA0B03E9,  # mov x9, x11
            0x17FFFFF0,  # b next
            0xF9000120,  # stop: str x0, [x9]
            0xAA0903E0,  # done: mov x0, x9
            0xD65F03C0,  # ret
        )
    ),
}
"""The machine code of ``long *loop(long *record)``, by processor."""

NUMBERS: Final = {
    # The numbers are those of x86_64 and of aarch64.
    "capset": (126, 91),
    "chdir": (80, 49),
    "clone": (56, 220),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup3": (292, 24),
    "execve": (59, 221),
    "exit_group": (231, 94),
    "faccessat": (269, 48),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "futex": (202, 98),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "ioctl": (16, 29),
    "kill": (62, 129),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "madvise": (28, 233),
    "mkdirat": (258, 34),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "openat": (257, 56),
    "pivot_root": (155, 41),
    "ppoll": (271, 73),
    "prctl": (157, 167),
    "pread64": (17, 67),
    "prlimit64": (302, 261),
    "read": (0, 63),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "sched_setaffinity": (203, 122),
    "seccomp": (317, 277),
    "sendmsg": (46, 211),
    "setgroups": (116, 159),
    "sethostname": (170, 161),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setsid": (112, 157),
    "socket": (41, 198),
    "symlinkat": (266, 36),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "write": (1, 64),
}
_COLUMN: Final = 1 if syscalls.MACHINE == "aarch64" else 0


class Call(NamedTuple):
    """One system call of a list.

    Attributes:
        name: one of `NUMBERS`.
        arguments: numbers, or bytes whose address is meant.
        least: the least result that is as it should be.
        instead: after another result: the label to go on at; empty to stop there.
        label: a name for this place; empty for none.
        about: what it is about, for people; empty for its name alone. Where a list is to stop after whatever result
            it says why, and the label says where.
    """

    name: str
    arguments: tuple[int | bytes, ...] = ()
    least: int = 0
    instead: str = ""
    label: str = ""
    about: str = ""


class Ended(NamedTuple):
    """Where a list ended.

    Attributes:
        call: the one that was not as it should be; None at the end of the list, or in another list.
        result: what it gave; below zero the negative number of an error.
        address: of its record.
    """

    call: Call | None
    result: int
    address: int

    def check(self) -> None:
        """Raise the error of the call that failed.

        Raises:
            OSError: with what the call is about, or its label, as its file name.
        """
        if self.call is not None:
            number = -self.result if self.result < 0 else errno.EPROTO
            if self.call.least == NEVER:
                raise OSError(number, self.call.about, self.call.label)
            raise OSError(number, os.strerror(number), self.call.about or self.call.name)


class Room(Protocol):
    """Where lists, and what they refer to, can be put."""

    def put(self, data: bytes) -> int:
        """Add bytes, and return their address, which is that of a word."""
        ...

    def change(self, address: int, data: bytes) -> None:
        """Write over what is at an address."""
        ...


class _Own:
    """Memory of this process alone."""

    def __init__(self) -> None:
        self._kept: list[ctypes.Array[ctypes.c_char]] = []

    def put(self, data: bytes) -> int:
        self._kept.append(ctypes.create_string_buffer(data, len(data)))
        return ctypes.addressof(self._kept[-1])

    def change(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))


class Draft:
    """What is to be put at an address by another process.

    Args:
        address: of its beginning.
    """

    def __init__(self, address: int) -> None:
        self.data = bytearray()
        """All of it."""
        self._address = address

    def put(self, data: bytes) -> int:
        """Add bytes, and return the address that they will have."""
        at = len(self.data)
        self.data += data + bytes(-len(data) % _WORD)
        return self._address + at

    def change(self, address: int, data: bytes) -> None:
        """Write over what will be at an address."""
        at = address - self._address
        self.data[at : at + len(data)] = data


class Memory:
    """Memory that this process and all that it forks have in common, filled from its beginning on.

    Args:
        size: in bytes.

    Raises:
        OSError: there is none left.
    """

    def __init__(self, size: int = _PAGE) -> None:
        self._map = mmap.mmap(-1, size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._used = 0
        self.size = size
        """In bytes."""

    def put(self, data: bytes) -> int:
        """Add bytes, and return their address, which is that of a word.

        Raises:
            BufferError: there is no room for them.
        """
        at = self._used
        if at + len(data) > self.size:
            raise BufferError
        self._map[at : at + len(data)] = data
        self._used = (at + len(data) + _WORD - 1) // _WORD * _WORD
        return self._address + at

    def number(self, address: int) -> int:
        """The number of four bytes at an address."""
        at = address - self._address
        return int.from_bytes(self._map[at : at + 4], sys.byteorder, signed=True)

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Words at an address."""
        return struct.unpack_from(f"{count}q", self._map, address - self._address)

    def change(self, address: int, data: bytes) -> None:
        """Write over what is at an address."""
        at = address - self._address
        self._map[at : at + len(data)] = data

    def clear(self) -> None:
        """Begin to fill it anew."""
        self._used = 0

    def close(self) -> None:
        """Give it back."""
        self._map.close()


class SystemCalls:
    """A list of system calls that can be carried out.

    Args:
        calls: in their order.
        room: where it is kept; default: in memory of this process alone.
        elsewhere: addresses of records of other lists, by labels for them.
        machine_code: whether the loop may be machine code.

    Raises:
        KeyError: a call or a label is not known.
        BufferError: there is no room.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        room: Room | None = None,
        *,
        elsewhere: Mapping[str, int] | None = None,
        machine_code: bool = True,
    ) -> None:
        self._calls = list(calls)
        self._room = room if room is not None else _Own()
        self._places = {each.label: place for place, each in enumerate(calls) if each.label}
        self._loop = _loop_of_machine_code() if machine_code else None
        self._start = self._room.put(bytes(RECORD * len(calls) + _WORD))
        self._end = self._start + len(calls) * RECORD
        labels = {**(elsewhere or {}), **{label: self.address(label) for label in self._places}, "": 0}
        results = self._room_for_results()
        words: list[int] = []
        for place, each in enumerate(calls):
            words.append(number(each.name))
            words += [each if isinstance(each, int) else self._room.put(each) for each in each.arguments]
            words += [0] * (_ARGUMENTS - len(each.arguments))
            words += (each.least, labels[each.instead], results and results + _WORD * place)
        words.append(_END)
        self._room.change(self._start, struct.pack(f"{len(words)}q", *words))

    def _room_for_results(self) -> int:
        """The address of a word for each call; 0 for none."""
        return 0

    def address(self, label: str) -> int:
        """Of the record of a call."""
        return self._start + self._places[label] * RECORD

    def run(self) -> Ended:
        """Carry it out, from the beginning. Returns in each process that a call of it has forked, too."""
        at = self._run_in_python() if self._loop is None else self._loop(self._start)
        if at == self._end:
            return Ended(None, 0, at)
        record = _record(at)
        result = record[0]
        if not self._start <= at < self._end:
            return Ended(None, result, at)
        call = self._calls[(at - self._start) // RECORD]
        record[0] = number(call.name)  # so that it can be run again
        return Ended(call, result, at)

    def _run_in_python(self) -> int:
        at = self._start
        while (record := _record(at))[0] >= 0:
            which, *arguments, least, instead, into = record
            result = syscalls.plainly(which, arguments)
            if result >= least:
                at += RECORD
                continue
            if into:
                ctypes.c_long.from_address(into).value = result
            if not instead:
                record[0] = result
                break
            at = instead
        return at


def _record(address: int) -> ctypes.Array[ctypes.c_long]:
    return (ctypes.c_long * _WORDS).from_address(address)


class SharedSystemCalls(SystemCalls):
    """A list that other processes may carry out, and that keeps the results that were less than they should have been.

    Args:
        calls: in their order.
        memory: where it is kept.
        machine_code: whether the loop may be machine code.

    Raises:
        KeyError: a call or a label is not known.
        BufferError: the memory is full.
    """

    def __init__(self, calls: Sequence[Call], memory: Memory, *, machine_code: bool = True) -> None:
        self._memory = memory
        self._results = 0
        super().__init__(calls, memory, machine_code=machine_code)

    def _room_for_results(self) -> int:
        self._results = self._memory.put(bytes(_WORD * len(self._calls)))
        return self._results

    def result(self, label: str) -> int:
        """What a call gave, if that was less than it should be; else 0."""
        return self._memory.words(self._results + _WORD * self._places[label], 1)[0]

    def failed(self) -> list[tuple[Call, int]]:
        """The calls that gave errors, each with the negative number of the error."""
        results = self._memory.words(self._results, len(self._calls))
        return [(call, result) for call, result in zip(self._calls, results, strict=True) if result < 0]

    def change(self, label: str, *arguments: int) -> None:
        """Change the first arguments of a call."""
        words = struct.pack(f"{len(arguments)}q", *arguments)
        self._memory.change(self.address(label) + _WORD, words)


_made: list[Callable[[int], int] | None] = []


def number(name: str) -> int:
    """The number of a system call on this processor."""
    return NUMBERS[name][_COLUMN]


def runs_as_machine_code() -> bool:
    """Whether lists can be carried out without Python, and so in a process that shares this one's memory."""
    return _loop_of_machine_code() is not None


def _loop_of_machine_code() -> Callable[[int], int] | None:
    """The loop as a function of this process; None where that may not be."""
    if not _made:
        try:
            code = LOOP[syscalls.MACHINE]
            address = syscalls.map_memory(_PAGE, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS)
            ctypes.memmove(address, code, len(code))
            syscalls.protect(address, _PAGE, _PROT_READ | _PROT_EXEC)
        except (OSError, KeyError):
            _made.append(None)
        else:
            # The interpreter's lock is kept: letting go of it would write to memory in the forked process.
            _made.append(ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_long)(address))
    return _made[0]
