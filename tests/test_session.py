"""Sessions: one conversation over several prompts, processes and deaths; several conversations in one sandbox."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from race.errors import AgentError, ModelError, SandboxError, SpecError
from race.fleet import Fleet, FleetPolicy, FleetSpec
from race.sandbox import Sandbox
from race.session import Session, sessions
from race.testing import Script, ScriptedModel, Turn
from tests.cli.test_cli import Shell

SCRIPTS = {
    "two": Script(("echo one > one.txt", Turn("First."), "cat one.txt"), "Second."),
    "slow": Script(
        (
            "echo begun > begun.txt; sleep 60",
            Turn("After it."),
        ),
        "And more.",
    ),
}


# Speaks the Agent Client Protocol, and says what it was told before: from a file in its home, which it tells first when
# it loads a conversation, as the protocol wants.
ACP = """
import json, os, sys
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def tell(text):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    say(method="session/update", params={"sessionId": "s", "update": update})
kept = os.environ["HOME"] + "/kept"
for line in sys.stdin:
    asked = json.loads(line)
    method, given, result = asked["method"], asked["params"], {}
    if method == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {"loadSession": sys.argv[1] == "loads"}}
    elif method == "session/new":
        result = {"sessionId": "s-of-mine"}
    elif method == "session/load":
        assert given["sessionId"] == "s-of-mine", given
        tell(open(kept).read())
    elif method == "session/prompt":
        before = open(kept).read() if os.path.exists(kept) else ""
        text = given["prompt"][0]["text"].splitlines()[0]
        open(kept, "w").write(before + text + "|")
        tell("before: " + before)
        result = {"stopReason": "end_turn"}
    say(id=asked["id"], result=result)
"""


@pytest.fixture
def place(fork: Sandbox) -> str:
    """A sandbox with a project folder."""
    return fork.name


def model(server: ScriptedModel, name: str, **more: Any) -> dict[str, Any]:
    return {
        "agent": "openai",
        "model": name,
        "base_url": server.url,
        "api_key_env": "",
        "max_retries": 0,
        **more,
    }


def said(server: ScriptedModel) -> list[list[str]]:
    return [[m["role"] for m in r.json["messages"]] for r in server.requests]


@pytest.mark.anyio
async def test_a_later_prompt_goes_on_with_the_conversation(home: Path, place: str) -> None:
    async with ScriptedModel(SCRIPTS, price=(1e-6, 1e-6)) as server:
        async with Session.open(place, home=home, workdir="/app", **model(server, "two")) as session:
            first = await session.prompt("Begin.")
        async with Session.attach(session.id, home=home) as again:
            seen = again.events()[-1].number
            second = await again.prompt("Go on.")
            assert again.usage == server.usage["two"]
            later = again.events(after=seen)
            assert [e.kind for e in later][:3] == ["session.prompted", "session.kept", "session.asking"]
            assert [e.number for e in later] == sorted(e.number for e in later)
            assert min(e.number for e in later) > seen
            assert [t.number for t in again.turns] == [1, 2]
            assert again.turn(1) == first
            with pytest.raises(SpecError, match="has had 2 prompts; there is no prompt 3"):
                again.turn(3)
        begin = ["system", "user", "assistant", "tool"]
        assert said(server)[1:] == [
            begin,
            [*begin, "assistant", "user"],
            [*begin, "assistant", "user", *begin[2:]],
        ]
    assert first.trajectory is not None
    assert (first.state, first.trajectory.message) == ("answered", "First.")
    assert second.trajectory is not None
    assert second.trajectory.message == "Second."
    assert [c.output for s in second.trajectory.steps for c in s.commands] == ["one\n"]
    (row,) = sessions(home)
    assert (row.id, row.prompts, row.status, row.model) == (session.id, 2, "idle", "two")


@pytest.mark.anyio
async def test_its_budget_holds_over_all_prompts(home: Path, place: str) -> None:
    async with ScriptedModel(SCRIPTS) as server:
        options = model(server, "two", budget={"requests": 3})
        async with Session.open(place, home=home, workdir="/app", **options) as session:
            await session.prompt("Begin.")
            ended = await session.prompt("Go on.")
            refused = await session.prompt("And on.")
        assert server.count("two") == 3
    assert ended.trajectory is not None
    assert (ended.trajectory.outcome, ended.trajectory.message) == (
        "budget",
        "ended because the session has had its 3 requests",
    )
    assert refused.trajectory is not None
    assert refused.trajectory.outcome == "budget"


@pytest.mark.anyio
async def test_several_sessions_at_once_and_one_prompt_at_a_time(home: Path, place: str) -> None:
    async with ScriptedModel({"n": Script(("sleep 2; echo done",), "Done.")}) as server:
        times: list[tuple[float, float]] = []

        async def converse() -> None:
            async with Session.open(place, home=home, workdir="/app", **model(server, "n")) as session:
                async with anyio.create_task_group() as group:
                    group.start_soon(session.prompt, "Begin.")
                    while not any(  # noqa: ASYNC110 - the store has no bell
                        e.kind == "session.command" for e in session.events()
                    ):
                        await anyio.sleep(0.05)
                    async with Session.attach(session.id, home=home) as other:
                        with pytest.raises(SpecError, match=r"answering another prompt \(process \d+\)"):
                            await other.prompt("Me too.")
                        with pytest.raises(SpecError, match="answering another prompt"):
                            await other.delete()
                assert [t.state for t in session.turns] == ["answered"]
                at = {e.kind: e.time for e in session.events()}
                times.append((at["session.command"], at["session.result"]))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(converse)
    assert max(begun for begun, _ in times) < min(ended for _, ended in times)
    assert {r.prompts for r in sessions(home)} == {1}
    assert len(sessions(home)) == 3


@pytest.mark.anyio
async def test_what_fails_is_recorded_and_can_be_gone_on_from(home: Path, place: str) -> None:
    async with ScriptedModel(SCRIPTS) as server:
        async with Session.open(place, home=home, workdir="/app", **model(server, "two")) as session:
            await session.prompt("Begin.")
        server.__exit__(None, None, None)
        async with Session.attach(session.id, home=home) as session:
            with pytest.raises(ModelError, match="the connection failed"):
                await session.prompt("Go on.")
            for wrong, limit in ((" ", None), ("Go on.", 0.0)):
                with pytest.raises(SpecError, match=r"is empty|above 0, not 0"):
                    await session.prompt(wrong, time_limit=limit)
            assert [t.state for t in session.turns] == ["answered", "failed"]
            assert "the connection failed" in session.turns[1].reason
        with pytest.raises(SpecError, match=r"'script' starts anew .*: acp, claude, codex, openai, pi"):
            async with Session.open(place, home=home, agent="script", commands=["true"]):
                pass
        with pytest.raises(SandboxError):
            async with Session.open("nowhere", home=home, workdir="/app", **model(server, "two")):
                pass
        with pytest.raises(SpecError, match="unknown key"):
            async with Session.open(place, home=home, workdir="/app", **model(server, "two", modl="x")):
                pass


@pytest.mark.anyio
async def test_in_a_member_of_a_fleet_it_spends_what_the_fleet_may(home: Path) -> None:
    scripts = {"worker": Script(("echo one", "echo two", "echo three"), "Done.")}
    policy = FleetPolicy(cost_usd=0.03)
    async with (
        ScriptedModel(scripts, price=(0.0, 0.001)) as server,
        Fleet.create(
            "paid", 1, spec=FleetSpec(network="none", workdir="/tmp", policy=policy), home=home
        ) as fleet,
        Session.open(fleet.members[0].sandbox, home=home, **model(server, "worker")) as session,
    ):
        turn = await session.prompt("Work.")
        assert turn.trajectory is not None
        assert turn.trajectory.message == "ended because its fleet has spent what it may"
        assert fleet.spent_usd == pytest.approx(session.usage.cost_usd)
        await fleet.delete()


@pytest.mark.anyio
async def test_an_acp_agent_goes_on_if_it_offers_to(home: Path, place: str) -> None:
    def options(how: str) -> dict[str, Any]:
        given = {"agent": "acp", "model": "m", "api_key_env": "", "base_url": "http://127.0.0.1:1/v1"}
        return {**given, "argv": ["python3", "-c", ACP, how], "workdir": "/app"}

    async with Session.open(place, home=home, **options("loads")) as session:
        said = [(await session.prompt(text)).trajectory for text in ("One.", "Two.", "Three.")]
    assert [t.message for t in said if t] == ["before:", "before: One.|", "before: One.|Two.|"]
    async with Session.open(place, home=home, **options("forgets")) as session:
        with pytest.raises(AgentError, match="does not offer session/load"):
            await session.prompt("One.")


@pytest.mark.anyio
async def test_a_limit_and_a_cancellation_leave_it_whole(home: Path, place: str) -> None:
    async with ScriptedModel(SCRIPTS) as server, _opened(home, place, server, "slow") as session:
        ended = await session.prompt("Begin.", time_limit=1)
        assert ended.trajectory is not None
        assert ended.trajectory.outcome == "time"
        with anyio.move_on_after(30) as scope:
            more = await session.prompt("Go on.")
        assert not scope.cancelled_caught
        assert more.trajectory is not None
        assert more.trajectory.message == "After it."
        (call,) = [m for m in server.requests[-1].json["messages"] if m["role"] == "tool"]
        assert call["content"].startswith("(interrupted")


@pytest.mark.anyio
async def test_a_call_that_was_under_way_is_named_as_lost(home: Path, place: str) -> None:
    async with ScriptedModel(SCRIPTS) as server, _opened(home, place, server, "slow:60:two") as session:
        async with anyio.create_task_group() as group:
            group.start_soon(session.prompt, "Begin.")
            while not server.requests:  # noqa: ASYNC110 - of another thread
                await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        (turn,) = session.turns
    assert turn.state == "interrupted"
    assert turn.reason.endswith("a call of the model was under way, whose answer is lost")


def _opened(home: Path, place: str, server: ScriptedModel, name: str) -> Any:
    return Session.open(place, home=home, workdir="/app", **model(server, name))


@pytest.mark.timeout(120)  # three processes, two of which are killed in the middle of their work
def test_one_that_is_killed_is_gone_on_with_and_says_what_was_lost(tmp_path: Path, home: Path) -> None:
    shell = Shell(tmp_path, home)
    made = ("fleet", "create", "crew", "--network", "none", "--workdir", "/tmp")
    assert shell.run(*made)[0] == 0
    (sandbox,) = [s["name"] for s in shell.sandboxes()]
    with ScriptedModel(SCRIPTS) as server:
        settings = ("--set", f"base_url={server.url}", "--set", 'api_key_env=""', "--set", "max_retries=0")
        status, out, err = shell.run("session", "open", sandbox, "--model", "slow", *settings, "--json")
        assert status == 0, err
        name = json.loads(out)["session"]
        _killed(shell, name, lambda: "begun.txt" in shell.run("sandbox", "exec", sandbox, "ls /tmp")[1])
        assert server.count("slow") == 1
        (row,) = json.loads(shell.run("session", "ls", "--json")[1])
        assert row["status"] == "interrupted"
        status, out, err = shell.run("session", "prompt", name, "Go on.", "--json")
        assert status == 0, err
        assert "prompt 1 was interrupted; 0 of its commands are recorded; the command 'echo begun" in err
        turn = json.loads(out)
        assert (turn["number"], turn["message"]) == (2, "After it.")
        assert server.count("slow") == 2  # the first answer was recorded, and not asked for again
        shown = json.loads(shell.run("session", "show", name, "--json")[1])
        assert [p["state"] for p in shown["prompts"]] == ["interrupted", "answered"]
        used = server.usage["slow"]
        assert shown["usage"]["input_tokens"] == used.input_tokens
        status, out, _ = shell.run(
            "session", "events", name, "--after", str(turn["events"]["first"]), "--json"
        )
        assert status == 0
        found = json.loads(out)
        assert found[0]["number"] > turn["events"]["first"]
        assert found[-1]["kind"] == "session.answered"
        processes = shell.run("sandbox", "exec", sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")[1]
        assert "sleep 60" not in processes.replace("cat /proc", "")
    status, out, err = shell.run("session", "prompt", name, "Once more.", "--json")  # the server is gone
    assert status == 1
    assert "the connection failed" in err
    assert json.loads(out)["state"] == "failed"
    assert shell.run("session", "rm", name)[:2] == (0, f"removed {name}\n")
    assert shell.run("session", "show", name)[0] == 2
    assert not (home / "sessions" / name).exists()


def _killed(shell: Shell, name: str, far_enough: Any) -> None:
    process = shell.start("session", "prompt", name, "Begin.")
    try:
        end = time.monotonic() + 40
        while time.monotonic() < end and not far_enough():
            time.sleep(0.1)
        assert process.poll() is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)


def test_wrong_calls_of_the_command(tmp_path: Path, home: Path) -> None:
    shell = Shell(tmp_path, home)
    for call, says in (
        (("show",), "there is no session yet"),
        (("prompt", "s-1", "x"), "there is no session yet"),
        (
            ("open", "nowhere", "--agent", "script", "--set", 'commands=["true"]'),
            "starts anew with every prompt",
        ),
        (("open", "nowhere", "--set", "x"), "is not KEY=VALUE"),
    ):
        status, out, err = shell.run("session", *call)
        assert (status, out) == (2, ""), err
        assert says in err
    assert shell.run("session", "ls")[:2] == (0, "there is no session\n")
