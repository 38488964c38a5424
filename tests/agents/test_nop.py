"""The agent that does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from race_agents.nop import Nop

from race.agent import Agent, Trajectory

if TYPE_CHECKING:
    from conftest import Attempt

pytestmark = pytest.mark.anyio


async def test_nothing_is_done_for_nothing(attempt: Attempt) -> None:
    done = await attempt.run(Nop())
    assert (done.steps, done.outcome, done.message) == ((), "done", "did nothing")
    assert done.usage.cost_usd == 0
    assert attempt.recorder.trajectory() == Trajectory()
    assert await attempt.files() == []


def test_it_is_an_agent() -> None:
    assert isinstance(Nop(), Agent)
