"""The life of sandboxes of this machine: freezing, forking while they run, being taken over, and sudden deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from race.errors import SandboxError
from race.sandbox import Change, File, Limits, SandboxSpec
from race.sandboxes.local import LocalProvider
from tests.sandboxes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandbox import Sandbox

pytestmark = pytest.mark.anyio

_COUNTER = """
mkdir -p /app; cd /app
(i=0; while :; do i=$((i+1)); echo $i >a.new; mv a.new a; echo $i >b.new; mv b.new b; done) >/dev/null 2>&1 &
while [ ! -e b ]; do sleep 0.01; done
"""


async def test_frozen_processes_stand_still_and_go_on(sandbox: Sandbox) -> None:
    await sandbox.exec(f"{_COUNTER} sleep 1000 & kill -STOP $!; until ps -o stat= -p $! | grep T; do :; done")
    await sandbox.freeze()
    assert (await sandbox.info()).state == "frozen"
    first = await sandbox.read("/app/a")
    await anyio.sleep(0.1)
    assert await sandbox.read("/app/a") == first
    with pytest.raises(SandboxError, match="frozen"):
        await sandbox.exec("true")
    await sandbox.thaw()
    assert (await sandbox.info()).state == "running"
    await anyio.sleep(0.1)
    assert int(await sandbox.read("/app/a")) > int(first)
    done = await sandbox.exec("ps -e -o stat= | grep -c T")
    assert done.stdout == b"1\n"  # what had been stopped before still is


async def test_a_time_limit_holds_in_a_frozen_sandbox(sandbox: Sandbox) -> None:
    async with anyio.create_task_group() as group:

        async def command() -> None:
            assert (await sandbox.exec("sleep 100", timeout=0.3)).timed_out

        group.start_soon(command)
        await anyio.sleep(0.05)
        await sandbox.freeze()
    await sandbox.thaw()


async def test_a_running_sandbox_is_forked_as_of_one_moment(
    sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    await sandbox.exec(
        _COUNTER
        + "ln -s a l; ln a h; mkfifo p; rm -r /etc/apt; mkdir /etc/apt; truncate -s 100M hole; chmod 0 hole"
    )
    for _ in range(5):
        fork = await sandbox.fork(new_name())
        first, second = [int(await fork.read(f"/app/{name}")) for name in "ab"]
        assert first - second in (0, 1)
        assert await fork.changes() == []
        await fork.delete()
    fork = await sandbox.fork(new_name())
    done = await fork.exec("cd /app; stat -c '%n %F %s %a %b' hole p l; ls -A /etc/apt; pgrep sh")
    assert done.stdout.decode().splitlines() == [
        "hole regular file 104857600 0 0",
        "p fifo 0 644 0",
        "l symbolic link 1 777 0",
    ]
    assert int(await sandbox.read("/app/a")) > first  # the original goes on


async def test_commands_wait_while_a_sandbox_is_being_copied(
    sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    await sandbox.exec("mkdir /app; cd /app; for i in $(seq 40); do echo $i >$i; done")
    statuses: list[int | None] = []

    async def commands() -> None:
        for _ in range(10):
            done = await sandbox.exec("true")
            statuses.append(done.exit_code)

    async with anyio.create_task_group() as group:
        group.start_soon(commands)
        for _ in range(3):
            group.start_soon(sandbox.fork, new_name())
    assert statuses == [0] * 10


async def test_a_frozen_sandbox_can_be_forked_and_stays_frozen(
    sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    await sandbox.exec(_COUNTER)
    await sandbox.freeze()
    fork = await sandbox.fork(new_name())
    assert (await fork.exec("cat /app/a")).stdout == await sandbox.read("/app/a")
    assert (await sandbox.info()).state == "frozen"
    await sandbox.stop()
    assert (await sandbox.info()).state == "stopped"


async def test_a_long_line_of_forks_keeps_every_file(sandbox: Sandbox, new_name: Callable[[], str]) -> None:
    line = [sandbox]
    for number in range(12):
        await line[-1].write([File(b"/app/%d" % number, b"x"), File(b"/app/last", b"%d" % number)])
        await line[-1].stop()
        line.append(await line[-1].fork(new_name()))
    assert (await line[-1].exec("ls /app | wc -l; cat /app/last")).stdout == b"13\n11"
    assert await line[-1].changes() == []
    assert [each.path for each in await line[5].changes()] == [b"/app/5", b"/app/last"]


async def test_changes_are_told_from_outside(sandbox: Sandbox, new_name: Callable[[], str]) -> None:
    await sandbox.exec(
        "mkdir -p /app/d/e /app/gone /app/f; echo 1 >/app/d/e/1; echo 2 >/app/d/2; echo 3 >/app/gone/3; touch /app/f/x"
    )
    await sandbox.stop()
    fork = await sandbox.fork(new_name())
    await fork.exec(
        "cd /app; rm -r d; mkdir d; echo new >d/2; rm -r gone; rm -r f; echo file >f; mkdir -m 700 fresh; ln -s x link;"
        "chmod 711 /app; rmdir fresh; mkdir fresh; touch /usr/bin/tool; mkdir /proc2; printf '' >empty; mkfifo fifo"
    )
    expected = [
        Change(b"/app", "directory", 0o711, existed=True),
        Change(b"/app/d/2", "file", 0o644, 4, existed=True),
        Change(b"/app/d/e", "removed", existed=True),
        Change(b"/app/empty", "file", 0o644, 0, existed=False),
        Change(b"/app/f", "file", 0o644, 5, existed=True),
        Change(b"/app/f/x", "removed", existed=True),
        Change(b"/app/fifo", "special", 0o644, existed=False),
        Change(b"/app/fresh", "directory", 0o755, existed=False),
        Change(b"/app/gone", "removed", existed=True),
        Change(b"/app/link", "link", 0o777, target=b"x", existed=False),
        Change(b"/proc2", "directory", 0o755, existed=False),
        Change(b"/usr/bin/tool", "file", 0o644, 0, existed=False),
    ]
    assert await fork.changes() == expected
    await fork.stop()
    grandchild = await fork.fork(new_name())  # seals what was written: it must tell the same
    assert await fork.changes() == expected
    assert await fork.changes("/app/d") == expected[1:3]
    assert await fork.changes(b"/app/gone/3") == [Change(b"/app/gone/3", "removed", existed=True)]
    assert await fork.changes("/app/nothing/here") == []
    assert await fork.changes("/usr") == expected[-1:]
    assert await grandchild.changes() == []
    with pytest.raises(SandboxError, match="more than 3"):
        await fork.changes(limit=3)
    await fork.start()
    await fork.exec("rm /app/empty; touch /app/d/e")
    after = {each.path: each for each in await fork.changes("/app")}
    assert b"/app/empty" not in after
    assert after[b"/app/d/e"] == Change(b"/app/d/e", "file", 0o644, 0, existed=True)


async def test_another_provider_takes_a_sandbox_over(provider: LocalProvider, sandbox: Sandbox) -> None:
    await sandbox.exec("sleep 1000 & echo here >/file")
    await sandbox.label({"race": "r1"})
    other = LocalProvider(provider.home)
    taken = await other.get(sandbox.name)
    assert (await taken.info()).labels == {"race": "r1"}
    assert (await taken.exec("cat /file; pgrep -c sleep")).stdout == b"here\n1\n"
    await taken.label({"keep": "yes"})
    assert (await sandbox.info()).labels == {"race": "r1", "keep": "yes"}
    await taken.delete()
    with pytest.raises(SandboxError):
        await sandbox.exec("true")
    await other.aclose()


async def test_a_deleted_sandbox_is_not_mistaken_for_a_later_one_of_its_name(
    provider: LocalProvider, sandbox: Sandbox
) -> None:
    await sandbox.delete()
    later = await provider.create(SandboxSpec(sandbox.name))
    await sandbox.delete()
    assert (await later.exec("echo mine")).stdout == b"mine\n"
    with pytest.raises(SandboxError):
        await sandbox.stop()


async def test_killing_pid_1_from_outside_is_noticed(provider: LocalProvider, sandbox: Sandbox) -> None:
    await sandbox.exec("echo kept >/file")
    fork = await sandbox.fork(f"{sandbox.name}-fork")
    init = provider._workshop.records.load(fork.name).init
    assert init is not None
    os.kill(init.pid, signal.SIGKILL)

    async def is_stopped() -> bool:
        return (await fork.info()).state == "stopped"

    await until(is_stopped)
    with pytest.raises(SandboxError):
        await fork.exec("true")
    await fork.start()
    assert (await fork.exec("cat /file")).stdout == b"kept\n"


async def test_limits_hold(provider: LocalProvider, new_name: Callable[[], str]) -> None:
    able = provider.capabilities.limits
    limits = Limits(
        processes=50,
        memory=64 << 20 if "memory" in able else None,
        cpus=0.5 if "cpus" in able else None,
    )
    made = await provider.create(SandboxSpec(new_name(), limits=limits))
    done = await made.exec("for i in $(seq 100); do sleep 0.1 & done; wait", merge_stderr=True)
    assert b"Resource temporarily unavailable" in done.stdout
    if "memory" in able:
        done = await made.exec(["python3", "-c", "x = bytearray(200 << 20)"])
        assert done.exit_code == -9
        assert b"memory of the sandbox was used up" in done.stderr
    if "cpus" in able:
        done = await made.exec(
            ["python3", "-c", "import time\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass"]
        )
        assert done.usage.cpu_seconds < 0.28
    fork = await made.fork(new_name(), limits=Limits())
    done = await fork.exec(["python3", "-c", "x = bytearray(200 << 20)"])
    assert done.exit_code == 0


async def test_no_control_group_is_left(provider: LocalProvider, new_name: Callable[[], str]) -> None:
    if "memory" not in provider.capabilities.limits:
        pytest.skip("memory cannot be limited here")
    groups = [Path("/sys/fs/cgroup")]
    made = await provider.create(SandboxSpec(new_name(), limits=Limits(memory=1 << 28)))
    assert [each for top in groups for each in top.rglob(f"race-*-{made.name}-*")]
    await made.stop()
    assert [each for top in groups for each in top.rglob(f"race-*-{made.name}-*")] == []
    await made.start()
    await made.delete()
    assert [each for top in groups for each in top.rglob(f"race-*-{made.name}-*")] == []


async def test_collect_leaves_what_is_whole_or_being_made(
    provider: LocalProvider, sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    await sandbox.stop()
    names = [new_name() for _ in range(8)]
    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(sandbox.fork, name)
        for _ in range(10):
            assert await provider.collect() == []
            await anyio.sleep(0.005)
    assert set(names) <= {each.name for each in await provider.list() if each.state == "running"}


def test_a_sandbox_can_be_made_by_a_process_with_few_descriptors(tmp_path: Path, small_image: Path) -> None:
    program = """
import sys
from pathlib import Path
import anyio
from race.sandbox import SandboxSpec
from race.sandboxes.local import LocalProvider

async def main():
    provider = LocalProvider(Path(sys.argv[1]))
    sandbox = await provider.create(SandboxSpec("one", image=sys.argv[2]))
    print((await sandbox.exec("echo fine")).stdout)
    await sandbox.delete()
    await provider.aclose()

anyio.run(main)
"""
    few = ["sh", "-c", 'ulimit -n 200; exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(
        [*few, str(tmp_path), str(small_image)], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.stdout == "b'fine\\n'\n", done.stderr
