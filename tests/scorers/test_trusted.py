"""Scores that the code under test cannot make up: its tests by name, its claims from outside, a clock out of reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from race.cases import same
from race.claims import unseen
from race.commandline import recognised
from race.errors import SpecError
from race.inside.plain import packed, unpacked
from race.scoring import Sample
from race.settled import is_settled
from race.witness import read_report
from tests.racing import project, run, script, spec

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("command", "kind", "argv"),
    [
        ("python -m pytest -q", "pytest", ("-q",)),
        ("python3.11 -B -m unittest -q tests.x", "unittest", ("-q", "tests.x")),
        ("A=1 python -X dev -m pytest 'a b'", "pytest", ("a b",)),
        ("pytest -x", "pytest", ("-x",)),
        ("python bench.py --n 3", "script", ("bench.py", "--n", "3")),
        ("/opt/venv/bin/python -m bench", "script", ("bench",)),
    ],
)
def test_python_programs_are_recognised(command: str, kind: str, argv: tuple[str, ...]) -> None:
    found = recognised(command)
    assert found is not None
    assert (found.kind, found.argv) == (kind, argv)


@pytest.mark.parametrize(
    "command",
    [
        "make test",
        "python a.py | tail",
        "cd x && pytest",
        "python -c 1",
        "python",
        "cargo test",
        "sh -c 'a",
        "",
    ],
)
def test_the_rest_is_left_to_the_shell(command: str) -> None:
    assert recognised(command) is None


def test_lines_of_others_are_no_report() -> None:
    lines = [
        ["mine", "test", "a", "c0de", "/app/a.py"],
        ["other", "outcome", "a", "call", "passed"],
        ["mine", "outcome", "a", "setup", "passed"],
        ["mine", "outcome", "a", "call", "failed"],
        ["mine", "outcome", "a", "teardown", "passed"],
        ["mine", "outcome", 5],
        {"mine": 1},
        ["other", "end", 0],
    ]
    text = b"\n".join(json.dumps(line).encode() for line in lines) + b'\n["mine", "end"\n\xff\n'
    seen = read_report(text, "mine")
    assert seen.outcomes == {"a": "failed"}
    assert seen.status is None
    assert seen.codes == {"a": "c0de"}


def sample(value: float, seconds: float, cpu: float) -> Sample:
    return Sample(value, 0.0, seconds, cpu)


@pytest.mark.parametrize(
    ("value", "seconds", "cpu", "believed"),
    [
        (0.6, 0.06, 0.06, True),  # honest: the process is as much shorter
        (0.6, 0.20, 0.20, True),  # honest: importing a library costs some of it
        (1200, 1.3, 4.8, True),  # honest: work on several processors
        (1200, 2.3, 1.2, True),  # honest: it waited for something else
        (2290, 2.36, 2.36, True),  # hardly anything is claimed
        (2400, 2.5, 2.5, True),  # slower
        (0.01, 2.35, 2.35, False),  # prints a number
        (2.3, 2.36, 2.34, False),  # divides what it prints
        (800, 2.3, 2.3, False),  # a plausible lie
    ],
)
def test_a_saving_has_to_be_seen(value: float, seconds: float, cpu: float, believed: bool) -> None:
    said = unseen(sample(value, seconds, cpu), sample(2300, 2.35, 2.35), "ms")
    assert (said == "") is believed
    if not believed:
        assert "2,350 ms" in said
        assert f"{(2300 - value):,.4g} ms" in said
    assert unseen(sample(value, seconds, cpu), sample(2300, 2.35, 2.35), "points") == ""


class Equal(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        -(10**40),
        0.1,
        float("inf"),
        "x\ud800",
        b"\xff",
        [1, (2.0, {3})],
        {"a": [1], 2: frozenset({1})},
    ],
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = unpacked(json.loads(json.dumps(packed(value))))
    assert back == value
    assert type(back) is type(value)


def test_what_is_no_plain_value_equals_nothing() -> None:
    for value in (Equal(3), [Equal(3)], object(), int):
        with pytest.raises(ValueError, match="not a plain value"):
            unpacked(packed(value))
    assert not same(1, 1.0)
    assert not same(True, 1)
    assert not same([1, 2], (1, 2))
    assert same(1.0, 1.0 + 1e-12, 1e-9)
    assert not same(1.0, 1.0 + 1e-12)
    assert same(float("nan"), float("nan"))
    assert same({"a": [1.5]}, {"a": [1.5 + 1e-12]}, 1e-9)
    assert not same({"a": 1}, {"a": True})


@pytest.mark.parametrize(
    ("path", "settled"),
    [
        (b"conftest.py", True), (b"a/conftest.py", True), (b"pyproject.toml", True), (b"test_a.py", True),
        (b"tests/data/x.json", True), (b"a_test.py", True), (b"a.py", False), (b"testing.py", False),
        (b"latest/a.py", False),
        (b"known.json", True),
    ],
)  # fmt: skip
def test_what_belongs_to_the_tests(path: bytes, settled: bool) -> None:
    assert is_settled(path, {"known.json"}) is settled


def function_project(folder: Path, hidden: str = "cases.py") -> list[dict[str, Any]]:
    (project(folder) / "f.py").write_text("def f(n):\n    return sum(i for i in range(n * 5000))\n")
    (folder / hidden).parent.mkdir(parents=True, exist_ok=True)
    (folder / hidden).write_text(
        "def inputs(rng):\n    return [[rng.randrange(200, 300)] for _ in range(4)]\n"
        "def reference(n):\n    return (n * 5000) * (n * 5000 - 1) // 2\n"
    )
    return [{"use": "function", "target": "f:f", "cases": hidden}]


async def test_a_function_is_measured_from_outside(tmp_path: Path, home: Path) -> None:
    scorers = function_project(tmp_path)
    entries = [
        script("fast", "printf 'def f(n):\\n    n *= 5000\\n    return n * (n - 1) // 2\\n' > f.py"),
        script("wrong", "printf 'def f(n):\\n    return 19900\\n' > f.py"),
        script("type", "printf 'def f(n):\\n    n *= 5000\\n    return n * (n - 1) / 2\\n' > f.py"),
        script(
            "clock",
            "printf 'import time\\ntime.perf_counter = time.time = lambda: 0\\n' | cat - f.py > g; mv g f.py",
        ),
    ]
    made = spec(tmp_path, entries, scorers=scorers)
    verdict = await run(home, made)
    assert verdict.winner == "fast", [(a.name, a.reasons, a.metrics, a.speedup) for a in verdict.attempts]
    fast, wrong, kind, clock = verdict.attempts
    assert fast.speedup is not None
    assert fast.speedup.vs_base > 1.5
    assert fast.metrics["function"].details.keys() == {"import_ms", "first_call_ms"}
    assert "f:f(2" in wrong.reasons[0]
    assert "is 19900, not" in wrong.reasons[0]
    assert ".0, not" in kind.reasons[0]
    assert clock.speedup is None or clock.speedup.vs_base < 1.5


async def test_hidden_files_must_be_hidden(tmp_path: Path, home: Path) -> None:
    scorers = function_project(tmp_path, "project/cases.py")
    with pytest.raises(
        SpecError, match=r"scorers\[1\]\.cases.*lies in the project, where every agent sees it"
    ):
        await run(home, spec(tmp_path, [script("a", "true")], scorers=scorers))
    scorers[0]["cases"] = "gone.py"
    with pytest.raises(SpecError, match="is not there"):
        await run(home, spec(tmp_path, [script("a", "true")], scorers=scorers))


async def test_a_build_may_write_in_the_project_only(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    (place / "make.sh").write_text("cat value.txt > made.txt\n")
    (place / "bench.sh").write_text("cat made.txt\n")
    entries = [
        script("good", "echo 50 > value.txt"),
        script("outside", "echo 'echo x > /etc/made' >> make.sh"),
        script("protected", "echo 'echo echo 1 > bench.sh' >> make.sh"),
        script("fails", "echo 'echo oh dear >&2; exit 3' >> make.sh"),
    ]
    verdict = await run(home, spec(tmp_path, entries, task={"build": "sh make.sh"}))
    assert verdict.winner == "good", [(a.name, a.reasons) for a in verdict.attempts]
    _, outside, protected, fails = (a.reasons[0] if a.reasons else "" for a in verdict.attempts)
    assert outside == "the build 'sh make.sh' wrote to /etc/made, which it may not"
    assert protected == "the build 'sh make.sh' wrote to /app/bench.sh, which it may not"
    assert "exit status 3" in fails
    assert "oh dear" in fails


async def test_a_machine_is_carried_only_where_it_adds(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    (place / "bench.sh").write_text("added-tool 2>/dev/null || cat value.txt\n")
    adds = (
        "printf '#!/bin/sh\\necho 40\\n' > /usr/bin/added-tool; chmod +x /usr/bin/added-tool; echo '# x' >> check.txt;"
        "mkdir -p /usr/local/bin; printf '#!/bin/sh\\necho 1\\n' > /usr/local/bin/cat; chmod +x /usr/local/bin/cat;"
        "echo 'echo 1' > ~/.bashrc; echo x > /etc/profile.d/x.sh; echo ok > /opt/data"
    )
    made = spec(tmp_path, [script("adds", adds)], task={"carry": "machine"}, keep={"winner": "replay"})
    verdict = await run(home, made)
    attempt = verdict.attempts[0]
    assert attempt.metrics["benchmark"].value == 40
    assert verdict.winner == "adds"
    assert any("no clean-room score" in r for r in attempt.reasons)
    assert any("start-up files" in n for n in attempt.notes)
    assert any("/usr/local/bin/cat" in p for p in attempt.machine["programs"])
    plain = await run(home, spec(tmp_path, [script("adds", adds)], task={"carry": "patch"}))
    assert plain.attempts[0].metrics["benchmark"].value == 100
