"""The built-in scorers' own rules."""

from __future__ import annotations

import pytest
from race_scorers.integrity import violations

from race.errors import Rejected
from race.readers import one_number
from race.sandbox import Entry, File, Link, Removed
from race.submission import PathChange, Submission
from race.task import Task


def handed_in(*changes: tuple[str, str, str]) -> Submission:
    """A submission of (path, status, mode or link target)."""
    paths: list[PathChange] = []
    entries: list[Entry] = []
    for path, status, mode in changes:
        raw = path.encode()
        if status == "D":
            paths.append(PathChange(raw, "D", "100644", "000000", "a", "0"))
            entries.append(Removed(raw))
        elif mode.startswith("->"):
            paths.append(PathChange(raw, status, "000000", "120000", "0", "b"))
            entries.append(Link(raw, mode[2:].encode()))
        else:
            old = "0" if status == "A" else "b" if mode != "100644" else "a"
            paths.append(PathChange(raw, status, "100644", mode, old, "b"))
            entries.append(File(raw, b"x"))
    return Submission(tuple(paths), tuple(entries))


TASK = Task("t", "p", "/app", protected=("bench.py", "tests/", "test_*.py"), editable=())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("bench.py", "M", "100644"), "bench.py is protected and was changed"),
        (("bench.py", "D", ""), "bench.py is protected and was deleted"),
        (("bench.py", "M", "100755"), "bench.py is protected"),
        (("bench.py", "T", "->x"), "bench.py is protected and was replaced by a link"),
        (("tests/data/golden.json", "M", "100644"), "tests/data/golden.json is protected"),
        (("tests/conftest.py", "A", "100644"), "tests/conftest.py is protected and was added"),
        (("test_a.py", "M", "100644"), "test_a.py is protected"),
        (("sub/test_a.py", "D", ""), "sub/test_a.py is protected"),
        (("l", "A", "->/etc/passwd"), "l is a link to '/etc/passwd', outside of the project"),
        (("d/l", "A", "->../../x"), "outside of the project"),
        (("l", "A", "->.git/config"), "outside of the project"),
    ],
)
def test_what_breaks_the_rules(change: tuple[str, str, str], says: str) -> None:
    found = violations(handed_in(change), TASK)
    assert len(found) == 1
    assert says in found[0]


@pytest.mark.parametrize(
    "change",
    [
        ("a.py", "M", "100644"),
        ("a.py", "D", ""),
        ("test_new.py", "A", "100644"),
        ("d/l", "A", "->../a.py"),
        ("l", "A", "->..x"),
    ],
)
def test_what_keeps_to_the_rules(change: tuple[str, str, str]) -> None:
    assert violations(handed_in(change), TASK) == []


def test_only_editable_paths_may_change() -> None:
    task = Task("t", "p", "/app", protected=("bench.py",), editable=("src/**",))
    found = violations(
        handed_in(("src/a.py", "M", "100644"), ("b.py", "A", "100644"), ("bench.py", "M", "100644")), task
    )
    assert found == ["bench.py is protected and was changed", "b.py was added, but only src/** may change"]


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), (" 12.5\n", 12.5), ("1e-3", 0.001), (".5", 0.5), ("+3", 3), ("7.", 7)]
)
def test_one_number(text: str, value: float) -> None:
    assert one_number(text.encode(), "x") == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "nan",
        "inf",
        "-inf",
        "0",
        "0.0",
        "-1",
        "1_0",
        "\u0661",
        "1 2",
        "1\n2",
        "1,5",
        "0x10",
        "1e999",
        "ms 1",
        "1ms",
        "\x1b[1m1",
        "1e-400",
        "9" * 400,
        "\xff",
    ],
)
def test_what_is_not_one_number(text: str) -> None:
    with pytest.raises(Rejected) as caught:
        one_number(text.encode("latin-1") if text == "\xff" else text.encode(), "bench")
    assert "bench" in str(caught.value)
    assert "\x1b" not in str(caught.value)
