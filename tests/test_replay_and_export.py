"""A race again from its record, and what its agents did in the forms that others read."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from race.gateway import Record, Source
from race.spec import RaceSpec
from race.store import Store
from race.testing import Script, ScriptedModel
from race.trajectories import atif, jsonl, kept, span
from tests.racing import project, run, spec

pytestmark = pytest.mark.anyio

SCRIPTS = {
    "half": Script(("date +%N; echo 50 > value.txt", "sh bench.sh"), "Half of it."),
    "none": Script(("ls -la --time-style=full-iso",), "Nothing to do."),
}


def race_with_models(folder: Path, url: str, prompt: str = "Make it less.") -> RaceSpec:
    entries = [{"name": m, "model": m, "base_url": url, "api_key_env": "A_KEY_OF_NOBODY"} for m in SCRIPTS]
    return spec(folder, entries, task={"prompt": prompt})


async def test_a_race_is_replayed_without_a_key_and_without_a_server(tmp_path: Path, home: Path) -> None:
    project(tmp_path)
    os.environ["A_KEY_OF_NOBODY"] = "sk-planted-4711"
    try:
        async with ScriptedModel(SCRIPTS, price=(1e-6, 1e-6)) as server:
            first = await run(home, race_with_models(tmp_path, server.url))
    finally:
        del os.environ["A_KEY_OF_NOBODY"]
    assert first.winner == "half"
    store = Store(home)
    record = store.folder(first.race) / "exchanges"
    again = await run(
        home, race_with_models(tmp_path, "https://nowhere.invalid/v1"), replay=Source(Record(record))
    )
    for before, after in zip(first.attempts, again.attempts, strict=True):
        assert (after.name, after.state, after.message, after.usage) == (
            before.name,
            before.state,
            before.message,
            before.usage,
        )
        assert Path(after.patch or "").read_bytes() == Path(before.patch or "").read_bytes()
    other = race_with_models(tmp_path, "https://nowhere.invalid/v1", "Make it more.")
    refused = await run(home, other, replay=Source(Record(record)))
    assert {a.state for a in refused.attempts} == {"failed"}
    assert "holds no answer to request 1 of 'half'" in refused.attempts[0].reasons[0]
    told = kept(store.folder(first.race), "half")
    store.close()
    assert told is not None
    assert [c.command for s in told.trajectory.steps for c in s.commands] == list(SCRIPTS["half"].commands)
    _check_atif(atif(told))
    lines = [json.loads(line) for line in jsonl(told)]
    assert [line["number"] for line in lines] == [1, 2, 3]
    tree = span(told)
    assert tree.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert tree.attributes["gen_ai.usage.input_tokens"] == first.attempts[0].usage.input_tokens
    assert [c.attributes["gen_ai.operation.name"] for c in tree.children] == ["chat"] * 3
    assert tree.children[0].children[0].name == "execute_tool bash"
    everything = json.dumps([atif(told), lines]) + (record / "half.jsonl").read_text()
    assert "sk-planted-4711" not in everything


STEP = {"step_id", "timestamp", "source", "message", "tool_calls", "observation", "metrics"}


def _check_atif(document: dict[str, Any]) -> None:
    """What Harbor's validator checks of the parts that are written here."""
    assert set(document) == {"schema_version", "session_id", "agent", "steps", "notes", "final_metrics"}
    assert document["schema_version"] == "ATIF-v1.7"
    assert set(document["agent"]) == {"name", "version", "model_name"}
    steps = document["steps"]
    assert [s["step_id"] for s in steps] == list(range(1, len(steps) + 1))
    assert steps[0]["source"] == "user"
    assert set(steps[0]) == {"step_id", "timestamp", "source", "message"}
    for step in steps[1:]:
        assert set(step) <= STEP
        assert isinstance(step["message"], str)
        datetime.fromisoformat(step["timestamp"])
        calls = {c["tool_call_id"] for c in step.get("tool_calls", ())}
        assert {r["source_call_id"] for r in step.get("observation", {}).get("results", ())} == calls
    total = document["final_metrics"]
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        assert total[f"total_{name}"] == sum(s.get("metrics", {}).get(name, 0) for s in steps)
    assert total["total_steps"] == len(steps)
