"""A longer suite, on demand: ``pytest -m agents``. It fetches a gigabyte the first time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from race_agents.acp import Acp

from race.plugins import agent as make_agent
from race.plugins import provider
from race.sandbox import Directory, SandboxSpec
from race.session import Session
from race.testing import Script, ScriptedModel, Turn
from race.tools import needed
from tests.npm import fetch, state_folder
from tests.racing import run
from tests.test_race_with_agents import KEY, counts, race_on_primes
from tests.test_race_with_models import FASTER

pytestmark = [
    pytest.mark.agents,
    pytest.mark.anyio,
    pytest.mark.timeout(900),
]

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo A sieve."
SCRIPTS = {
    "sieve": Script(("cat primes.py", FASTER, "python3 -m unittest -q; python3 bench.py"), "A sieve."),
    "submit": Script(("cat primes.py", FASTER, SUBMIT), "A sieve."),
    "busy": Script((FASTER, "echo once more"), repeat=True),
}
AGENTS = {"opencode": {"agent": "acp", "use": "opencode"}, "gemini": {"agent": "acp", "use": "gemini"}}
AGENTS |= {"qwen": {"agent": "acp", "use": "qwen"}, "mini": {"agent": "mini"}}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield from state_folder(tmp_path / "home")


@pytest.mark.parametrize("name", sorted(AGENTS))
async def test_it_wins_a_race_and_is_ended_by_its_budget(
    name: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with ScriptedModel(SCRIPTS) as server:
        given = {**AGENTS[name], "base_url": server.url, "api_key_env": "PLANTED_KEY", "time_limit": 120}
        good = "submit" if name == "mini" else "sieve"
        entries = [{**given, "name": "good", "model": good}]
        entries += [{**given, "name": "busy", "model": "busy", "budget": {"requests": 6}}]
        network = {"agent": "none", "setup": "full"}
        spec = race_on_primes(tmp_path / "primes", entries)
        spec = spec.model_copy(
            update={
                "base": spec.base.model_copy(update={"network": spec.base.network.model_copy(update=network)})
            }
        )
        await anyio.to_thread.run_sync(fetch, state, needed([make_agent(spec, 0)]))
        verdict = await run(state, spec)
        counts(verdict, server)
    by_name = {a.name: a for a in verdict.attempts}
    assert by_name["good"].outcome == "done", by_name["good"].reasons
    assert by_name["busy"].outcome == "budget", by_name["busy"].reasons
    assert verdict.status == "won", [a.reasons for a in verdict.attempts]


@pytest.mark.parametrize("use", ["gemini", "opencode"])
async def test_a_session_goes_on_where_it_was(use: str, state: Path) -> None:
    await anyio.to_thread.run_sync(fetch, state, Acp(Acp.Options(use=use)).tools())
    made = provider("local", state, "test")
    sandbox = await made.create(SandboxSpec("place", network="none"))
    await sandbox.write([Directory(b"/app")])
    scripts = {"two": Script(("echo one > one.txt", Turn("First."), "cat one.txt"), "Second.")}
    async with ScriptedModel(scripts) as server:
        given = {"use": use, "model": "two", "base_url": server.url, "api_key_env": ""}
        async with Session.open("place", home=state, agent="acp", workdir="/app", **given) as session:
            said = [(await session.prompt(text)).trajectory for text in ("Begin.", "Go on with it.")]
    assert [t.message for t in said if t] == ["First.", "Second."]
    with anyio.CancelScope(shield=True):
        await made.aclose()
