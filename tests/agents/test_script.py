"""The agent that runs commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from pydantic import ValidationError
from race_agents.script import Script

from race.agent import Agent
from race.errors import LimitReached, SandboxError

if TYPE_CHECKING:
    from conftest import Attempt

pytestmark = pytest.mark.anyio


def script(*commands: str, stop_on_error: bool = False) -> Script:
    return Script(Script.Options(commands=commands, stop_on_error=stop_on_error))


async def test_commands_run_in_order_a_step_each(attempt: Attempt) -> None:
    done = await attempt.run(script("echo one > log", "echo two >> log", "cat log"))
    assert [c.command for s in done.steps for c in s.commands] == [
        "echo one > log",
        "echo two >> log",
        "cat log",
    ]
    assert [s.number for s in done.steps] == [1, 2, 3]
    assert done.steps[-1].commands[0].output == "one\ntwo\n"
    assert (done.outcome, done.message) == ("done", "ran 3 of 3 commands; the last one: exit status: 0")
    assert done.usage.cost_usd == 0


async def test_a_failed_command_is_a_result(attempt: Attempt) -> None:
    done = await attempt.run(script("exit 3", "touch after", "exit 4"))
    assert [s.commands[0].exit_code for s in done.steps] == [3, 0, 4]
    assert done.message == "ran 3 of 3 commands; the last one: exit status: 4"
    assert await attempt.files() == ["after"]


async def test_a_failed_command_can_be_the_last(attempt: Attempt) -> None:
    done = await attempt.run(script("true", "exit 3", "touch after", stop_on_error=True))
    assert done.message == "ran 2 of 3 commands; the last one: exit status: 3"
    assert await attempt.files() == []


async def test_a_time_out_is_a_failure_too(attempt: Attempt) -> None:
    attempt.bash.timeout = 0.2
    done = await attempt.run(script("sleep 30", "touch after", stop_on_error=True))
    assert "timed out after 0.2 s" in done.message
    assert await attempt.files() == []


async def test_the_limit_on_steps_holds(attempt: Attempt) -> None:
    attempt.begin(steps=2)
    with pytest.raises(LimitReached):
        await attempt.run(script("touch a", "touch b", "touch c"))
    assert await attempt.files() == ["a", "b"]
    assert attempt.recorder.trajectory().usage.cost_usd == 0


async def test_a_lost_sandbox_ends_it(attempt: Attempt) -> None:
    async def lose() -> None:
        while not await attempt.files():  # noqa: ASYNC110 - nothing tells of files in a sandbox
            await anyio.sleep(0.02)
        await attempt.fork.stop()

    async with anyio.create_task_group() as group:
        group.start_soon(lose)
        with pytest.raises(SandboxError):
            await attempt.run(script("touch begun; sleep 30", "touch after"))
    assert attempt.recorder.step == 1


@pytest.mark.parametrize(
    "options", [{}, {"commands": []}, {"commands": ["echo a\0b"]}, {"commands": ["ls"], "comands": ["ls"]}]
)
def test_options_that_are_wrong_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Script.Options.model_validate(options)


def test_options_are_values() -> None:
    options = Script.Options.model_validate({"commands": ["ls", "pwd"]})
    assert (options.commands, options.stop_on_error) == (("ls", "pwd"), False)
    with pytest.raises(ValidationError, match="frozen"):
        options.stop_on_error = True  # type: ignore[misc]
    assert isinstance(Script(options), Agent)
