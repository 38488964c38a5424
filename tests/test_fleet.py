"""Fleets: made by one process, commanded by a second, deleted by a third."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from race.errors import SpecError
from race.fleet import Fleet, FleetPolicy, FleetSpec, fleets
from race.plugins import provider
from race.removal import collect
from race.testing import Script, ScriptedModel
from tests.cli.test_cli import Shell


async def sandboxes(home: Path) -> list[str]:
    made = provider("local", home, "test")
    try:
        return [i.name for i in await made.list() if i.labels.get("fleet")]
    finally:
        await made.aclose()


@pytest.mark.timeout(90)
def test_sixteen_members_and_three_processes(tmp_path: Path, home: Path) -> None:
    shell = Shell(tmp_path, home)
    defaults = ("--default", '{"agent": "script", "commands": ["echo $((6 * 7)) > answer"]}')
    arguments = ("--count", "16", "--network", "none", "--workdir", "/tmp", "--max-members", "16")
    status, out, err = shell.run("fleet", "create", "crew", *arguments, *defaults)
    assert status == 0, err
    members = out.split()
    assert len(set(members)) == 16
    assert shell.run("fleet", "create", "crew")[0] == 2
    status, out, err = shell.run("fleet", "prompt", "crew", "Answer.", "--json")
    assert status == 0, err
    assert [a["member"] for a in json.loads(out)] == members
    status, out, _ = shell.run("fleet", "exec", "--json", "crew", "cat answer")
    assert status == 0
    assert {a["stdout"] for a in json.loads(out)} == {"42\n"}
    one = ("fleet", "exec", "--member", members[3], "--timeout", "0.2", "crew", "sleep 5")
    status, out, _ = shell.run(*one)
    assert status == 1
    assert out.strip() == f"{members[3]}: [timed out]"
    status, _, err = shell.run("fleet", "exec", "--member", "x-1", "crew", "true")
    assert status == 2
    assert "no member 'x-1'" in err
    status, _, err = shell.run("fleet", "scale", "crew", "17")
    assert status == 2
    assert "0 to 16 members, not 17" in err
    assert "14 members" in shell.run("fleet", "scale", "crew", "14")[1]
    shown = json.loads(shell.run("fleet", "show", "crew", "--json")[1])
    assert [m["id"] for m in shown["members"]] == members[:14]
    assert "crew" in shell.run("fleet", "ls")[1]
    shell.run("gc")
    assert len(json.loads(shell.run("fleet", "show", "crew", "--json")[1])["members"]) == 14
    status, out, err = shell.run("fleet", "rm", "crew")
    assert (status, out) == (0, "removed crew\n"), err
    assert shell.sandboxes() == []
    status, _, err = shell.run("fleet", "show", "crew")
    assert status == 2
    assert "no fleet 'crew'" in err


@pytest.mark.anyio
async def test_mixed_agents_and_an_error_of_one(home: Path) -> None:
    defaults = (
        {"agent": "script", "commands": ["echo a > which"]},
        {"agent": "nop"},
        {"agent": "tests.plugins:ModelDown"},
    )
    spec = FleetSpec(network="none", workdir="/tmp")
    async with Fleet.create("mixed", 3, spec=spec, defaults=defaults, home=home) as fleet:
        first, second, third = await fleet.prompt("Say which you are.")
        assert first.result is not None
        assert first.result.steps[0].commands[0].exit_code == 0
        assert second.result is not None
        assert second.result.message == "did nothing"
        assert third.result is None
        assert third.error == "no model there"
    async with Fleet.attach("mixed", home=home) as fleet:
        answers = await fleet.exec("cat which", members=[fleet.members[0].id])
        assert answers[0].result is not None
        assert answers[0].result.stdout == b"a\n"
        # One that is gone is an error of its own; the others answer.
        made = provider("local", home, "test")
        await (await made.get(fleet.members[1].sandbox)).delete()
        await made.aclose()
        answers = await fleet.exec("true")
        assert [bool(a.error) for a in answers] == [False, True, False]
        with pytest.raises(SpecError, match="unknown key"):
            await fleet.prompt("x", modl="y")
        assert await fleet.delete() == []
    assert fleets(home) == []
    assert await sandboxes(home) == []


@pytest.mark.anyio
async def test_the_spending_limit_holds_across_calls(home: Path) -> None:
    scripts = {"worker": Script(("echo one", "echo two", "echo three"), "Done.")}
    async with ScriptedModel(scripts, price=(0.0, 0.001)) as server:
        options = {"agent": "openai", "model": "worker", "base_url": server.url, "api_key_env": ""}
        spec = FleetSpec(network="none", workdir="/tmp", policy=FleetPolicy(cost_usd=0.03))
        async with Fleet.create("paid", 1, spec=spec, home=home) as fleet:
            (answer,) = await fleet.prompt("Work.", **options)
            assert answer.result is not None
            assert answer.result.outcome == "budget"
            assert 0.03 <= fleet.spent_usd < 0.1
            with pytest.raises(SpecError, match=r"has spent .* of the 0\.03 USD"):
                await fleet.prompt("Work.", **options)
            await fleet.delete()


@pytest.mark.anyio
async def test_a_fleet_whose_lifetime_is_over(home: Path) -> None:
    spec = FleetSpec(network="none", policy=FleetPolicy(lifetime=3600))
    async with Fleet.create("old", 2, spec=spec, home=home) as fleet:
        db = sqlite3.connect(home / "race.db")
        db.execute("UPDATE fleets SET created = created - 7200")
        db.commit()
        db.close()
        with pytest.raises(SpecError, match="lifetime of the fleet 'old'"):
            await fleet.exec("true")
    removed, problems = await collect(home)
    assert problems == []
    assert len([line for line in removed if "fleet-old" in line]) == 2
    assert fleets(home) == []
    assert await sandboxes(home) == []
