"""Layers that belong to no one sandbox: those of images and of imported sandboxes, each stored once by its content.

Below ``home/layers``, ``KEY/N`` is what a layer has for the N-th mount. A layer is there only when it is whole. What
no sandbox uses any more is found by `unused`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from race.sandboxes.local import locks
from race.sandboxes.local.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from race.sandboxes.local.record import Record

_UNFINISHED = ".new-"
_LOCK = "lock"
_FOLDER = "layers"


class LayerStore:
    """The layers below a provider's home.

    Args:
        home: the provider's folder.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._all = home / _FOLDER

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Keep layers from being collected until the record that uses them is there."""
        lock = self._opened()
        try:
            await locks.wait(lock, fcntl.LOCK_SH)
            yield
        finally:
            os.close(lock)

    def _opened(self) -> int:
        self._all.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self._all / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def get(self, key: str, fill: Callable[[Path], None]) -> str:
        """A layer, made if it is not there. `held` must be.

        Args:
            key: names its content.
            fill: makes the content in an empty folder.

        Returns:
            Its folder, relative to home.
        """
        place = self._all / key
        if not place.is_dir():
            with self.building() as folder:
                fill(folder)
                (folder / _LOCK).unlink()
                with contextlib.suppress(OSError):  # another process has made the same one meanwhile
                    folder.rename(place)
        return f"{_FOLDER}/{key}"

    @contextlib.contextmanager
    def building(self) -> Generator[Path]:
        """A folder for something unfinished, which is gone after the block unless it was renamed."""
        self._all.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._all / f"{_UNFINISHED}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(lock)
            if folder.exists():
                remove_tree(folder)

    def parts(self, folder: str) -> tuple[int, ...]:
        """For which mounts a layer has anything."""
        return tuple(sorted(int(each) for each in os.listdir(self._home / folder) if each.isdigit()))

    @contextlib.contextmanager
    def unused(self, records: Callable[[], list[Record] | None]) -> Generator[list[Path]]:
        """Layers that no sandbox uses, and what killed builders left. Nobody can begin to use them in the block.

        Args:
            records: gives those of all sandboxes; None if that is not known, and then nothing is unused.
        """
        if not self._all.is_dir():
            yield []
            return
        lock = self._opened()
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield []  # somebody is at work with them; there will be another time
                return
            known = records()
            if known is None:
                yield []
                return
            used = {Path(each).parts[1] for record in known for each in _shared(record)}
            yield [
                each
                for each in sorted(self._all.iterdir())
                if each.is_dir()
                and (
                    not locks.is_held(each / _LOCK)
                    if each.name.startswith(_UNFINISHED)
                    else each.name not in used
                )
            ]
        finally:
            os.close(lock)


def _shared(record: Record) -> list[str]:
    """The folders of shared layers that a sandbox stands on, relative to home."""
    layers = [layer.folder for layer in (*record.own, *record.inherited)]
    layers += [each for mount in record.mounts for each in mount.image]
    return [each for each in layers if each.startswith(f"{_FOLDER}/")]
