"""The measuring lane of a machine: whoever holds it measures, everybody else waits.

It is a lock file that the kernel lets go when its holder dies. All races and all calls of ``race measure`` of a user
share one, wherever their state is kept. ``$RACE_LANE`` names another: one for several users, or one on a volume that
containers of the same machine share.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from race.errors import MachineError
from race.locking import locked


def lane_file() -> Path:
    """The lock file; its folder exists.

    Raises:
        MachineError: the folder cannot be made, or is somebody else's.
    """
    if named := os.environ.get("RACE_LANE"):
        path = Path(named).expanduser().absolute()
        if not path.parent.is_dir():
            raise MachineError(f"RACE_LANE names {path}, but there is no folder {path.parent}")
        return path
    user = os.getuid()
    runtime = Path(f"/run/user/{user}")
    if _is_own(runtime):
        return runtime / "race.lane"
    folder = Path(f"/tmp/race-{user}")  # noqa: S108 - checked below to be ours and nobody else's
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as e:
        raise MachineError(f"{folder} cannot be made: {e.strerror}; set RACE_LANE to a file") from e
    if not _is_own(folder):
        raise MachineError(f"{folder} belongs to somebody else; set RACE_LANE to a file of your own")
    return folder / "lane"


def _is_own(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


@asynccontextmanager
async def machine_lane(on_wait: Callable[[], None]) -> AsyncGenerator[None, None]:
    """Hold the lane while the block runs.

    Args:
        on_wait: called once if somebody else has to be waited for.

    Raises:
        MachineError: the lock file cannot be opened.
    """
    path = lane_file()
    try:
        path.touch(mode=0o600, exist_ok=True)
    except OSError as e:
        raise MachineError(
            f"the lock {path} cannot be used: {e.strerror}; set RACE_LANE to another file"
        ) from e
    async with locked(path, on_wait):
        yield
