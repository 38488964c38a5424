"""Readers for what benchmarks and tests already write.

Code that is under test may have written any of it: what is read is bounded in size, and what is not a finite number
above zero is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from race.errors import Rejected
from race.readers.json_text import is_list, is_table, json_at, parse
from race.readers.junit import CaseOutcome, CaseReport, junit
from race.readers.number import one_number
from race.readers.reading import MOST_BYTES, Reading, shares
from race.readers.tools import criterion, google_benchmark, hyperfine, pyperf, pytest_benchmark

__all__ = [
    "MOST_BYTES",
    "CaseOutcome",
    "CaseReport",
    "Format",
    "Reading",
    "junit",
    "one_number",
    "read",
    "sniff",
]

Format: TypeAlias = Literal[
    "auto",
    "number",
    "json",
    "pytest-benchmark",
    "hyperfine",
    "pyperf",
    "google-benchmark",
    "criterion",
    "junit",
]

_TOOLS: Final[Mapping[str, Callable[[Any], Reading]]] = {
    "pytest-benchmark": pytest_benchmark,
    "hyperfine": hyperfine,
    "pyperf": pyperf,
    "google-benchmark": google_benchmark,
    "criterion": criterion,
}


def read(data: bytes, form: Format = "auto", *, path: str = "", source: str = "the benchmark") -> Reading:
    """Read what a benchmark wrote.

    Args:
        data: all of it.
        form: of the data; ``"auto"`` looks at it. Of ``"junit"`` each case is a workload, of value 1 if it passed, else
            0; those that were skipped are left out.
        path: of the number in ``"json"``.
        source: the command or the file, for messages.

    Raises:
        Rejected: it cannot be read as this, or a value in it is not a finite number above zero.
        ValueError: ``path`` is no path.
    """
    try:
        if form == "auto":
            form = "json" if path else sniff(data)
        if form == "number":
            return Reading({"": (one_number(data, source),)})
        if form == "json":
            return json_at(data, path)
        if form == "junit":
            return shares({n: how == "passed" for n, how in junit(data).cases.items() if how != "skipped"})
        return _TOOLS[form](parse(data))
    except Rejected as e:
        if form == "number":
            raise
        kind = "" if form == "auto" else f" as {form}"
        raise Rejected(f"what {source!r} wrote cannot be read{kind}: {e}") from e


def sniff(data: bytes) -> Format:
    """Which format data is in, by its looks.

    Raises:
        Rejected: none that is known, or one that has to be named, because its values are of another kind.
    """
    start = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"<":
        raise Rejected(
            'it is XML; for a JUnit report, of cases that pass or fail, set format = "junit" and goal = "max"'
        )
    if start not in (b"{", b"["):
        return "number"
    document = parse(data)
    first: Mapping[str, Any] = {}
    for key in ("benchmarks", "results"):
        listed = document.get(key) if is_table(document) else None
        if is_list(listed) and listed and is_table(listed[0]):
            first = listed[0]
    known: tuple[tuple[Format, bool], ...] = (
        ("pytest-benchmark", is_table(first.get("stats"))),
        ("pyperf", is_list(first.get("runs"))),
        ("google-benchmark", "real_time" in first or "run_type" in first),
        ("hyperfine", "command" in first and ("times" in first or "median" in first)),
        (
            "criterion",
            is_table(document)
            and is_table(document.get("median"))
            and "point_estimate" in document["median"],
        ),
    )
    for form, fits in known:
        if fits:
            return form
    raise Rejected(
        f"it is JSON of an unknown kind; set path to that of the number, or format to one of {', '.join(_TOOLS)}"
    )
