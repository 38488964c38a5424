"""What is written down about each sandbox, so that any process can list, take over and delete it.

One folder a sandbox, below ``home/sandboxes``::

    record.json   this module's `Record`
    lock          held by whoever changes the record or the sandbox's state
    socket        where its PID 1 listens
    upper/N       what it changed in its N-th mount since its last sealed layer
    work/N        overlay's own scratch folder
    layers/K/N    sealed layers that belong to it; forks of it use them too
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from race.errors import SandboxError
from race.sandbox import Limits, Network
from race.sandboxes.local import locks
from race.sandboxes.local.liveness import Init

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

RECORD = "record.json"
_LOCK = "lock"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_UNFINISHED = ".new-"


class Mount(BaseModel):
    """One overlay of a sandbox's file tree: where it is, and the layers that its image brings."""

    model_config = ConfigDict(frozen=True)

    at: str
    image: tuple[str, ...]
    """Top first; a path that begins with ``/`` is the host's, any other is relative to home."""


class Layer(BaseModel):
    """A sealed layer: a folder, relative to home, and for which mounts it has a part."""

    model_config = ConfigDict(frozen=True)

    folder: str
    parts: tuple[int, ...]


class Record(BaseModel):
    """Everything that is known of a sandbox without talking to it."""

    model_config = ConfigDict(frozen=True)

    name: str
    image: str
    mounts: tuple[Mount, ...]
    image_env: dict[str, str]
    """What the image brings; the network's settings come on top, then ``env``."""
    env: dict[str, str]
    limits: Limits
    network: Network
    labels: dict[str, str]
    created: float
    parent: str | None = None
    inherited: tuple[Layer, ...] = ()
    """Layers of the sandboxes that it descends from, the top one first: what `changes` compares with."""
    own: tuple[Layer, ...] = ()
    """Layers that it has sealed itself, the top one first."""
    sealed: int = 0
    """How many layers it has ever sealed, for their names."""
    init: Init | None = None
    """Its PID 1, when it was last started."""
    frozen: bool = False
    cgroups: tuple[str, ...] = ()
    complete: bool = False
    """Whether it came to life; if not, and nobody holds its lock, its maker was killed."""
    image_folder: str | None = Field(default=None)
    """The folder, relative to home, of what was prepared for the image, kept while a record names it."""


def check_name(name: str) -> None:
    """Refuse a name that cannot be a sandbox's.

    Raises:
        SandboxError: it has other characters, or too many.
    """
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise SandboxError(
            f"{name!r} cannot be a sandbox's name: 1 to 100 letters, digits, '.', '_' or '-', not beginning with '.'"
        )


class Records:
    """The records below a provider's home.

    Args:
        home: the provider's folder.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._all = home / "sandboxes"

    def folder(self, name: str) -> Path:
        """Where a sandbox lives."""
        return self._all / name

    def names(self) -> list[str]:
        """All that have a folder, whole or not."""
        try:
            return sorted(each for each in os.listdir(self._all) if not each.startswith("."))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def unfinished(self) -> list[Path]:
        """Folders of sandboxes that have no name yet."""
        return sorted(self._all.glob(f"{_UNFINISHED}*"))

    def load(self, name: str) -> Record:
        """A sandbox's record.

        Raises:
            SandboxError: there is none of this name.
        """
        check_name(name)
        try:
            return Record.model_validate_json((self.folder(name) / RECORD).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise self.unknown(name) from None
        except ValidationError as error:
            raise SandboxError(f"the record of the sandbox {name!r} cannot be read: {error}") from error

    def unknown(self, name: str) -> SandboxError:
        """The error for a name that no sandbox has; it lists those there are."""
        known = ", ".join(repr(each.name) for each in self.all()) or "none"
        return SandboxError(f"there is no sandbox {name!r}; there are: {known}")

    def all(self, *, unborn: bool = False) -> list[Record]:
        """The records of all sandboxes, oldest first.

        Args:
            unborn: those too that are just being made, or never came to life.
        """
        found: list[Record] = []
        for name in self.names():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValidationError):
                record = Record.model_validate_json((self.folder(name) / RECORD).read_bytes())
                if record.complete or unborn:
                    found.append(record)
        return sorted(found, key=lambda each: (each.created, each.name))

    def forks(self, name: str) -> list[str]:
        """The sandboxes that were forked from this one, or are just being."""
        return [
            each.name
            for each in self.all(unborn=True)
            if each.parent == name and (each.complete or self.is_in_use(self.folder(each.name)))
        ]

    def save(self, record: Record) -> None:
        """Write a record so that no reader ever sees half of it."""
        self._write(self.folder(record.name), record)

    def _write(self, folder: Path, record: Record) -> None:
        beside = folder / f".{RECORD}-{secrets.token_hex(4)}"
        beside.write_text(record.model_dump_json())
        beside.replace(folder / RECORD)

    @contextlib.asynccontextmanager
    async def new(self, record: Record) -> AsyncGenerator[None]:
        """Claim a name: make the sandbox's folder, with its lock held.

        Raises:
            SandboxError: the name cannot be used, or is taken.
        """
        check_name(record.name)
        self._all.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._all / f"{_UNFINISHED}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for each in ("upper", "work", "layers"):
                (folder / each).mkdir(mode=0o700)
            self._write(folder, record)
            try:
                folder.rename(self.folder(record.name))
            except OSError:
                _remove_new(folder)
                raise SandboxError(f"there is already a sandbox {record.name!r}") from None
            yield
        finally:
            os.close(lock)

    @contextlib.asynccontextmanager
    async def locked(self, name: str, *, shared: bool = False) -> AsyncGenerator[Record]:
        """Hold a sandbox's lock, against other tasks and other processes, and give its present record.

        Args:
            name: of the sandbox.
            shared: only keep others from changing it.

        Raises:
            SandboxError: there is none of this name.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            try:
                lock = os.open(self.folder(name) / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise self.unknown(name) from None
            try:
                await locks.wait(lock, kind)
                if self._is_current(name, lock):
                    yield self.load(name)
                    return
            finally:
                os.close(lock)

    def _is_current(self, name: str, lock: int) -> bool:
        """Whether the lock is still the one of this name: the sandbox may have been deleted, and made again."""
        try:
            return os.path.samestat(os.fstat(lock), (self.folder(name) / _LOCK).stat())
        except FileNotFoundError:
            return False

    def is_in_use(self, folder: Path) -> bool:
        """Whether somebody is at work on a folder right now."""
        return locks.is_held(folder / _LOCK)


def _remove_new(folder: Path) -> None:
    for each in ("upper", "work", "layers"):
        (folder / each).rmdir()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
