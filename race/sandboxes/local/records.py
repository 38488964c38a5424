"""What is written down about each sandbox, so that any process can list, take over and delete it.

One folder a sandbox, below ``home/sandboxes``::

    record.json   a `Record`
    init.json     its PID 1, from when it is started until it is stopped
    frozen        there is while it is frozen
    unborn        there is until it has come to life for the first time
    lock          held by whoever changes any of this
    socket        where its PID 1 listens
    upper/N       what it changed in its N-th mount since its last sealed layer
    work/N        overlay's own scratch folder
    layers/K/N    sealed layers that belong to it; forks of it use them too
    forks/NAME    empty; there is for each sandbox that was forked from it
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from typing import TYPE_CHECKING

from pydantic import ValidationError

from race.errors import SandboxError
from race.sandboxes.local import flattening, locks
from race.sandboxes.local.liveness import Init
from race.sandboxes.local.record import Record, check_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from pydantic import BaseModel

_RECORD = "record.json"
_INIT = "init.json"
_FROZEN = "frozen"
_UNBORN = "unborn"
_FORKS = "forks"
_LOCK = "lock"
_UNFINISHED = ".new-"
_BESIDE = ".beside-"


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
            return sorted(each for each in os.listdir(self._all) if not each.startswith("."))
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
            return self._read(name)
        except (FileNotFoundError, NotADirectoryError):
            raise self.unknown(name) from None
        except ValidationError as error:
            raise SandboxError(f"the record of the sandbox {name!r} cannot be read: {error}") from error

    def version(self, name: str) -> tuple[int, int]:
        """What changes whenever a sandbox's record is written anew; zeros if there is none."""
        try:
            status = os.stat(self.folder(name) / _RECORD)
        except (FileNotFoundError, NotADirectoryError):
            return 0, 0
        return status.st_ino, status.st_mtime_ns

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
                record = self._read(name)
                if record.complete or unborn:
                    found.append(record)
        return sorted(found, key=lambda each: (each.created, each.name))

    def every(self) -> list[Record] | None:
        """The records of all sandboxes, whole or not; None if one of them cannot be read."""
        found = self.all(unborn=True)
        return found if {each.name for each in found} >= set(self.names()) else None

    def forks(self, name: str) -> list[str]:
        """The sandboxes that were forked from this one, or are just being. Its lock must be held."""
        try:
            noted = sorted(os.listdir(self.folder(name) / _FORKS))
        except FileNotFoundError:  # it was made before forks were noted down
            noted = self.names()
        found: list[str] = []
        for each in noted:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValidationError):
                record = self._read(each)
                if record.parent == name and (record.complete or self.is_in_use(self.folder(each))):
                    found.append(each)
        return found

    def note_fork(self, parent: str, name: str) -> None:
        """Write down that a fork is about to be made. The parent's lock must be held.

        To look for forks in the records of all sandboxes would make the deletion of a thousand take minutes.
        """
        with contextlib.suppress(FileNotFoundError):
            (self.folder(parent) / _FORKS / name).touch(mode=0o600)

    def forget_fork(self, parent: str | None, name: str) -> None:
        """Take that back, when the fork is gone; later, if somebody is at work on the parent."""
        if parent is None:
            return
        with contextlib.suppress(OSError):
            lock = os.open(self.folder(parent) / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self.folder(name).exists():  # else another one got the name at once
                    (self.folder(parent) / _FORKS / name).unlink(missing_ok=True)
            finally:
                os.close(lock)

    def _read(self, name: str) -> Record:
        folder = self.folder(name)
        record = Record.model_validate_json((folder / _RECORD).read_bytes())
        init: Init | None = None
        with contextlib.suppress(FileNotFoundError):
            init = Init.model_validate_json((folder / _INIT).read_bytes())
        beside = {
            "init": init,
            "frozen": (folder / _FROZEN).exists(),
            "complete": not (folder / _UNBORN).exists(),
        }
        return record.model_copy(update=beside)

    def save(self, record: Record) -> None:
        """Write a record down, without what is in files beside it."""
        _write(self.folder(record.name) / _RECORD, record)

    def save_init(self, record: Record) -> None:
        """Write down which process a sandbox's PID 1 is, or that it has none and so is not frozen either."""
        folder = self.folder(record.name)
        if record.init is not None:
            _write(folder / _INIT, record.init)
            return
        self.save_frozen(record.name, frozen=False)
        (folder / _INIT).unlink(missing_ok=True)

    def save_frozen(self, name: str, *, frozen: bool) -> None:
        """Write down whether a sandbox is frozen."""
        if frozen:
            (self.folder(name) / _FROZEN).touch(mode=0o600)
        else:
            (self.folder(name) / _FROZEN).unlink(missing_ok=True)

    def save_complete(self, name: str) -> None:
        """Write down that a sandbox came to life."""
        (self.folder(name) / _UNBORN).unlink(missing_ok=True)

    def scraps(self, name: str) -> list[Path]:
        """What was written and not put in its place, because its writer was killed or is just about to do
        so.
        """
        folder = self.folder(name)
        return [*folder.glob(f"{_BESIDE}*"), *folder.glob(f"layers/{flattening.UNFINISHED}*")]

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
            for each in ("upper", "work", _FORKS):
                (folder / each).mkdir(mode=0o700)
            (folder / _UNBORN).touch(mode=0o600)
            _write(folder / _RECORD, record)
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
        """Whether the lock is still the one of this name: the sandbox may have been deleted, and made
        again.
        """
        try:
            return os.path.samestat(os.fstat(lock), (self.folder(name) / _LOCK).stat())
        except FileNotFoundError:
            return False

    def is_in_use(self, folder: Path) -> bool:
        """Whether somebody is at work on a folder right now."""
        return locks.is_held(folder / _LOCK)


def _write(path: Path, value: BaseModel) -> None:
    """Write a file so that no reader ever sees half of it."""
    beside = path.with_name(f"{_BESIDE}{path.name}-{secrets.token_hex(4)}")
    beside.write_text(value.model_dump_json())
    beside.rename(path)


def _remove_new(folder: Path) -> None:
    for each in ("upper", "work", _FORKS):
        (folder / each).rmdir()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
