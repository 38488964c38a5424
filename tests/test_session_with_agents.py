"""Sessions of agents that people have, which keep their conversations in files of their own inside the sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from race.agent_inside import InsideOptions
from race.errors import AgentError
from race.plugins import find, provider
from race.sandbox import Directory, Sandbox, SandboxSpec
from race.session import Session
from race.testing import Script, ScriptedModel
from race.testing import Turn as Says
from race.tools import bring
from race.turns import Turn
from tests.test_race_with_agents import AGENTS, shared

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    pytest.mark.timeout(300),  # npm may have to fetch 860 MB the first time
]

__all__ = ["shared"]

SCRIPTS = {
    "two": Script(("echo one > one.txt", Says("First."), "cat one.txt"), "Second."),
    "cut": Script(("echo begun > begun.txt; sleep 30", "cat begun.txt"), "After it."),
}


@pytest.fixture
def anyio_backend() -> str:
    """One event loop: what takes the time here are other people's programs, for which it makes no difference."""
    return "asyncio"


@pytest.fixture(scope="module")
def equipped(shared: Path) -> str:
    """A sandbox with all three agents in it, to be forked."""

    async def prepare() -> None:
        made = provider("local", shared, "test")
        try:
            sandbox = await made.create(SandboxSpec("equipped", network="none"))
            await sandbox.write([Directory(b"/app")])
            await bring(sandbox, [find("agents", name, "test")(InsideOptions()) for name in AGENTS], shared)
            await sandbox.stop()
        finally:
            await made.aclose()

    anyio.run(prepare)
    return "equipped"


@pytest.fixture
async def place(shared: Path, equipped: str) -> AsyncIterator[Sandbox]:
    """A sandbox without a network."""
    made = provider("local", shared, "test")
    sandbox = await (await made.get(equipped)).fork("place")
    yield sandbox
    with anyio.CancelScope(shield=True):
        await sandbox.delete()
        await made.aclose()


def message(turn: Turn) -> str:
    assert turn.trajectory is not None
    return turn.trajectory.message


async def test_two_prompts_of_three_agents_at_once_in_one_sandbox(shared: Path, place: Sandbox) -> None:
    async with ScriptedModel(SCRIPTS) as server:

        async def converse(agent: str) -> None:
            given: dict[str, Any] = {"base_url": server.url, "api_key_env": "", "model": f"{agent}/two"}
            async with Session.open(place.name, home=shared, agent=agent, workdir="/app", **given) as session:
                assert message(await session.prompt("Begin.")) == "First."
            async with Session.attach(session.id, home=shared) as again:
                turn = await again.prompt("Go on with it.")
                assert message(turn) == "Second."
                assert again.usage.input_tokens == server.usage[f"{agent}/two"].input_tokens
                await again.delete()
            last = next(r for r in reversed(server.requests) if r.model == f"{agent}/two")
            assert b"Begin." in last.body
            assert b"Go on with it." in last.body

        async with anyio.create_task_group() as group:
            for agent in AGENTS:
                group.start_soon(converse, agent)
        # Each has asked as often as its script has turns: what was answered before was not asked again.
        assert {a: server.count(f"{a}/two") for a in AGENTS} == dict.fromkeys(AGENTS, 4)


@pytest.mark.parametrize("agent", AGENTS)
async def test_an_answer_that_was_cut_stays_in_the_conversation(
    shared: Path, place: Sandbox, agent: str
) -> None:
    async with ScriptedModel(SCRIPTS) as server:
        given: dict[str, Any] = {"base_url": server.url, "api_key_env": "", "model": "cut"}
        async with Session.open(place.name, home=shared, agent=agent, workdir="/app", **given) as session:
            async with anyio.create_task_group() as group:
                group.start_soon(session.prompt, "Begin.")
                # Until the command runs, and the agent has written down that it was asked to run it.
                kept = f"grep -rq 'sleep 30' /var/lib/race-agent/{session.id}"
                written = f"until [ -s begun.txt ] && {kept}; do sleep 0.1; done"
                assert (await place.exec(written, cwd="/app", timeout=60)).exit_code == 0
                group.cancel_scope.cancel()
            assert session.turn(1).state == "interrupted"
            turn = await session.prompt("Go on with it.")
            assert message(turn) == "After it."
            assert server.count("cut") == 3
            await place.exec(f"rm -rf /var/lib/race-agent/{session.id}")
            with pytest.raises(AgentError, match=r"its conversation .* is gone"):
                await session.prompt("And on.")
            await session.delete()
