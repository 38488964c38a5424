"""The provider ``copy``: it keeps the contract but for what it declares, confines where it can, and runs races."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from race.assembly import assemble
from race.errors import SandboxError, SpecError
from race.plugins import provider as make_provider
from race.sandbox import Capabilities, File, Limits, SandboxProvider, SandboxSpec
from race.sandboxes.copy import CopyProvider, landlock, running
from race.testing import CHECKS, Check, check_provider
from tests.racing import project, run, script, spec

pytestmark = pytest.mark.anyio


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """On the disk, which has other rules than memory."""
    return on_disk


FULL = {"sandbox": "copy", "network": {"setup": "full", "agent": "full", "scoring": "full"}}


@pytest.fixture
async def copies(tmp_path: Path, anyio_backend: str) -> AsyncIterator[CopyProvider]:  # noqa: ARG001 - both event loops
    made = CopyProvider(tmp_path / "home" / "sandboxes" / "copy")
    yield made
    for info in reversed(await made.list()):
        await (await made.get(info.name)).delete()
    assert not list((made.home / "sandboxes").glob("*"))


def new(name: str = "one", **given: object) -> SandboxSpec:
    return SandboxSpec(name, network="full", **given)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_copy_keeps_every_promise(check: Check, copies: CopyProvider) -> None:
    (result,) = await check_provider(copies, again=lambda: CopyProvider(copies.home), only=[check.name])
    if result.outcome == "left out":
        pytest.skip(result.reason)
    assert result.outcome == "passed", result.reason


async def test_it_is_a_plugin_with_a_warning(tmp_path: Path) -> None:
    made = make_provider("copy", tmp_path, "test")
    assert isinstance(made, SandboxProvider)
    assert not made.capabilities.isolated
    assert "without any isolation" in made.capabilities.warning


async def test_commands_write_below_their_own_folder_only(copies: CopyProvider, tmp_path: Path) -> None:
    if not landlock.version():
        pytest.skip("this kernel has no Landlock")
    sandbox = await copies.create(new())
    other = await copies.create(new("two"))
    mine = tmp_path / "mine"
    mine.write_text("of the host")
    targets = [str(mine), str(tmp_path / "new"), "/tmp/race-copy-test", other.place("/stolen")]
    for target in targets:
        assert (await sandbox.exec(["sh", "-c", 'echo x >"$0"', target])).exit_code != 0, target
        assert (await sandbox.exec(["sh", "-c", 'rm -f "$0"; mkdir "$0"', target])).exit_code != 0, target
    assert mine.read_text() == "of the host"
    done = await sandbox.exec(
        'echo x >mine && echo x >"$TMPDIR/mine" && echo x >/dev/null && mktemp && echo fine'
    )
    assert done.stdout.endswith(b"fine\n"), done
    done = await sandbox.exec(["sh", "-c", f"kill -9 {os.getpid()} || echo refused"])
    if landlock.version() >= 6:
        assert done.stdout == b"refused\n"


async def test_commands_find_their_folder_and_nothing_of_this_process(copies: CopyProvider) -> None:
    sandbox = await copies.create(new(env={"PATH": "$RACE_ROOT/bin:$PATH", "DATA": "$RACE_ROOT/data"}))
    await sandbox.write([File(b"/bin/mine", b"#!/bin/sh\necho $DATA\n", 0o755)])
    assert (await sandbox.exec(["mine"])).stdout.decode().strip() == sandbox.place("/data")
    fork = await sandbox.fork("two")
    assert (await fork.exec(["mine"])).stdout.decode().strip() == fork.place("/data")
    assert fork.place("/data") != sandbox.place("/data")
    done = await fork.exec("echo $RACE_ROOT; echo $HOME; env | grep -c PYTEST")
    assert done.stdout.decode().split() == [fork.place("/").rstrip("/"), fork.place("/root"), "0"]


async def test_nothing_leads_out_of_the_folder(copies: CopyProvider, tmp_path: Path) -> None:
    sandbox = await copies.create(new())
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    await sandbox.exec(["ln", "-s", str(tmp_path / "outside"), "out"])
    await sandbox.exec(["ln", "-s", "../../../../../../../../../../etc", "up"])
    await sandbox.write([File(b"/out/new", b"x"), File(b"/up/passwd", b"x")])
    assert sorted(p.name for p in (tmp_path / "outside").iterdir()) == ["secret"]
    assert b"root:" in Path("/etc/passwd").read_bytes()
    for path in ("/out/secret", "/up/passwd"):
        with pytest.raises(SandboxError, match="link"):
            await sandbox.read(path)
    with pytest.raises(SandboxError):
        await sandbox.download("/out/secret", tmp_path / "copied")
    assert not (tmp_path / "copied").exists()


async def test_what_it_cannot_is_refused(copies: CopyProvider, tmp_path: Path) -> None:
    sandbox = await copies.create(new())
    for call in (
        sandbox.spawn("a", "true"),
        sandbox.export(tmp_path / "x"),
        sandbox.set_network("none"),
        sandbox.fork("two", network="none"),
        sandbox.fork("two", limits=Limits(memory=1)),
        copies.create(SandboxSpec("three", network="none")),
        copies.create(new("three", image="/")),
        copies.create(new("three", lifetime=1.0)),
        copies.load(tmp_path / "x"),
    ):
        with pytest.raises(SandboxError, match="copy"):
            await call
    assert [i.name for i in await copies.list()] == ["one"]


async def test_a_runner_goes_when_nothing_is_left_of_its_command(copies: CopyProvider) -> None:
    sandbox = await copies.create(new())
    runners = copies.home / "sandboxes" / "one" / "runners"
    await sandbox.exec("sleep 0.3 & echo x")
    assert len(running.living(runners)) == 1
    with anyio.fail_after(10):
        while running.living(runners):  # noqa: ASYNC110 - nobody tells when
            await anyio.sleep(0.02)
    assert list(runners.iterdir()) == []


async def test_a_killed_runner_takes_only_its_own_command_along(copies: CopyProvider) -> None:
    sandbox = await copies.create(new())
    runners = copies.home / "sandboxes" / "one" / "runners"
    async with anyio.create_task_group() as group:

        async def long() -> None:
            with pytest.raises(SandboxError, match="ended"):
                await sandbox.exec("exec sleep 100")

        group.start_soon(long)
        with anyio.fail_after(10):
            while not (found := running.living(runners)):  # noqa: ASYNC110 - likewise
                await anyio.sleep(0.01)
        (pid,) = found
        os.kill(pid, signal.SIGKILL)
    assert (await sandbox.exec("echo fine")).stdout == b"fine\n"


async def test_a_fork_that_was_never_finished_is_collected(copies: CopyProvider) -> None:
    sandbox = await copies.create(new())
    await sandbox.write([File(b"/file", b"x")])
    async with anyio.create_task_group() as group:
        group.start_soon(sandbox.fork, "two")
        await anyio.sleep(0.005)
        assert await copies.collect() == []
    left = copies.home / "sandboxes" / "two"
    (left / "unborn").touch()  # as if its maker had been killed before the end
    assert [i.name for i in await copies.list()] == ["one"]
    assert any("two" in line for line in await copies.collect())
    assert not left.exists()


async def test_a_whole_race_with_a_warning(tmp_path: Path) -> None:
    project(tmp_path)
    home = tmp_path / "state"
    home.mkdir()
    made = spec(
        tmp_path,
        [
            script("honest", "echo 50 > value.txt"),
            script("cheats", "echo 'echo 1' > bench.sh"),
            script("idle", "true"),
        ],
        base={"project": "project", **FULL},
    )
    verdict = await run(home, made)
    assert (verdict.status, verdict.winner) == ("won", "honest")
    assert verdict.attempts[1].state == "ineligible"
    assert any("without any isolation" in w for w in verdict.warnings)
    provider = make_provider("copy", home, "test")
    kept = [i for i in await provider.list() if i.labels.get("keep") == "yes"]
    assert [i.state for i in kept] == ["running"]
    for info in reversed(await provider.list()):
        await (await provider.get(info.name)).delete()


async def test_a_race_of_python_with_its_own_environment_and_witnessed_tests(tmp_path: Path) -> None:
    place = tmp_path / "project"
    place.mkdir()
    (place / "count.py").write_text("def count(n):\n    return sum(1 for _ in range(n))\n")
    (place / "test_count.py").write_text(
        "import unittest\nfrom count import count\n\n\nclass T(unittest.TestCase):\n"
        "    def test_count(self):\n        self.assertEqual(count(5), 5)\n"
    )
    (place / "bench.py").write_text(
        "import time\nfrom count import count\nt = time.perf_counter()\ncount(3000000)\n"
        "print((time.perf_counter() - t) * 1000)\n"
    )
    made = spec(
        tmp_path,
        [
            script("faster", "printf 'def count(n):\\n    return n if n > 0 else 0\\n' > count.py"),
            script("wrong", "printf 'def count(n):\\n    return 1\\n' > count.py"),
        ],
        task={"name": "count", "prompt": "Make it faster.", "protected": ["test_count.py", "bench.py"]},
        base={
            "project": "project",
            "setup": ["python3 -m venv --without-pip $RACE_ROOT/opt/venv"],
            "env": {"PATH": "$RACE_ROOT/opt/venv/bin:$PATH"},
            **FULL,
        },
        scorers=[
            {"use": "tests", "run": "python3 -m unittest -q"},
            {"use": "benchmark", "run": "python3 bench.py", "unit": "ms"},
        ],
        finals={"mode": "standard"},
    )
    home = tmp_path / "state"
    home.mkdir()
    verdict = await run(home, made)
    assert verdict.winner == "faster", verdict
    assert "test_count" in " ".join(verdict.attempts[1].reasons)
    provider = make_provider("copy", home, "test")
    for info in reversed(await provider.list()):
        await (await provider.get(info.name)).delete()


@pytest.mark.parametrize(
    ("tables", "wanted"),
    [
        ({"base": {**FULL, "network": {"setup": "full", "agent": "full"}}}, "base.network.scoring"),
        ({"base": {**FULL, "network": {**FULL["network"], "agent": ["example.org"]}}}, "base.network.agent"),  # type: ignore[dict-item]
        ({"base": {**FULL, "limits": {"memory": "1G"}}}, "base.limits.memory"),
        ({"base": {**FULL, "image": "project"}}, "base.image"),
        ({"base": FULL, "task": {"carry": "machine"}}, "task.carry"),
        (
            {
                "base": FULL,
                "entries": [
                    {"name": "a", "agent": "codex", "model": "x/y", "base_url": "http://x", "api_key_env": ""}
                ],
            },
            "entries[1].agent",
        ),
    ],
)
async def test_a_race_file_that_asks_for_more_is_refused_before_anything_starts(
    tmp_path: Path, tables: dict[str, object], wanted: str
) -> None:
    project(tmp_path)
    given = {"entries": [script("a", "true")], **tables}
    entries = given.pop("entries")
    made = spec(tmp_path, entries, **{**given, "base": {"project": "project", **given["base"]}})  # type: ignore[arg-type, dict-item]
    with pytest.raises(SpecError) as caught:
        assemble(made, tmp_path / "state", keyless=True)
    assert wanted in str(caught.value)
    assert not (tmp_path / "state" / "sandboxes").exists()


async def test_keeping_a_fork_needs_a_provider_that_can_hold_it(tmp_path: Path) -> None:
    project(tmp_path)

    class LetsGo(CopyProvider):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, features=frozenset({"terminal"}))

    made = spec(tmp_path, [script("a", "true")], base={"project": "project", **FULL}, keep={"winner": "fork"})
    with pytest.raises(SpecError, match=r"keep\.winner"):
        assemble(made, tmp_path / "state", LetsGo(tmp_path / "x"))
    assemble(made, tmp_path / "state", CopyProvider(tmp_path / "x"))


def test_it_can_be_imported_where_linuxs_own_calls_are_missing() -> None:
    """An interpreter of its own has to start for it, which takes most of a second."""
    program = """
import fcntl, os, signal, socket
import anyio, pydantic, numpy, openai, asyncio, trio.socket, anyio._backends._asyncio
for module, names in (
    (os, "O_PATH memfd_create MFD_CLOEXEC pidfd_open sched_getaffinity copy_file_range listxattr pipe2 waitid P_ALL"),
    (socket, "SOCK_NONBLOCK SOCK_CLOEXEC MSG_CMSG_CLOEXEC MSG_NOSIGNAL AF_NETLINK"),
    (fcntl, "F_SETPIPE_SZ F_GETPIPE_SZ"),
    (signal, "pidfd_send_signal"),
):
    for name in names.split():
        delattr(module, name)
import tempfile
from pathlib import Path
from race.sandbox import SandboxSpec
from race.sandboxes.copy import CopyProvider

async def main():
    with tempfile.TemporaryDirectory() as folder:
        sandbox = await CopyProvider(Path(folder)).create(SandboxSpec("one", network="full"))
        print((await sandbox.exec("echo fine")).stdout)
        await sandbox.delete()

anyio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "b'fine\\n'\n", done.stderr
