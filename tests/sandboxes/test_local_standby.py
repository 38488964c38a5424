"""What stands by in a sandbox: next to nothing before it is used, then children that wait for the next command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from race.sandbox import Limits, SandboxSpec
from tests.sandboxes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandbox import Sandbox
    from race.sandboxes.local import LocalProvider

pytestmark = pytest.mark.anyio


def processes(pid1: int) -> list[int]:
    """The numbers, inside, of the processes below PID 1, which the host calls ``pid1``."""
    children = Path(f"/proc/{pid1}/task/{pid1}/children").read_text().split()
    return [int(re.findall(r"(\d+)$", line)[0]) for each in children for line in _numbers(each)]


def _numbers(pid: str) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    return [line for line in text.splitlines() if line.startswith("NSpid:")]


def pid1_of(provider: LocalProvider, name: str) -> int:
    init = provider._workshop.records.load(name).init
    assert init is not None
    return init.pid


async def left(pid1: int, count: int) -> None:
    """Wait until there are so many processes below PID 1."""

    async def are() -> bool:
        return len(processes(pid1)) == count

    await until(are)


async def warm(provider: LocalProvider, sandbox: Sandbox) -> int:
    """Use a sandbox until children stand by. Returns the number of its PID 1."""
    for _ in range(3):
        await sandbox.exec("true")
    pid1 = pid1_of(provider, sandbox.name)
    await left(pid1, 3)  # the nursery, and two that wait
    return pid1


def private(pid: int) -> int:
    """Kilobytes that only this process has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(map(int, re.findall(r"^Private_(?:Dirty|Clean):\s+(\d+)", text, re.MULTILINE)))


async def test_what_nobody_has_used_has_next_to_no_memory_of_its_own(
    provider: LocalProvider, sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    forks = [await sandbox.fork(new_name()) for _ in range(3)]
    for fork in forks:
        await left(pid1_of(provider, fork.name), 0)  # its helper may just be ending
        assert private(pid1_of(provider, fork.name)) <= 64
    assert (await forks[0].exec("echo used")).stdout == b"used\n"
    assert private(pid1_of(provider, forks[0].name)) > 256
    assert private(pid1_of(provider, forks[1].name)) <= 64


async def test_a_command_is_run_by_a_child_that_was_there_before(
    provider: LocalProvider, sandbox: Sandbox
) -> None:
    pid1 = await warm(provider, sandbox)

    async def is_so() -> bool:
        await left(pid1, 3)
        before = processes(pid1)
        return int((await sandbox.exec("echo $PPID")).stdout) in before

    await until(is_so)  # one that is there may not be ready yet


@pytest.mark.long
async def test_they_are_dismissed_after_a_while(provider: LocalProvider, sandbox: Sandbox) -> None:
    pid1 = await warm(provider, sandbox)
    await left(pid1, 1)  # they wait for five seconds
    assert (await sandbox.exec("echo again")).stdout == b"again\n"


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
async def test_commands_go_on_when_somebody_inside_ends_or_stops_them(
    provider: LocalProvider, sandbox: Sandbox, signal: str
) -> None:
    await warm(provider, sandbox)
    done = await sandbox.exec(f"trap '' TERM; kill -{signal} -1; echo said", timeout=10)
    assert not done.timed_out
    for number in range(5):
        done = await sandbox.exec(f"echo {number}", timeout=10)
        assert (done.exit_code, done.stdout) == (0, b"%d\n" % number)


async def test_many_commands_at_once_each_get_their_own_answer(sandbox: Sandbox) -> None:
    found: dict[int, bytes] = {}

    async def one(number: int) -> None:
        found[number] = (await sandbox.exec(f"echo {number}")).stdout

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(one, number)
    assert found == {number: b"%d\n" % number for number in range(40)}


async def test_nothing_of_ours_stands_by_where_what_runs_is_counted(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    sandbox = await provider.create(SandboxSpec(new_name(), limits=Limits(disk=1 << 30)))
    await sandbox.exec("true")
    for _ in range(10):
        assert (await sandbox.exec("echo fine")).stdout == b"fine\n"
    await anyio.sleep(0.1)
    assert processes(pid1_of(provider, sandbox.name)) == []


async def test_what_stands_by_cannot_be_looked_into(provider: LocalProvider, sandbox: Sandbox) -> None:
    pid1 = await warm(provider, sandbox)
    for number in processes(pid1):
        looked = await sandbox.exec(
            f"cat /proc/{number}/mem /proc/{number}/environ; ls /proc/{number}/fd; echo x >/proc/{number}/mem"
        )
        assert looked.stdout == b""
        assert looked.exit_code != 0


@pytest.mark.parametrize("beside", ["nothing", "a command", "a named process", "what a command left"])
async def test_a_time_out_ends_what_belongs_to_its_command_and_nothing_else(
    provider: LocalProvider, sandbox: Sandbox, beside: str
) -> None:
    # Alone, a command is ended with all that runs in the sandbox.
    await warm(provider, sandbox)
    goes_on = "sleep 0.5; echo survived >>/tmp/left"
    async with anyio.create_task_group() as group:
        if beside == "a command":
            group.start_soon(sandbox.exec, goes_on)
        elif beside == "a named process":
            await sandbox.spawn("named", goes_on)
        elif beside == "what a command left":
            await sandbox.exec(f"({goes_on}) >/dev/null 2>&1 &")
        await anyio.sleep(0.1)
        assert (await sandbox.exec("setsid sh -c 'sleep 61 & sleep 61' & sleep 61", timeout=0.2)).timed_out
    running = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert b"sleep 61" not in running.stdout.replace(b"cat /proc/[0-9]*/cmdline", b"")

    async def is_left() -> bool:
        return (await sandbox.exec("cat /tmp/left")).stdout == b"survived\n"

    if beside != "nothing":
        await until(is_left)
