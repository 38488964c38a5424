"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from race.plugins import provider
from race.sandbox import Directory, Sandbox, SandboxSpec


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each asynchronous test under both event loops."""
    return request.param


@pytest.fixture(autouse=True, scope="session")
def _lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests of one session share a lane of their own, and wait for nobody else's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RACE_LANE", str(tmp_path_factory.mktemp("lane") / "lane"))
        yield


async def delete_all(home: Path) -> None:
    """Delete every sandbox of a state folder, children before parents."""
    made = provider("local", home, "test")
    try:
        for info in reversed(await made.list()):
            await (await made.get(info.name)).delete()
    finally:
        await made.aclose()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A state folder, whose sandboxes are gone after the test."""
    place = tmp_path / "home"
    place.mkdir()
    yield place
    anyio.run(delete_all, place)


@pytest.fixture
async def fork(home: Path) -> AsyncIterator[Sandbox]:
    """A sandbox with a project's folder, and nothing in it."""
    made = provider("local", home, "test")
    sandbox = await made.create(SandboxSpec(name="fork"))
    try:
        await sandbox.write([Directory(b"/app")])
        yield sandbox
    finally:
        with anyio.CancelScope(shield=True):
            await sandbox.delete()
            await made.aclose()
