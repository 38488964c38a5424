"""Programs that agents bring along: installed once on this machine, and copied into every base that needs them.

They come from npm, at one version. Nothing of theirs runs on the host: npm only unpacks them (``--ignore-scripts``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio

from race.bash import shown
from race.errors import MachineError, SpecError
from race.locking import locked
from race.sandbox import File, Sandbox
from race.submission import printable_lines

PLACE = "/opt/race"
"""Where tools lie inside."""

PATIENCE = 900.0
"""Seconds that npm may take."""

_SETUP = 1800.0


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that an agent needs inside.

    Attributes:
        name: the folder's, below `PLACE`.
        packages: of npm, with their versions: ``@openai/codex@0.171.0``.
        setup: commands that install it inside, when it is no npm package; they run once for a base.
    """

    name: str
    packages: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Its folder inside."""
        return f"{PLACE}/{self.name}"

    @property
    def mark(self) -> str:
        """A file inside that holds its key, once it is whole."""
        return f"{PLACE}/{self.name}.key"

    @property
    def key(self) -> str:
        """Changes when anything about it does."""
        made_of = json.dumps([self.name, self.packages, self.setup])
        return f"{self.name}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"


@runtime_checkable
class BringsTools(Protocol):
    """What an agent may have besides: programs that must be in the base before it is forked."""

    def tools(self) -> tuple[Tool, ...]:
        """Those it needs."""
        ...


def needed(agents: Iterable[object]) -> tuple[Tool, ...]:
    """The tools of some agents, each once."""
    found = {t.key: t for a in agents if isinstance(a, BringsTools) for t in a.tools()}
    return tuple(found[k] for k in sorted(found))


async def install(tool: Tool, home: Path) -> Path | None:
    """Unpack a tool's packages on this machine, unless they are there. Returns their folder, None if it has none.

    Args:
        tool: which.
        home: the state folder.

    Raises:
        MachineError: npm is not there, or fails; the text has its output.
    """
    if not tool.packages:
        return None
    place = home / "tools" / tool.key
    if place.is_dir():
        return place
    npm = shutil.which("npm")
    if npm is None:
        raise MachineError(
            f"the agent {tool.name!r} is an npm package, and there is no npm here; install Node.js 20 or newer, "
            "or put the agent into the base yourself and name it with program"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    async with locked(place.with_suffix(".lock"), lambda: None) as lock:
        if not place.is_dir():
            await _install(npm, tool, place, lock)
    return place


async def _install(npm: str, tool: Tool, place: Path, lock: int) -> None:
    part = place.with_suffix(f".{os.getpid()}")
    part.mkdir()
    try:
        command = [
            npm,
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--prefix",
            ".",
        ]
        try:
            with anyio.fail_after(PATIENCE):
                status, said = await _run([*command, *tool.packages], part, lock)
        except TimeoutError:
            raise MachineError(
                f"npm took longer than {PATIENCE:g} s to install {', '.join(tool.packages)}"
            ) from None
        if status != 0:
            raise MachineError(
                f"npm cannot install {', '.join(tool.packages)} for the agent {tool.name!r}:\n{said[-2000:]}"
            )
        part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


async def _run(command: list[str], folder: Path, lock: int) -> tuple[int, str]:
    """Run npm. However this ends, npm has ended, with all that it started.

    Only where this process is killed npm lives on, and holds the lock: until it has ended, its folder is left alone.
    """
    said = bytearray()
    process = await anyio.open_process(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[lock],
    )
    try:
        if process.stderr is not None:
            async for piece in process.stderr:
                said += piece
        return await process.wait(), said.decode("utf-8", "replace")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def equip(sandbox: Sandbox, tool: Tool, home: Path, *, timeout: float = _SETUP) -> None:
    """Put a tool into a sandbox.

    Args:
        sandbox: which.
        tool: what `install` unpacks, or what its commands install inside.
        home: the state folder.
        timeout: seconds for each of its commands.

    Raises:
        MachineError: see `install`.
        SpecError: one of its commands fails.
    """
    await _put(sandbox, tool, await install(tool, home), timeout)


async def _put(sandbox: Sandbox, tool: Tool, folder: Path | None, timeout: float) -> None:
    if folder is not None:
        await sandbox.upload(folder, tool.place)
    for command in tool.setup:
        done = await sandbox.exec(command, timeout=timeout, merge_stderr=True)
        if done.exit_code != 0:
            output = printable_lines(shown(done.stdout, done.stdout_bytes, 6000))
            raise SpecError(
                f"the agent {tool.name!r} cannot be installed in the sandbox: {command!r}\n{output}"
            )
    await sandbox.write([File(tool.mark.encode(), tool.key.encode())])


async def bring(sandbox: Sandbox, agents: Iterable[object], home: Path) -> None:
    """Put the tools of some agents into a sandbox that lacks them; errors are those of `equip`."""
    for tool in needed(agents):
        if await _has(sandbox, tool):
            continue
        folder = await install(tool, home)
        (home / "tools").mkdir(parents=True, exist_ok=True)
        async with locked(
            home / "tools" / f"{tool.key}.lock", lambda: None
        ):  # two sessions may begin at once
            if not await _has(sandbox, tool):
                await _put(sandbox, tool, folder, _SETUP)


async def _has(sandbox: Sandbox, tool: Tool) -> bool:
    try:
        return await sandbox.read(tool.mark, limit=1000) == tool.key.encode()
    except FileNotFoundError:
        return False
