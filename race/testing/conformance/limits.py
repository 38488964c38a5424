"""Checks of the limits that a provider declares: each is tried by what would go beyond it."""

from __future__ import annotations

from race.sandbox import Limits
from race.testing.conformance.bench import WORK, Bench, Check, expect, output, same, until

_MEGABYTE = 1 << 20


async def limit_of_memory(bench: Bench) -> None:
    """What takes more memory than there may be is ended, and the sandbox goes on."""
    sandbox = await bench.new(limits=Limits(memory=64 * _MEGABYTE))
    done = await sandbox.exec("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo got ${#x}", timeout=60)
    expect(b"got 200000000" not in done.stdout, "a command got three times the memory of its sandbox")
    same(await output(sandbox, "echo fine"), b"fine\n", "a later command")


async def limit_of_processes(bench: Bench) -> None:
    """No more processes are started than there may be, and the sandbox goes on."""
    sandbox = await bench.new(limits=Limits(processes=50))
    done = await sandbox.exec(
        "for i in $(seq 100); do sleep 20 & done 2>/dev/null; ls /proc | grep -c '^[0-9]'", timeout=3
    )
    expect(not done.stdout or int(done.stdout) <= 60, f"{done.stdout!r} processes were there")  # noqa: PLR2004
    fork = await bench.fork(sandbox)
    same(await output(fork, "echo fine"), b"fine\n", "a command of a fork")


async def limit_of_processors(bench: Bench) -> None:
    """No more processor time is used than there may be."""
    sandbox = await bench.new(limits=Limits(cpus=0.3))
    burn = "end=$(($(date +%s) + 2)); while [ $(date +%s) -lt $end ]; do :; done; times"
    done = await sandbox.exec(burn, timeout=30)
    # The last four figures are user and system time of the shell and of what it started, as 0m0.123s.
    used = sum(_seconds(word) for word in done.stdout.decode().split()[-4:])
    expect(used <= 0.3 * done.seconds + 0.25, f"{used:.2f} s of processor time in {done.seconds:.2f} s")


def _seconds(word: str) -> float:
    minutes, _, rest = word.rstrip("s").partition("m")
    return 60 * int(minutes) + float(rest)


async def limit_of_disk(bench: Bench) -> None:
    """No more is written than may be, and the sandbox goes on once there is room."""
    sandbox = await bench.new(limits=Limits(disk=32 * _MEGABYTE))
    done = await sandbox.exec(
        "dd if=/dev/zero of=/race-check/big bs=1M count=200 && sync && echo written", timeout=60
    )
    expect(b"written" not in done.stdout, "six times what may be was written")
    await output(sandbox, "rm -f big")

    async def written() -> bool:
        return (await sandbox.exec("echo x >small && cat small", cwd=WORK, timeout=60)).stdout == b"x\n"

    await until(written, "nothing could be written although there was room again")


async def limit_of_cores(bench: Bench) -> None:
    """Processes run on the processors that they may, and no others."""
    sandbox = await bench.new(limits=Limits(cores=(0,)))
    seen = await output(sandbox, "grep Cpus_allowed_list /proc/self/status")
    same(seen.split()[-1], b"0", "the processors that a command may run on")


CHECKS = (
    Check(limit_of_memory, limit="memory"),
    Check(limit_of_processes, limit="processes"),
    Check(limit_of_processors, limit="cpus"),
    Check(limit_of_disk, limit="disk"),
    Check(limit_of_cores, limit="cores"),
)
