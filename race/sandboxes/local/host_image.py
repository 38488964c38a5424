"""The machine's own system as the image of a sandbox, without its secrets and home folders.

The host's root itself cannot be a layer: it contains the sandboxes. So the root is a *skeleton* of empty
directories and links, each system directory is an overlay of its own, and over each lies a *mask* that hides what
is not for sandboxes. Both are made once and kept until the host changes.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from race.sandboxes.local import host_tools
from race.sandboxes.local.owned import own_directories

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = 1
"""To be raised when what is built here changes."""

_EMPTY = {
    "/root": 0o700,
    "/home": 0o755,
    "/tmp": 0o1777,  # noqa: S108 - the sandbox's own
    "/run": 0o755,
    "/run/lock": 0o1777,
    "/mnt": 0o755,
    "/media": 0o755,
    "/srv": 0o755,
    "/proc": 0o555,
    "/sys": 0o555,
    "/dev": 0o755,
    "/var/tmp": 0o1777,  # noqa: S108 - the sandbox's own
    "/var/log": 0o755,
    "/var/spool": 0o755,
    "/var/backups": 0o755,
    "/var/mail": 0o755,
    "/usr/local/src": 0o755,
}
"""Directories that sandboxes have empty, whatever the host has in them."""

_HIDDEN = (
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/krb5.keytab",
    "/etc/wireguard",
    "/etc/NetworkManager",
    "/etc/docker",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/openvpn",
    "/etc/ppp",
    "/etc/cloud",
    "/etc/letsencrypt",
    "/etc/credstore",
    "/etc/credstore.encrypted",
    "/etc/polkit-1",
    "/etc/machine-id",
    "/etc/fstab",
    "/etc/crypttab",
    "/etc/environment",
    "/etc/environment.d",
    "/etc/netrc",
    "/etc/cifs-credentials",
)
_KEPT = {
    "/var/lib": (
        "alternatives apt ca-certificates-java debconf dpkg gems ghc git misc nodejs pam pacman python rpm sgml-base "
        "shells.state systemd texmf ucf vim xml-core"
    ).split(),
    "/var/cache": "apt debconf fontconfig ldconfig man".split(),
}
"""Directories of which only these names are shown: the rest is the data of services."""

_REPLACED = {
    "/etc/shadow": ("root:*:19000:0:99999:7:::\n", 0o640),
    "/etc/gshadow": ("root:*::\n", 0o640),
}
_CREDENTIALS = (
    "credentials",
    "credentials.toml",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    "auth.json",
    "auth.toml",
)
_OTHERS_READ = 0o004
_PEOPLE = range(1000, 60000)


class HostImage:
    """Builds the skeleton and the masks.

    Args:
        folder: an empty folder to build in.
        private: a folder of the host that no sandbox may see: where the sandboxes themselves are.
        as_root: whether sandboxes shift the owners of files; if not, the host's directories belong to nobody inside,
            and are laid over with ones that belong to the sandbox's root.
    """

    def __init__(self, folder: Path, private: Path, *, as_root: bool) -> None:
        self._skeleton = folder / "skeleton"
        self._mask = folder / "mask"
        self._folder = folder
        self._private = str(private)
        self._as_root = as_root
        self._obstacles = {self._private}
        if not as_root:
            self._obstacles |= _mount_points()
        self._overlays: list[str] = []

    def build(self) -> list[tuple[str, list[str]]]:
        """Make the folders.

        Returns:
            For each overlay where it is mounted, and its layers relative to ``folder`` or absolute on the host.
        """
        tools = host_tools.tool_folders()
        for each in (self._skeleton, self._mask):
            each.mkdir()
            each.chmod(0o755)
        for path in (*(f"/{name}" for name in host_tools.SYSTEM), *tools):
            self._show(path)
        self._hide_all(tools)
        if not self._as_root:
            self._own()
        return [("/", ["skeleton"]), *((each, self._layers(each)) for each in sorted(self._overlays))]

    def _layers(self, path: str) -> list[str]:
        return [*([f"mask{path}"] if Path(f"{self._mask}{path}").is_dir() else []), path]

    # What is shown

    def _show(self, path: str) -> None:
        """Show a host path: as an overlay, or piece by piece if something in it stands in the way of one."""
        source, target = Path(path), Path(f"{self._skeleton}{path}")
        if source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.readlink())
            return
        if not source.is_dir():
            return
        _make(target, stat.S_IMODE(source.stat().st_mode))
        if path in self._obstacles:
            return
        if not any(each.startswith(f"{path}/") for each in self._obstacles):
            self._overlays.append(path)
            return
        for entry in sorted(os.scandir(path), key=lambda each: each.name):
            if not self._is_hidden(entry.path):
                self._show(entry.path)
                if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & _OTHERS_READ:
                    shutil.copy2(entry.path, target / entry.name)

    def _is_hidden(self, path: str) -> bool:
        parent, name = os.path.split(path)
        return path in _HIDDEN or (parent in _KEPT and name not in _KEPT[parent])

    # What is hidden

    def _hide_all(self, tools: Iterable[str]) -> None:
        for path, mode in _EMPTY.items():
            self._empty(path, mode)
        for path in (*_HIDDEN, *_unreadable("/etc"), *_unreadable("/var/lib")):
            if path not in _REPLACED:
                self._hide(path)
        for folder, kept in _KEPT.items():
            for entry in os.scandir(folder) if Path(folder).is_dir() else ():
                if entry.name not in kept:
                    self._hide(entry.path)
        for path, (text, mode) in _REPLACED.items():
            self._replace(path, text, mode)
        for folder in (*tools, "/opt"):
            for depth in (".", "*"):
                for name in _CREDENTIALS:
                    for found in Path(folder).glob(f"{depth}/{name}"):
                        self._hide(str(found))
        for home in _people_homes():
            self._empty(home, 0o700)
        resolver = Path("/etc/resolv.conf")
        if resolver.is_symlink() and resolver.exists():  # it leads into /run, which a sandbox has empty
            self._replace(str(resolver), resolver.read_text(), 0o644)
        if shutil.which("python", path=":".join(host_tools.search_path(tuple(tools)))) is None:
            self._link("/usr/local/bin/python", host_tools.python_program())

    def _place(self, path: str) -> Path | None:
        """Where to put something that shows at ``path``: in a mask, or in the skeleton; its parents are made."""
        overlay = next((each for each in self._overlays if path.startswith(f"{each}/")), None)
        if overlay is None:
            place = Path(f"{self._skeleton}{path}")
            return place if place.parent.is_dir() else None
        parent = os.path.dirname(path)
        if not Path(parent).is_dir() or os.path.realpath(parent) != parent:
            return None
        self._mirror(parent)
        place = Path(f"{self._mask}{path}")
        return place if place.parent.is_dir() and not _is_opaque(place.parent) else None

    def _mirror(self, folder: str) -> None:
        """Make a directory in the mask with the host's modes and owners, for it is these that show."""
        target = Path(f"{self._mask}{folder}")
        if target.is_dir() or os.path.lexists(target):
            return
        if folder != "/":
            self._mirror(os.path.dirname(folder))
        if not target.parent.is_dir():
            return
        status = os.stat(folder)
        _make(target, stat.S_IMODE(status.st_mode))
        if self._as_root:
            os.chown(target, status.st_uid, status.st_gid)

    def _empty(self, path: str, mode: int) -> None:
        place = self._place(path)
        if place is None or os.path.islink(path):
            return
        if str(place).startswith(f"{self._skeleton}/") or os.path.isdir(path):
            _make(place, mode)
            if not str(place).startswith(f"{self._skeleton}/"):
                os.setxattr(place, "user.overlay.opaque", b"y")

    def _hide(self, path: str) -> None:
        place = self._place(path)
        if place is None or os.path.lexists(place) or str(place).startswith(f"{self._skeleton}/"):
            return
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(0, 0))

    def _replace(self, path: str, text: str, mode: int) -> None:
        place = self._place(path)
        if place is not None:
            place.unlink(missing_ok=True)
            place.write_text(text)
            place.chmod(mode)

    def _link(self, path: str, target: str) -> None:
        place = self._place(path)
        if place is not None and not os.path.lexists(place):
            place.symlink_to(target)

    def _own(self) -> None:
        for overlay in self._overlays:
            own_directories(overlay, Path(f"{self._mask}{overlay}"))


def _make(folder: Path, mode: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)


def _is_opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def _unreadable(top: str) -> list[str]:
    """What is not for everybody by the host's own judgement, such as keys of services."""
    found: list[str] = []
    for folder, folders, files in os.walk(top):
        for name in list(folders):
            path = os.path.join(folder, name)
            if not os.path.islink(path) and not os.lstat(path).st_mode & _OTHERS_READ:
                found.append(path)
                folders.remove(name)
        for name in files:
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            if not stat.S_ISLNK(status.st_mode) and not status.st_mode & _OTHERS_READ:
                found.append(path)
    return found


def _people_homes() -> list[str]:
    """Home folders of people that lie in a directory that is shown."""
    found: list[str] = []
    for line in Path("/etc/passwd").read_text(errors="replace").splitlines():
        fields = line.split(":")
        if len(fields) > 5 and fields[2].isdigit() and int(fields[2]) in _PEOPLE:  # noqa: PLR2004 - passwd(5)
            home = os.path.normpath(fields[5])
            if home.count("/") > 1 and home.split("/")[1] in host_tools.SYSTEM:
                found.append(home)
    return found


def _mount_points() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    points = (line.split()[4].encode().decode("unicode_escape") for line in lines)
    return {each for each in points if each != "/"}
