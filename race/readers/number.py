"""Exactly one number, as text."""

from __future__ import annotations

import math
import re

from race.errors import Rejected
from race.submission import printable

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_LONGEST = 64


def one_number(output: bytes, command: str) -> float:
    """The number in a command's output.

    Args:
        output: what it printed to standard output.
        command: for the message.

    Raises:
        Rejected: it is not exactly one finite decimal number above zero. ``nan``, ``inf``, ``1_0`` and digits of other
            scripts, which `float` takes, are none.
    """
    text = output.decode("utf-8", "replace").strip()
    shown = printable(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")
    if not text:
        raise Rejected(f"{command!r} printed nothing, where one number was expected")
    if len(text) > _LONGEST or not _NUMBER.fullmatch(text):
        raise Rejected(f"{command!r} printed {shown!r}, which is not exactly one number")
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise Rejected(f"{command!r} printed {shown}, which is not a finite number above zero")
    return value
