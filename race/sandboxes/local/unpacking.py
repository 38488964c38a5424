"""Writes the entries of an untrusted tar file as one layer of a sandbox, such that overlay takes it for one.

Every directory is opened below the layer's root in one system call that refuses links, so nothing leads out of it.
Whiteouts, which are ordinary files by name in an archive, become what overlay knows; overlay's own marks are never
taken from an archive.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from race.sandboxes.local import syscalls
from race.sandboxes.local.tar_reading import BadArchiveError, Member, Reader, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from race.sandboxes.local.tar_reading import Stream

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
OVERLAY_MARKS = (b"user.overlay.", b"trusted.overlay.")
NOBODY = 65534
IDS = 65536

MOST_APPARENT = 1 << 40
"""Bytes that all files of a layer together may seem to have: sparse ones take no room, but may be read."""
_MOST_ENTRIES = 4_000_000
"""Of one layer; whole systems with everything that they come with have fewer than one million."""
_OPEN_FOLDERS = 32
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Budget:
    """What may still be unpacked.

    Attributes:
        entries: how many.
        size: bytes of content.
        why: where these numbers come from, for the error.
        apparent: bytes that files may seem to have.
    """

    entries: int
    size: int
    why: str
    apparent: int = MOST_APPARENT

    def take(self, member: Member) -> None:
        """Count an entry.

        Raises:
            BadArchiveError: it is more than is left.
        """
        stored = member.size if member.extents is None else sum(length for _, length in member.extents)
        self.entries -= 1
        self.size -= stored
        self.apparent -= member.size
        if self.entries < 0:
            raise BadArchiveError(f"{member} is one entry more than {self.why}")
        if self.size < 0:
            raise BadArchiveError(f"with {member} it has more content than {self.why}")
        if self.apparent < 0:
            raise BadArchiveError(
                f"with {member}, of {member.size} bytes, its files seem to have more than {MOST_APPARENT} bytes"
            )


def free_budget(folder: Path) -> Budget:
    """Half of what is free where a layer goes."""
    free = os.statvfs(folder)
    entries = min(free.f_favail // 2, _MOST_ENTRIES) if free.f_files else _MOST_ENTRIES
    return Budget(entries, free.f_bavail * free.f_frsize // 2, "half of the room that there is on this disk")


def is_opaque_root(folder: Path) -> bool:
    """Whether a layer hides all layers below it, which the kernel does not know how to."""
    try:
        return os.getxattr(folder, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def unpack(
    stream: Stream, place: Callable[[bytes], tuple[Path, bytes]], budget: Budget, pulse: Callable[[], None]
) -> None:
    """Unpack a whole tar file.

    Args:
        stream: of it, not compressed.
        place: gives for a path the root of the layer, which exists, and the path in it.
        budget: what it may hold.
        pulse: called before each entry; what it raises ends the work.

    Raises:
        BadArchiveError: the archive is damaged or hostile. What was written until then is left.
        OSError: it cannot be written.
    """
    with contextlib.ExitStack() as opened:
        roots: dict[Path, _Layer] = {}
        reader = Reader(stream)
        for member in reader:
            pulse()
            budget.take(member)
            folder, path = place(member.path)
            layer = roots.get(folder)
            if layer is None:
                layer = roots[folder] = opened.enter_context(contextlib.closing(_Layer(folder)))
            if member.kind == "hard link":
                other, target = place(member.target)
                if other != folder:
                    raise BadArchiveError(
                        f"the hard link {member} leads out of its tree, to {shown(member.target)}"
                    )
                layer.hard_link(member, path, target)
            else:
                layer.add(member, path, reader, pulse)
        for layer in roots.values():
            layer.finish()
        while stream.read(1 << 16):  # what pads its end
            pulse()


class _Layer:
    """One layer being written.

    Args:
        folder: its root, which exists.
    """

    def __init__(self, folder: Path) -> None:
        self._top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._as_root = os.geteuid() == 0
        self._open: OrderedDict[bytes, int] = OrderedDict()
        self._folders: dict[bytes, Member] = {}

    def close(self) -> None:
        """Close what is open."""
        for each in (*self._open.values(), self._top):
            os.close(each)
        self._open.clear()

    def add(self, member: Member, path: bytes, reader: Reader, pulse: Callable[[], None]) -> None:
        """Write an entry that is no hard link."""
        for name in member.attributes:
            if name.startswith(OVERLAY_MARKS):
                raise BadArchiveError(f"{member} has the attribute {shown(name)}, which is overlay's own")
        if member.kind == "device":
            raise BadArchiveError(f"{member} is a device")
        if not path:
            if member.kind != "directory":
                raise BadArchiveError(f"{member} is where a directory must be")
            self._folders[path] = member
            return
        parent, name = self._parent(path)
        if name.startswith(WHITEOUT) and not member.literal and member.kind == "file":
            self._hide(member, parent, name)
        elif member.kind == "directory":
            self._directory(member, parent, name)
            self._folders[path] = member
        elif member.kind == "file":
            self._file(member, parent, name, reader, pulse)
        elif member.kind == "link":
            with self._new(member, parent, name):
                os.symlink(member.target, name, dir_fd=parent)
            self._settle(member, parent, name)
        else:
            with self._new(member, parent, name):
                os.mkfifo(name, dir_fd=parent)
            os.chmod(name, member.mode, dir_fd=parent)
            self._settle(member, parent, name)

    def hard_link(self, member: Member, path: bytes, target: bytes) -> None:
        """Write a second name of an entry that is there."""
        if not path or not target:
            raise BadArchiveError(f"{member} is a hard link to or from a directory")
        parent, name = self._parent(path)
        folder, _, old = target.rpartition(b"/")
        try:
            source = syscalls.openat2(self._top, folder or b".", _FOLDER)
        except OSError as error:
            raise BadArchiveError(
                f"the hard link {member} leads to {shown(target)}: {error.strerror}"
            ) from None
        try:
            status = os.stat(old, dir_fd=source, follow_symlinks=False)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                raise BadArchiveError(f"the hard link {member} leads to {shown(target)}, which is no file")
            with self._new(member, parent, name):
                os.link(old, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise BadArchiveError(
                f"the hard link {member} leads to {shown(target)}, which is not there before it"
            ) from None
        finally:
            os.close(source)

    def finish(self) -> None:
        """Give the directories their owners, modes and times, the innermost first."""
        for path in sorted(self._folders, reverse=True):
            member = self._folders[path]
            opened = syscalls.openat2(self._top, path or b".", _FOLDER)
            try:
                if self._as_root:
                    os.fchown(opened, *_owners(member))
                _set_attributes(member, opened)
                os.fchmod(opened, member.mode)
                os.utime(opened, ns=(member.modified, member.modified))
            finally:
                os.close(opened)

    def _parent(self, path: bytes) -> tuple[int, bytes]:
        """The open directory that an entry goes to, and its name there; what is missing is made."""
        folder, _, name = path.rpartition(b"/")
        if not folder:
            return self._top, name
        opened = self._open.get(folder)
        if opened is None:
            opened = self._made(folder)
            self._open[folder] = opened
            if len(self._open) > _OPEN_FOLDERS:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(folder)
        return opened, name

    def _made(self, folder: bytes) -> int:
        try:
            return syscalls.openat2(self._top, folder, _FOLDER)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise _astray(folder, error) from None
        parts = folder.split(b"/")
        for depth in range(1, len(parts) + 1):
            above = syscalls.openat2(self._top, b"/".join(parts[: depth - 1]) or b".", _FOLDER)
            try:
                self._make_folder(above, parts[depth - 1], 0o755)
                os.chmod(parts[depth - 1], 0o755, dir_fd=above)  # noqa: S103 - as in any system
                os.close(syscalls.openat2(above, parts[depth - 1], _FOLDER))
            except FileExistsError:
                pass
            except OSError as error:
                raise _astray(b"/".join(parts[:depth]), error) from None
            finally:
                os.close(above)
        try:
            return syscalls.openat2(self._top, folder, _FOLDER)
        except OSError as error:
            raise _astray(folder, error) from None

    def _make_folder(self, parent: int, name: bytes, mode: int) -> None:
        """Make a directory; in the place of a whiteout it hides what is below, as the whiteout did."""
        try:
            os.mkdir(name, mode, dir_fd=parent)
        except FileExistsError:
            if not _is_whiteout(parent, name):
                raise
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, mode, dir_fd=parent)
            self._make_opaque(parent, name)

    def _directory(self, member: Member, parent: int, name: bytes) -> None:
        try:
            self._make_folder(parent, name, 0o700)
        except FileExistsError:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                raise BadArchiveError(f"{member} is there twice") from None

    def _hide(self, member: Member, parent: int, name: bytes) -> None:
        """Write a whiteout, or make a directory opaque."""
        if member.size:
            raise BadArchiveError(f"the whiteout {member} has {member.size} bytes of content")
        if name == OPAQUE:
            os.setxattr(parent, "user.overlay.opaque", b"y")
            return
        hidden = name[len(WHITEOUT) :]
        if hidden in (b"", b".", b"..") or hidden.startswith(WHITEOUT):
            raise BadArchiveError(f"the whiteout {member} hides nothing")
        try:
            os.mknod(hidden, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=parent)
        except FileExistsError:
            status = os.stat(hidden, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                self._make_opaque(parent, hidden)

    @staticmethod
    def _make_opaque(parent: int, name: bytes) -> None:
        opened = syscalls.openat2(parent, name, _FOLDER)
        try:
            os.setxattr(opened, "user.overlay.opaque", b"y")
        finally:
            os.close(opened)

    def _file(
        self, member: Member, parent: int, name: bytes, reader: Reader, pulse: Callable[[], None]
    ) -> None:
        with self._new(member, parent, name):
            opened = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            for offset, piece in reader.pieces(member):
                view, position = memoryview(piece), offset
                while view:
                    written = os.pwrite(opened, view, position)
                    view, position = view[written:], position + written
                pulse()
            if member.extents is not None:
                os.ftruncate(opened, member.size)
            if self._as_root:
                os.fchown(opened, *_owners(member))
            _set_attributes(member, opened)
            os.fchmod(opened, member.mode)
            os.utime(opened, ns=(member.modified, member.modified))
        finally:
            os.close(opened)

    def _settle(self, member: Member, parent: int, name: bytes) -> None:
        """Owner and time of what is neither file nor directory."""
        if self._as_root:
            os.chown(name, *_owners(member), dir_fd=parent, follow_symlinks=False)
        times = (member.modified, member.modified)
        os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)

    @contextlib.contextmanager
    def _new(self, member: Member, parent: int, name: bytes) -> Generator[None]:
        """For the block that makes something new: a whiteout gives way to it, anything else is a second
        entry of this name.
        """
        if _is_whiteout(parent, name):
            os.unlink(name, dir_fd=parent)
        try:
            yield
        except FileExistsError:
            raise BadArchiveError(f"{member} is there twice") from None


def _is_whiteout(parent: int, name: bytes) -> bool:
    try:
        return stat.S_ISCHR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _astray(folder: bytes, error: OSError) -> BadArchiveError:
    if error.errno == errno.ELOOP:
        return BadArchiveError(f"an entry is below {shown(folder)}, which leads over a link")
    return BadArchiveError(f"an entry is below {shown(folder)}, which is not a directory ({error.strerror})")


def _owners(member: Member) -> tuple[int, int]:
    owner, group = (each if each < IDS else NOBODY for each in (member.owner, member.group))
    return owner, group


def _set_attributes(member: Member, opened: int) -> None:
    """Only what any program may set: the others mean something to the kernel."""
    for name, value in member.attributes.items():
        if name.startswith(b"user."):
            os.setxattr(opened, name, value)
