"""The benchmark scorer on what benchmarks write, in whole races."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from race_scorers.benchmark import BenchmarkOptions

from race.errors import SpecError
from tests.racing import project, run, script, spec

WRITES = """\
printf '{"results":[{"command":"a","times":[%s,%s]},{"command":"b","times":[4]}]}' \\
    $(cat value.txt) $(cat value.txt) >out.json
"""


@pytest.mark.anyio
async def test_a_file_with_workloads_in_it(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    (place / "bench.sh").write_text(WRITES)
    scorer = {"use": "benchmark", "run": "sh bench.sh", "format": "auto", "file": "out.json", "unit": "s"}
    scorer |= {"outside": False}
    entries = [
        script("quarter", "echo 25 >value.txt"),
        script("brings-its-own", "cp bench.sh /tmp/b; echo 1 >value.txt; sh bench.sh; echo 99 >value.txt"),
        script("not-finite", "echo 1e999 >value.txt"),
    ]
    verdict = await run(home, spec(tmp_path, entries, scorers=[scorer]))
    assert verdict.winner == "quarter"
    assert verdict.base.metrics["benchmark"].value == pytest.approx(20)
    quarter, own, infinite = verdict.attempts
    assert quarter.metrics["benchmark"].value == pytest.approx(10)
    assert quarter.speedup is not None
    assert quarter.speedup.vs_base > 1  # waits of so short a program are taken out, and are most of its time
    assert own.metrics["benchmark"].value == pytest.approx((99 * 4) ** 0.5)
    assert infinite.state == "ineligible"
    assert "not a finite number above zero" in infinite.reasons[0]


@pytest.mark.anyio
async def test_a_file_that_is_not_written(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    scorer = {"use": "benchmark", "run": "true", "format": "hyperfine", "file": "value.txt"}
    with pytest.raises(SpecError, match=r"'true' did not write 'value.txt'"):
        await run(home, spec(tmp_path, [script("a", "true")], scorers=[scorer]))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"format": "json"}, "belong together"),
        ({"format": "hyperfine", "path": "a"}, "belong together"),
        ({"path": "a"}, "belong together"),
        ({"format": "json", "path": "a..b"}, "is no path into JSON"),
        ({"file": "/etc/passwd"}, "must be relative"),
        ({"file": "a/../../x"}, "must be relative"),
        ({"format": "yaml"}, "'number', 'json', 'pytest-benchmark'"),
    ],
)
def test_options_that_cannot_be_meant(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=r"validation error") as caught:
        BenchmarkOptions(run="x", **keys)
    assert says in str(caught.value)
