"""Lists of system calls: the loop in machine code and the one in Python do the same, on both processors."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from race.sandboxes.local import syscalls
from race.sandboxes.local.sequence import (
    LOOP,
    NEVER,
    NUMBERS,
    RECORD,
    WHATEVER,
    Call,
    Draft,
    Memory,
    SharedSystemCalls,
    SystemCalls,
)


def all_of(reader: int) -> bytes:
    """What is in a pipe whose writers are gone."""
    try:
        return os.read(reader, 100)
    finally:
        os.close(reader)


LOOPS = pytest.mark.parametrize("machine_code", [True, False])


@LOOPS
def test_calls_are_carried_out_in_their_order(machine_code: bool) -> None:
    reader, writer = os.pipe()
    calls = SystemCalls(
        [Call("write", (writer, each, 1)) for each in (b"a", b"b")] + [Call("close", (writer,))],
        machine_code=machine_code,
    )
    ended = calls.run()
    assert (ended.call, ended.result) == (None, 0)
    ended.check()
    assert all_of(reader) == b"ab"


@LOOPS
def test_a_result_that_is_too_small_ends_the_list(machine_code: bool) -> None:
    reader, writer = os.pipe()
    broken = Call("close", (-1,), label="broken")
    calls = [Call("write", (writer, b"a", 1)), broken, Call("write", (writer, b"b", 1))]
    ended = SystemCalls(calls, machine_code=machine_code).run()
    assert (ended.call, ended.result) == (broken, -errno.EBADF)
    with pytest.raises(OSError, match="close") as error:
        ended.check()
    assert error.value.errno == errno.EBADF
    os.close(writer)
    assert all_of(reader) == b"a"


@LOOPS
def test_the_end_of_a_pipe_is_no_error_but_may_be_too_little(machine_code: bool) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    memory = Memory()
    somewhere = memory.put(b"x")
    ended = SystemCalls([Call("read", (reader, somewhere, 1), least=1)], machine_code=machine_code).run()
    os.close(reader)
    assert ended.call is not None
    assert ended.result == 0


@LOOPS
def test_it_goes_on_elsewhere_and_over_what_does_not_matter(machine_code: bool) -> None:
    reader, writer = os.pipe()
    calls = [
        Call("close", (-1,), least=WHATEVER),
        Call("getpid", least=NEVER, instead="there"),
        Call("write", (writer, b"never", 5)),
        Call("write", (writer, b"here", 4), label="there"),
        Call("close", (writer,)),
    ]
    assert SystemCalls(calls, machine_code=machine_code).run().call is None
    assert all_of(reader) == b"here"


@LOOPS
def test_both_processes_of_a_fork_come_back(machine_code: bool) -> None:
    reader, writer = os.pipe()
    fork = Call("clone", (17, 0, 0, 0, 0), least=1, label="fork")  # 17: SIGCHLD
    calls = SystemCalls([fork, Call("write", (writer, b"parent", 6))], machine_code=machine_code)
    ended = calls.run()
    if ended.call is not None:
        os.write(writer, b"child" if ended[:2] == (fork, 0) else b"wrong")
        os._exit(0)
    os.wait()
    os.close(writer)
    assert all_of(reader) in {b"childparent", b"parentchild"}


def test_what_is_shared_is_seen_by_both() -> None:
    memory = Memory()
    at = memory.put(b"before")
    pid = os.fork()
    if pid == 0:
        memory.change(at, b"after!")
        os._exit(0)
    os.waitpid(pid, 0)
    reader, writer = os.pipe()
    assert SystemCalls([Call("write", (writer, at, 6)), Call("close", (writer,))]).run().call is None
    assert all_of(reader) == b"after!"


def test_memory_is_full_at_its_end() -> None:
    memory = Memory(64)
    first = memory.put(b"123")
    assert memory.put(bytes(56)) == first + 8  # each begins at a word
    with pytest.raises(BufferError):
        memory.put(b"x")
    memory.clear()
    assert memory.put(b"4") == first


@LOOPS
def test_what_went_wrong_on_the_way_is_kept(machine_code: bool) -> None:
    memory = Memory()
    calls = SharedSystemCalls(
        [
            Call("close", (-1,), instead="next", label="bad"),
            Call("getpid", label="never"),
            Call("getppid", least=NEVER, instead="end", label="next"),
            Call("close", (-1,), least=WHATEVER, label="end"),
        ],
        memory,
        machine_code=machine_code,
    )
    assert calls.run().call is None
    assert calls.result("bad") == -errno.EBADF
    assert (calls.result("never"), calls.result("next"), calls.result("end")) == (0, os.getppid(), 0)
    assert [(call.label, result) for call, result in calls.failed()] == [("bad", -errno.EBADF)]


@LOOPS
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_list_leads_to_one_that_was_drafted_for_an_address_and_back(
    machine_code: bool, is_broken: bool
) -> None:
    reader, writer = os.pipe()
    plan = os.memfd_create("plan")
    memory = Memory()
    address = memory.put(bytes(2048))
    calls = SystemCalls(
        [
            Call("pread64", (plan, address, 2048, 0), least=1),
            Call("getpid", least=NEVER, instead="plan"),
            Call("write", (writer, b"never", 5)),
            Call("write", (writer, b"back", 4), label="back"),
        ],
        elsewhere={"plan": address + RECORD},
        machine_code=machine_code,
    )
    broken = Call("close", (-1,), about="what is broken")
    drafted = [
        broken,  # it is entered behind this one
        Call("write", (writer, b"there", 5)),
        *([broken] if is_broken else []),
        Call("getpid", least=NEVER, instead="back"),
    ]
    draft = Draft(address)
    SystemCalls(drafted, draft, elsewhere={"back": calls.address("back")})
    os.pwrite(plan, draft.data, 0)
    ended = calls.run()
    for each in (plan, writer):
        os.close(each)
    assert ended.call is None
    if is_broken:
        assert all_of(reader) == b"there"
        assert ended.result == -errno.EBADF
        assert (ended.address - address) // RECORD == 2
        with pytest.raises(OSError, match="what is broken"):
            ended._replace(call=broken).check()
    else:
        assert all_of(reader) == b"thereback"


def test_a_list_that_stops_after_whatever_result_says_why() -> None:
    with pytest.raises(OSError, match="it is too much"):
        SystemCalls([Call("getpid", least=NEVER, about="it is too much")]).run().check()


@LOOPS
def test_arguments_can_be_changed_later(machine_code: bool) -> None:
    reader, writer = os.pipe()
    memory = Memory()
    calls = SharedSystemCalls([Call("write", (-1, 0, 0), label="say")], memory, machine_code=machine_code)
    calls.change("say", writer, memory.put(b"later"), 5)
    assert calls.run().call is None
    os.close(writer)
    assert all_of(reader) == b"later"


def test_a_call_or_label_that_is_not_known_is_an_error() -> None:
    with pytest.raises(KeyError, match="reboot"):
        SystemCalls([Call("reboot")])
    with pytest.raises(KeyError, match="nowhere"):
        SystemCalls([Call("getpid", instead="nowhere")])


_STARTS = {
    # Load the address of what follows the loop, which follows at once.
    "x86_64": lambda size: b"\x48\x8d\x3d" + struct.pack("<i", size),  # lea rdi, [rip+size]
    "aarch64": lambda size: struct.pack("<I", 0x10000000 | ((size + 4) >> 2) << 5),  # adr x0, size+4
}
_EXIT_GROUP = {"x86_64": 231, "aarch64": 94}
_ELF = {"x86_64": 62, "aarch64": 183}
_AT = 0x400000


def _program(machine: str) -> bytes:
    """A program that is the loop and four records.

    They write; fail, put the error where the last one has its argument, and go on there; and exit.
    """
    column = list(_STARTS).index(machine)
    header_size = 64 + 56
    loop = LOOP[machine] + bytes(-len(LOOP[machine]) % 8)
    start = _STARTS[machine](len(loop))
    records_at = _AT + header_size + len(start) + len(loop)
    text_at = records_at + 4 * 80

    def record(number: int, *arguments: int, least: int = 0, instead: int = 0, into: int = 0) -> bytes:
        return struct.pack("<10q", number, *arguments, *[0] * (6 - len(arguments)), least, instead, into)

    records = (
        record(NUMBERS["write"][column], 1, text_at, 6, least=6)
        + record(NUMBERS["close"][column], -1, instead=records_at + 3 * 80, into=records_at + 3 * 80 + 8)
        + record(_EXIT_GROUP[machine], 1)
        + record(_EXIT_GROUP[machine], 2)
    )
    body = start + loop + records + b"works\n"
    size = header_size + len(body)
    elf = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(2, _ELF[machine], 1, _AT + header_size, 64, 0, 0, 64, 56, 1, 0, 0, 0),
    )
    return elf + struct.pack("<IIQQQQQQ", 1, 7, 0, _AT, _AT, size, size, 0x1000) + body


@pytest.mark.parametrize("machine", list(LOOP))
def test_the_loop_runs_on_every_processor(machine: str, tmp_path: Path) -> None:
    emulator = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if machine != syscalls.MACHINE and emulator is None:
        pytest.skip(f"needs a machine with {machine}, or qemu-user")
    program = tmp_path / "program"
    program.write_bytes(_program(machine))
    program.chmod(0o755)
    before = [] if machine == syscalls.MACHINE else [str(emulator)]
    done = subprocess.run([*before, str(program)], capture_output=True, check=False, timeout=20)
    assert (done.stdout, done.returncode) == (b"works\n", -errno.EBADF & 0xFF), done.stderr
