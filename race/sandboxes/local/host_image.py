"""The machine's own system as the image of a sandbox, without its secrets and home folders.

The host's root itself cannot be a layer: it contains the sandboxes. So the root is a *skeleton* of empty
directories and links, each system directory is an overlay of its own, and over each lies a *mask* that hides
what is not for sandboxes. Both are made once and kept until the host changes.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from race.sandboxes.local import host_mask, host_tools
from race.sandboxes.local.owned import own_directories

VERSION = 1
"""To be raised when what is built here changes."""

_APT = "/etc/apt/apt.conf.d/00-one-user"
"""Tells apt not to become another user, where there is only one: it looks whether it has become that."""


class HostImage:
    """Builds the skeleton and the masks.

    Args:
        folder: an empty folder to build in.
        private: a folder of the host that no sandbox may see: where the sandboxes themselves are.
        as_root: whether sandboxes shift the owners of files; if not, the host's directories belong to nobody
            inside, and are laid over with ones that belong to the sandbox's root.
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
            For each overlay where it is mounted, and its layers relative to ``folder`` or absolute on the
            host.
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
                if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & host_mask.OTHERS_READ:
                    shutil.copy2(entry.path, target / entry.name)

    def _is_hidden(self, path: str) -> bool:
        parent, name = os.path.split(path)
        return path in host_mask.HIDDEN or (parent in host_mask.KEPT and name not in host_mask.KEPT[parent])

    # What is hidden

    def _hide_all(self, tools: tuple[str, ...]) -> None:
        for path, mode in host_mask.EMPTY.items():
            self._empty(path, mode)
        for home in host_mask.people_homes():
            self._empty(home, 0o700)
        services = [
            each for name in host_mask.KEPT["/var/lib"] for each in host_mask.unreadable(f"/var/lib/{name}")
        ]
        for path in (
            *host_mask.HIDDEN,
            *host_mask.unreadable("/etc"),
            *services,
            *host_mask.left_out(),
            *host_mask.credentials((*tools, "/opt")),
        ):
            if path not in host_mask.REPLACED:
                self._hide(path)
        self._put_in_place(tools)

    def _put_in_place(self, tools: tuple[str, ...]) -> None:
        """Give what programs cannot do without, in place of what is hidden."""
        for path, (text, mode) in host_mask.REPLACED.items():
            self._replace(path, text, mode)
        if not self._as_root and Path(_APT).parent.is_dir():
            self._replace(_APT, 'APT::Sandbox::User "root";\n', 0o644)
        resolver = Path("/etc/resolv.conf")
        if resolver.is_symlink() and resolver.exists():  # it leads into /run, which a sandbox has empty
            self._replace(str(resolver), resolver.read_text(), 0o644)
        if shutil.which("python", path=":".join(host_tools.search_path(tools))) is None:
            self._link("/usr/local/bin/python", host_tools.python_program())

    def _place(self, path: str) -> Path | None:
        """Where to put something that shows at ``path``: in a mask, or in the skeleton; its parents are
        made.
        """
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


def _mount_points() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    points = (line.split()[4].encode().decode("unicode_escape") for line in lines)
    return {each for each in points if each != "/"}
