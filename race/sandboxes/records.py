"""What is written down about each sandbox of a provider that has no other place for it, so that any process can list,
take over and delete it.

One folder a sandbox, below ``home/sandboxes``, with its ``record.json``, a ``lock`` for whoever changes it, the file
``unborn`` until it is complete, and whatever else the provider keeps there. Removed ones go to ``home/trash`` first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, ValidationError

from race.errors import MachineError, SandboxError
from race.sandbox import Limits, Network, SandboxInfo, State
from race.sandboxes.local import locks
from race.sandboxes.local.record import check_name
from race.sandboxes.local.removal import remove_tree

_RECORD = "record.json"
_LOCK = "lock"
_UNBORN = "unborn"


class Record(BaseModel):
    """What is known of a sandbox."""

    model_config = ConfigDict(frozen=True)

    name: str
    image: str
    env: dict[str, str]
    """Of its commands, complete."""
    network: Network
    limits: Limits
    labels: dict[str, str]
    created: float
    parent: str | None = None
    ancestors: tuple[str, ...] = ()
    state: State = "running"
    """As it was last set; what the sandbox is made of may know better."""
    handle: str = ""
    """What the provider's engine calls it."""

    def info(self, state: State | None = None) -> SandboxInfo:
        """The same as the contract tells it."""
        return SandboxInfo(
            name=self.name,
            state=state or self.state,
            parent=self.parent,
            image=self.image,
            network=self.network,
            labels=dict(self.labels),
            created=self.created,
            ancestors=self.ancestors,
        )


class Records:
    """The records below a provider's home.

    Args:
        home: the provider's folder.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._all = home / "sandboxes"
        self._trash = home / "trash"

    def folder(self, name: str) -> Path:
        """Where a sandbox's record is."""
        return self._all / name

    def all(self, *, unborn: bool = False) -> list[Record]:
        """The records of all sandboxes, oldest first.

        Args:
            unborn: those too that are just being made, or whose maker was killed.
        """
        found: list[Record] = []
        for folder in self._all.glob("*"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValidationError):
                record = Record.model_validate_json((folder / _RECORD).read_bytes())
                if unborn or not (folder / _UNBORN).exists():
                    found.append(record)
        return sorted(found, key=lambda r: (r.created, r.name))

    def load(self, name: str) -> Record:
        """A complete sandbox's record.

        Raises:
            SandboxError: there is none of this name; the text lists those there are.
        """
        check_name(name)
        try:
            record = Record.model_validate_json((self.folder(name) / _RECORD).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise self._unknown(name) from None
        except ValidationError as e:
            raise SandboxError(f"the record of the sandbox {name!r} cannot be read: {e}") from e
        if (self.folder(name) / _UNBORN).exists():
            raise self._unknown(name)
        return record

    def _unknown(self, name: str) -> SandboxError:
        known = ", ".join(repr(r.name) for r in self.all()) or "none"
        return SandboxError(f"there is no sandbox {name!r}; there are: {known}")

    def forks(self, name: str) -> list[str]:
        """The sandboxes that were forked from this one, or are just being."""
        return [
            r.name
            for r in self.all(unborn=True)
            if r.parent == name
            and (not (self.folder(r.name) / _UNBORN).exists() or locks.is_held(self.folder(r.name) / _LOCK))
        ]

    def refuse_if_forked(self, name: str) -> None:
        """Raise a `SandboxError` that names the forks of a sandbox, if it has any."""
        if forks := self.forks(name):
            named = ", ".join(repr(f) for f in forks)
            raise SandboxError(
                f"the sandbox {name!r} cannot be deleted, because others were forked from it: {named}"
            )

    def save(self, record: Record) -> None:
        """Write a record down, so that no reader ever sees half of it. The sandbox's lock has to be held."""
        _write(self.folder(record.name), record)

    @contextlib.asynccontextmanager
    async def new(self, record: Record) -> AsyncGenerator[Path]:
        """Claim a name, and give the new sandbox's folder, its lock held. It is complete when the block ends, and
        gone if that raised.

        Raises:
            SandboxError: the name cannot be used, or is taken.
            MachineError: the folder cannot be made.
        """
        check_name(record.name)
        beside = self._all / f".new-{secrets.token_hex(8)}"
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._all.mkdir(mode=0o700, exist_ok=True)
            beside.mkdir(mode=0o700)
        except OSError as e:
            raise MachineError(
                f"the folder of the sandboxes cannot be made: {e}. Set RACE_HOME to one that you can write to"
            ) from e
        lock = os.open(beside / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (beside / _UNBORN).touch(mode=0o600)
            _write(beside, record)
            folder = self.folder(record.name)
            try:
                beside.rename(folder)
            except OSError:
                remove_tree(beside)
                raise SandboxError(f"there is already a sandbox {record.name!r}") from None
            try:
                yield folder
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self.remove(record.name)
                raise
            (folder / _UNBORN).unlink()
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
        path = self.folder(name) / _LOCK
        while True:
            try:
                lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise self._unknown(name) from None
            try:
                await locks.wait(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
                if _is_current(lock, path):
                    yield self.load(name)
                    return
            finally:
                os.close(lock)

    async def remove(self, name: str) -> None:
        """Take a sandbox's folder out of sight in one step, and remove it."""
        self._trash.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._trash / f"{name}-{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            self.folder(name).rename(place)
            await anyio.to_thread.run_sync(remove_tree, place)

    def abandoned(self) -> list[Record]:
        """Sandboxes whose maker was killed before they were complete."""
        return [
            r
            for r in self.all(unborn=True)
            if (self.folder(r.name) / _UNBORN).exists() and not locks.is_held(self.folder(r.name) / _LOCK)
        ]

    async def empty_trash(self) -> list[str]:
        """Remove what was left half removed, or has no name yet and nobody at work on it. Returns a line about each."""
        lines: list[str] = []
        left = [
            *self._trash.glob("*"),
            *(p for p in self._all.glob(".new-*") if not locks.is_held(p / _LOCK)),
        ]
        for place in left:
            with contextlib.suppress(FileNotFoundError):  # somebody else is at it
                await anyio.to_thread.run_sync(remove_tree, place)
                lines.append(f"removed {place.name}, which was left half removed or half made")
        return lines


def _is_current(lock: int, path: Path) -> bool:
    """Whether a lock is still the one of this name: the sandbox may have been deleted, and made again."""
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _write(folder: Path, record: Record) -> None:
    beside = folder / f".beside-{secrets.token_hex(4)}"
    beside.write_text(record.model_dump_json())
    beside.rename(folder / _RECORD)
