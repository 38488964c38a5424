"""Reads a file of a sandbox from outside, where nothing in it can lead astray."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from race.errors import SandboxError
from race.sandboxes.local import changes
from race.sandboxes.local.layers import BelowLink, Layers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from race.sandboxes.local.changes import Stack


def read_file(stacks: Iterable[Stack], path: bytes, limit: int) -> bytes:
    """The bytes of a regular file.

    Args:
        stacks: the layers of the sandbox's mounts.
        path: from `changes.normal`.
        limit: the most bytes that it may have.

    Raises:
        FileNotFoundError: nothing is there.
        SandboxError: it is not a regular file, is too large, or is below a link.
        OSError: it cannot be read.
    """
    stack = max((each for each in stacks if changes.within(path, each.at)), key=lambda each: len(each.at))
    shown = os.fsdecode(b"/" + path)
    inside = changes.relative(path, stack.at)
    with Layers([*stack.own, *stack.base]) as layers:
        try:
            found = layers.find(inside)
        except BelowLink as link:
            raise SandboxError(f"{shown!r} is below a link: {os.fsdecode(link.args[0])!r}") from None
        if found is not None and not stat.S_ISREG(found.status.st_mode):
            raise SandboxError(f"{shown!r} is not a regular file but a {changes.kind_of(found.status)}")
        opened = layers.open(found.layer, inside, os.O_RDONLY | os.O_NONBLOCK) if found is not None else None
    if opened is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown)
    with open(opened, "rb") as file:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):  # it has become something else since
            raise SandboxError(f"{shown!r} is not a regular file")
        data = file.read(limit + 1) if status.st_size <= limit else b""
        if status.st_size > limit or len(data) > limit:
            raise SandboxError(f"{shown!r} is larger than {limit} bytes")
        return data
