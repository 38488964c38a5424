"""Entries as a product: one table that stands for every combination of its models and hints.

``models = ["a", "b"]`` and ``hints = ["x", "y"]`` make four entries. Hints may be a table of names and texts. An
entry is named after its values. With ``seed`` at the top of the race file their order is drawn, the same one
for the same seed, so that none has the advantage of always starting first.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from race.errors import SpecError

LONGEST_NAME = 40

_WORDS_OF_A_HINT = 3


def multiplied(entries: object, seed: object, path: Path) -> object:
    """The entries of a race file, every product written out. What is no product stays as it is.

    Args:
        entries: as parsed from TOML, not checked.
        seed: fixes the order of all entries; None leaves them in the order of the file.
        path: the race file, for complaints.

    Raises:
        SpecError: a product is not right.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise SpecError(f"{path}: seed: must be a whole number (it is {seed!r})")
    if not isinstance(entries, list):
        return entries
    made: list[object] = []
    for number, entry in enumerate(cast("list[object]", entries), 1):
        table = _table(entry)
        if "models" in table or "hints" in table:
            made += _product(table, f"{path}: entries[{number}]")
        else:
            made.append(entry)
    if seed is not None:
        random.Random(seed).shuffle(made)  # noqa: S311 - a fixed order
    return made


def _table(entry: object) -> dict[str, Any]:
    return cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}


def _product(table: Mapping[str, Any], place: str) -> Iterator[dict[str, Any]]:
    for many, one in (("models", "model"), ("hints", "hint")):
        if many in table and one in table:
            raise SpecError(f"{place}: has both {one} and {many}; keep one")
    models = _values(table, "models", place)
    hints = _values(table, "hints", place)
    rest = {k: v for k, v in table.items() if k not in {"models", "hints", "name"}}
    taken: set[str] = set()
    sides: list[list[tuple[str, str] | None]] = [[*models] or [None], [*hints] or [None]]
    for model, hint in itertools.product(*sides):
        parts = [str(table["name"])] if table.get("name") else []
        parts += [_word(name) for name, _ in filter(None, (model, hint))]
        name = _free("-".join(p for p in parts if p)[:LONGEST_NAME].strip("-._") or "entry", taken)
        taken.add(name)
        given = {"model": model[1]} if model else {}
        if hint and hint[1]:
            given["hint"] = hint[1]
        yield {**rest, **given, "name": name}


def _values(table: Mapping[str, Any], key: str, place: str) -> list[tuple[str, str]]:
    """Names and values of one side of the product."""
    given: object = table.get(key, [])
    if isinstance(given, dict):
        pairs = list(cast("dict[str, object]", given).items())
    elif isinstance(given, list):
        pairs = [(_short(v, key), v) for v in cast("list[object]", given)]
    else:
        pairs = []
    if (key in table and not pairs) or not all(isinstance(v, str) for _, v in pairs):
        raise SpecError(
            f"{place}.{key}: must be a list of texts, or a table of names and texts, and not empty"
        )
    return [(name, str(value)) for name, value in pairs]


def _short(value: object, key: str) -> str:
    """What a value is called: a model by its last part, a hint by its first words."""
    text = str(value)
    if key == "models":
        return text.rpartition("/")[2]
    words = re.findall(r"[A-Za-z0-9]+", text.lower())
    return "-".join(words[:_WORDS_OF_A_HINT]) or "plain"


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")


def _free(name: str, taken: set[str]) -> str:
    number = 2
    found = name
    while found in taken:
        end = f"-{number}"
        found = name[: LONGEST_NAME - len(end)] + end
        number += 1
    return found
