"""Fixtures that every test may use."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from race.plugins import provider
from race.sandbox import Directory, Sandbox, SandboxSpec

MEMORY = Path("/dev/shm")
ENOUGH = 8 << 30
"""Bytes of room for the state of a whole run."""
_FOLDER = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep what the tests write in memory where there is room: on a disk they wait for it half of the time."""
    if config.option.basetemp or hasattr(config, "workerinput") or not MEMORY.is_dir():
        return
    if shutil.disk_usage(MEMORY).free > ENOUGH and os.access(MEMORY, os.W_OK):
        folder = Path(tempfile.mkdtemp(prefix="race-tests-", dir=MEMORY))
        folder.chmod(0o711)
        config.stash[_FOLDER] = folder
        config.option.basetemp = str(folder / "run")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give the memory back."""
    if (folder := config.stash.get(_FOLDER, None)) is not None:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each asynchronous test under both event loops."""
    return request.param


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder where people have theirs: for what memory's file system would answer in another way."""
    folder = Path(tempfile.mkdtemp(prefix="race-tests-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


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
