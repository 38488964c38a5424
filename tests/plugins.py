"""Plugins that tests name in race files as ``tests.plugins:NAME``."""

from __future__ import annotations

import anyio

from race.agent import AgentContext, Trajectory
from race.bash import Bash
from race.errors import ModelError
from race.scoring import Replay, Sample, Score, ScoreContext
from race.task import Task


class Raises:
    """An agent that breaks after its first command."""

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        await bash("echo 1 > value.txt")
        raise ZeroDivisionError("oh dear")


class ModelDown:
    """An agent whose model cannot be reached."""

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        raise ModelError("no model there")


class Counts:
    """An agent that takes one off, and cannot go on where it was."""

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        await bash("echo $(($(cat value.txt) - 1)) > value.txt")
        return context.recorder.trajectory("one less")


class Sleeps:
    """An agent that never ends."""

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        await anyio.sleep_forever()
        raise AssertionError


class ReturnsNonsense:
    """An agent of the wrong shape."""

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> object:
        return "done"


class BrokenGate:
    """A gate that breaks."""

    async def score(self, replay: Replay, context: ScoreContext) -> Score:
        raise KeyError("gone")


class BrokenOnHalf:
    """A metric that breaks on the candidate whose value is 50."""

    unit = "x"
    goal = "min"

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        done = await replay.run("cat value.txt", timeout=10)
        value = float(done.stdout)
        if value == 50:
            raise KeyError("gone")
        return Sample(value)


class Untidy:
    """A gate that leaves something in its replay, and fails if it finds it there."""

    async def score(self, replay: Replay, context: ScoreContext) -> Score:
        done = await replay.run("test ! -e left-behind && touch left-behind", timeout=10)
        return Score(done.exit_code == 0, "somebody was here before")
