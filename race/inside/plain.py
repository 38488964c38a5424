"""Plain values as JSON that keeps their exact types: what goes between a function and the process that measures it.

Used on both sides: the framework imports it, and its text is written into replays.
"""

from __future__ import annotations

import base64
import json
from typing import Any

SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def packed(value: Any) -> Any:  # noqa: PLR0911 - one for each type
    """A value as JSON data.

    A value that is not exactly of a plain type, such as an instance of a subclass of ``int``, becomes the name of its
    type, and so never equals anything.
    """
    kind = type(value)  # pyright: ignore[reportUnknownVariableType] - that is the question
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return {"int": str(value)}
    if kind is float:
        return {"float": value.hex()}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind in (list, tuple):
        return {kind.__name__: [packed(v) for v in value]}
    if kind in (set, frozenset):
        return {kind.__name__: sorted((packed(v) for v in value), key=json.dumps)}
    if kind is dict:
        return {"dict": [[packed(k), packed(v)] for k, v in value.items()]}
    return {"type": "%s.%s" % (kind.__module__, kind.__qualname__)}  # noqa: UP031 - any Python


def unpacked(data: Any) -> Any:
    """The value again.

    Raises:
        ValueError: there is none.
    """
    given: Any = data
    if not isinstance(data, dict):
        return given
    ((kind, inner),) = given.items()
    if kind == "int":
        return int(inner)
    if kind == "float":
        return float.fromhex(inner)
    if kind == "bytes":
        return base64.b64decode(inner)
    if kind in SEQUENCES:
        return SEQUENCES[kind](unpacked(v) for v in inner)
    if kind == "dict":
        return {unpacked(k): unpacked(v) for k, v in inner}
    raise ValueError("not a plain value: %s" % inner)  # noqa: UP031 - likewise
