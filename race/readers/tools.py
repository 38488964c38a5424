"""The files of benchmark runners: pytest-benchmark, hyperfine, pyperf, Google Benchmark, criterion.

Each function takes a parsed document and gives the raw samples where the format has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from race.errors import Rejected
from race.readers.json_text import is_table, tables, text_of, values_of
from race.readers.reading import Reading, positive, reading
from race.submission import printable

_PYPERF_UNITS: Final = {"second": "s", "byte": "bytes", "integer": ""}


def pytest_benchmark(document: Any) -> Reading:
    """``--benchmark-json``: seconds of every round in ``benchmarks[].stats.data``; without it, the median.

    Raises:
        Rejected: it is no such document.
    """

    def each() -> Iterator[tuple[str, list[Any]]]:
        for number, bench in enumerate(tables(document, "benchmarks")):
            stats = bench.get("stats")
            if not is_table(stats):
                raise Rejected(f"benchmarks[{number}] has no stats")
            name = text_of(bench.get("fullname"), text_of(bench.get("name"), str(number)))
            yield name, values_of(stats["data"], "stats.data") if stats.get("data") else [stats.get("median")]

    return reading(each(), "s")


def hyperfine(document: Any) -> Reading:
    """``--export-json``: seconds of every run in ``results[].times``.

    Raises:
        Rejected: it is no such document, or a run failed.
    """

    def each() -> Iterator[tuple[str, list[Any]]]:
        for number, result in enumerate(tables(document, "results")):
            name = text_of(result.get("command"), str(number))
            if any(code != 0 for code in values_of(result.get("exit_codes", []), "exit_codes")):
                raise Rejected(f"a run of {printable(name)[:100]!r} failed: its exit codes are not all 0")
            yield name, values_of(result["times"], "times") if result.get("times") else [result.get("median")]

    return reading(each(), "s")


def pyperf(document: Any) -> Reading:
    """``-o FILE``: the values of all runs, in the unit that the metadata names; warm-ups and calibration are left out.

    Raises:
        Rejected: it is no such document.
    """
    shared = _table(document, "metadata")
    units: set[str] = set()

    def each() -> Iterator[tuple[str, list[Any]]]:
        for number, bench in enumerate(tables(document, "benchmarks")):
            metadata = {**shared, **_table(bench, "metadata")}
            runs = tables(bench, "runs")
            unit = text_of(metadata.get("unit"), "second")
            units.add(_PYPERF_UNITS.get(unit, unit))
            name = text_of(metadata.get("name"), str(number))
            yield name, [v for run in runs for v in values_of(run.get("values", []), "values")]

    found = reading(each())
    if len(units) > 1:
        raise Rejected(f"its benchmarks are in different units: {printable(', '.join(sorted(units)))[:100]}")
    return Reading(found.workloads, units.pop())


def google_benchmark(document: Any) -> Reading:
    """``--benchmark_format=json``: ``real_time`` of every iteration, not of the aggregates.

    Raises:
        Rejected: it is no such document, a benchmark reported an error, or a unit of time is unknown.
    """
    to_ns = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}

    def each() -> Iterator[tuple[str, list[Any]]]:
        for number, bench in enumerate(tables(document, "benchmarks")):
            if bench.get("run_type", "iteration") != "iteration":
                continue
            name = text_of(bench.get("run_name"), text_of(bench.get("name"), str(number)))
            if bench.get("error_occurred"):
                said = printable(text_of(bench.get("error_message"), ""))[:100]
                raise Rejected(f"{printable(name)[:100]!r} reports an error: {said}")
            unit = text_of(bench.get("time_unit"), "ns")
            if unit not in to_ns:
                raise Rejected(f"the time_unit of {printable(name)[:100]!r} is none of {', '.join(to_ns)}")
            yield name, [positive(bench.get("real_time"), f"of {printable(name)!r}") * to_ns[unit]]

    return reading(each(), "ns")


def criterion(document: Any) -> Reading:
    """``estimates.json``: nanoseconds; the median, which criterion has from its resampled runs, else the mean.

    Raises:
        Rejected: it is no such document.
    """
    for key in ("median", "mean"):
        estimate = _table(document, key)
        if "point_estimate" in estimate:
            return reading([("criterion", [estimate["point_estimate"]])], "ns")
    raise Rejected("it has neither median.point_estimate nor mean.point_estimate")


def _table(value: Any, key: str) -> Mapping[str, Any]:
    found = value.get(key) if is_table(value) else None
    return found if is_table(found) else {}
