"""Checks of `Sandbox.exec`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import anyio

from race.sandbox import File
from race.testing.conformance.bench import (
    INSIDE,
    TICKING,
    WORK,
    Bench,
    Broken,
    Check,
    expect,
    grows,
    output,
    refused,
    same,
    size,
    tick,
    until,
)

_MARKER = "RACE_CONFORMANCE_MARKER"
_BIG = 3_000_000
_SLACK = 3.0
"""Seconds that a busy machine may add to what should take no time."""


async def exec_status_and_streams(bench: Bench) -> None:
    """A command's status, standard output and standard error are given apart, with how many bytes there were."""
    sandbox = await bench.new()
    done = await sandbox.exec("echo out; echo problem >&2; exit 3")
    same((done.exit_code, done.stdout, done.stderr), (3, b"out\n", b"problem\n"), "status and streams")
    same((done.stdout_bytes, done.stderr_bytes, done.timed_out), (4, 8, False), "counted bytes and time-out")


async def exec_text_in_a_shell(bench: Bench) -> None:
    """Text is run by a shell, without start-up files; a sequence is run as it is."""
    sandbox = await bench.new()
    env = {"BASH_ENV": "", "WORD": "two words"}
    same(await output(sandbox, 'printf "<%s>" $WORD', env=env), b"<two><words>", "what a shell made of text")
    done = await output(sandbox, ["printf", "<%s>", "$WORD *", "two words"], env=env)
    same(done, b"<$WORD *><two words>", "what was made of a sequence")


async def exec_long_text(bench: Bench) -> None:
    """Text may be longer than the kernel takes as one argument."""
    sandbox = await bench.new()
    same(await output(sandbox, "x=" + "a" * 200_000 + "; echo ${#x}"), b"200000\n", "a script of 200 kB")


async def exec_working_directory(bench: Bench) -> None:
    """A command starts in the working directory that it was given."""
    sandbox = await bench.new()
    await sandbox.write([File(INSIDE + b"/below/here", b"")])
    same(await output(sandbox, "ls", cwd=f"{WORK}/below"), b"here\n", "what is in the working directory")


async def exec_missing_directory(bench: Bench) -> None:
    """A working directory that is missing is refused."""
    sandbox = await bench.new()
    with refused("a missing working directory", naming=["missing"]):
        await sandbox.exec("true", cwd=f"{WORK}/missing")


async def exec_environment(bench: Bench) -> None:
    """The environment is the sandbox's, and on top of it the call's."""
    sandbox = await bench.new(env={"FROM": "spec", "BOTH": "spec"})
    same(
        await output(sandbox, "echo $FROM $BOTH $CALL", env={"BOTH": "call", "CALL": "a = b"}),
        b"spec call a = b\n",
        "the environment",
    )
    same(await output(sandbox, "echo $FROM $BOTH $CALL"), b"spec spec\n", "the environment of a later call")


async def exec_path_extends_the_images(bench: Bench) -> None:
    """A ``$PATH`` in the value of PATH stands for the image's own."""
    own = await output(await bench.new(), "printf %s $PATH")
    sandbox = await bench.new(env={"PATH": "/race-check-programs:$PATH"})
    same(await output(sandbox, "printf %s $PATH"), b"/race-check-programs:" + own, "PATH")


async def exec_nothing_of_the_hosts_environment(bench: Bench) -> None:
    """Nothing of the host's environment is inherited."""
    os.environ[_MARKER] = "of the host"
    try:
        sandbox = await bench.new()
        seen = await output(sandbox, "env")
    finally:
        del os.environ[_MARKER]
    expect(_MARKER.encode() not in seen, "a variable of the host's environment is seen inside")


async def exec_input(bench: Bench) -> None:
    """A command reads what it is given as input, however much, and an empty input when there is none."""
    sandbox = await bench.new()
    data = os.urandom(_BIG)
    done = await sandbox.exec(["cat"], stdin=data, output_limit=2 * _BIG)
    expect(done.stdout == data, f"of {_BIG:,} bytes of input came out {done.stdout_bytes:,}, or others")
    same(await output(sandbox, "cat; echo end"), b"end\n", "what a command without input reads")
    done = await sandbox.exec("exit 0", stdin=data)
    same(done.exit_code, 0, "the status of a command that does not read its input")


async def exec_no_terminal(bench: Bench) -> None:
    """There is never a terminal."""
    sandbox = await bench.new()
    seen = await output(sandbox, "for i in 0 1 2; do if test -t $i; then echo terminal; fi; done", stdin=b"x")
    same(seen, b"", "streams that are terminals")


async def exec_timeout_ends_everything(bench: Bench) -> None:
    """A time-out ends the command and everything it started, whatever that ignores or detached itself from."""
    sandbox = await bench.new()
    loops = [TICKING.format(file=f) for f in ("plain", "deaf", "apart")]
    command = f"""
        ({loops[0]}) &
        (trap '' TERM INT HUP; {loops[1]}) &
        if command -v setsid >/dev/null; then (setsid sh -c '{loops[2]}' &); fi
        echo begun; sleep 100
    """
    began = time.monotonic()
    done = await sandbox.exec(command, cwd=WORK, timeout=0.5)
    took = time.monotonic() - began
    same((done.timed_out, done.exit_code), (True, None), "time-out and status")
    same(done.stdout, b"begun\n", "what it had printed")
    expect(took >= 0.45, f"it came back after {took:.2f} s, before its time was up")  # noqa: PLR2004 - the limit
    expect(took < 0.5 + _SLACK, f"it came back after {took:.2f} s, long after its time was up")
    for file in ("plain", "deaf", "apart"):
        expect(not await grows(sandbox, file), f"a process of the command still writes to {file!r}")


async def exec_timeout_spares_others(bench: Bench) -> None:
    """A time-out ends nothing that another command had started."""
    sandbox = await bench.new()
    await tick(sandbox, "other")
    await sandbox.exec("sleep 100", cwd=WORK, timeout=0.3)
    expect(await grows(sandbox, "other"), "a process of an earlier command was ended")


async def exec_output_is_bounded(bench: Bench) -> None:
    """Of much output the head and the tail are kept, with a line that says how much was cut."""
    sandbox = await bench.new()
    command = "echo first; head -c 300000 /dev/zero | tr '\\0' x; echo last"
    done = await sandbox.exec(command, cwd=WORK, output_limit=1000)
    same(done.stdout_bytes, 300_011, "how many bytes there were")
    expect(len(done.stdout) <= 1200, f"{len(done.stdout):,} bytes were kept")  # noqa: PLR2004 - limit and line
    expect(done.stdout.startswith(b"first\nxx"), "the head was not kept")
    expect(done.stdout.endswith(b"xxlast\n"), "the tail was not kept")
    middle = done.stdout.replace(b"x", b"").decode()
    expect(str(300_011 - 1000) in middle.replace(",", ""), f"no line says that 299011 were cut: {middle!r}")


async def exec_merged_streams(bench: Bench) -> None:
    """Merged streams come in the order written."""
    sandbox = await bench.new()
    done = await sandbox.exec("echo a; echo b >&2; echo c; echo d >&2", merge_stderr=True)
    same((done.stdout, done.stderr), (b"a\nb\nc\nd\n", b""), "merged streams")


async def exec_missing_program(bench: Bench) -> None:
    """A program that cannot be found is exit status 127."""
    sandbox = await bench.new()
    same((await sandbox.exec(["no-such-program"])).exit_code, 127, "the status of a sequence")
    same((await sandbox.exec("no-such-program")).exit_code, 127, "the status of a text")


async def exec_signal(bench: Bench) -> None:
    """A command that a signal ended has minus its number as status."""
    sandbox = await bench.new()
    same((await sandbox.exec("kill -TERM $$")).exit_code, -15, "the status after SIGTERM")
    same((await sandbox.exec("kill -KILL $$")).exit_code, -9, "the status after SIGKILL")
    same((await sandbox.exec("sh -c 'kill -KILL $$'; exit 137")).exit_code, 137, "the status 137")


async def exec_refuses_what_no_program_takes(bench: Bench) -> None:
    """A NUL byte, and a command that is empty, are refused."""
    sandbox = await bench.new()
    for wrong in ("echo \0", ["echo", "\0"], []):
        with refused(f"the command {wrong!r}"):
            await sandbox.exec(wrong)
    with refused("a NUL byte in the environment"):
        await sandbox.exec("true", env={"A": "\0"})
    with refused("a NUL byte in the working directory"):
        await sandbox.exec("true", cwd="/\0")


async def exec_background_goes_on(bench: Bench) -> None:
    """Background processes go on after their command, and may keep its output open without holding up the caller."""
    sandbox = await bench.new()
    began = time.monotonic()
    done = await sandbox.exec(f"({TICKING.format(file='ticks')}) & echo started; sleep 0.1", cwd=WORK)
    took = time.monotonic() - began
    expect(took < 0.1 + _SLACK, f"the call took {took:.2f} s")
    same((done.exit_code, done.stdout), (0, b"started\n"), "status and output")
    expect(await grows(sandbox, "ticks"), "the background process was ended")


async def exec_background_may_print(bench: Bench) -> None:
    """A background process that prints after its command has ended neither blocks nor dies."""
    sandbox = await bench.new()
    line = "x" * 1000
    await sandbox.exec(f"(for i in $(seq 200); do echo {line}; done; echo over >over) & exit 0", cwd=WORK)

    async def over() -> bool:
        return await size(sandbox, "over") > 0

    await until(over, "what printed in the background did not come to its end")


async def exec_cancelling_ends(bench: Bench) -> None:
    """Cancelling a call ends the command and all it started."""
    sandbox = await bench.new()
    command = f"({TICKING.format(file='ticks')}) & {TICKING.format(file='main')}"
    with anyio.move_on_after(0.5) as scope:
        await sandbox.exec(command, cwd=WORK)
    expect(scope.cancelled_caught, "a command that never ends came to an end")
    expect(await size(sandbox, "main"), "the command did not start within half a second")
    for file in ("ticks", "main"):
        expect(not await grows(sandbox, file), f"a process of the command still writes to {file!r}")


@dataclass
class _Counted:
    done: int = 0


async def exec_at_once(bench: Bench) -> None:
    """Several commands run at once in one sandbox."""
    sandbox = await bench.new()
    counted = _Counted()

    async def one(number: int) -> None:
        # Each waits for all the others.
        wait = "while [ $(ls | wc -l) -lt 4 ]; do sleep 0.02; done"
        done = await sandbox.exec(f"touch {number}; {wait}; echo {number}", cwd=WORK, timeout=20)
        same((done.exit_code, done.stdout), (0, b"%d\n" % number), "one of several commands at once")
        counted.done += 1

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(one, number)
    same(counted.done, 4, "commands that ran at once")


async def exec_seconds(bench: Bench) -> None:
    """A result says how long the command took."""
    sandbox = await bench.new()
    done = await sandbox.exec("sleep 0.2")
    if not 0.2 <= done.seconds < 0.2 + _SLACK:  # noqa: PLR2004 - as asked
        raise Broken(f"a command of 0.2 s is said to have taken {done.seconds:.2f} s")


CHECKS = (
    Check(exec_status_and_streams),
    Check(exec_text_in_a_shell),
    Check(exec_long_text),
    Check(exec_working_directory),
    Check(exec_missing_directory),
    Check(exec_environment),
    Check(exec_path_extends_the_images),
    Check(exec_nothing_of_the_hosts_environment),
    Check(exec_input),
    Check(exec_no_terminal),
    Check(exec_timeout_ends_everything),
    Check(exec_timeout_spares_others),
    Check(exec_output_is_bounded),
    Check(exec_merged_streams),
    Check(exec_missing_program),
    Check(exec_signal),
    Check(exec_refuses_what_no_program_takes),
    Check(exec_background_goes_on),
    Check(exec_background_may_print),
    Check(exec_cancelling_ends),
    Check(exec_at_once),
    Check(exec_seconds),
)
