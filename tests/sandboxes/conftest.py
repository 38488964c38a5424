"""One home of local sandboxes for the whole test run, so that the host image is prepared once."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

from benchmarks.speed import trees
from race.sandbox import SandboxSpec
from race.sandboxes.local import LocalProvider
from race.sandboxes.local.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from race.sandbox import Sandbox

_numbers = itertools.count()


@pytest.fixture(scope="session")
def local_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home folder of the tests' providers."""
    home = tmp_path_factory.mktemp("race") / "local"
    home.mkdir(mode=0o700)
    yield home
    remove_tree(home)


@pytest.fixture(scope="session")
def small_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root filesystem with a shell and a few programs, and no ``bash``."""
    top = tmp_path_factory.mktemp("image")
    top.chmod(0o755)
    return trees.small(top, ("sh", "cat", "id", "ln", "ls", "mkdir", "rm", "sleep", "touch", "chmod", "stat"))


@pytest.fixture
async def provider(local_home: Path, anyio_backend: str) -> AsyncIterator[LocalProvider]:  # noqa: ARG001 - it makes the test run under both event loops
    """A provider of the test's own. All its sandboxes are deleted when the test is over."""
    made = LocalProvider(local_home)
    yield made
    left = await made.list()
    for each in reversed(left):
        await (await made.get(each.name)).delete()
    await made.collect()  # layers that were theirs
    await made.aclose()


@pytest.fixture
def new_name() -> Callable[[], str]:
    """Gives names that no other test uses."""
    return lambda: f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
async def sandbox(provider: LocalProvider, new_name: Callable[[], str]) -> Sandbox:
    """A running sandbox made of the host, without a network."""
    return await provider.create(SandboxSpec(new_name()))
