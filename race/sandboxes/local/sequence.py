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
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from race.sandboxes.local import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WHATEVER: Final = -(1 << 63)
"""As ``least`` of a call whose result does not matter."""
NEVER: Final = (1 << 63) - 1
"""As ``least`` of a call after which it always goes on elsewhere."""

_WORDS = 9
_END = -1
_ARGUMENTS = 6
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS = 1, 2, 0x20
_PAGE = os.sysconf("SC_PAGE_SIZE")

LOOP: Final = {
    # A record is nine words: number, six arguments, the least good result, and the record to go on with after a worse
    # one. The loop ends at a number below zero, or after a worse result with no such record, which it then writes
    # over the number. It returns the address of the record where it ended.
    "x86_64": bytes.fromhex(
        "53"  # push rbx
        "4889fb"  # mov rbx, rdi
        "488b03"  # next: mov rax, [rbx]
        "4885c0"  # test rax, rax
        "7837"  # js done
        "488b7b08"  # mov rdi, [rbx+8]
        "488b7310"  # mov rsi, [rbx+16]
        "488b5318"  # mov rdx, [rbx+24]
        "4c8b5320"  # mov r10, [rbx+32]
        "4c8b4328"  # mov r8, [rbx+40]
        "4c8b4b30"  # mov r9, [rbx+48]
        "0f05"  # syscall
        "483b4338"  # cmp rax, [rbx+56]
        "7c06"  # jl less
        "4883c348"  # add rbx, 72
        "ebd2"  # jmp next
        "488b4b40"  # less: mov rcx, [rbx+64]
        "4885c9"  # test rcx, rcx
        "7405"  # jz stop
        "4889cb"  # mov rbx, rcx
        "ebc4"  # jmp next
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
            0xB7F801C8,  # tbnz x8, #63, done
            0xA9408520,  # ldp x0, x1, [x9, #8]
            0xA9418D22,  # ldp x2, x3, [x9, #24]
            0xA9429524,  # ldp x4, x5, [x9, #40]
            0xD4000001,  # svc #0
            0xA943AD2A,  # ldp x10, x11, [x9, #56]
            0xEB0A001F,  # cmp x0, x10
            0x5400006B,  # b.lt less
            0x91012129,  # add x9, x9, #72
            0x17FFFFF6,  # b next
            0xB400006B,  # less: cbz x11, stop
            0xAA0B03E9,  # mov x9, x11
            0x17FFFFF3,  # b next
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
    "getpid": (39, 172),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "ppoll": (271, 73),
    "prctl": (157, 167),
    "read": (0, 63),
    "seccomp": (317, 277),
    "setgroups": (116, 159),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setsid": (112, 157),
    "unshare": (272, 97),
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
    """

    name: str
    arguments: tuple[int | bytes, ...] = ()
    least: int = 0
    instead: str = ""
    label: str = ""


class Ended(NamedTuple):
    """Where a list ended.

    Attributes:
        call: the one that was not as it should be; None at the end of the list.
        result: what it gave; below zero the negative number of an error.
    """

    call: Call | None
    result: int

    def check(self) -> None:
        """Raise the error of the call that failed.

        Raises:
            OSError: with the name of the call as its file name.
        """
        if self.call is not None:
            number = -self.result if self.result < 0 else errno.EPROTO
            raise OSError(number, os.strerror(number), self.call.name)


class Shared:
    """A little memory that this process and all that it forks have in common, for what calls write and nobody needs."""

    def __init__(self) -> None:
        self.address = _mapped(_PROT_READ | _PROT_WRITE, _MAP_SHARED)

    def fill(self, at: int, data: bytes) -> int:
        """Write bytes at an offset, and return their address."""
        ctypes.memmove(self.address + at, data, len(data))
        return self.address + at


class SystemCalls:
    """A list of system calls that can be carried out.

    Args:
        calls: in their order.
        machine_code: whether the loop may be machine code.

    Raises:
        KeyError: a call or a label is not known.
    """

    def __init__(self, calls: Sequence[Call], *, machine_code: bool = True) -> None:
        self._calls = list(calls)
        self._kept: list[ctypes.Array[ctypes.c_char]] = []
        self._records = (ctypes.c_long * (_WORDS * (len(calls) + 1)))()
        self._start = ctypes.addressof(self._records)
        self._loop = _loop_of_machine_code() if machine_code else None
        places = {each.label: place for place, each in enumerate(calls) if each.label}
        for place, each in enumerate(calls):
            arguments = [self._word(argument) for argument in each.arguments]
            arguments += [0] * (_ARGUMENTS - len(arguments))
            instead = self._address(places[each.instead]) if each.instead else 0
            words = (number(each.name), *arguments, each.least, instead)
            for at, word in enumerate(words, place * _WORDS):
                self._records[at] = word
        self._records[len(calls) * _WORDS] = _END

    def _word(self, argument: int | bytes) -> int:
        if isinstance(argument, int):
            return argument
        held = ctypes.create_string_buffer(argument, len(argument))
        self._kept.append(held)
        return ctypes.addressof(held)

    def _address(self, place: int) -> int:
        return self._start + place * _WORDS * ctypes.sizeof(ctypes.c_long)

    def _place(self, address: int) -> int:
        return (address - self._start) // (_WORDS * ctypes.sizeof(ctypes.c_long))

    def run(self) -> Ended:
        """Carry it out, from the beginning. Returns in each process that a call of it has forked, too."""
        at = self._run_in_python() if self._loop is None else self._loop(self._start)
        place = self._place(at)
        if place == len(self._calls):
            return Ended(None, 0)
        call = self._calls[place]
        result = self._records[place * _WORDS]
        self._records[place * _WORDS] = number(call.name)  # so that it can be run again
        return Ended(call, result)

    def _run_in_python(self) -> int:
        place = 0
        while (which := self._records[place * _WORDS]) >= 0:
            *arguments, least, instead = self._records[place * _WORDS + 1 : (place + 1) * _WORDS]
            result = syscalls.plainly(which, arguments)
            if result >= least:
                place += 1
            elif instead:
                place = self._place(instead)
            else:
                self._records[place * _WORDS] = result
                break
        return self._address(place)


_made: list[Callable[[int], int] | None] = []


def number(name: str) -> int:
    """The number of a system call on this processor."""
    return NUMBERS[name][_COLUMN]


def _loop_of_machine_code() -> Callable[[int], int] | None:
    """The loop as a function of this process; None where that may not be."""
    if not _made:
        try:
            code = LOOP[syscalls.MACHINE]
            address = _mapped(_PROT_READ | _PROT_WRITE, _MAP_PRIVATE)
            ctypes.memmove(address, code, len(code))
            syscalls.protect(address, _PAGE, _PROT_READ | _PROT_EXEC)
        except (OSError, KeyError):
            _made.append(None)
        else:
            # The interpreter's lock is kept: letting go of it would write to memory in the forked process.
            _made.append(ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_long)(address))
    return _made[0]


def _mapped(protection: int, flags: int) -> int:
    return syscalls.map_memory(_PAGE, protection, flags | _MAP_ANONYMOUS)
