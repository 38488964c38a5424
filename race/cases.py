"""Inputs and expected answers that no agent ever sees: a Python file beside the race file.

It defines ``inputs(rng)``, which returns a list of argument lists made with the `random.Random` that it is given, and
``reference(*arguments)``, which returns the right answer. It is run in the framework's own process, outside of every
sandbox. The seed is drawn after all agents have ended.
"""

from __future__ import annotations

import copy
import math
import random
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Case:
    """One call: its arguments, and the right answer."""

    arguments: tuple[Any, ...]
    expected: Any


class Cases:
    """The cases of one file.

    Args:
        path: of the file.

    Raises:
        ValueError: it cannot be run, or lacks a function.
    """

    def __init__(self, path: Path) -> None:
        try:
            names = runpy.run_path(str(path))
        except Exception as e:
            raise ValueError(f"{path} cannot be run: {type(e).__name__}: {e}") from e
        for name in ("inputs", "reference"):
            if not callable(names.get(name)):
                message = f"{path} must define inputs(rng) and reference(*arguments); it has no {name}"
                raise ValueError(message)  # noqa: TRY004 - as pydantic wants it
        self._inputs = cast("Callable[[random.Random], Sequence[Sequence[Any]]]", names["inputs"])
        self._reference = cast("Callable[..., Any]", names["reference"])
        self._last: tuple[int, list[Case]] | None = None

    def drawn(self, seed: int) -> list[Case]:
        """The cases of a seed: the same for everybody who is measured in a round."""
        if self._last is None or self._last[0] != seed:
            made: list[Case] = []
            for arguments in self._inputs(random.Random(seed)):  # noqa: S311 - the seed comes from the system's own
                kept = tuple(copy.deepcopy(a) for a in arguments)
                made.append(Case(kept, self._reference(*arguments)))
            if not made:
                raise ValueError("inputs(rng) returned nothing")
            self._last = (seed, made)
        return self._last[1]


def same(found: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Whether an answer has the expected type, exactly, and the expected value.

    Args:
        found: the answer.
        expected: the right one.
        tolerance: largest relative difference of two numbers with a fraction.
    """
    if type(found) is not type(expected):
        return False
    if isinstance(expected, float):
        if math.isnan(expected):
            return math.isnan(found)
        return found == expected or math.isclose(found, expected, rel_tol=tolerance)
    wanted: Any = expected  # not narrowed to containers of who knows what
    if isinstance(expected, list | tuple):
        return len(found) == len(wanted) and all(
            same(f, e, tolerance) for f, e in zip(found, wanted, strict=True)
        )
    if isinstance(expected, dict):
        return found.keys() == wanted.keys() and all(same(found[k], v, tolerance) for k, v in wanted.items())
    return bool(found == expected)
