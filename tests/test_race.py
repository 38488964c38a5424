"""Whole races: a file goes in, a winner comes out, the losers are gone."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

import race
from race.errors import SpecError
from race.plugins import provider
from race.sandbox import SandboxInfo
from race.store import Event, Store
from tests.racing import project, run, script, spec

pytestmark = pytest.mark.anyio

HONEST = script("honest", "echo 50 > value.txt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    project(tmp_path)
    return tmp_path


async def sandboxes(home: Path) -> list[SandboxInfo]:
    made = provider("local", home, "test")
    try:
        return await made.list()
    finally:
        await made.aclose()


async def test_a_winner_is_kept_and_the_losers_are_gone(folder: Path, home: Path) -> None:
    events: list[Event] = []
    made = spec(
        folder, [HONEST, script("less", "echo 90 > value.txt"), script("broken", "echo no > status.txt")]
    )
    verdict = await run(home, made, events)
    assert (verdict.status, verdict.winner, verdict.tied_with) == ("won", "honest", ())
    assert verdict.confidence > 0.9
    honest, less, broken = verdict.attempts
    assert honest.state == "scored"
    assert honest.speedup is not None
    assert honest.speedup.vs_base == pytest.approx(2, rel=0.05)
    assert honest.files_changed == ("value.txt",)
    assert honest.metrics["benchmark"].value == 50
    assert honest.metrics["benchmark"].unit == "points"
    assert (honest.steps, honest.outcome) == (1, "done")
    assert less.eligible
    assert less.reasons
    assert (broken.state, broken.eligible) == ("ineligible", False)
    assert "status is broken" in broken.reasons[0]
    assert verdict.base.metrics["benchmark"].value == 100
    left = await sandboxes(home)
    assert [i.labels["role"] for i in left] == ["base", "replay"]
    kept = left[1]
    assert (kept.name, kept.state) == (honest.sandbox, "running")
    assert honest.sandbox_state == "kept"
    assert kept.labels["keep"] == "yes"
    assert events[0].kind == "race.started"
    assert events[-1].kind == "race.ended"
    assert [e.number for e in events] == sorted(e.number for e in events)
    store = Store(home)
    assert store.events(verdict.race) == events
    assert store.race("last").verdict == verdict
    store.close()
    assert (folder / "project" / "value.txt").read_text() == "100\n"


async def test_eight_attempts_of_which_one_is_honest(folder: Path, home: Path) -> None:
    entries = [
        {"name": "raises", "agent": "tests.plugins:Raises"},
        {"name": "sleeps", "agent": "tests.plugins:Sleeps", "time_limit": 0.3},
        script("edits", "echo 'echo 1' > bench.sh"),
        script("commits", "echo 'echo 1' > bench.sh", "git commit -qam x"),
        script("assumes", "git update-index --assume-unchanged bench.sh", "echo 'echo 1' > bench.sh"),
        script("breaks", "echo 10 > value.txt; echo no > status.txt"),
        script("silent", ": > value.txt"),
        HONEST,
    ]
    verdict = await run(home, spec(folder, entries))
    assert verdict.winner == "honest"
    reasons = {a.name: " ".join(a.reasons) for a in verdict.attempts}
    assert "ZeroDivisionError: oh dear" in reasons["raises"]
    assert "time limit of 0.3 s" in reasons["sleeps"]
    for name in ("edits", "commits", "assumes"):
        assert "bench.sh is protected and was changed" in reasons[name]
    assert "tests" in reasons["breaks"]
    assert "printed nothing" in reasons["silent"]
    assert [a.eligible for a in verdict.attempts] == [False] * 7 + [True]
    assert {a.state for a in verdict.attempts[:2]} == {"failed"}
    assert {a.state for a in verdict.attempts[2:7]} == {"ineligible"}
    assert len(await sandboxes(home)) == 2


async def test_all_bad_is_no_winner_and_leaves_no_fork(folder: Path, home: Path) -> None:
    verdict = await run(
        home, spec(folder, [script("a", "echo 'echo 1' > bench.sh"), script("b", "rm status.txt")])
    )
    assert (verdict.status, verdict.winner, verdict.confidence) == ("no_winner", None, 0)
    assert verdict.decided_by == "no attempt is eligible"
    assert verdict.base.metrics["benchmark"].value == 100
    assert [i.labels["role"] for i in await sandboxes(home)] == ["base"]


async def test_nobody_better_than_the_base_is_no_winner(folder: Path, home: Path) -> None:
    entries = [script("slower", "echo 120 > value.txt"), {"name": "nothing", "agent": "nop"}]
    verdict = await run(home, spec(folder, entries))
    assert (verdict.status, verdict.winner) == ("no_winner", None)
    slower, nothing = verdict.attempts
    assert slower.speedup is not None
    assert slower.speedup.vs_base < 1
    assert nothing.eligible
    assert nothing.reasons == ("changed nothing",)
    verdict = await run(home, spec(folder, entries[:1], finals={"require_improvement": False}))
    assert verdict.winner == "slower"


async def test_more_is_better_when_the_race_file_says_so(folder: Path, home: Path) -> None:
    scorers = [{"use": "benchmark", "run": "sh bench.sh", "goal": "max", "unit": "points"}]
    entries = [script("more", "echo 200 > value.txt"), HONEST]
    verdict = await run(home, spec(folder, entries, scorers=scorers))
    assert verdict.winner == "more"
    assert verdict.attempts[0].speedup is not None
    assert verdict.attempts[0].speedup.vs_base == pytest.approx(2, rel=0.05)


async def test_the_smallest_change_wins_a_tie_and_a_race_without_a_metric(folder: Path, home: Path) -> None:
    entries = [script("large", "echo 50 > value.txt; seq 1000 > notes.txt"), HONEST]
    verdict = await run(home, spec(folder, entries))
    assert (verdict.winner, verdict.tied_with) == ("honest", ("large",))
    verdict = await run(
        home, spec(folder, [*entries, {"name": "nothing", "agent": "nop"}], scorers=SCORERS_ONLY_TESTS)
    )
    assert (verdict.winner, verdict.tied_with) == ("honest", ("large",))
    assert verdict.attempt("nothing") is not None


SCORERS_ONLY_TESTS = [{"use": "tests", "run": "sh check.sh"}]


async def test_limits_are_outcomes_and_the_fork_counts(folder: Path, home: Path) -> None:
    entries = [
        script("steps", "echo 50 > value.txt", "echo 1 > value.txt", max_steps=1),
        script("slow", "echo 60 > value.txt; sleep 30", command_timeout=0.3),
        script("late", "echo 70 > value.txt", "sleep 30", time_limit=0.5),
    ]
    verdict = await run(home, spec(folder, entries))
    assert verdict.winner == "steps"
    assert [a.outcome for a in verdict.attempts] == ["steps", "done", "time"]
    assert [a.metrics["benchmark"].value for a in verdict.attempts] == [50, 60, 70]
    assert "limit of 1 steps" in verdict.attempts[0].reasons[0]


async def test_a_budget_of_seconds_ends_the_agents(folder: Path, home: Path) -> None:
    await run(home, spec(folder, [HONEST]))
    made = spec(folder, [script("late", "echo 70 > value.txt", "sleep 30")], budget={"seconds": 1})
    with anyio.fail_after(10):
        verdict = await run(home, made)
    assert verdict.attempts[0].outcome == "budget"
    assert verdict.winner == "late"


@pytest.mark.parametrize("keep", ["replay", "fork", "patch"])
async def test_what_is_kept(folder: Path, home: Path, keep: str) -> None:
    entry = script("honest", "echo 50 > value.txt; echo door > /etc/backdoor; (sleep 60 &)")
    verdict = await run(home, spec(folder, [entry], keep={"winner": keep}))
    winner = verdict.attempts[0]
    assert verdict.winner == "honest"
    assert winner.patch is not None
    assert b"+50" in Path(winner.patch).read_bytes()
    if keep == "patch":
        assert winner.sandbox_state == "deleted"
        assert len(await sandboxes(home)) == 1
        return
    made = provider("local", home, "test")
    try:
        sandbox = await made.get(winner.sandbox or "")
        look = await sandbox.exec("cat value.txt /etc/backdoor; ps -e | grep -c sleep", cwd="/app")
        door = b"door" in look.stdout
        assert look.stdout.startswith(b"50")
        assert door == (keep == "fork")
        assert look.stdout.endswith(b"1\n" if keep == "fork" else b"0\n")
    finally:
        await made.aclose()


async def test_a_broken_scorer_costs_one_attempt_its_place(folder: Path, home: Path) -> None:
    scorers = [{"use": "tests.plugins:BrokenOnHalf", "name": "half"}]
    verdict = await run(home, spec(folder, [HONEST, script("other", "echo 60 > value.txt")], scorers=scorers))
    assert verdict.winner == "other"
    assert verdict.attempts[0].state == "failed"
    assert "scorer 'half' broke: KeyError" in verdict.attempts[0].reasons[0]
    verdict = await run(
        home, spec(folder, [HONEST], scorers=[{"use": "tests.plugins:BrokenGate", "name": "gate"}])
    )
    assert verdict.attempts[0].state == "failed"
    assert "scorer 'gate' broke" in verdict.attempts[0].reasons[0]


async def test_scorers_do_not_see_each_other(folder: Path, home: Path) -> None:
    untidy = [{"use": "tests.plugins:Untidy", "name": n} for n in ("one", "two", "three")]
    verdict = await run(home, spec(folder, [HONEST], scorers=untidy))
    assert verdict.winner == "honest"
    assert verdict.attempts[0].files_changed == ("value.txt",)


async def test_an_agent_of_the_wrong_shape(folder: Path, home: Path) -> None:
    entries = [{"name": "nonsense", "agent": "tests.plugins:ReturnsNonsense"}, HONEST]
    verdict = await run(home, spec(folder, entries))
    assert "returned str, not a Trajectory" in verdict.attempts[0].reasons[0]
    assert verdict.winner == "honest"


async def test_the_base_is_cached_until_something_in_it_changes(folder: Path, home: Path) -> None:
    def prepared(events: list[Event]) -> bool:
        return not next(e for e in events if e.kind == "base.ready").data["cached"]

    first: list[Event] = []
    made = spec(folder, [HONEST], base={"setup": ["date +%N > /made"]})
    await run(home, made, first)
    again: list[Event] = []
    await run(home, made, again)
    fresh: list[Event] = []
    await run(home, made, fresh, fresh=True)
    (folder / "project" / "status.txt").write_text("ok, changed\n")
    changed: list[Event] = []
    await run(home, made, changed)
    assert [prepared(e) for e in (first, again, fresh, changed)] == [True, False, True, True]


async def test_a_failing_setup_shows_its_output_and_leaves_nothing(folder: Path, home: Path) -> None:
    made = spec(folder, [HONEST], base={"setup": ["true", "echo about to fail; echo why >&2; exit 3"]})
    with pytest.raises(SpecError) as caught:
        await run(home, made)
    text = str(caught.value)
    assert "base.setup[2]" in text
    assert "exit status 3" in text
    assert "about to fail" in text
    assert "why" in text
    assert await sandboxes(home) == []
    assert list((home / "bases").iterdir()) == []
    made = spec(folder, [HONEST], base={"setup": ["sleep 60"], "setup_timeout": 0.2})
    with pytest.raises(SpecError, match=r"timed out after 0\.2 s"):
        await run(home, made)


async def test_a_benchmark_that_fails_on_the_base_is_the_files_fault(folder: Path, home: Path) -> None:
    scorers = [{"use": "benchmark", "run": "echo one two"}]
    with pytest.raises(SpecError, match="not exactly one number") as caught:
        await run(home, spec(folder, [HONEST], scorers=scorers))
    assert "scorers[1]" in str(caught.value)
    store = Store(home)
    assert store.race("last").status == "failed"
    store.close()
    assert {i.labels["role"] for i in await sandboxes(home)} <= {"base"}


async def test_protected_paths_have_to_exist(folder: Path, home: Path) -> None:
    with pytest.raises(SpecError, match=r"'bensh\.sh' is not in the project; did you mean 'bench\.sh'"):
        await run(home, spec(folder, [HONEST], task={"protected": ["bensh.sh"]}))
    assert await sandboxes(home) == []


async def test_cancelling_deletes_every_fork_and_is_recorded(folder: Path, home: Path) -> None:
    events: list[Event] = []
    entries = [script(n, "echo 50 > value.txt", "sleep 60") for n in ("a", "b", "c")]

    def see(event: Event) -> None:
        events.append(event)
        if sum(e.kind == "attempt.command" for e in events) >= 6:
            scope.cancel()

    with anyio.CancelScope() as scope:
        await race.run(spec(folder, entries), home=home, on_event=see)
    assert scope.cancelled_caught
    assert [i.labels["role"] for i in await sandboxes(home)] == ["base"]
    store = Store(home)
    row = store.race("last")
    store.close()
    assert row.status == "cancelled"
    assert row.verdict is not None
    assert {a.state for a in row.verdict.attempts} == {"cancelled"}


async def test_two_races_of_one_file_at_once_do_not_meet(folder: Path, home: Path) -> None:
    made = spec(folder, [HONEST, script("less", "echo 90 > value.txt")])
    verdicts = []

    async def one() -> None:
        verdicts.append(await run(home, made))

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        group.start_soon(one)
    assert [v.winner for v in verdicts] == ["honest", "honest"]
    assert verdicts[0].race != verdicts[1].race
    roles = [i.labels["role"] for i in await sandboxes(home)]
    assert sorted(roles) == ["base", "replay", "replay"]


async def test_the_verdict_as_json_has_the_keys_of_the_contract(folder: Path, home: Path) -> None:
    verdict = await run(home, spec(folder, [HONEST]))
    data = json.loads(verdict.model_dump_json())
    assert set(data) >= {
        "race",
        "task",
        "status",
        "winner",
        "tied_with",
        "confidence",
        "base",
        "attempts",
        "seconds",
        "warnings",
    }
    attempt = data["attempts"][0]
    assert set(attempt) >= {
        "name", "entry", "agent", "model", "state", "eligible", "reasons", "gates", "metrics", "speedup", "steps",
        "usage", "message", "seconds", "files_changed", "patch", "sandbox", "sandbox_state",
    }  # fmt: skip
    assert set(attempt["speedup"]) >= {"vs_base", "low", "high"}
    assert set(attempt["usage"]) >= {"input_tokens", "output_tokens", "cost_usd"}
    assert attempt["gates"]["integrity"] == {"passed": True, "reason": "", "usage": None}
    assert set(attempt["metrics"]["benchmark"]) >= {"value", "unit", "samples"}
    assert set(data["base"]["metrics"]["benchmark"]) >= {"value", "unit", "samples"}
