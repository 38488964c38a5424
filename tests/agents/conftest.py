"""What the agents' tests share: a real sandbox, and an attempt in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import pytest

from race.agent import AgentContext, Recorder
from race.bash import Bash
from race.gateway import Gateway, Record
from race.task import Task

if TYPE_CHECKING:
    from race.agent import Agent, Trajectory
    from race.sandbox import Sandbox

TASK = Task("primes", "Make count_primes faster.", "/app", protected=("bench.py",), editable=("*.py",))


@dataclass
class Attempt:
    """An attempt under way: run any agent in it, look at what it left."""

    fork: Sandbox
    record: Record | None = None

    def __post_init__(self) -> None:
        self.begin(steps=20)

    def begin(self, *, steps: int) -> None:
        self.recorder = Recorder(steps)
        self.bash = Bash(self.fork, workdir="/app", timeout=10, recorder=self.recorder)

    async def run(
        self, agent: Agent, model: str | None = None, *, hint: str = "", seed: int = 7, time_limit: float = 60
    ) -> Trajectory:
        async with Gateway(record=self.record) as gateway:
            deadline = anyio.current_time() + time_limit
            account = gateway.account("one", self.recorder, seed=seed, deadline=deadline)
            context = AgentContext("one", model, hint, seed, time_limit, self.recorder, account=account)
            return await agent.run(TASK, self.bash, context)

    async def files(self) -> list[str]:
        listed = await self.fork.exec("ls", cwd="/app")
        return listed.stdout.decode("utf-8", "replace").split()


@pytest.fixture
def attempt(fork: Sandbox) -> Attempt:
    return Attempt(fork)
