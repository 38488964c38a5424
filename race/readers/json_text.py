"""JSON that other people's programs wrote: parsed strictly, and looked into by a path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeGuard

from race.errors import Rejected
from race.readers.reading import MOST_VALUES, Reading, bounded, reading
from race.submission import printable

Step: TypeAlias = str | int | None
"""A key, a place in a list, or None for all of either."""

_STEP: Final = re.compile(
    r"""(?:^|\.)(?P<key>[^.\[\]"*]+)|(?:^|\.)(?P<all>\*)|\[(?P<place>-?\d{1,9})\]|\[(?P<every>\*)\]|\["(?P<quoted>[^"]*)"\]"""
)


def parse(data: bytes) -> Any:
    """Parse a JSON document.

    Raises:
        Rejected: it is larger than is read, not UTF-8, not JSON, nested too deeply, or has ``NaN`` or ``Infinity`` in
            it, which are no JSON but are what Python writes.
    """
    try:
        return json.loads(bounded(data).decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as e:
        raise Rejected(f"it is not UTF-8 text (byte {e.start})") from e
    except RecursionError as e:
        raise Rejected("it is nested too deeply") from e
    except ValueError as e:  # also an integer of more digits than Python converts
        raise Rejected(f"it is not JSON: {printable(str(e))[:200]}") from e


def _no_constant(name: str) -> Any:
    raise Rejected(f"there is {name} in it, which is not a finite number")


def path_steps(path: str) -> tuple[Step, ...]:
    """Take a path apart: ``results[0].mean``, ``benchmarks[*].stats.median``, ``["a.b"].c``, ``*.time``.

    Raises:
        ValueError: it is no path.
    """
    steps: list[Step] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            break
        if match["place"] is not None:
            steps.append(int(match["place"]))
        elif match["quoted"] is not None:
            steps.append(match["quoted"])
        else:
            steps.append(match["key"])
        at = match.end()
    if at < len(path) or not steps:
        raise ValueError(
            f"{path!r} is no path into JSON; write such as 'results[0].mean', 'benchmarks[*].stats.median' or "
            "'[\"a.b\"].c'"
        )
    return tuple(steps)


def json_at(data: bytes, path: str) -> Reading:
    """The number at a path, or one for each place that a path with ``*`` leads to.

    Raises:
        Rejected: the document, the path's end or a number in it is not what it should be.
        ValueError: the path is none.
    """
    steps = path_steps(path)
    found: list[tuple[str, Sequence[object]]] = []
    for name, value in _follow(parse(data), steps, ""):
        values: Sequence[object] = value if is_list(value) else [value]
        found.append((name or path, values))
        if len(found) > MOST_VALUES:
            raise Rejected(f"{path!r} leads to more than {MOST_VALUES:,} values")
    return reading(found)


def _follow(value: Any, steps: tuple[Step, ...], name: str) -> Iterator[tuple[str, Any]]:
    if not steps:
        yield name, value
        return
    step, rest = steps[0], steps[1:]
    if step is None:
        inside = value.items() if is_table(value) else enumerate(value) if is_list(value) else ()
        for key, item in inside:
            yield from _follow(item, rest, f"{name}.{key}" if name else str(key))
    elif isinstance(step, int) and is_list(value) and -len(value) <= step < len(value):
        yield from _follow(value[step], rest, name)
    elif is_table(value) and str(step) in value:
        yield from _follow(value[str(step)], rest, name)
    else:
        there = ", ".join(printable(k) for k in list(value)[:8]) if is_table(value) else type(value).__name__
        raise Rejected(f"there is no {step!r} where the path leads; there is: {there[:300] or 'nothing'}")


def is_table(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether it is a JSON list."""
    return isinstance(value, list)


def tables(value: Any, key: str) -> list[Mapping[str, Any]]:
    """The list of objects under a key.

    Raises:
        Rejected: it is not one, or is empty.
    """
    found = value.get(key) if is_table(value) else None
    if not is_list(found) or not found or not all(map(is_table, found)):
        raise Rejected(f"{key!r} is not a list of objects, with at least one")
    return found


def values_of(value: Any, where: str) -> list[Any]:
    """A list of values.

    Raises:
        Rejected: it is none.
    """
    if not is_list(value):
        raise Rejected(f"{where} is not a list of numbers")
    return value


def text_of(value: Any, otherwise: str) -> str:
    """A name, if it is one."""
    return value if isinstance(value, str) and value else otherwise
