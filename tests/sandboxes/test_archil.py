"""The provider ``archil``: Archil's own SDK against a small service of the tests."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from race.errors import MachineError, SandboxError
from race.plugins import provider as make_provider
from race.sandbox import File, Limits, SandboxProvider, SandboxSpec
from race.sandboxes.archil import ArchilProvider
from race.testing import CHECKS, Check, check_provider
from tests.racing import project, run, script, spec
from tests.sandboxes.archil_service import KEY, Service, serving

pytest.importorskip("archil")

pytestmark = pytest.mark.anyio

ONCE = pytest.mark.parametrize("anyio_backend", ["asyncio"])
IMAGE = "python:test"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    with serving(tmp_path_factory.mktemp("archil") / "local") as both:
        yield both


@pytest.fixture
def service(served: tuple[str, Service], monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("ARCHIL_BASE_URL", served[0])
    monkeypatch.setenv("ARCHIL_API_KEY", KEY)
    return served[1]


@pytest.fixture
async def provider(
    tmp_path: Path,
    service: Service,  # noqa: ARG001 - it is up
    anyio_backend: str,  # noqa: ARG001 - both event loops
) -> AsyncIterator[ArchilProvider]:
    made = ArchilProvider(tmp_path / "archil")
    yield made
    for info in reversed(await made.list()):
        await (await made.get(info.name)).delete()
    await made.aclose()


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
@ONCE
async def test_archil_keeps_every_promise(check: Check, provider: ArchilProvider) -> None:
    (result,) = await check_provider(
        provider, image=IMAGE, again=lambda: ArchilProvider(provider.home), only=[check.name]
    )
    if result.outcome == "left out":
        pytest.skip(result.reason)
    assert result.outcome == "passed", result.reason


async def test_the_services_own_refusal_is_told(provider: ArchilProvider, service: Service) -> None:
    sandbox = await provider.create(SandboxSpec("one", image=IMAGE))
    await sandbox.stop()
    machine = service.machines[sandbox._handle]
    # A fork by somebody else, which only the service knows of.
    call = provider._service.call
    other = await call(lambda: provider._service.sandbox(sandbox._handle).fork(name="theirs"))
    with pytest.raises(SandboxError, match="dependent forks"):
        await sandbox.delete()
    assert (await sandbox.info()).state == "stopped"
    assert service.machines[machine.id] is machine
    await call(other.stop)
    await call(other.delete)
    await sandbox.delete()
    assert machine.id not in service.machines


async def test_children_go_before_parents_and_running_ones_are_stopped_first(
    provider: ArchilProvider, service: Service
) -> None:
    sandbox = await provider.create(SandboxSpec("one", image=IMAGE))
    fork = await sandbox.fork("two")
    with pytest.raises(SandboxError, match="two"):
        await sandbox.delete()
    service.calls.clear()
    await fork.delete()
    await sandbox.delete()
    told = [c for c in service.calls if c.startswith("DELETE") or c.endswith("/stop")]
    assert told == [
        f"POST /api/sandboxes/{fork._handle}/stop",
        f"DELETE /api/sandboxes/{fork._handle}",
        f"POST /api/sandboxes/{sandbox._handle}/stop",
        f"DELETE /api/sandboxes/{sandbox._handle}",
    ]


@pytest.mark.usefixtures("service")
async def test_a_wrong_key_and_a_silent_service_are_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHIL_API_KEY", "key-wrong")
    made = make_provider("archil", tmp_path, "test")
    assert isinstance(made, SandboxProvider)
    (finding,) = await made.check()
    assert (finding.ok, "invalid API key" in finding.remedy) == (False, True)
    await made.aclose()
    monkeypatch.delenv("ARCHIL_API_KEY")
    (finding,) = await make_provider("archil", tmp_path, "test").check()
    assert (finding.ok, "ARCHIL_API_KEY" in finding.remedy) == (False, True)


async def test_a_missing_sdk_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "archil", None)
    with pytest.raises(MachineError, match=r"forkrace\[archil\]"):
        await ArchilProvider(tmp_path).create(SandboxSpec("one", image=IMAGE))


async def test_what_it_cannot_is_refused(provider: ArchilProvider, tmp_path: Path) -> None:
    sandbox = await provider.create(SandboxSpec("one", image=IMAGE))
    for call in (
        sandbox.spawn("a", "true"),
        sandbox.listen(),
        sandbox.export(tmp_path / "x"),
        sandbox.fork("two", limits=Limits(memory=1)),
        provider.create(SandboxSpec("two")),
        provider.load(tmp_path / "x"),
    ):
        with pytest.raises(SandboxError, match="archil"):
            await call


async def test_what_a_killed_process_left_is_collected(provider: ArchilProvider, service: Service) -> None:
    sandbox = await provider.create(SandboxSpec("one", image=IMAGE))
    (provider.home / "sandboxes" / "one" / "unborn").touch()
    assert any("one" in line for line in await provider.collect())
    assert sandbox._handle not in service.machines


@ONCE
@pytest.mark.long
@pytest.mark.usefixtures("service")
async def test_a_whole_race(tmp_path: Path) -> None:
    project(tmp_path)
    home = tmp_path / "state"
    home.mkdir()
    made = spec(
        tmp_path,
        [script("honest", "echo 50 > value.txt"), script("cheats", "echo 'echo 1' > bench.sh")],
        base={
            "project": "project",
            "sandbox": "archil",
            "image": IMAGE,
            "network": {"setup": "none", "agent": "none", "scoring": "none"},
        },
    )
    verdict = await run(home, made)
    assert (verdict.status, verdict.winner) == ("won", "honest")
    assert verdict.attempts[1].state == "ineligible"
    assert any("its own machine says" in w for w in verdict.warnings)
    provider = make_provider("archil", home, "test")
    for info in reversed(await provider.list()):
        await (await provider.get(info.name)).delete()
    await provider.aclose()


async def test_files_with_any_content_arrive(provider: ArchilProvider) -> None:
    sandbox = await provider.create(SandboxSpec("one", image=IMAGE))
    data = bytes(range(256)) * 40_000
    await sandbox.write([File(b"/app/all", data), File(b"/app/it's", b"END\n$(false)\n")])
    assert await sandbox.read("/app/all") == data
    assert await sandbox.read("/app/it's") == b"END\n$(false)\n"
