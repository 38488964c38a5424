"""Copies a folder, sharing its blocks where the file system can: btrfs, XFS, bcachefs and others, and APFS."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

from race.sandboxes.local.copying import copy_layer


def clone(source: Path, target: Path) -> None:
    """Copy a folder with modes, links and times. Nothing in it is followed.

    Args:
        source: a directory.
        target: must not exist.

    Raises:
        OSError: something cannot be read, or there is no room.
    """
    if sys.platform == "darwin":
        # clonefile(2) copies a whole folder at once.
        if ctypes.CDLL(None, use_errno=True).clonefile(os.fsencode(source), os.fsencode(target), 0) == 0:
            return
        shutil.copytree(source, target, symlinks=True)
    else:
        copy_layer(str(source), str(target))  # copy_file_range(2) shares blocks where it can
