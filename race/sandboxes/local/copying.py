"""Copies a sandbox's upper directory while everything in it stands still."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from race.sandboxes.local.permissions import readable

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 20
_NO_SUCH_DATA = errno.ENXIO


def copy_layer(source: str, target: str) -> None:
    """Copy a layer such that overlay takes the copy for the original.

    Owners, modes, times, attributes, holes, hard links and special files are kept; nothing is followed. Where
    the file system can share blocks between files, it does.

    Args:
        source: a directory.
        target: must not exist.

    Raises:
        OSError: something cannot be read, or there is no room.
    """
    _Copy().directory(os.fsencode(source), os.fsencode(target))


def copy_entry(source: bytes, target: bytes) -> None:
    """Copy what is not a directory, as `copy_layer` does.

    Raises:
        OSError: it cannot be read, or there is no room.
    """
    _Copy().entry(source, target)


class _Copy:
    def __init__(self) -> None:
        self._links: dict[tuple[int, int], bytes] = {}

    def directory(self, source: bytes, target: bytes) -> None:
        with contextlib.ExitStack() as opened:
            self._directory(source, target, opened)

    def _directory(self, source: bytes, target: bytes, opened: contextlib.ExitStack) -> None:
        waiting = [(source, target)]
        finished: list[tuple[bytes, bytes, os.stat_result]] = []
        while waiting:
            old, new = waiting.pop()
            os.mkdir(new, 0o700)
            status = os.lstat(old)
            finished.append((old, new, status))
            # A directory stays open until all below it is copied, for those too who need its permission.
            opened.enter_context(readable(old))
            with os.scandir(old) as entries:
                for entry in entries:
                    place = os.path.join(new, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, place))
                    else:
                        self.entry(entry.path, place)
        for old, new, status in reversed(
            finished
        ):  # times last, and modes when nothing more is to be written
            copy_status(old, new, status)

    def entry(self, old: bytes, new: bytes) -> None:
        """Copy one entry, or link it to where it was copied before."""
        status = os.lstat(old)
        key = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and key in self._links:
            os.link(self._links[key], new, follow_symlinks=False)
            return
        if stat.S_ISREG(status.st_mode):
            with readable(old):
                _copy_file(old, new)
                copy_status(old, new, status)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(old), new)
        else:
            os.mknod(new, status.st_mode, status.st_rdev)
        if not (stat.S_ISREG(status.st_mode) or (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0)):
            copy_status(old, new, status)
        if status.st_nlink > 1:
            self._links[key] = new


def copy_status(old: bytes, new: bytes, status: os.stat_result, without: tuple[str, ...] = ()) -> None:
    """Give a copy the owner, attributes, mode and times of the original.

    Args:
        old: the original.
        new: the copy.
        status: of the original, before anything was done to it.
        without: how attributes begin that are not copied.
    """
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(new, status.st_uid, status.st_gid, follow_symlinks=False)
    for name in os.listxattr(old, follow_symlinks=False):
        if without and name.startswith(without):
            continue
        with contextlib.suppress(OSError):  # some belong to the file system itself
            os.setxattr(new, name, os.getxattr(old, name, follow_symlinks=False), follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(new, stat.S_IMODE(status.st_mode))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def _copy_file(old: bytes, new: bytes) -> None:
    source = os.open(old, _OPEN)
    try:
        target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(source).st_size
            os.ftruncate(target, size)
            position = 0
            while position < size:
                try:
                    start = os.lseek(source, position, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == _NO_SUCH_DATA:
                        break  # only a hole is left
                    raise
                position = os.lseek(source, start, os.SEEK_HOLE)
                _copy_range(source, target, start, position)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        try:
            copied = os.copy_file_range(source, target, end - start, start, start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            copied = os.pwrite(target, os.pread(source, min(end - start, _PIECE), start), start)
        if copied == 0:
            return
        start += copied
