"""Installing the programs of agents, when it is broken off: by a stand-in for npm that takes its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from race.errors import MachineError
from race.removal import collect
from race.tools import Tool, install

TOOL = Tool("thing", ("thing@1.0",))
NPM = """#!/bin/sh
echo $$ > {folder}/npm.pid
mkdir node_modules
sleep {seconds} &
wait
echo whole > node_modules/thing
"""
INSTALL = """
import anyio, sys
from pathlib import Path
from race.tools import Tool, install
anyio.run(install, Tool("thing", ("thing@1.0",)), Path(sys.argv[1]))
"""


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Path]:
    """Puts an npm in the path that takes so many seconds; returns the file that holds its process number."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(seconds: float) -> Path:
        (folder / "npm").write_text(NPM.format(folder=tmp_path, seconds=seconds))
        (folder / "npm").chmod(0o755)
        return tmp_path / "npm.pid"

    return put


def alive(pid: int) -> bool:
    """Whether a process of this session is there that has not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == pid and fields[0] != "Z":
            return True
    return False


@pytest.mark.anyio
async def test_one_that_is_cancelled_leaves_neither_a_process_nor_a_folder(
    npm: Callable[[float], Path], home: Path
) -> None:
    number = npm(60)
    with anyio.move_on_after(20) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(install, TOOL, home)
            while not number.exists() or not number.read_text().strip():  # noqa: ASYNC110 - npm writes it
                await anyio.sleep(0.02)
            group.cancel_scope.cancel()
    assert not scope.cancelled_caught
    with anyio.fail_after(10):
        while alive(int(number.read_text())):  # noqa: ASYNC110 - it is ended, and may not have been reaped yet
            await anyio.sleep(0.01)
    assert [p.name for p in (home / "tools").iterdir()] == [f"{TOOL.key}.lock"]


@pytest.mark.anyio
async def test_one_that_fails_says_what_npm_said(npm: Callable[[float], Path], home: Path) -> None:
    path = npm(0).parent / "bin" / "npm"
    path.write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n")
    with pytest.raises(
        MachineError, match=r"npm cannot install thing@1.0 for the agent 'thing':\nno such thing"
    ):
        await install(TOOL, home)
    assert [p.name for p in (home / "tools").iterdir()] == [f"{TOOL.key}.lock"]


def test_one_that_is_killed_counts_for_nothing_and_is_collected(
    npm: Callable[[float], Path], home: Path
) -> None:
    number = npm(60)
    process = subprocess.Popen([sys.executable, "-c", INSTALL, str(home)])
    try:
        end = time.monotonic() + 20
        while (not number.exists() or not number.read_text().strip()) and time.monotonic() < end:
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    part = home / "tools" / f"{TOOL.key}.{process.pid}"
    group = int(number.read_text())
    try:
        assert part.is_dir()
        # Npm lives on, so nobody takes its folder away from under it.
        removed, _ = anyio.run(collect, home)
        assert removed == []
    finally:
        os.killpg(group, signal.SIGKILL)
    end = time.monotonic() + 10
    while alive(group) and time.monotonic() < end:
        time.sleep(0.02)
    removed, _ = anyio.run(collect, home)
    assert removed == [f"the half of the tool {TOOL.key}"]
    assert not part.exists()
    npm(0)
    place = anyio.run(install, TOOL, home)
    assert place is not None
    assert (place / "node_modules" / "thing").read_text() == "whole\n"
