"""Orchestrators of sandboxes of this machine that are killed with SIGKILL while they do everything at once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from race.sandboxes.local import LocalProvider
from tests.sandboxes.waiting import until

KILLS = int(os.environ.get("RACE_KILLS", "3"))
"""Each costs an interpreter's start. 100 were survived."""

_ORCHESTRATOR = """
import os, sys, anyio
from pathlib import Path
from race.sandbox import Limits, SandboxSpec
from race.sandboxes.local import LocalProvider

def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())

async def main(home, memory):
    provider = LocalProvider(Path(home))
    base = await provider.create(SandboxSpec("base", limits=Limits(memory=int(memory) or None)))
    await base.exec("mkdir /app; echo x >/app/x; sleep 1000 &")
    await base.spawn("kept", "while read line; do echo got $line; done")
    say("ready")

    async def work(place):
        for number in range(10000):
            name = f"fork-{place}-{number}"
            fork = await base.fork(name)
            say("made", name)
            await fork.exec("echo y >/app/y")
            say("written", name)
            await fork.spawn("work", "sleep 1000")
            say("spawned", name)
            if number % 2:
                say("stopping", name)
                await fork.stop()
                second = await fork.fork(f"second-{place}-{number}")
                await second.delete()
            elif number % 3:
                await fork.freeze()
            if number % 5:
                say("deleting", name)
                await fork.delete()
                say("deleted", name)

    async with anyio.create_task_group() as group:
        for place in range(3):
            group.start_soon(work, place)

anyio.run(main, *sys.argv[1:])
"""


def _of(home: Path, module: bytes) -> list[int]:
    """The processes of a home that run a helper: their command line names both, also that of each PID 1."""
    found: list[int] = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                words = (each / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(home) in words and module in words:
                found.append(int(each.name))
    return found


def _helpers(home: Path) -> list[int]:
    """The zygotes of a home. What they fork into sandboxes has PID namespaces of its own."""
    return [pid for pid in _of(home, b"local.zygote") if len(_numbers(pid)) == 1]


def _inits(home: Path) -> list[int]:
    """The PID 1s of a home's sandboxes."""
    return [pid for pid in _of(home, b"local.zygote") if len(_numbers(pid)) > 1 and _numbers(pid)[-1] == "1"]


def _numbers(pid: int) -> list[str]:
    """A process's number in each PID namespace that it is in, from here inwards."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return []
    return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])


def _groups(home: Path) -> list[Path]:
    """The control groups that a home's sandboxes have."""
    workshop = LocalProvider(home)._workshop
    return [Path(each) for each in workshop.cgroups.leftover(set())]


async def _killed(home: Path, memory: int, seconds: float) -> list[list[str]]:
    """What an orchestrator said until it was killed, some time after it was ready."""
    command = [sys.executable, "-c", _ORCHESTRATOR, str(home), str(memory)]
    async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=None) as running:
        assert running.stdout is not None
        said = await running.stdout.receive()
        assert said.startswith(b"ready")
        with anyio.move_on_after(seconds):
            while True:
                said += await running.stdout.receive()
        running.kill()
        async for more in running.stdout:
            said += more
    return [line.split() for line in said.decode().splitlines()]


def _names(said: Iterable[list[str]], word: str) -> set[str]:
    return {words[1] for words in said if words[0] == word}


@pytest.mark.anyio
@pytest.mark.timeout(30 + 20 * KILLS)
async def test_an_orchestrator_killed_at_any_moment_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "race" / "local"
    provider = LocalProvider(home)
    memory = 256 << 20 if "memory" in provider._workshop.cgroups.hierarchies else 0

    async def helpers_are_gone() -> bool:
        return not _helpers(home)

    async def what_was_being_stopped_is() -> bool:
        living = [each.name for each in await provider.list() if each.state != "stopped"]
        return len(_inits(home)) == len(living)

    try:
        for attempt in range(KILLS):
            said = await _killed(home, memory, random.Random(attempt).uniform(0.0, 0.4))
            await until(helpers_are_gone)
            await provider.collect()
            assert await provider.collect() == []
            await until(what_was_being_stopped_is)
            known = {each.name: each for each in await provider.list()}
            # Nothing that was promised is lost.
            begun = _names(said, "deleting")
            assert {"base", *(_names(said, "made") - begun)} <= set(known)
            assert not _names(said, "deleted") & set(known)
            for name in _names(said, "written") - begun:
                fork = await provider.get(name)
                assert await fork.read("/app/y") == b"y\n"
                if name in _names(said, "spawned") - _names(said, "stopping"):
                    assert (await (await fork.process("work")).info()).state == "running"
            base = await provider.get("base")
            assert (await base.exec("cat /app/x; pgrep -c sleep")).stdout == b"x\n1\n"
            kept = await base.process("kept")
            await kept.send(b"word\n", end=True)
            assert await kept.wait(20) == 0
            assert await kept.read() == b"got word\n"
            # Nothing else is left.
            assert {each.name for each in (home / "sandboxes").iterdir()} == set(known)
            assert list(home.glob("trash/*")) == []
            assert len(_groups(home)) <= len(known)
            for name in reversed(known):
                await (await provider.get(name)).delete()
            assert _groups(home) == []
            assert not [
                line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(home) in line
            ]
    finally:
        for each in reversed(await provider.list()):
            await (await provider.get(each.name)).delete()
    await provider.aclose()
    assert _of(home, b"local.zygote") == []
