"""What benchmarks write, and what is refused of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from race.errors import Rejected
from race.readers import Format, junit, read, sniff
from race.readers.json_text import path_steps
from race.readers.reading import MOST_BYTES

HYPERFINE: dict[str, Any] = {
    "results": [
        {"command": "a", "mean": 2.0, "median": 2.0, "times": [1.0, 2.0, 4.0], "exit_codes": [0, 0, 0]},
        {"command": "b", "times": [8.0], "exit_codes": [0]},
    ]
}
PYTEST: dict[str, Any] = {
    "machine_info": {},
    "benchmarks": [
        {"fullname": "t.py::test_a", "stats": {"data": [0.1, 0.3, 0.2], "median": 0.2}},
        {"name": "test_b", "stats": {"median": 0.8}},
    ],
}
PYPERF: dict[str, Any] = {
    "metadata": {"unit": "second", "name": "bench"},
    "benchmarks": [
        {
            "runs": [
                {"metadata": {"calibrate_loops": 8}, "warmups": [[1, 9.0]]},
                {"values": [0.5, 0.7]},
                {"values": [0.6]},
            ]
        }
    ],
    "version": "1.0",
}
GOOGLE: dict[str, Any] = {
    "context": {},
    "benchmarks": [
        {
            "name": "BM_x/repeats:2",
            "run_name": "BM_x",
            "run_type": "iteration",
            "real_time": 2,
            "time_unit": "us",
        },
        {
            "name": "BM_x/repeats:2",
            "run_name": "BM_x",
            "run_type": "iteration",
            "real_time": 4.0,
            "time_unit": "us",
        },
        {
            "name": "BM_x_mean",
            "run_name": "BM_x",
            "run_type": "aggregate",
            "real_time": 99.0,
            "time_unit": "us",
        },
    ],
}
CRITERION: dict[str, Any] = {
    "mean": {"point_estimate": 70.0, "standard_error": 1.0},
    "median": {"point_estimate": 64.0, "standard_error": 1.0},
    "slope": None,
}
JUNIT = b"""<?xml version="1.0"?>
<testsuites><testsuite name="s">
<testcase classname="t" name="a" time="0.1"/>
<testcase classname="t" name="b"><failure message="x">text</failure></testcase>
<testcase classname="t" name="c"><skipped/></testcase>
<testcase classname="t" name="d"><error/><system-out>y</system-out></testcase>
<testcase name="e"><properties/></testcase>
</testsuite></testsuites>"""


def dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("document", "form", "workloads", "milliseconds"),
    [
        (HYPERFINE, "hyperfine", {"a": (1.0, 2.0, 4.0), "b": (8.0,)}, 4000.0),
        (PYTEST, "pytest-benchmark", {"t.py::test_a": (0.1, 0.3, 0.2), "test_b": (0.8,)}, 400.0),
        (PYPERF, "pyperf", {"bench": (0.5, 0.7, 0.6)}, 600.0),
        (GOOGLE, "google-benchmark", {"BM_x": (2000.0, 4000.0)}, 0.003),
        (CRITERION, "criterion", {"criterion": (64.0,)}, 0.000064),
    ],
)
def test_the_files_of_benchmark_runners(
    document: Any, form: Format, workloads: dict[str, tuple[float, ...]], milliseconds: float
) -> None:
    data = dumped(document)
    assert sniff(data) == form
    for chosen in (form, "auto"):
        found = read(data, chosen)
        assert dict(found.workloads) == workloads
        assert found.value("ms") == pytest.approx(milliseconds)


def test_a_number_is_the_simplest_of_all() -> None:
    assert read(b"12.5\n").value("ms") == 12.5
    assert read(b"3", "number").value() == 3


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("a", ("a",)),
        ("a.b-c d[0].e", ("a", "b-c d", 0, "e")),
        ("[-1]", (-1,)),
        ("a[*].*", ("a", None, None)),
        ('a["x.y"].z', ("a", "x.y", "z")),
    ],
)
def test_paths(path: str, steps: tuple[Any, ...]) -> None:
    assert path_steps(path) == steps


@pytest.mark.parametrize("path", ["", "a..b", "a[", "a[x]", ".", "a.", "[1.5]", 'a["b]', "a*b"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(ValueError, match="is no path into JSON"):
        path_steps(path)


def test_json_by_a_path() -> None:
    document = {"a": [{"t": 1}, {"t": 4}], "b": {"x.y": 2.5, "list": [1, 2, 6]}}
    assert read(dumped(document), path='b["x.y"]').value("ms") == 2.5
    assert read(dumped(document), "json", path="b.list").value() == 2
    each = read(dumped(document), path="a[*].t")
    assert each.values() == {"0": 1, "1": 4}
    assert each.value() == pytest.approx(2)


@pytest.mark.parametrize(
    ("data", "form", "path", "says"),
    [
        (b'{"a": NaN}', "json", "a", "NaN in it, which is not a finite number"),
        (b'{"a": -Infinity}', "json", "a", "not a finite number"),
        (b'{"a": 1e999}', "json", "a", "inf, which is not a finite number above zero"),
        (b'{"a": ' + b"9" * 400 + b"}", "json", "a", "inf, which is not a finite"),
        (b'{"a": ' + b"9" * 5000 + b"}", "json", "a", "it is not JSON"),
        (b'{"a": true}', "json", "a", "True, which is not a number"),
        (b'{"a": "1"}', "json", "a", "which is not a number"),
        (b'{"a": 0}', "json", "a", "above zero"),
        (b'{"a": {"b": 1}}', "json", "a.c", "no 'c' where the path leads; there is: b"),
        (b'{"a": [1]}', "json", "a[1]", "no 1 where the path leads"),
        (b"[" * 100_000, "json", "a", "nested too deeply"),
        (b"\xff\xfe{}", "json", "a", "not UTF-8"),
        (b"{", "json", "a", "not JSON"),
        (b'{"x": 1}', "auto", "", "JSON of an unknown kind; set path"),
        (b" " * (MOST_BYTES + 1), "json", "a", "at most 16,777,216 are read"),
        (dumped({"results": []}), "hyperfine", "", "'results' is not a list of objects"),
        (dumped({"results": [{"command": "x", "times": [1], "exit_codes": [1]}]}), "hyperfine", "", "failed"),
        (dumped({"benchmarks": [{"stats": {"data": [0.1, -1]}}]}), "pytest-benchmark", "", "above zero"),
        (dumped({"benchmarks": [{"runs": [{"warmups": [[1, 2]]}]}]}), "pyperf", "", "has no value"),
        (dumped({"benchmarks": [{"name": "x", "error_occurred": True}]}), "google-benchmark", "", "error"),
        (dumped({"mean": {}}), "criterion", "", "neither"),
        (b"<a>", "junit", "", "not well-formed"),
        (b"<a/>", "junit", "", "no test case"),
        (b"<a/>", "auto", "", 'set format = "junit"'),
        (b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "junit", "", "declares a document type"),
        (b"<a>" * 200, "junit", "", "nested too deeply"),
        (b"nan", "auto", "", "not exactly one number"),
    ],
)
def test_what_is_refused(data: bytes, form: Format, path: str, says: str) -> None:
    with pytest.raises(Rejected) as caught:
        read(data, form, path=path, source="bench.sh")
    assert says in str(caught.value)
    assert "bench.sh" in str(caught.value)


def test_a_unit_that_cannot_be_converted() -> None:
    memory = {**PYPERF, "metadata": {"unit": "byte", "name": "m"}}
    assert read(dumped(memory)).value("bytes") == 0.6
    with pytest.raises(Rejected, match="'bytes', and not in 'ms'"):
        read(dumped(memory)).value("ms")


def test_junit_cases() -> None:
    report = junit(JUNIT)
    assert report.cases == {
        "t::a": "passed",
        "t::b": "failed",
        "t::c": "skipped",
        "t::d": "failed",
        "e": "passed",
    }
    assert report.ran == 4
    assert read(JUNIT, "junit").value("passed") == pytest.approx(2 / 4)


@pytest.mark.skipif(shutil.which("hyperfine") is None, reason="hyperfine is not installed")
def test_a_file_that_hyperfine_wrote(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    subprocess.run(
        ["hyperfine", "-N", "--runs", "3", "--export-json", file, "sleep 0.01"],
        check=True,
        capture_output=True,
    )
    found = read(file.read_bytes())
    assert len(found.workloads["sleep 0.01"]) == 3
    assert 10 < found.value("ms") < 200
