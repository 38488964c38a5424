"""An agent without a model: it runs the commands of its entry in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, field_validator

from race.agent import TokenUsage, Trajectory

if TYPE_CHECKING:
    from race.agent import AgentContext
    from race.bash import Bash, BashResult
    from race.task import Task


class ScriptOptions(BaseModel):
    """What an entry with ``agent = "script"`` may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    commands: tuple[str, ...] = Field(min_length=1)
    """Commands for bash, each run in a shell of its own that starts in the project's folder. One is one
    step."""

    stop_on_error: bool = False
    """Leave out the commands after one that ended with another status than 0, or timed out."""

    @field_validator("commands")
    @classmethod
    def _runnable(cls, commands: tuple[str, ...]) -> tuple[str, ...]:
        for number, command in enumerate(commands, 1):
            if "\0" in command:
                raise ValueError(
                    f"command {number} holds a NUL byte, which no shell can take: {command[:80]!r}"
                )
        return commands


class Script:
    """Runs commands, and says at the end how the last one ended.

    A status other than 0 is a result, after which the next command runs, unless
    `ScriptOptions.stop_on_error` is set. A sandbox that is lost ends the attempt, as does the limit on steps.
    """

    Options = ScriptOptions

    def __init__(self, options: ScriptOptions) -> None:
        self.options = options

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:  # noqa: ARG002 - the contract
        """Run the commands."""
        results: list[BashResult] = []
        for command in self.options.commands:
            context.recorder.begin_step()
            context.recorder.spent(
                TokenUsage(cost_usd=0.0)
            )  # no model, no cost: known, unlike that of a model
            results.append(await bash(command))
            if self.options.stop_on_error and results[-1].exit_code != 0:
                break
        return context.recorder.trajectory(_summary(results, len(self.options.commands)))

    async def resume(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Go on with the next command."""
        return await self.run(task, bash, context)


def _summary(results: list[BashResult], planned: int) -> str:
    last = results[-1]
    ended = last.text.partition("\n")[0]
    ran = f"ran {len(results)} of {planned} commands"
    return f"{ran}; the last one: {ended}"
