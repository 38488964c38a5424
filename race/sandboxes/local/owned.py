"""Makes the host's directories writable for the root of an ordinary user's sandbox.

Such a sandbox knows one user id; all that belongs to another, which on the host is nearly everything, belongs
to nobody inside, and not even its root may write there. A layer of empty directories that belong to it makes
every merged directory its own. Trees that are changed in place, such as the package database, are copied.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

_COPIED = ("/etc", "/var/lib/dpkg", "/var/lib/apt", "/var/cache/debconf", "/var/lib/rpm", "/var/lib/pacman")
_COPIED_AT_MOST = 64 << 20


def own_directories(source: str, layer: Path) -> None:
    """Fill a layer over a host directory.

    Args:
        source: the host directory.
        layer: may hold what hides parts of it already, which stays.
    """
    if os.stat(source).st_uid == os.geteuid():
        return
    layer.mkdir(parents=True, exist_ok=True)
    for folder, folders, files in os.walk(source):
        here = Path(f"{layer}{folder[len(source) :]}")
        if not _own(folder, here):
            folders.clear()
            continue
        for name in list(folders):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                folders.remove(name)
            elif not os.access(path, os.R_OK | os.X_OK):
                folders.remove(name)
                _empty(here / name)
        copied = any(folder == each or folder.startswith(f"{each}/") for each in _COPIED)
        for name in files:
            _own_file(os.path.join(folder, name), here / name, copied=copied)


def _own(folder: str, here: Path) -> bool:
    """Make a directory of our own over the host's; false if it is hidden anyway."""
    if not os.path.lexists(here):
        here.mkdir()
        here.chmod(stat.S_IMODE(os.stat(folder).st_mode) | 0o700)
        return True
    if here.is_symlink() or not here.is_dir():
        return False
    try:
        os.getxattr(here, "user.overlay.opaque")
    except OSError:
        return True
    return False


def _empty(here: Path) -> None:
    if not os.path.lexists(here):
        here.mkdir(mode=0o700)
        os.setxattr(here, "user.overlay.opaque", b"y")


def _own_file(path: str, here: Path, *, copied: bool) -> None:
    if os.path.lexists(here):
        return
    status = os.lstat(path)
    if copied and stat.S_ISLNK(status.st_mode):
        here.symlink_to(os.readlink(path))
    elif not stat.S_ISREG(status.st_mode):
        return
    elif not os.access(path, os.R_OK):
        os.mknod(here, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    elif copied and status.st_size <= _COPIED_AT_MOST:
        shutil.copy2(path, here)
        here.chmod(stat.S_IMODE(status.st_mode) & 0o777 | 0o600)
