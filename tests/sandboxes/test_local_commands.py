"""Commands in a sandbox of this machine: how they end, what they print, what they leave."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from race.errors import SandboxError
from race.sandbox import Limits, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandbox import Sandbox
    from race.sandboxes.local import LocalProvider

pytestmark = pytest.mark.anyio


async def test_a_command_may_be_longer_than_the_kernel_takes_as_one_argument(sandbox: Sandbox) -> None:
    done = await sandbox.exec("x=" + "a" * 200_000 + "; echo ${#x}; cat; ls /proc/self/fd", stdin=b"input\n")
    assert done.stdout == b"200000\ninput\n0\n1\n2\n3\n"
    assert (await sandbox.exec(["echo", "x" * 100_000])).stdout_bytes == 100_001


async def test_a_long_environment_and_a_long_list_of_arguments_arrive(sandbox: Sandbox) -> None:
    arguments = [str(each) for each in range(20_000)]
    done = await sandbox.exec(["sh", "-c", 'echo $# "$BIG"', "sh", *arguments], env={"BIG": "y" * 90_000})
    assert done.stdout == b"20000 " + b"y" * 90_000 + b"\n"


async def test_what_no_program_could_be_given_is_refused(sandbox: Sandbox) -> None:
    for wrong in ("echo \0", ["echo", "\0"], [], [""], ["echo", "\ud835"]):
        with pytest.raises(SandboxError):
            await sandbox.exec(wrong)
    with pytest.raises(SandboxError, match="missing"):
        await sandbox.exec("true", cwd="/missing")
    with pytest.raises(SandboxError, match="="):
        await sandbox.exec("true", env={"a=b": "c"})
    with pytest.raises(SandboxError, match="too long"):
        await sandbox.exec(["echo", "x" * 200_000])


async def test_a_missing_program_is_a_status(sandbox: Sandbox) -> None:
    done = await sandbox.exec(["no-such-program"])
    assert (done.exit_code, done.stderr) == (127, b"no-such-program: not found\n")
    assert (await sandbox.exec("no-such-program")).exit_code == 127
    assert (await sandbox.exec(["/etc/passwd"])).exit_code == 126
    await sandbox.exec("printf 'echo bare $1' >/usr/bin/bare; chmod +x /usr/bin/bare")
    assert (await sandbox.exec(["bare", "word"])).stdout == b"bare word\n"


async def test_a_signal_that_ends_a_command_is_its_status(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("kill -TERM $$")).exit_code == -15
    assert (await sandbox.exec("kill -KILL $PPID; sleep 1")).exit_code == -9
    assert (await sandbox.exec("kill -KILL 0")).exit_code == -9
    assert (await sandbox.exec("echo fine")).stdout == b"fine\n"


async def test_there_is_no_terminal_and_no_input(sandbox: Sandbox) -> None:
    done = await sandbox.exec("cat; tty; echo x >/dev/tty")
    assert done.stdout == b"not a tty\n"
    assert b"/dev/tty" in done.stderr


async def test_the_environment_is_the_sandboxs_and_the_calls_and_nothing_of_the_hosts(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made = await provider.create(SandboxSpec(new_name(), env={"FROM": "spec", "BOTH": "spec"}))
    done = await made.exec("echo $FROM $BOTH $HOME $LANG; env", env={"BOTH": "call"})
    first, *rest = done.stdout.decode().splitlines()
    assert first == "spec call /root C.UTF-8"
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert not [each for each in rest if each.startswith("PYTEST")]


async def test_streams_can_be_merged_and_reopened(sandbox: Sandbox) -> None:
    done = await sandbox.exec(
        "echo a; echo b >&2; echo c >/dev/stdout; echo d >/dev/stderr", merge_stderr=True
    )
    assert (done.stdout, done.stderr, done.stdout_bytes) == (b"a\nb\nc\nd\n", b"", 8)


async def test_much_output_costs_little_memory_and_keeps_both_ends(sandbox: Sandbox) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = await sandbox.exec("echo first; head -c 300000000 /dev/zero; echo last", output_limit=1000)
    assert done.stdout_bytes == 300_000_011
    assert done.stdout.startswith(b"first\n\0\0")
    assert done.stdout.endswith(b"\0\0last\n")
    cut = 300_000_011 - 1000
    assert f"\n... [{cut} bytes cut] ...\n".encode() in done.stdout
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


async def test_much_input_arrives_and_unread_input_is_no_error(sandbox: Sandbox) -> None:
    data = os.urandom(3_000_000)
    done = await sandbox.exec(["cat"], stdin=data, output_limit=4_000_000)
    assert done.stdout == data
    assert (await sandbox.exec("true", stdin=data)).exit_code == 0


async def test_a_background_process_goes_on_and_does_not_hold_up_the_caller(sandbox: Sandbox) -> None:
    done = await sandbox.exec("(while :; do echo tick; sleep 0.01; done) & echo started")
    assert done.seconds < 1
    assert b"started" in done.stdout
    await anyio.sleep(0.1)
    assert (await sandbox.exec("pgrep -c sleep || pgrep -fc 'while :'")).stdout.strip() != b"0"


async def test_a_timeout_ends_everything_that_the_command_started_and_nothing_else(sandbox: Sandbox) -> None:
    await sandbox.exec("setsid sleep 1111 & setsid sleep 1112 &")
    command = """
        trap '' TERM INT HUP
        (setsid sh -c 'trap "" TERM; sleep 2221' &)
        setsid setsid sleep 2222 &
        nohup sh -c 'sleep 2223; sleep 2224' &
        echo begun; sleep 2225
    """
    started = time.monotonic()
    done = await sandbox.exec(command, timeout=0.3)
    taken = time.monotonic() - started
    assert (done.timed_out, done.exit_code, done.stdout) == (True, None, b"begun\n")
    assert 0.3 <= taken < 0.6
    left = (await sandbox.exec("pgrep -a sleep")).stdout.decode()
    assert sorted(line.split()[-1] for line in left.splitlines()) == ["1111", "1112"]


async def test_a_fork_bomb_is_ended_and_the_sandbox_stays_usable(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made = await provider.create(SandboxSpec(new_name(), limits=Limits(processes=200)))
    await made.exec("sleep 1111 &")
    started = time.monotonic()
    done = await made.exec("b() { b | b & }; b; while :; do b; done", timeout=0.4)
    assert done.timed_out
    assert time.monotonic() - started < 1.5
    assert (await made.exec("pgrep -a sleep")).stdout.split()[1:] == [b"sleep", b"1111"]


async def test_cancelling_a_call_ends_the_command(sandbox: Sandbox) -> None:
    with anyio.move_on_after(0.2) as scope:
        await sandbox.exec("setsid sleep 3331 & sleep 3332")
    assert scope.cancelled_caught
    assert (await sandbox.exec("pgrep -a sleep")).stdout == b""


async def test_many_commands_run_at_once_in_many_sandboxes(
    sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    forks = [sandbox, await sandbox.fork(new_name()), await sandbox.fork(new_name())]
    results: list[bytes] = []

    async def one(where: Sandbox, number: int) -> None:
        done = await where.exec(f"sleep 0.2; hostname; echo {number}")
        results.append(done.stdout)

    started = time.monotonic()
    async with anyio.create_task_group() as group:
        for where in forks:
            for number in range(10):
                group.start_soon(one, where, number)
    assert sorted(results) == sorted(
        f"{where.name}\n{number}\n".encode() for where in forks for number in range(10)
    )
    assert time.monotonic() - started < 2


async def test_no_descriptor_and_no_process_is_left_behind(sandbox: Sandbox) -> None:
    await sandbox.exec("true")
    before = len(list(Path("/proc/self/fd").iterdir()))
    inside = "ls /proc | grep -c '^[0-9]*$'; ls /proc/1/fd 2>/dev/null | wc -l"
    there = (await sandbox.exec(inside)).stdout
    for number in range(25):
        await sandbox.exec("echo x", stdin=b"y")
        await sandbox.exec(["missing"])
        with pytest.raises(SandboxError):
            await sandbox.exec("true", cwd="/missing")
        if number % 5 == 0:
            await sandbox.exec("sleep 100", timeout=0.01)
            with anyio.move_on_after(0.01):
                await sandbox.exec("sleep 100", stdin=bytes(200_000))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    # Fewer than before, if what ran before that was just being reaped; three more, if they stand by.
    processes, descriptors = map(int, (await sandbox.exec(inside)).stdout.split())
    processes_before, descriptors_before = map(int, there.split())
    assert processes <= processes_before + 3
    assert descriptors <= descriptors_before


async def test_usage_is_what_the_kernel_accounted(sandbox: Sandbox) -> None:
    burn = "import time; x = bytearray(50 << 20)\nwhile time.process_time() < 0.2: pass"
    usage = (await sandbox.exec(f"python3 -c '{burn}'; sleep 0.01")).usage
    assert 0.2 <= usage.cpu_seconds < 1
    assert 50 << 20 <= usage.max_rss_bytes < 200 << 20
    idle = (await sandbox.exec("sleep 0.05")).usage
    assert idle.cpu_seconds < 0.1
    assert idle.wait_seconds >= 0
