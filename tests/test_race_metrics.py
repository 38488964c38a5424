"""Whole races with constraints, workloads, scores and tests that flake."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest

from race.errors import SpecError
from race.scoring import FAILED, Replay, Sample, Score, ScoreContext
from tests.racing import SCORERS, project, run, script, spec


class Share:
    """A metric of scores from 0 to 1."""

    unit = "score"
    goal = "max"
    scale = "linear"

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        done = await replay.must_run("cat value.txt", timeout=10)
        return Sample(float(done.stdout))


@pytest.mark.anyio
async def test_a_secondary_metric_must_not_get_worse(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    (place / "memory.txt").write_text("1000\n")
    scorers: list[dict[str, Any]] = [
        {"use": "benchmark", "run": "cat value.txt", "unit": "points"},
        {"use": "benchmark", "name": "memory", "run": "cat memory.txt", "unit": "bytes"},
    ]
    entries = [
        script("greedy", "echo 10 >value.txt; echo 1030 >memory.txt"),
        script("modest", "echo 50 >value.txt; echo 1015 >memory.txt"),
    ]
    made = spec(tmp_path, entries, scorers=scorers, finals={"mode": "quick", "no_worse": {"memory": 0.02}})
    verdict = await run(home, made)
    assert verdict.winner == "modest"
    greedy, modest = verdict.attempts
    assert greedy.state == "ineligible"
    assert greedy.reasons == ("memory: 3.0% worse than the base, where 2.0% is allowed",)
    assert greedy.metrics["memory"].value == 1030
    assert modest.metrics["memory"].value == 1015
    assert modest.metrics["benchmark"].circumstances
    assert verdict.base.metrics["memory"].value == 1000
    race = next((home / "races").iterdir())
    assert (race / "samples.svg").read_text().startswith("<svg ")


@pytest.mark.anyio
async def test_a_workload_must_not_get_much_worse(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    (place / "value.txt").write_text('{"a": 100, "b": 100}\n')
    scorers = [{"use": "benchmark", "run": "cat value.txt", "format": "json", "path": "*", "unit": "points"}]
    entries = [
        script("lopsided", """echo '{"a": 10, "b": 150}' >value.txt"""),
        script("even", """echo '{"a": 60, "b": 60}' >value.txt"""),
    ]
    made = spec(tmp_path, entries, scorers=scorers, finals={"mode": "quick", "no_workload_worse": 0.1})
    verdict = await run(home, made)
    lopsided, even = verdict.attempts
    assert verdict.winner == "even"
    assert lopsided.state == "ineligible"
    assert "the workload 'b' is 50.0% worse than for the base, where 10.0% is allowed" in lopsided.reasons[0]
    assert even.metrics["benchmark"].workloads == pytest.approx({"a": 100 / 60, "b": 100 / 60})
    assert even.metrics["benchmark"].value == pytest.approx(60)


@pytest.mark.anyio
async def test_a_constraint_on_what_is_no_metric(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    made = spec(tmp_path, [script("a", "true")], finals={"no_worse": {"memry": 0.1}})
    with pytest.raises(
        SpecError, match=r"finals\.no_worse\.memry: names no metric besides the one that decides"
    ):
        await run(home, made)


@pytest.mark.anyio
async def test_scores_may_be_zero(tmp_path: Path, home: Path) -> None:
    (project(tmp_path) / "value.txt").write_text("0\n")
    entries = [script("half", "echo 0.5 >value.txt"), script("third", "echo 0.3 >value.txt")]
    scorers = [{"use": f"{__name__}:Share", "name": "share"}]
    verdict = await run(home, spec(tmp_path, entries, scorers=scorers))
    assert verdict.winner == "half"
    assert verdict.base.metrics["share"].value == 0


class Wavering:
    """A gate that answers in turn for the attempt and for the base: "." passes, a letter names the test that fails."""

    answers: ClassVar[dict[str, list[str]]] = {}

    async def score(self, replay: Replay, context: ScoreContext) -> Score:
        answer = self.answers[context.attempt].pop(0)
        return Score(answer == ".", "unlucky", {} if answer == "." else {FAILED: json.dumps([answer])})


@pytest.mark.anyio
async def test_everybody_is_turned_away_at_the_first_measurement(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    scorers = [{"use": "benchmark", "run": "sh bench.sh", "unit": "s"}]
    verdict = await run(home, spec(tmp_path, [script("liar", "echo 1 >value.txt")], scorers=scorers))
    assert verdict.status == "no_winner"
    assert "it claims to save" in verdict.attempts[0].reasons[0]
    assert verdict.base.metrics["benchmark"].value == 100


@pytest.mark.anyio
async def test_a_broken_candidate_is_not_called_flaky(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    events: list[Any] = []
    made = spec(tmp_path, [script("broken", "echo bad >status.txt; echo 1 >value.txt")])
    verdict = await run(home, made, events)
    (broken,) = verdict.attempts
    assert broken.state == "ineligible"
    assert "status is broken" in broken.reasons[0]
    (asked,) = [e.data for e in events if e.kind == "attempt.gate_repeated"]
    numbers = {"gate": "tests", "asked": 3, "passed": 0, "base_asked": 0, "base_failed": 0}
    assert asked | numbers == asked


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("candidate", "base", "won", "says"),
    [
        (
            "a.a",
            ".a",
            True,
            "waver: flaky: failed 2 of 3 times, and 1 of 2 times for the base; first: unlucky",
        ),
        (
            "ab.",
            "a..b",
            True,
            "waver: flaky: failed 2 of 3 times, and 2 of 4 times for the base; first: unlucky",
        ),
        (
            "a..",
            10 * ".",
            False,
            "waver: unlucky (failed 1 of 3 times, and never in 10 for the base: the change",
        ),
        (
            "a..",
            10 * "b",
            False,
            "waver: unlucky (failed 1 of 3 times, and never in 10 for the base: the change",
        ),
        ("aaa", "", False, "waver: unlucky (failed 3 of 3 times)"),
    ],
)
async def test_a_test_that_flakes(
    tmp_path: Path, home: Path, candidate: str, base: str, won: bool, says: str
) -> None:
    project(tmp_path)
    Wavering.answers = {"a": list(candidate), "base": list(base)}
    scorers = [{"use": f"{__name__}:Wavering", "name": "waver"}]
    verdict = await run(home, spec(tmp_path, [script("a", "echo 5 >value.txt")], scorers=scorers))
    assert (verdict.winner == "a") == won
    assert verdict.attempts[0].reasons[0].startswith(says)
    assert Wavering.answers == {"a": [], "base": []}


FLAKY = """import os, unittest

class Draws(unittest.TestCase):
    def test_flakes(self):
        self.assertGreater(os.urandom(1)[0], 100)

    def test_status(self):
        self.assertEqual(open("status.txt").read(), "good\\n")
"""


@pytest.mark.anyio
async def test_a_flaky_test_is_told_from_a_broken_candidate_by_name(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    (place / "status.txt").write_text("good\n")
    (place / "test_draws.py").write_text(FLAKY)
    sound = [script(f"sound-{n}", f"echo {n + 1} >value.txt") for n in range(3)]
    broken = script("broken", "echo bad >status.txt; echo 1 >value.txt")
    scorers = [{"use": "tests", "run": "python -m unittest -q"}, SCORERS[1]]
    verdict = await run(home, spec(tmp_path, [*sound, broken], scorers=scorers, finals={"mode": "quick"}))
    by_name = {a.name: a for a in verdict.attempts}
    assert by_name["broken"].state == "ineligible"
    assert "test_status" in by_name["broken"].reasons[0]
    # One that fails all of its three draws, with a probability of 0.06, is called broken as well.
    assert sum(by_name[f"sound-{n}"].eligible for n in range(3)) >= 1


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.anyio
async def test_instructions_and_memory(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    (place / "work.sh").write_text("read n <value.txt; i=0; while [ $i -lt ${n}0 ]; do i=$((i+1)); done\n")
    scorers = [
        {"use": "command", "name": "count", "run": "sh work.sh", "measure": "instructions"},
        {"use": "command", "name": "memory", "run": "sh work.sh", "measure": "memory"},
    ]
    made = spec(tmp_path, [script("a", "echo 10 >value.txt")], scorers=scorers, finals={"max_rounds": 3})
    verdict = await run(home, made)
    assert verdict.winner == "a"
    count = verdict.attempts[0].metrics["count"]
    assert count.unit == "instructions"
    assert count.value > 100_000
    assert 0 <= count.spread < 0.02
    assert verdict.attempts[0].metrics["memory"].value > 100_000
