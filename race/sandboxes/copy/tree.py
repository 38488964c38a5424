"""The files of a sandbox, written and read from outside, where no link in it can lead out of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from race.errors import SandboxError
from race.sandbox import Directory, Entry, File, Link, Removed
from race.sandboxes.local.changes import normal
from race.sandboxes.local.removal import remove_tree

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
_PERMISSIONS = 0o777


class Tree:
    """The folder that a sandbox is.

    Args:
        root: the folder.
        name: of the sandbox, for errors.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self._name = name
        self._prefix = os.fsencode(root)

    def inside(self, path: str | bytes) -> bytes:
        """A path of the contract, without a slash at either end; what commands call it is taken as well.

        Raises:
            SandboxError: it is not absolute, or goes up, or holds a NUL byte.
        """
        encoded = os.fsencode(path) if isinstance(path, str) else path
        return normal(self._cut(encoded))

    def real(self, path: str) -> str:
        """What commands call a path."""
        return os.fsdecode(os.path.join(self._prefix, self.inside(path))).rstrip("/")

    # Finding

    @contextlib.contextmanager
    def folder(self, path: bytes, *, make: bool = False, follow: bool = True) -> Generator[int]:
        """A descriptor of a directory inside.

        Args:
            path: from `inside`.
            make: what is missing, or in the way.
            follow: links, which lead no further than the sandbox.

        Raises:
            SandboxError: there are too many links, or one although none is to be followed.
            OSError: it is not there, or no directory.
        """
        stack = [os.open(self.root, _FOLDER)]
        waiting = [p for p in reversed(path.split(b"/")) if p]
        links = 0
        try:
            while waiting:
                part = waiting.pop()
                target = _entered(stack, part, make=make)
                if target is None:
                    continue
                links += 1
                if not follow or links > _MOST_LINKS:
                    shown = os.fsdecode(b"/" + path)
                    raise SandboxError(f"{shown!r} is below a link: {os.fsdecode(part)!r}")
                if target.startswith(b"/"):
                    while len(stack) > 1:
                        os.close(stack.pop())
                waiting += [p for p in reversed(self._cut(target).split(b"/")) if p not in (b"", b".")]
            yield stack[-1]
        finally:
            for each in stack:
                os.close(each)

    def _cut(self, path: bytes) -> bytes:
        """A path inside, whichever way commands and the contract call it."""
        if path == self._prefix or path.startswith(self._prefix + b"/"):
            return path[len(self._prefix) :] or b"/"
        return path

    # Writing

    def write(self, entries: Iterable[Entry]) -> None:
        """Write entries, in order.

        Raises:
            SandboxError: a path cannot be written.
            OSError: a file of the host cannot be read.
        """
        for entry in entries:
            path = self.inside(entry.path)
            if not path:
                if isinstance(entry, Directory):
                    continue
                raise SandboxError("the root of a sandbox cannot be written or removed")
            above, _, name = path.rpartition(b"/")
            try:
                with self.folder(above, make=not isinstance(entry, Removed)) as folder:
                    _put(entry, name, folder)
            except FileNotFoundError:
                if not isinstance(entry, Removed):
                    raise
            except NotADirectoryError as e:
                if not isinstance(entry, Removed):
                    raise SandboxError(f"{os.fsdecode(entry.path)!r} cannot be written: {e.strerror}") from e

    # Reading

    def read(self, path: bytes, limit: int) -> bytes:
        """The bytes of a regular file; no link is followed.

        Raises:
            FileNotFoundError: nothing is there.
            SandboxError: it is not a regular file, is larger than ``limit``, or is below a link.
        """
        shown = os.fsdecode(b"/" + path)
        above, _, name = path.rpartition(b"/")
        try:
            with self.folder(above, follow=False) as folder:
                opened = os.open(name or b".", _READ, dir_fd=folder)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown) from None
        except NotADirectoryError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown) from None
        except OSError as e:
            raise SandboxError(f"{shown!r} is not a regular file, or cannot be read: {e.strerror}") from e
        try:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode):
                raise SandboxError(f"{shown!r} is not a regular file")
            with open(opened, "rb", closefd=False) as file:
                data = file.read(limit + 1) if status.st_size <= limit else b""
        finally:
            os.close(opened)
        if status.st_size > limit or len(data) > limit:
            raise SandboxError(f"{shown!r} is larger than {limit} bytes")
        return data

    def copy_out(self, path: bytes, target: Path) -> None:
        """Copy a file or tree to a new place of the host. Links are copied as links, special files and setuid bits left
        out. Nothing is left if it fails.

        Raises:
            FileExistsError: something is there.
            SandboxError: nothing is at ``path``, or it cannot be read.
        """
        if os.path.lexists(target):
            raise FileExistsError(f"{target} exists")
        above, _, name = path.rpartition(b"/")
        try:
            with self.folder(above) as folder:
                _copy_out(name or b".", folder, os.fsencode(target))
        except BaseException as e:
            if target.is_dir() and not target.is_symlink():
                remove_tree(target)
            else:
                target.unlink(missing_ok=True)
            if isinstance(e, OSError):
                raise SandboxError(f"{os.fsdecode(b'/' + path)!r} could not be copied: {e}") from e
            raise
        if not os.path.lexists(target):
            raise SandboxError(f"{os.fsdecode(b'/' + path)!r} is neither a file, a link nor a directory")


def tree_entries(source: Path, target: bytes) -> Iterator[Entry]:
    """What to write to have a file or tree of the host at ``target``."""
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        yield Link(target, os.fsencode(os.readlink(source)))
    elif stat.S_ISDIR(status.st_mode):
        yield Directory(target, stat.S_IMODE(status.st_mode))
        for name in sorted(os.listdir(source)):
            yield from tree_entries(source / name, target + b"/" + os.fsencode(name))
    elif stat.S_ISREG(status.st_mode):
        yield File(target, source, stat.S_IMODE(status.st_mode))


def _entered(stack: list[int], part: bytes, *, make: bool) -> bytes | None:
    """Put the directory of this name on top of a stack of open ones, or give where a link of this name points.

    Raises:
        OSError: it is neither, and not to be made.
    """
    if part == b"..":
        if len(stack) > 1:
            os.close(stack.pop())
        return None
    try:
        stack.append(os.open(part, _FOLDER, dir_fd=stack[-1]))
    except OSError as e:
        if e.errno in (errno.ENOTDIR, errno.ELOOP):
            with contextlib.suppress(OSError):
                return os.readlink(part, dir_fd=stack[-1])
        if not make or e.errno not in (errno.ENOTDIR, errno.ENOENT):
            raise
        if e.errno == errno.ENOTDIR:
            os.unlink(part, dir_fd=stack[-1])
        os.mkdir(part, 0o755, dir_fd=stack[-1])
        stack.append(os.open(part, _FOLDER, dir_fd=stack[-1]))
    return None


def _put(entry: Entry, name: bytes, folder: int) -> None:
    match entry:
        case File():
            beside = b".race-%d" % os.getpid()
            _remove(beside, folder)
            # Written beside its place and renamed into it: whoever reads sees the old file or the new one.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with open(os.open(beside, flags, 0o600, dir_fd=folder), "wb") as file:
                    if isinstance(entry.content, bytes):
                        file.write(entry.content)
                    else:
                        with entry.content.open("rb") as source:
                            shutil.copyfileobj(source, file, 1 << 20)
                    file.flush()
                    os.fchmod(file.fileno(), entry.mode)
                if _is_folder(name, folder):
                    _remove(name, folder)
                os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _remove(beside, folder)
                raise
        case Link():
            if not entry.target or b"\0" in entry.target:
                raise SandboxError(f"a link cannot point to {entry.target!r}")
            _remove(name, folder)
            os.symlink(entry.target, name, dir_fd=folder)
        case Directory():
            if not _is_folder(name, folder):
                _remove(name, folder)
                os.mkdir(name, dir_fd=folder)
            opened = os.open(name, _FOLDER, dir_fd=folder)
            try:
                os.fchmod(opened, entry.mode)
            finally:
                os.close(opened)
        case Removed():
            _remove(name, folder)


def _is_folder(name: bytes, folder: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _remove(name: bytes, folder: int) -> None:
    if _is_folder(name, folder):
        shutil.rmtree(name, dir_fd=folder)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _copy_out(name: bytes, folder: int, target: bytes) -> None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    mode = status.st_mode & _PERMISSIONS
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=folder), target)
    elif stat.S_ISDIR(status.st_mode):
        opened = os.open(name, _FOLDER, dir_fd=folder)
        try:
            os.mkdir(target, 0o700)
            for each in os.listdir(opened):
                _copy_out(os.fsencode(each), opened, target + b"/" + os.fsencode(each))
        finally:
            os.close(opened)
        os.chmod(target, mode)
    elif stat.S_ISREG(status.st_mode):
        with open(os.open(name, _READ, dir_fd=folder), "rb") as source, open(target, "xb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
            os.fchmod(file.fileno(), mode)
