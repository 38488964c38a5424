"""Files that are there whole or not at all, whenever the process is killed or the disk is full."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from race.store import StoreError


@contextmanager
def storing(folder: Path) -> Generator[None, None, None]:
    """Say of a file that cannot be written what it means: what is written before is whole, and can be gone on from.

    Raises:
        StoreError: the block raised an `OSError`.
    """
    try:
        yield
    except OSError as e:
        raise StoreError(
            f"{folder} cannot be written to: {e.strerror or e}; make room on its disk; nothing written before is lost"
        ) from e


def write_atomically(path: Path, text: str) -> None:
    """Write a file, or replace it, so that nobody ever sees half of it, and so that it outlasts a loss of power.

    Raises:
        StoreError: it cannot be written.
    """
    with storing(path.parent):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            # Without a buffer, what could not be written is not tried once more when the file is closed.
            with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
                left = memoryview(text.encode())
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
