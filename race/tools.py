"""Programs that agents bring along: installed once on this machine, and copied into every base that needs them.

They come from npm, at one version. Nothing of theirs runs on the host: npm only unpacks them (``--ignore-scripts``).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio
import anyio.to_thread

from race.errors import MachineError
from race.locking import locked
from race.sandbox import Sandbox

PLACE = "/opt/race"
"""Where tools lie inside."""

_PATIENCE = 900.0


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
    async with locked(place.with_suffix(".lock"), lambda: None):
        if not place.is_dir():
            await anyio.to_thread.run_sync(_install, npm, tool, place, abandon_on_cancel=True)
    return place


def _install(npm: str, tool: Tool, place: Path) -> None:
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
        done = subprocess.run(  # noqa: S603 - npm, with packages that the race file's agents name
            [*command, *tool.packages],
            cwd=part,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        if done.returncode != 0:
            raise MachineError(
                f"npm cannot install {', '.join(tool.packages)} for the agent {tool.name!r}:\n{done.stderr[-2000:]}"
            )
        part.rename(place)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"npm took longer than {_PATIENCE:g} s to install {', '.join(tool.packages)}"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


async def put(tool: Tool, folder: Path | None, sandbox: Sandbox) -> None:
    """Copy what `install` unpacked into a sandbox."""
    if folder is not None:
        await sandbox.upload(folder, tool.place)
