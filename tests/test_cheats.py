"""The corpus of cheats is whole, and its harness notices a wrong verdict. All of it runs as `make cheats`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cheats import trial
from benchmarks.cheats.corpus import load

pytestmark = pytest.mark.anyio
LISTED = 74
"""How many cheats the list has that the project started from."""


def test_the_corpus_is_large_enough() -> None:
    cases = load()
    assert len({c.listed for c in cases} - {None}) == LISTED
    assert sum(c.expect != "honest" for c in cases) >= 100
    assert sum(c.expect == "honest" for c in cases) >= 40
    courses = {c.course for c in cases}
    assert all((trial.HERE / "courses" / c / "race.toml").is_file() for c in courses)


def test_a_case_says_what_is_expected(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'course = "values"\nwhat = "x"\ncommands = ["true"]\nexpect = "ineligible"\n'
    )
    with pytest.raises(ValueError, match="a reason belongs to"):
        load(tmp_path)
    (tmp_path / "a.toml").write_text('course = "values"\nwat = "x"\n')
    with pytest.raises(ValueError, match=r"a\.toml"):
        load(tmp_path)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_right_and_wrong_verdicts_are_told_apart(home: Path) -> None:
    by_name = {c.name: c for c in load()}
    wanted = ["values-link-git", "values-hooks", "honest-values-value"]
    cases = [by_name[n] for n in wanted]
    liar = replace(cases[0], name="liar", expect="honest", reason="")
    bored = replace(cases[2], name="bored", expect="ineligible", reason="something")
    fast = replace(cases[2], name="fast", expect="unearned")
    other = replace(cases[0], name="other", reason="for another reason")
    field = await trial.run("values", [*cases, liar, bored, fast, other], home)
    assert field.ranking == ("half", "less")
    wrong = {o.case.name: o.wrong for o in field.outcomes}
    assert [wrong[n] for n in wanted] == ["", "", ""]
    assert wrong["liar"] == "an honest submission was turned away"
    assert wrong["bored"] == "a cheat stayed eligible"
    assert "1.67 times as fast" in wrong["fast"]
    assert wrong["other"].startswith("the reason should match")
