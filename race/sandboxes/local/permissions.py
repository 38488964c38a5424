"""Lets an ordinary user look at what belongs to them but that a sandbox forbade even its owner.

Root inside a sandbox, like any root, reads files whatever their modes say. Outside, the ordinary user whose
files they really are must give themselves the permission first. It is taken back at once.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextlib.contextmanager
def readable(path: str | bytes) -> Generator[None]:
    """Make a file readable, or a directory searchable, for its owner as long as the block runs.

    Args:
        path: nothing is done to what is neither a file nor a directory, or belongs to somebody else.
    """
    status = os.lstat(path) if not _is_descriptor(path) else os.stat(path)
    needed = stat.S_IRWXU if stat.S_ISDIR(status.st_mode) else stat.S_IRUSR
    mode = stat.S_IMODE(status.st_mode)
    if (
        not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode))
        or status.st_uid != os.geteuid()
        or mode & needed == needed
    ):
        yield
        return
    os.chmod(path, mode | needed)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(path, mode)


def _is_descriptor(path: str | bytes) -> bool:
    """Whether it is a name of an open file, which is a link that leads to that file alone."""
    return os.fsencode(path).startswith(b"/proc/self/fd/")
