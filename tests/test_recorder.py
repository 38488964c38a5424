"""What is kept of an attempt, and how its steps are counted."""

from __future__ import annotations

import pytest

from race.agent import Recorder, TokenUsage, add_usage
from race.bash import BashResult
from race.errors import LimitReached


def result(command: str) -> BashResult:
    return BashResult(command, 0, "", timed_out=False, seconds=0.1, timeout=10)


def test_turns_are_steps_with_all_that_happened_in_them() -> None:
    recorder = Recorder(5)
    recorder.begin_step()
    recorder.say("first")
    recorder.say("more")
    recorder.before_command()
    recorder.ran(result("ls"))
    recorder.before_command()
    recorder.ran(result("pwd"))
    recorder.spent(TokenUsage(10, 2, 4, 0.5))
    recorder.begin_step()
    recorder.spent(TokenUsage(20, 3, 10, 0.25))
    first, second = recorder.trajectory().steps
    assert (first.number, first.text, [c.command for c in first.commands]) == (
        1,
        "first\nmore",
        ["ls", "pwd"],
    )
    assert first.usage == TokenUsage(10, 2, 4, 0.5)
    assert (second.number, second.text, second.commands) == (2, "", ())
    assert first.started <= second.started
    assert recorder.usage == TokenUsage(30, 5, 14, 0.75)
    assert recorder.last_command == "pwd"


def test_without_turns_every_command_is_a_step() -> None:
    recorder = Recorder(2)
    for command in ("a", "b"):
        recorder.before_command()
        recorder.ran(result(command))
    assert [s.commands[0].command for s in recorder.trajectory().steps] == ["a", "b"]
    with pytest.raises(LimitReached, match="limit of 2 steps") as reached:
        recorder.before_command()
    assert reached.value.limit == "steps"
    assert recorder.step == 2


def test_the_limit_holds_for_turns_but_not_for_commands_within_one() -> None:
    recorder = Recorder(1)
    recorder.begin_step()
    for _ in range(3):
        recorder.before_command()
    with pytest.raises(LimitReached):
        recorder.begin_step()
    assert recorder.step == 1


def test_what_was_recorded_can_be_had_at_any_time() -> None:
    seen: list[tuple[int, int]] = []
    recorder = Recorder(3, lambda r: seen.append((r.step, r.usage.input_tokens)))
    recorder.begin_step()
    recorder.spent(TokenUsage(7, 1))
    recorder.ran(result("ls"))
    recorder.say("done")
    assert seen == [(1, 0), (1, 7), (1, 7), (1, 7)]
    unfinished = recorder.trajectory("ended by its limit of 10 s", "time")
    assert (unfinished.outcome, unfinished.message) == ("time", "ended by its limit of 10 s")
    recorder.say("later")
    assert unfinished.steps[0].text == "done"


def test_the_last_thing_said_is_the_message() -> None:
    recorder = Recorder(3)
    assert recorder.trajectory().message == ""
    recorder.begin_step()
    recorder.say("one")
    recorder.begin_step()
    assert recorder.trajectory().message == "one"
    assert recorder.trajectory("own").message == "own"


def test_unknown_cost_is_not_nothing() -> None:
    assert add_usage().cost_usd is None
    assert add_usage(TokenUsage(1, 1, 0, 0.5), TokenUsage(1, 1)).cost_usd is None
    assert add_usage(TokenUsage(1, 1, 0, 0.5), TokenUsage()).cost_usd == 0.5
    assert add_usage(TokenUsage(cost_usd=0.0), TokenUsage(cost_usd=0.0)).cost_usd == 0.0


def test_half_characters_can_be_stored() -> None:
    recorder = Recorder(1)
    recorder.say("half \ud83d")
    trajectory = recorder.trajectory("\ude00 half")
    assert trajectory.steps[0].text == "half ?"
    assert trajectory.message.encode() == b"? half"
