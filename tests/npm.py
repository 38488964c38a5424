"""Agents from npm for tests: fetched once for a folder, or their tests are skipped with what npm says."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import anyio
import pytest

from race.tools import Tool, install
from tests.conftest import delete_all

ANSWERS_WITHIN = 20.0


def state_folder(place: Path) -> Iterator[Path]:
    """A state folder, whose tools may be there from an earlier run; its sandboxes are gone afterwards."""
    place.mkdir(exist_ok=True, parents=True)
    if kept := os.environ.get("RACE_TEST_TOOLS"):
        tools = Path(kept).absolute() / "tools"
        tools.mkdir(exist_ok=True, parents=True)
        (place / "tools").symlink_to(tools)
    yield place
    anyio.run(delete_all, place)


def fetch(place: Path, tools: Iterable[Tool]) -> None:
    """Install what is not there yet. Where npm cannot reach its registry, the test is skipped, and soon."""
    missing = [t for t in tools if t.packages and not (place / "tools" / t.key).is_dir()]
    if not missing:
        return
    if shutil.which("npm") is None:
        pytest.skip("npm is not there: install Node.js 20 or newer")
    question = [
        "npm",
        "view",
        missing[0].packages[0],
        "version",
        "--fetch-retries=0",
        "--fetch-timeout=10000",
    ]
    try:
        asked = subprocess.run(
            question,
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm has no answer from its registry within {ANSWERS_WITHIN:g} s")
    if asked.returncode != 0:
        pytest.skip(f"npm cannot reach its registry: {' '.join(asked.stderr.split())[:300]}")
    for tool in missing:
        anyio.run(install, tool, place)
