"""Removes what sandboxes leave on disk: trees that nothing may be assumed about."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove a directory with everything below it.

    Links are removed, never followed. Directories without permissions are opened up first; overlay itself
    leaves such ones. Depth does not matter, and what another process removes at the same time is no error.

    Raises:
        OSError: something cannot be removed.
    """
    parent = os.open(path.parent, _OPEN)
    try:
        _empty(parent, os.fsencode(path.name))
        _rmdir(os.fsencode(path.name), parent)
    finally:
        os.close(parent)


def _empty(parent: int, name: bytes) -> None:
    """Empty a directory without recursion, holding one descriptor at a time.

    A directory that is met is moved up into the one being emptied, so that the paths never grow.
    """
    top = _opened(parent, name)
    if top is None:
        return
    moved = 0
    token = secrets.token_hex(8).encode()
    try:
        while True:
            folders = _remove_files(top)
            if not folders:
                return
            for each in folders:
                inner = _opened(top, each)
                if inner is None:
                    continue
                try:
                    for deeper in _remove_files(inner):
                        moved += 1
                        _open_up(inner, deeper)  # else its owner may not move it
                        os.rename(deeper, b".%b-%d" % (token, moved), src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                _rmdir(each, top)
    finally:
        os.close(top)


def _remove_files(folder: int) -> list[bytes]:
    """Unlink all that is not a directory, and give the directories' names."""
    folders: list[bytes] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
            else:
                _unlink(name, folder)
    return folders


def _opened(parent: int, name: bytes) -> int | None:
    try:
        _open_up(parent, name)
        return os.open(name, _OPEN, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _open_up(parent: int, name: bytes) -> None:
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(name, stat.S_IRWXU, dir_fd=parent)


def _unlink(name: bytes, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _rmdir(name: bytes, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=folder)
