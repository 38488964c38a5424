"""Lifetimes, lineage, and many forks at once, of sandboxes of this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from race.errors import SandboxError
from race.forks import ForkFailure, fork_many
from race.sandbox import Limits, SandboxSpec
from race.sandboxes.local.lifetimes import Lifetime
from tests.sandboxes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandbox import Sandbox
    from race.sandboxes.local import LocalProvider

pytestmark = pytest.mark.anyio


async def _stopped(sandbox: Sandbox) -> None:
    async def is_stopped() -> bool:
        return (await sandbox.info()).state == "stopped"

    await until(is_stopped)


async def test_a_lifetime_ends_with_a_stop_and_begins_anew_with_a_start(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    began = time.time()
    memory = 64 << 20 if "memory" in provider.capabilities.limits else None
    made = await provider.create(SandboxSpec(new_name(), lifetime=0.4, limits=Limits(memory=memory)))
    await made.exec("echo kept >/file")
    ends = (await made.info()).ends
    assert ends is not None
    assert began < ends < time.time() + 0.5
    with pytest.raises(SandboxError, match="has ended"):
        await made.exec("sleep 1000")
    await _stopped(made)
    assert (await made.info()).ends is None
    assert await made.read("/file") == b"kept\n"
    groups = [each for each in Path("/sys/fs/cgroup").rglob(f"race-*-{made.name}-*") if each.is_dir()]
    assert [each for each in await provider.collect() if made.name in each] == [
        f"removed the control group {each}" for each in groups
    ]
    await made.start()
    assert (await made.exec("cat /file")).stdout == b"kept\n"
    await _stopped(made)


async def test_use_puts_off_the_end_of_an_idle_lifetime(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made = await provider.create(SandboxSpec(new_name(), idle_lifetime=0.5))
    await made.exec("sleep 0.8; sleep 1000 &")  # what a command leaves running is no use
    fork = await made.fork(new_name())
    working = await fork.spawn("work", "sleep 0.8")
    assert (await made.info()).state == "running"
    await _stopped(made)
    assert await working.wait() == 0
    assert (await fork.info()).state == "running"
    await _stopped(fork)


_ORCHESTRATOR = """
import sys, anyio
from pathlib import Path
from race.sandbox import SandboxSpec
from race.sandboxes.local import LocalProvider

async def main():
    made = await LocalProvider(Path(sys.argv[1])).create(SandboxSpec(sys.argv[2], lifetime=0.3))
    print("ready", flush=True)
    await anyio.sleep(1000)

anyio.run(main)
"""


async def test_a_lifetime_ends_although_the_orchestrator_is_gone(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    name = new_name()
    command = [sys.executable, "-c", _ORCHESTRATOR, str(provider.home), name]
    async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=None) as running:
        assert running.stdout is not None
        assert (await running.stdout.receive()).startswith(b"ready")
        running.kill()
    made = await provider.get(name)
    await _stopped(made)
    assert name in {each.name for each in await provider.list()}


@pytest.mark.parametrize(("whole", "idle"), [(0.0, None), (None, -1.0), (float("nan"), None)])
async def test_lifetimes_without_time_are_refused(
    provider: LocalProvider, new_name: Callable[[], str], whole: float | None, idle: float | None
) -> None:
    with pytest.raises(SandboxError, match="seconds above 0"):
        await provider.create(SandboxSpec(new_name(), lifetime=whole, idle_lifetime=idle))


def test_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(time, "clock_gettime", lambda _: clock)
    unlimited = Lifetime(None, None)
    assert (unlimited.left(in_use=False), unlimited.patience()) == (None, None)
    both = Lifetime(1000.0, 40.0)
    assert (both.left(in_use=False), both.patience()) == (40.0, 30.0)  # the machine may fall asleep
    clock = 135.0
    assert both.left(in_use=False) == 5.0
    assert both.left(in_use=True) == 40.0
    clock = 1090.0
    assert both.left(in_use=True) == 10.0
    clock = 2000.0
    assert both.left(in_use=True) == 0.0


async def test_lineage_is_told_also_through_what_is_deleted(
    provider: LocalProvider, sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    child = await sandbox.fork(new_name())
    grandchild = await child.fork(new_name())
    await grandchild.stop()
    last = await grandchild.fork(new_name())
    assert (await last.info()).ancestors == (grandchild.name, child.name, sandbox.name)
    assert (await sandbox.info()).ancestors == ()
    taken = await provider.get(last.name)
    assert (await taken.info()).parent == grandchild.name


async def test_many_forks_at_once_and_the_failure_of_one_leaves_the_others(
    sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    await sandbox.exec("echo x >/file")
    names = [new_name(), sandbox.name, new_name(), "not/a/name", new_name()]
    made = await fork_many(sandbox, names, labels={"a": "b"})
    assert [each.name for each in made] == names
    failed = {each.name: str(each.error) for each in made if isinstance(each, ForkFailure)}
    assert list(failed) == [sandbox.name, "not/a/name"]
    assert "already" in failed[sandbox.name]
    for each in made:
        if not isinstance(each, ForkFailure):
            assert await each.read("/file") == b"x\n"
            assert (await each.info()).labels == {"a": "b"}
