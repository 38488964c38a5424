"""What a reader hands back, and the checks that every value goes through."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from race.errors import Rejected
from race.submission import printable

MOST_BYTES: Final = 16 << 20
"""A file or an output that is larger is refused unread: code under test may have written it."""
MOST_VALUES: Final = 1_000_000
"""Values in one file."""
MOST_WORKLOADS: Final = 10_000

PASSED: Final = "passed"
"""The unit of cases that pass or fail."""

SECONDS: Final[Mapping[str, float]] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "min": 60.0,
    "h": 3600.0,
}
"""How long each unit of time is."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a benchmark wrote.

    Attributes:
        workloads: the values of each of its benchmarks, by name, in the order of the file; finite and above zero, or
            of cases that pass or fail 1 and 0.
        unit: of the values; empty when the format does not say.
        passes: whether these are cases that pass or fail.
    """

    workloads: Mapping[str, tuple[float, ...]]
    unit: str = ""
    passes: bool = False

    def values(self, unit: str = "") -> dict[str, float]:
        """One value for each workload, the median of its own.

        Args:
            unit: to convert to; empty leaves them as they are.

        Raises:
            Rejected: what was read is in a unit that cannot be converted to this one.
        """
        factor = self._factor(unit) if unit and self.unit else 1.0
        return {name: median(values) * factor for name, values in self.workloads.items()}

    def value(self, unit: str = "") -> float:
        """One value for all: the geometric mean over the workloads, so that the ratio of two readings is the geometric
        mean of their ratios, and no workload counts more for taking longer (Fleming and Wallace 1986). Of cases that
        pass or fail, the share of those that passed.

        Raises:
            Rejected: as `values`.
        """
        found = self.values(unit)
        if self.passes:
            return math.fsum(found.values()) / len(found)
        if len(found) == 1:
            return next(iter(found.values()))
        return math.exp(math.fsum(math.log(v) for v in found.values()) / len(found))

    def _factor(self, unit: str) -> float:
        if unit == self.unit:
            return 1.0
        if unit in SECONDS and self.unit in SECONDS:
            return SECONDS[self.unit] / SECONDS[unit]
        raise Rejected(f"the values are in {printable(self.unit)!r}, and not in {unit!r}; set unit to theirs")


def reading(workloads: Iterable[tuple[str, Iterable[object]]], unit: str = "") -> Reading:
    """Check values and put them together; values of the same name are joined.

    Raises:
        Rejected: there is none, there are too many, or one is no finite number above zero.
    """
    kept: dict[str, list[float]] = {}
    total = 0
    for name, values in workloads:
        mine = kept.setdefault(name, [])
        for value in values:
            mine.append(positive(value, f"of {printable(name)!r}"))
            total += 1
            if total > MOST_VALUES:
                raise Rejected(f"there are more than {MOST_VALUES:,} values")
        if not mine:
            raise Rejected(f"the benchmark {printable(name)[:200]!r} has no value")
        if len(kept) > MOST_WORKLOADS:
            raise Rejected(f"there are more than {MOST_WORKLOADS:,} benchmarks")
    if not kept:
        raise Rejected("there is no benchmark in it")
    return Reading({name: tuple(values) for name, values in kept.items()}, unit)


def shares(passed: Mapping[str, bool]) -> Reading:
    """Cases that passed or failed.

    Raises:
        Rejected: there is none, or too many.
    """
    if not 0 < len(passed) <= MOST_WORKLOADS:
        raise Rejected(f"{len(passed):,} cases ran in it; from 1 to {MOST_WORKLOADS:,} are read")
    return Reading({name: (float(how),) for name, how in passed.items()}, PASSED, passes=True)


def positive(value: object, where: str) -> float:
    """A JSON value as a finite number above zero.

    Args:
        value: as parsed.
        where: what it is the value of, for the message.

    Raises:
        Rejected: it is none; truth values and numbers in text are none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejected(f"the value {where[:200]} is {printable(repr(value)[:60])}, which is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number <= 0:
        raise Rejected(f"the value {where[:200]} is {number:g}, which is not a finite number above zero")
    return number


def bounded(data: bytes) -> bytes:
    """The same bytes.

    Raises:
        Rejected: there are more than `MOST_BYTES`.
    """
    if len(data) > MOST_BYTES:
        raise Rejected(f"it has {len(data):,} bytes; at most {MOST_BYTES:,} are read")
    return data
