"""The provider ``docker``, with Podman's service as the engine, where that is installed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from race.errors import MachineError, SandboxError
from race.plugins import provider as make_provider
from race.sandbox import File, SandboxProvider, SandboxSpec
from race.sandboxes import scripts
from race.sandboxes.docker import DockerProvider, containers
from race.sandboxes.docker.engine import Engine
from race.sandboxes.docker.execution import Frames
from race.sandboxes.local.output import Output
from race.sandboxes.marked import Marked
from race.testing import CHECKS, Check, check_provider
from tests.racing import project, run, script, spec
from tests.sandboxes.podman import image, missing, service

pytestmark = pytest.mark.anyio

ONCE = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """The address of an engine; skips where none can be had.

    ``RACE_TEST_ENGINE`` may hold the address of one that runs already, such as Docker's own.
    """
    if address := os.environ.get("RACE_TEST_ENGINE"):
        yield address
        return
    if why := missing():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="race-podman-", ignore_cleanup_errors=True) as folder:
        try:
            started = service(Path(folder))
            with started as address:
                yield address
        except RuntimeError as e:
            pytest.skip(f"no container engine to try it with: Podman's service does not start here: {e}")


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory, engine: str) -> str:  # noqa: ARG001 - needed for no other
    place = tmp_path_factory.mktemp("docker") / "image.tar"
    image(place)
    return str(place)


@pytest.fixture
async def provider(
    tmp_path: Path,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    anyio_backend: str,  # noqa: ARG001 - both event loops
) -> AsyncIterator[DockerProvider]:
    monkeypatch.setenv("DOCKER_HOST", engine)
    made = DockerProvider(tmp_path / "docker")
    yield made
    for info in reversed(await made.list()):
        await (await made.get(info.name)).delete()
    await made.aclose()


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
@ONCE
async def test_docker_keeps_every_promise(check: Check, provider: DockerProvider, rootfs: str) -> None:
    (result,) = await check_provider(
        provider, image=rootfs, again=lambda: DockerProvider(provider.home), only=[check.name]
    )
    if result.outcome == "left out":
        pytest.skip(result.reason)
    assert result.outcome == "passed", result.reason


async def test_nothing_is_left_in_the_engine(provider: DockerProvider, rootfs: str) -> None:
    first = await provider.create(SandboxSpec("one", image=rootfs))
    await first.stop()
    second = await first.fork("two")
    client = provider._engine.client
    ours = {"label": f"{containers.HOME}={containers.home_key(provider.home)}"}
    assert len(client.containers.list(all=True, filters=ours)) == 2
    assert [c.labels[containers.PARENT] for c in client.containers.list(filters=ours)] == ["one"]
    await second.changes()
    await second.delete()
    await first.delete()
    assert client.containers.list(all=True, filters=ours) == []
    assert client.images.list(filters=ours) == []


async def test_what_a_killed_process_left_is_collected(provider: DockerProvider, rootfs: str) -> None:
    sandbox = await provider.create(SandboxSpec("one", image=rootfs))
    (provider.home / "sandboxes" / "one" / "unborn").touch()
    assert any("one" in line for line in await provider.collect())
    assert await provider.list() == []
    with pytest.raises(SandboxError):
        await sandbox.exec("true")
    ours = {"label": f"{containers.HOME}={containers.home_key(provider.home)}"}
    assert provider._engine.client.containers.list(all=True, filters=ours) == []
    assert await provider.collect() == []


async def test_a_container_that_somebody_removed_is_told(provider: DockerProvider, rootfs: str) -> None:
    sandbox = await provider.create(SandboxSpec("one", image=rootfs))
    provider._engine.container(sandbox._handle).remove(force=True)
    with pytest.raises(SandboxError, match="gone"):
        await sandbox.info()
    assert [i.state for i in await provider.list()] == ["stopped"]
    await sandbox.delete()


async def test_names_of_images_are_looked_up(provider: DockerProvider, rootfs: str) -> None:
    with pytest.raises(SandboxError, match="no image"):
        await provider.create(SandboxSpec("one", image="race-no-such-image"))
    with pytest.raises(SandboxError, match="host"):
        await provider.create(SandboxSpec("one"))
    sandbox = await provider.create(SandboxSpec("one", image=rootfs))
    assert await provider.image_id(rootfs) == provider._engine.container(sandbox._handle).attrs["Image"]
    assert [i.name for i in await provider.list()] == ["one"]


async def test_a_command_that_kills_its_shell_still_has_a_status(
    provider: DockerProvider, rootfs: str
) -> None:
    sandbox = await provider.create(SandboxSpec("one", image=rootfs))
    done = await sandbox.exec("echo begun; kill -KILL $PPID; sleep 0.2", timeout=20)
    assert done.stdout in {b"begun\n", b""}  # what takes its output to us may be killed first
    assert done.exit_code == -9
    assert (await sandbox.exec("echo fine")).stdout == b"fine\n"


@ONCE
@pytest.mark.long
async def test_a_whole_race(
    tmp_path: Path, engine: str, rootfs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine)
    project(tmp_path)
    home = tmp_path / "state"
    home.mkdir()
    made = spec(
        tmp_path,
        [script("honest", "echo 50 > value.txt"), script("cheats", "echo 'echo 1' > bench.sh")],
        base={
            "project": "project",
            "sandbox": "docker",
            "image": rootfs,
            "network": {"setup": "none", "agent": "none", "scoring": "none"},
        },
    )
    verdict = await run(home, made)
    assert (verdict.status, verdict.winner) == ("won", "honest")
    assert verdict.attempts[1].state == "ineligible"
    provider = make_provider("docker", home, "test")
    for info in reversed(await provider.list()):
        await (await provider.get(info.name)).delete()
    await provider.aclose()


async def test_an_engine_that_is_not_there_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    made = make_provider("docker", tmp_path, "test")
    assert isinstance(made, SandboxProvider)
    (finding,) = await made.check()
    assert not finding.ok
    assert "DOCKER_HOST" in finding.remedy
    assert made.capabilities.limits == frozenset()
    with pytest.raises(MachineError, match="DOCKER_HOST"):
        await made.create(SandboxSpec("one", image="x"))


def test_a_missing_sdk_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "docker", None)
    with pytest.raises(MachineError, match="forkrace\\[docker\\]"):
        _ = Engine().client


def test_the_end_of_a_stream_is_found_wherever_it_is_cut() -> None:
    stream = b""
    for kind, piece in (
        (1, b"out"),
        (2, b"err\n"),
        (1, b"\0not-it\n"),
        (1, b"\0mark exit 3\nlate"),
        (2, b"\0mark\nlate"),
    ):
        stream += bytes([kind, 0, 0, 0]) + len(piece).to_bytes(4, "big") + piece
    for size in (1, 3, 7, 1000):
        marked = Marked("mark", [Output(100), Output(100)])
        frames = Frames(marked)
        for start in range(0, len(stream), size):
            frames.feed(stream[start : start + size])
        assert marked.complete
        result = marked.result(0.0, "/", timed_out=False)
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\0not-it\n", b"err\n")


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("kill -TERM $$", "signal 143"),
        ("exit 143", "exit 143"),
        ("sh -c 'kill -KILL $$'; exit 137", "exit 137"),
    ],
)
def test_a_signal_is_told_from_a_status(tmp_path: Path, shell: str, command: str, ended: str) -> None:
    text = tmp_path / "script"
    text.write_text(command)
    around = scripts.AROUND.replace(scripts.OWN, str(tmp_path / "own"))
    done = subprocess.run(
        [shell, "-c", around, "sh", "mark", "/", str(text), "-", "0"], capture_output=True, check=True
    )
    assert done.stdout.startswith(f"\0mark {ended} ".encode())


async def test_files_of_any_size_are_staged(provider: DockerProvider, rootfs: str, tmp_path: Path) -> None:
    sandbox = await provider.create(SandboxSpec("one", image=rootfs))
    big = tmp_path / "big"
    big.write_bytes(bytes(40_000_000))
    await sandbox.write([File(b"/app/big", big), File(b"/app/it's", b"x")])
    assert (await sandbox.exec('wc -c <big; cat "it\'s"', cwd="/app")).stdout == b"40000000\nx"
    assert scripts.OWN.encode() not in [c.path for c in await sandbox.changes()]
