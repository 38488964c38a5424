"""Agents that people have, in forks without a network: npm packages at the versions that this repository pins."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from race.agent_inside import InsideOptions
from race.gateway import Record, Source
from race.plugins import find
from race.spec import RaceSpec, from_data
from race.testing import Script, ScriptedModel
from race.tools import needed
from race.verdict import Verdict
from tests.npm import fetch, state_folder
from tests.racing import run
from tests.test_race_with_models import FASTER, PRIMES

pytestmark = pytest.mark.timeout(300)  # npm may have to fetch 860 MB the first time

KEY = "sk-planted-secret-4711"
AGENTS = ("codex", "claude", "pi")
SNOOP = """env > env.txt
cat /proc/*/environ /proc/*/cmdline > proc.txt 2>/dev/null
grep -rls planted-secret /app /etc /home /root /run /tmp /dev/shm /var/lib /var/tmp > found.txt
true"""
SCRIPTS = {
    "sieve": Script(("cat primes.py", FASTER, "python3 -m unittest -q; python3 bench.py"), "A sieve."),
    "busy": Script((FASTER, "echo once more"), repeat=True),
    "snoop": Script((SNOOP,), "Nothing found."),
}


@pytest.fixture
def anyio_backend() -> str:
    """One event loop: what takes the time here are other people's programs, for which it makes no difference."""
    return "asyncio"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder for a module: what is fetched and prepared serves all its tests."""
    for place in state_folder(tmp_path_factory.mktemp("agents")):
        fetch(place, needed(find("agents", name, "test")(InsideOptions()) for name in AGENTS))
        yield place


def race_on_primes(folder: Path, entries: list[dict[str, Any]], **tables: Any) -> RaceSpec:
    shutil.copytree(PRIMES, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    bench = (PRIMES / "bench.py").read_text().replace("1_000_000", "20_000").replace("78_498", "2262")
    (folder / "bench.py").write_text(bench)
    data = tomllib.loads((PRIMES / "race.toml").read_text())
    data["base"] |= {"setup": [], "env": {}, "network": {"agent": "none", "setup": "none"}}
    data["finals"] = {"mode": "quick"}
    return from_data({**data, "entries": entries, **tables}, folder / "race.toml")


def entry(agent: str, model: str, server: ScriptedModel, **more: Any) -> dict[str, Any]:
    given = {"base_url": server.url, "api_key_env": "PLANTED_KEY"}
    return {"name": f"{agent}-{model}", "agent": agent, "model": f"{agent}/{model}", **given, **more}


def counts(verdict: Verdict, server: ScriptedModel) -> None:
    """What is charged is what was served, to the token."""
    for attempt in verdict.attempts:
        served = server.usage[attempt.model or ""]
        assert attempt.usage.model_dump() == {
            "input_tokens": served.input_tokens,
            "output_tokens": served.output_tokens,
            "cached_tokens": served.cached_tokens,
            "cost_usd": pytest.approx(served.cost_usd),
        }


@pytest.mark.anyio
async def test_codex_claude_and_pi_race_and_one_wins_and_the_race_can_be_replayed(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with ScriptedModel(SCRIPTS, price=(1e-6, 5e-6)) as server:
        spec = race_on_primes(tmp_path / "primes", [entry(a, "sieve", server) for a in AGENTS])
        verdict = await run(shared, spec)
        counts(verdict, server)
        assert {
            r.headers.get("x-api-key") or r.headers["authorization"].removeprefix("Bearer ")
            for r in server.requests
        } == {KEY}
    assert verdict.status == "won", [a.reasons for a in verdict.attempts]
    assert {verdict.winner, *verdict.tied_with} <= {f"{a}-sieve" for a in AGENTS}
    for attempt in verdict.attempts:
        assert attempt.eligible, attempt.reasons
        assert (attempt.outcome, attempt.message) == ("done", "A sieve.")
        assert attempt.steps == 4
        assert attempt.speedup is not None
        assert attempt.speedup.vs_base > 2
    # The server is gone, and so is the key: what the models say comes from the record.
    monkeypatch.delenv("PLANTED_KEY")
    record = Record(shared / "races" / verdict.race / "exchanges")
    again = await run(shared, spec, replay=Source(record))
    for before, after in zip(verdict.attempts, again.attempts, strict=True):
        assert (after.outcome, after.message, after.usage) == ("done", "A sieve.", before.usage), (
            after.reasons
        )
        assert after.patch is not None
        assert before.patch is not None
        assert Path(after.patch).read_bytes() == Path(before.patch).read_bytes()


@pytest.mark.anyio
async def test_a_model_that_never_finishes_costs_its_budget_and_its_edits_count(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with ScriptedModel(SCRIPTS) as server:
        entries = [entry(a, "busy", server, budget={"requests": 5}) for a in (*AGENTS, "openai")]
        verdict = await run(shared, race_on_primes(tmp_path / "primes", entries))
        counts(verdict, server)
        assert {a: server.count(f"{a}/busy") for a in (*AGENTS, "openai")} == dict.fromkeys(
            (*AGENTS, "openai"), 5
        )
    assert verdict.status == "won", [a.reasons for a in verdict.attempts]
    for attempt in verdict.attempts:
        assert attempt.eligible, attempt.reasons  # perhaps eliminated, by less than a hair
        assert attempt.outcome == "budget"
        assert "the attempt has had its 5 requests" in attempt.message
        assert attempt.seconds < 60


@pytest.mark.anyio
async def test_no_key_in_any_fork_and_in_nothing_that_is_written(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with ScriptedModel(SCRIPTS) as server:
        entries = [entry(a, "snoop", server) for a in AGENTS]
        events: list[Any] = []
        verdict = await run(shared, race_on_primes(tmp_path / "primes", entries), events)
    assert len(server.usage) == len(AGENTS)
    for attempt in verdict.attempts:
        assert attempt.patch is not None
        patch = Path(attempt.patch).read_text(errors="replace")
        assert "env.txt" in patch
        assert "RACE_TOKEN" in patch or "race-" in patch
        assert KEY not in patch
    assert KEY not in str(events)
    for file in (
        p for p in shared.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size < 1 << 24
    ):
        assert KEY.encode() not in file.read_bytes(), file


@pytest.mark.long
@pytest.mark.anyio
async def test_a_hanging_model_ends_the_attempt_at_its_deadline_with_that_reason(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with ScriptedModel(SCRIPTS) as server:
        entries = [
            entry(a, m, server, time_limit=12) for a in AGENTS for m in ("err-hang", "err-reset", "err-401")
        ]
        spec = race_on_primes(tmp_path / "primes", entries, gateway={"request_timeout": 2, "idle_timeout": 2})
        verdict = await run(shared, spec)
    for attempt in verdict.attempts:
        reason = attempt.reasons[0]
        assert attempt.state == "failed"
        assert attempt.seconds < 25
        if attempt.name.endswith("hang"):
            assert "no answer within 2 s" in reason or "no whole answer within 2 s" in reason
        elif attempt.name.endswith("reset"):
            assert "the connection failed" in reason
        else:
            assert "status 401: wrong API key" in reason
