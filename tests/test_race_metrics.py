"""Whole races with constraints, workloads, scores and tests that flake."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest

from race.errors import Rejected, SpecError
from race.scoring import FAILED, Replay, Sample, Score, ScoreContext
from tests.racing import SCORERS, project, run, script, spec


@pytest.fixture
def anyio_backend() -> str:
    """One event loop: what is tried here are numbers, of whole races."""
    return "asyncio"


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
    with pytest.raises(SpecError, match=r"finals\.no_worse\.memry: names no metric besides what decides"):
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


FLAKY = """import os, status, unittest

class Draws(unittest.TestCase):
    def test_flakes(self):
        self.assertGreater(os.urandom(1)[0], 100)

    def test_status(self):
        self.assertEqual(status.IS, "good")
"""


@pytest.mark.anyio
async def test_a_flaky_test_is_told_from_a_broken_candidate_by_name(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    (place / "status.py").write_text("IS = 'good'\n")
    (place / "test_draws.py").write_text(FLAKY)
    sound = [script(f"sound-{n}", f"echo {n + 1} >value.txt") for n in range(3)]
    broken = script("broken", "echo IS = 1 >status.py; echo 1 >value.txt")
    scorers = [{"use": "tests", "run": "python -m unittest -q"}, SCORERS[1]]
    verdict = await run(home, spec(tmp_path, [*sound, broken], scorers=scorers, finals={"mode": "quick"}))
    by_name = {a.name: a for a in verdict.attempts}
    assert by_name["broken"].state == "ineligible"
    assert "test_status" in by_name["broken"].reasons[0]
    # One that fails all of its three draws, with a probability of 0.06, is called broken as well.
    assert sum(by_name[f"sound-{n}"].eligible for n in range(3)) >= 1


@pytest.mark.anyio
async def test_the_winner_is_measured_once_more(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    events: list[Any] = []
    verdict = await run(
        home, spec(tmp_path, [script("a", "echo 50 >value.txt"), script("b", "true")]), events
    )
    first, second = verdict.attempts
    assert first.confirmed is not None
    assert first.speedup is not None
    assert first.confirmed.vs_base == pytest.approx(2, abs=0.01)
    assert first.confirmed.low <= 2 <= first.confirmed.high
    assert second.confirmed is None
    taken = [e.data["round"] for e in events if e.kind == "finals.sample" and e.attempt == "a"]
    assert len(taken) == len(first.metrics["benchmark"].samples) + 1 + 2  # a warm-up before, and twice after


class Sometimes:
    """A metric that has no number any more for one attempt after so many rounds."""

    unit = "points"
    goal = "min"
    last = 0

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        if context.attempt == "frail" and context.round > self.last:
            raise Rejected("it fell apart")
        return Sample({"base": 100.0, "frail": 10.0}.get(context.attempt, 50.0))


@pytest.mark.anyio
async def test_a_winner_that_fails_when_it_is_measured_once_more_does_not_win(
    tmp_path: Path, home: Path
) -> None:
    project(tmp_path)
    scorers = [{"use": f"{__name__}:Sometimes", "name": "rate"}]
    made = spec(tmp_path, [script("frail", "true"), script("sound", "true")], scorers=scorers)
    Sometimes.last = 99
    sure = await run(home, made)
    assert sure.winner == "frail"
    Sometimes.last = len(sure.attempts[0].metrics["rate"].samples)
    verdict = await run(home, made)
    assert verdict.winner == "sound"
    assert "failed when it was measured once more: it fell apart" in verdict.attempts[0].reasons[0]


TWO = [
    {"use": "benchmark", "name": "time", "run": "cat value.txt", "unit": "points"},
    {"use": "benchmark", "name": "memory", "run": "cat memory.txt", "unit": "bytes"},
]


@pytest.mark.anyio
async def test_several_metrics_decide_by_their_weights_and_the_front_is_shown(
    tmp_path: Path, home: Path
) -> None:
    (project(tmp_path) / "memory.txt").write_text("100\n")
    entries = [
        script("fast", "echo 40 >value.txt"),  # 2.5 times in the one
        script("small", "echo 20 >memory.txt"),  # 5 times in the other
        script("both", "echo 50 >value.txt; echo 50 >memory.txt"),
        script("less", "echo 60 >value.txt; echo 50 >memory.txt"),
    ]
    finals = {"mode": "quick", "weights": {"time": 3, "memory": 1}}
    verdict = await run(home, spec(tmp_path, entries, scorers=TWO, finals=finals))
    fast, small, both, _ = verdict.attempts
    assert verdict.winner == "both"  # 2^(3/4) 2^(1/4) = 2, and 2.5^(3/4) = 1.99 where 5^(1/4) = 1.5
    assert both.speedup is not None
    assert both.speedup.vs_base == pytest.approx(2, abs=0.01)
    assert fast.speedup is not None
    assert fast.speedup.vs_base == pytest.approx(2.5**0.75, abs=0.01)
    assert (small.metrics["time"].value, small.metrics["memory"].value) == (100, 20)
    assert verdict.pareto == ("fast", "small", "both")


@pytest.mark.anyio
async def test_weights_of_what_is_no_metric(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    made = spec(tmp_path, [script("a", "true")], finals={"weights": {"speed": 1}})
    with pytest.raises(
        SpecError, match=r"finals\.weights\.speed: names no metric whose values are ratios; known: "
    ):
        await run(home, made)


CASES = """n=$(cat value.txt); echo '<testsuite>' >report.xml; i=0
while [ $i -lt 40 ]; do
  [ $i -lt $n ] && how= || how='<failure/>'
  echo "<testcase name='c$i'>$how</testcase>" >>report.xml; i=$((i+1))
done; echo "$(cat extra.txt)</testsuite>" >>report.xml; [ $n -ge 40 ]
"""


@pytest.mark.anyio
async def test_cases_that_pass_or_fail_are_compared_case_by_case(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    (place / "value.txt").write_text("10\n")
    (place / "extra.txt").write_text("\n")
    (place / "bench.sh").write_text(CASES)
    added = "for i in $(seq 99); do echo \"<testcase name='x$i'/>\"; done >extra.txt"
    entries = [
        script("much", "echo 34 >value.txt"),
        script(
            "more",
            "echo 37 >value.txt; echo; echo '# longer' >>value.txt; sed -i 2d value.txt; echo >>extra.txt",
        ),
        script("little", "echo 12 >value.txt"),  # two of forty are no evidence
        script("adds", added),  # of its own making
    ]
    scorer = {
        "use": "benchmark",
        "run": "sh bench.sh",
        "format": "junit",
        "file": "report.xml",
        "goal": "max",
    }
    verdict = await run(home, spec(tmp_path, entries, scorers=[scorer]))
    much, more, little, adds = verdict.attempts
    assert verdict.base.metrics["benchmark"].value == pytest.approx(0.25)
    assert verdict.winner == "much"  # three cases do not tell the two apart, and its change is smaller
    assert verdict.tied_with == ("more",)
    assert much.metrics["benchmark"].cases is not None
    assert much.metrics["benchmark"].cases.model_dump() == {
        "passed": 34,
        "total": 40,
        "gained": 24,
        "lost": 0,
    }
    assert "tied with much" in more.reasons[0]
    assert adds.metrics["benchmark"].value == pytest.approx(0.25)
    assert little.metrics["benchmark"].cases is not None
    assert little.metrics["benchmark"].cases.gained == 2
    alone = await run(home, spec(tmp_path, [entries[2]], scorers=[scorer]))
    assert alone.winner is None


class Behaves:
    """A metric with a behaviour that a verdict has to warn of."""

    unit = "points"
    goal = "min"
    how = ""

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        drawn = random.Random(f"{context.round} {context.attempt}").uniform(-0.002, 0.002)
        number = context.round
        factor = {
            "bimodal samples": 1.3 if int(10000 * abs(drawn)) % 2 else 1.0,
            "warm-up": 1 + 0.5 * 0.6**number,
            "drift": 1 + 0.03 * number,
            "first sample unlike the rest": 3.0 if number == 0 and context.attempt == "a" else 1.0,
        }.get(self.how, 1.0)
        if self.how == "fails" and context.attempt == "a" and number % 5 == 4:
            raise Rejected("it failed")
        return Sample(factor * (1 + drawn) * (100 if context.attempt == "base" else 99.3))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "how", ["bimodal samples", "warm-up", "drift", "first sample unlike the rest", "fails"]
)
async def test_a_benchmark_that_misbehaves_is_warned_of(tmp_path: Path, home: Path, how: str) -> None:
    project(tmp_path)
    Behaves.how = how
    scorers = [{"use": f"{__name__}:Behaves", "name": "odd"}]
    finals = {"mode": "standard", "indifference": 0.001}
    verdict = await run(
        home, spec(tmp_path, [script("a", "true"), script("b", "true")], scorers=scorers, finals=finals)
    )
    if how == "fails":
        assert "it failed" in verdict.attempts[0].reasons[0]
    else:
        assert any(text.startswith(how) for text in verdict.warnings), verdict.warnings


@pytest.mark.anyio
async def test_a_benchmark_that_hangs(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    scorers = [
        {"use": "benchmark", "run": "[ $(cat value.txt) = 100 ] || sleep 60; cat value.txt", "unit": "points"}
    ]
    scorers[0]["timeout"] = 0.5
    verdict = await run(home, spec(tmp_path, [script("a", "echo 1 >value.txt")], scorers=scorers))
    assert "timed out" in verdict.attempts[0].reasons[0]
    assert verdict.winner is None


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.long
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


@pytest.mark.anyio
async def test_measurements_are_pinned(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    core = max(os.sched_getaffinity(0))
    (place / "bench.sh").write_text(f"grep -q 'allowed_list:.{core}$' /proc/self/status && cat value.txt\n")
    (place / "check.sh").write_text("grep allowed_list /proc/self/status >&2; [ $(nproc) -ge 1 ]\n")
    verdict = await run(home, spec(tmp_path, [script("a", "echo 5 >value.txt")], finals={"cores": [core]}))
    assert verdict.winner == "a", verdict.attempts[0].reasons
    made = spec(tmp_path, [script("a", "true")], finals={"cores": [4095]})
    with pytest.raises(SpecError, match=r"finals\.cores: the processors here are"):
        await run(home, made)
