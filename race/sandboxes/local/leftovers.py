"""Finds and removes what killed processes left: nothing that is whole, and nothing that anybody is at work
on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from race.errors import SandboxError
from race.sandboxes.local import liveness
from race.sandboxes.local.removal import remove_tree

if TYPE_CHECKING:
    from pathlib import Path

    from race.sandboxes.local.workshop import Workshop


async def collect(workshop: Workshop) -> list[str]:
    """Remove it all.

    Returns:
        A line about each thing removed.
    """
    lines = await _unborn(workshop)
    lines += await anyio.to_thread.run_sync(_folders, workshop)
    lines += await _groups_of_ended(workshop)
    lines += await anyio.to_thread.run_sync(_groups, workshop)
    return lines


async def _groups_of_ended(workshop: Workshop) -> list[str]:
    """Control groups of sandboxes that ended by themselves, or whose PID 1 was killed."""
    lines: list[str] = []
    for record in workshop.records.all():
        if liveness.alive(record.init) or not any(os.path.exists(each) for each in record.cgroups):
            continue
        with contextlib.suppress(SandboxError):
            async with workshop.records.locked(record.name) as latest:
                if not liveness.alive(latest.init):
                    left = [each for each in latest.cgroups if os.path.exists(each)]
                    workshop.cgroups.remove(left)
                    lines += [
                        f"removed the control group {each}" for each in left if not os.path.exists(each)
                    ]
    return lines


async def _unborn(workshop: Workshop) -> list[str]:
    """Sandboxes that never came to life, because their maker was killed."""
    lines: list[str] = []
    for record in workshop.records.all(unborn=True):
        folder = workshop.records.folder(record.name)
        if (record.complete and not workshop.records.scraps(record.name)) or workshop.records.is_in_use(
            folder
        ):
            continue
        with contextlib.suppress(SandboxError):
            async with workshop.records.locked(record.name) as latest:
                for each in workshop.records.scraps(record.name):
                    if each.is_dir():
                        remove_tree(each)
                    else:
                        each.unlink(missing_ok=True)
                    lines.append(f"removed something unfinished of the sandbox {record.name!r}")
                if latest.complete:
                    continue
                with anyio.CancelScope(shield=True):
                    await liveness.end(latest.init)
                    workshop.cgroups.remove(latest.cgroups)
                    place = workshop.discard(record.name)
                    await workshop.remove(place)
            lines.append(f"removed the sandbox {record.name!r}, which was never finished")
    return lines


def _folders(workshop: Workshop) -> list[str]:
    lines: list[str] = []
    for folder in workshop.records.unfinished():
        if not workshop.records.is_in_use(folder):
            _remove(workshop, folder)
            lines.append(f"removed {folder.name}, a sandbox that never got its name")
    used = {each.image_folder for each in workshop.records.all(unborn=True) if each.image_folder is not None}
    for folder in workshop.images.unused(used):
        _remove(workshop, folder)
        lines.append(f"removed {folder.name}, an image of this machine that no sandbox uses")
    lines += sweep_layers(workshop)
    trash = workshop.trash
    left = sorted(trash.iterdir()) if trash.is_dir() else []
    gone = [each.name.rpartition("-")[0] for each in left if _remove_unless_held(each)]
    return lines + [f"removed what was left of the sandbox {each!r}" for each in gone]


def sweep_layers(workshop: Workshop) -> list[str]:
    """Remove the layers of images and of imports that no sandbox uses.

    Returns:
        A line about each.
    """
    with workshop.layers.unused(workshop.records.every) as unused:
        for folder in unused:
            _remove(workshop, folder)
        return [f"removed the layer {each.name}, which no sandbox uses" for each in unused]


def _remove(workshop: Workshop, folder: Path) -> None:
    """Take a folder out of sight in one step, then remove it."""
    workshop.trash.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = workshop.trash / folder.name.lstrip(".")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(place)
        _remove_unless_held(place)


def _remove_unless_held(folder: Path) -> bool:
    """Remove a folder of the trash, unless another process is doing so."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not folder.exists():
            return False
        remove_tree(folder)
    except BlockingIOError:
        return False
    finally:
        os.close(opened)
    return True


def _groups(workshop: Workshop) -> list[str]:
    used = {group for each in workshop.records.all(unborn=True) for group in each.cgroups}
    left = workshop.cgroups.leftover(used)
    workshop.cgroups.remove(left)
    return [f"removed the control group {each}" for each in left if not os.path.exists(each)]
