"""Terminals in sandboxes, and the command that attaches this terminal to one."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from race.sandbox import Sandbox, SandboxSpec
from race.sandboxes.local import LocalProvider


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    provider = LocalProvider(tmp_path / "sandboxes" / "local")
    made = await provider.create(SandboxSpec("terminal"))
    yield made
    await made.delete()
    await provider.aclose()


async def read_until(terminal: object, text: bytes) -> bytes:
    seen = b""
    with anyio.fail_after(10):
        while text not in seen:
            data = await terminal.receive()  # type: ignore[attr-defined]
            assert data, seen
            seen += data
    return seen


@pytest.mark.anyio
async def test_a_shell_on_a_terminal(sandbox: Sandbox) -> None:
    terminal = await sandbox.terminal(env={"TERM": "xterm"}, rows=30, columns=100)
    await terminal.send(b"tty; stty size; echo in-$((1 + 1))\n")
    seen = await read_until(terminal, b"in-2")
    assert b"/dev/pts/" in seen
    assert b"30 100" in seen
    await terminal.resize(40, 120)
    await terminal.send(b"stty size\n")
    await read_until(terminal, b"40 120")
    await terminal.send(b"sleep 100\n")
    await anyio.sleep(0.1)
    await terminal.send(b"\x03")
    await terminal.send(b"exit 7\n")
    while await terminal.receive():
        pass
    assert await terminal.wait() == 7
    await terminal.aclose()
    await terminal.aclose()


@pytest.mark.anyio
async def test_closing_a_terminal_ends_what_runs_on_it(sandbox: Sandbox) -> None:
    terminal = await sandbox.terminal(["sh", "-c", "sleep 1000 & sleep 1000"])
    assert await sleepers(sandbox, 2)
    await terminal.aclose()
    assert await sleepers(sandbox, 0)


async def sleepers(sandbox: Sandbox, wanted: int) -> bool:
    """Whether there will soon be so many sleepers."""
    for _ in range(100):
        done = await sandbox.exec("grep -l '^sleep' /proc/[0-9]*/comm | wc -l")
        if int(done.stdout) == wanted:
            return True
    return False


@pytest.mark.parametrize("as_json", [False, True])
def test_race_sandbox_shell(tmp_path: Path, as_json: bool) -> None:
    async def make() -> None:
        provider = LocalProvider(tmp_path / "sandboxes" / "local")
        await provider.create(SandboxSpec("mine"))
        await provider.aclose()

    async def remove() -> None:
        provider = LocalProvider(tmp_path / "sandboxes" / "local")
        await (await provider.get("mine")).delete()
        await provider.aclose()

    anyio.run(make)
    try:
        pid, master = pty.fork()
        if pid == 0:
            environment = {**os.environ, "RACE_HOME": str(tmp_path), "TERM": "xterm"}
            command = [sys.executable, "-m", "race", "sandbox", "shell", "mine", *["--json"] * as_json]
            if as_json:  # the terminal is neither its input nor its output
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(os.open(tmp_path / "out.json", os.O_CREAT | os.O_WRONLY), 1)
            os.execve(sys.executable, command, environment)
        seen = b""
        os.write(master, b"hostname; exit 5\n")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if select.select([master], [], [], 0.5)[0]:
                try:
                    data = os.read(master, 4096)
                except OSError:
                    break
                if not data:
                    break
                seen += data
        _, status = os.waitpid(pid, 0)
        os.close(master)
        assert b"mine" in seen
        assert os.waitstatus_to_exitcode(status) == 5
        if as_json:
            result = json.loads((tmp_path / "out.json").read_text())
            assert (result["sandbox"], result["exit_code"]) == ("mine", 5)
    finally:
        anyio.run(remove)


def test_a_shell_needs_a_terminal(tmp_path: Path) -> None:
    environment = {**os.environ, "RACE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "race", "sandbox", "shell", "mine"]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert done.returncode in (1, 2)
    assert b"Traceback" not in done.stderr
    done = subprocess.run(
        [*command, "--json"], env=environment, start_new_session=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) in ((1, b""), (2, b""))
    assert b"Traceback" not in done.stderr
