"""What `SandboxSpec.image` stands for: the layers that a new sandbox starts from, and its environment."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from race.errors import MachineError, SandboxError
from race.sandboxes.local import diagnosis, host_image, host_tools, locks
from race.sandboxes.local.record import Mount
from race.sandboxes.local.removal import remove_tree
from race.sandboxes.local.rootfs_images import RootfsImages, is_layout
from race.sandboxes.local.zygote import is_host_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandboxes.local.layer_store import LayerStore

HOST = "host"
_MOUNTS = "mounts.json"
_UNFINISHED = ".new-"
_SYSTEM_DEPTH = 2
"""Directories at the root, and the root itself, have no more parts."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that sandboxes can be made from now.

    Attributes:
        mounts: ``/`` first.
        env: what its commands get before anything else.
        folder: what was prepared for it, relative to home; None if nothing was.
        workdir: where it wants its programs to be run; empty if it does not say.
    """

    mounts: tuple[Mount, ...]
    env: dict[str, str]
    folder: str | None
    workdir: str = ""


class Images:
    """The images that a provider can use.

    Args:
        home: the provider's folder.
        store: where the layers of those go that come as files.
    """

    def __init__(self, home: Path, store: LayerStore) -> None:
        self._home = home
        self._all = home / "images"
        self._rootfs = RootfsImages(home, store)

    def get(self, image: str, pulse: Callable[[], None] = lambda: None) -> Image:
        """The image, prepared if it has not been yet. Takes some milliseconds; seconds at the first time.

        Args:
            image: see `SandboxSpec.image`. The store must be held if it may be a file.
            pulse: called again and again while something is unpacked; what it raises ends the work.

        Raises:
            SandboxError: it cannot be used.
            MachineError: it cannot be prepared here.
        """
        if image == HOST:
            folder = self._prepared()
            mounts = json.loads((folder / _MOUNTS).read_text())
            relative = str(folder.relative_to(self._home))
            layers = (
                Mount(
                    at=at,
                    image=tuple(each if each.startswith("/") else f"{relative}/{each}" for each in image),
                )
                for at, image in mounts
            )
            return Image(tuple(layers), host_tools.host_environment(host_tools.tool_folders()), relative)
        path = self._path(image)
        env = host_tools.base_environment()
        if path.is_dir() and not is_layout(path):
            return Image((Mount(at="/", image=(str(path),)),), env, None)
        found = self._rootfs.get(path, pulse)
        mounts = (Mount(at="/", image=found.layers),)
        return Image(mounts, {**env, **found.env}, None, found.workdir)

    def identity(self, image: str) -> str:
        """A name that changes when the content of the image does.

        For the host that is when its package databases or program folders change; for a directory when any
        name, size, mode or time in it does; for a file when a byte does.

        Raises:
            SandboxError: it cannot be used.
        """
        if image == HOST:
            return f"host-{_host_digest()}"
        path = self._path(image)
        if path.is_dir() and not is_layout(path):
            return f"directory-{_directory_digest(path)}"
        return self._rootfs.identity(path)

    def _path(self, image: str) -> Path:
        path = Path(image)
        if not path.is_absolute() or not (path.is_dir() or path.is_file()):
            raise SandboxError(
                f"the image {image!r} cannot be used: it must be 'host' or the absolute path of a directory that holds "
                "a root filesystem, of a tar file of one, or of an OCI layout or archive"
            )
        path = path.resolve()
        if self._home.resolve().is_relative_to(path):
            raise SandboxError(
                f"the image {image!r} cannot be used: it contains the sandboxes themselves ({self._home}); to use this "
                "machine's own system say 'host'"
            )
        return path

    def _prepared(self) -> Path:
        folder = self._all / _mask_digest(private_folder(self._home))
        if not (folder / _MOUNTS).exists():
            self._prepare(folder)
        return folder

    def _prepare(self, folder: Path) -> None:
        """Build beside, then rename: two processes may do so at once, and the first one wins."""
        self._all.mkdir(mode=0o700, parents=True, exist_ok=True)
        building = self._all / f"{_UNFINISHED}{secrets.token_hex(8)}"
        building.mkdir(mode=0o700)
        lock = os.open(building / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            builder = host_image.HostImage(building, private_folder(self._home), as_root=is_host_root())
            try:
                mounts = builder.build()
            except OSError as error:
                what = diagnosis.explain(str(error.strerror), f"prepare {error.filename}", self._home)
                raise MachineError(what) from error
            (building / _MOUNTS).write_text(json.dumps(mounts))
            with contextlib.suppress(OSError):  # another process has made the same one meanwhile
                building.rename(folder)
        finally:
            os.close(lock)
            if building.exists():
                remove_tree(building)

    def unused(self, used: set[str]) -> list[Path]:
        """Prepared folders that no sandbox uses and that are out of date, and those whose builder was
        killed.
        """
        current = _mask_digest(private_folder(self._home))
        found: list[Path] = []
        for each in sorted(self._all.iterdir()) if self._all.is_dir() else ():
            if each.name.startswith(_UNFINISHED):
                if not locks.is_held(each / "lock"):
                    found.append(each)
            elif str(each.relative_to(self._home)) not in used and each.name != current:
                found.append(each)
        return found


def private_folder(home: Path) -> Path:
    """What no sandbox may see of the host: all of the framework's state, of which ``home`` is a part.

    ``home`` is ``sandboxes/NAME`` in the state folder, or somewhere of its own: then it is the folder that it is in,
    unless that is a directory of the system.
    """
    home = home.resolve()
    state = home.parent.parent if home.parent.name == "sandboxes" else home.parent
    return home if len(state.parts) <= _SYSTEM_DEPTH or str(state) in ("/var/lib", "/usr/local") else state


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _times(paths: list[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append(f"{path} -")
        else:
            found.append(f"{path} {status.st_mtime_ns} {status.st_size}")
    return found


def _host_digest() -> str:
    return _digest([str(host_image.VERSION), *_times(host_tools.traces())])


def _mask_digest(private: Path) -> str:
    """What decides how the host is shown: its tools, and every directory that may have a new secret in it."""
    configuration = [folder for folder, _, _ in os.walk("/etc")]
    resolver = Path("/etc/resolv.conf")
    return _digest(
        [
            _host_digest(),
            str(private),
            str(is_host_root()),
            *(name for name in host_tools.SYSTEM if Path("/", name).exists()),
            *_times(["/var", "/var/lib", "/var/cache", *sorted(configuration)]),
            resolver.read_text(errors="replace") if resolver.exists() else "",
        ]
    )


def _directory_digest(top: Path) -> str:
    digest = hashlib.sha256()
    waiting = [os.fsencode(top)]
    while waiting:
        folder = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                status = entry.stat(follow_symlinks=False)
                line = (
                    entry.path,
                    status.st_mode,
                    status.st_uid,
                    status.st_gid,
                    status.st_size,
                    status.st_mtime_ns,
                )
                digest.update(repr(line).encode())
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return digest.hexdigest()[:16]
