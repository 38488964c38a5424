"""Programs inside the fork as agents, with small ones made for this: any command, and one that speaks ACP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from race_agents.acp import Acp
from race_agents.command import Command

from race.errors import AgentError, ModelError
from race.program import program
from race.sandbox import File
from race.testing import ScriptedModel

if TYPE_CHECKING:
    from conftest import Attempt

    from race.sandbox import Sandbox

pytestmark = pytest.mark.anyio

CALLS = """
import json, os, subprocess, sys, urllib.request
url, token, model, times = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
def ask(messages):
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {}}}}}
    body = json.dumps({"model": model, "messages": messages, "tools": [tool]}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]
messages = [{"role": "user", "content": open("/var/lib/race-agent/prompt.txt").read()}]
for _ in range(times):
    said = ask(messages)
    messages.append({k: v for k, v in said.items() if v})
    if not said.get("tool_calls"):
        print("FINAL:", said["content"])
        break
    for call in said["tool_calls"]:
        done = subprocess.run(json.loads(call["function"]["arguments"])["command"], shell=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})
"""

ACP = """
import json, subprocess, sys
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
def update(**u):
    say(method="session/update", params={"sessionId": "s", "update": u})
print("not JSON")
asked = hear(); assert asked["method"] == "initialize", asked
say(id=asked["id"], result={"protocolVersion": 1})
asked = hear(); assert asked["params"]["cwd"] == "/app", asked
say(id=asked["id"], result={"sessionId": "s"})
asked = hear(); assert "Make count_primes faster." in asked["params"]["prompt"][0]["text"], asked
if sys.argv[1] == "fails":
    say(id=asked["id"], error={"code": -1, "message": "no credit left"}); sys.exit(0)
if sys.argv[1] == "dies":
    sys.exit(3)
update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "I will "})
update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "write."})
update(sessionUpdate="tool_call", toolCallId="1", title="bash", rawInput={"command": "echo hi > hello.txt"})
options = [{"optionId": "no", "kind": "reject_once"}, {"optionId": "yes", "kind": "allow_once"}]
say(id=77, method="session/request_permission", params={"options": options})
answer = hear(); assert answer["result"]["outcome"] == {"outcome": "selected", "optionId": "yes"}, answer
say(id=78, method="fs/read_text_file", params={})
answer = hear(); assert answer["error"]["code"] == -32601, answer
open("hello.txt", "w").write("hi")
content = [{"type": "content", "content": {"type": "text", "text": "written"}}]
update(sessionUpdate="tool_call_update", toolCallId="1", status="completed", content=content)
update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "All done."})
say(id=asked["id"], result={"stopReason": "end_turn"})
sys.stdin.readline()
"""


def command(server: ScriptedModel, times: int, **more: object) -> Command:
    argv = ["python3", "-c", CALLS, "{base_url}", "{token}", "{model}", str(times)]
    given = {"argv": argv, "base_url": server.url, "api_key_env": "", "message": "FINAL: (.*)", **more}
    return Command(Command.Options.model_validate(given))


async def test_any_command_is_metered_and_its_last_words_are_found(attempt: Attempt) -> None:
    async with ScriptedModel(price=(1e-6, 1e-6)) as server:
        done = await attempt.run(command(server, 9), "touch")
        assert done.usage == server.usage["touch"]
    assert (done.message, len(done.steps)) == ("I wrote hello.txt.", 3)
    assert await attempt.files() == ["hello.txt"]


async def test_a_command_fails_by_its_status_its_words_or_its_last_request(attempt: Attempt) -> None:
    async with ScriptedModel() as server:
        with pytest.raises(AgentError, match=r"(?s)exit status 1: .*ValueError"):
            await attempt.run(
                Command(Command.Options(argv=("python3", "-c", "raise ValueError"), api_key_env="")), "m"
            )
        attempt.begin(steps=9)
        with pytest.raises(AgentError, match="I wrote hello"):
            await attempt.run(command(server, 9, failed="^FINAL: I wrote"), "touch")
        attempt.begin(steps=9)
        with pytest.raises(ModelError, match="something broke"):
            await attempt.run(command(server, 9), "err-500")


async def test_one_that_does_not_respect_its_end_is_ended(attempt: Attempt) -> None:
    ignores = "import time\\ntry: exec(open('/var/lib/race-agent/calls.py').read())\\nexcept Exception: time.sleep(600)"
    argv = ("python3", "-c", ignores.replace("\\n", "\n"), "{base_url}", "{token}", "{model}", "99")
    attempt.begin(steps=2)
    async with ScriptedModel() as server:
        given = {"argv": argv, "base_url": server.url, "api_key_env": "", "files": {"{home}/calls.py": CALLS}}
        with anyio.fail_after(30):
            await attempt.run(Command(Command.Options.model_validate(given)), "err-loop")
        assert server.count("err-loop") == 2
    left = await attempt.fork.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert b"calls.py" not in left.stdout.replace(b"cat /proc", b"")


def acp(server: ScriptedModel, how: str) -> Acp:
    given = {"argv": ["python3", "-c", ACP, how], "base_url": server.url, "api_key_env": ""}
    return Acp(Acp.Options.model_validate(given))


async def test_an_agent_that_speaks_acp(attempt: Attempt) -> None:
    async with ScriptedModel() as server:
        done = await attempt.run(acp(server, "works"), "m")
    assert (done.message, done.outcome) == ("All done.", "done")
    (step,) = done.steps
    assert step.text == "I will write.\nAll done."
    assert [(c.command, c.exit_code, c.output) for c in step.commands] == [
        ("echo hi > hello.txt", 0, "written")
    ]
    assert await attempt.files() == ["hello.txt"]


@pytest.mark.parametrize(
    ("how", "why"), [("fails", "session/prompt: no credit left"), ("dies", "it ended while")]
)
async def test_an_acp_agent_that_fails(attempt: Attempt, how: str, why: str) -> None:
    async with ScriptedModel() as server:
        with pytest.raises(AgentError, match=why):
            await attempt.run(acp(server, how), "m")


async def test_the_streams_of_a_program_are_ours(fork: Sandbox) -> None:
    async with program(
        fork, ["sh", "-c", "while read -r x; do echo got $x; done; exit 7"], cwd="/app"
    ) as running:
        for word in (b"one", b"two"):
            await running.send(word + b"\n")
            assert await running.line() == b"got " + word
        running.send_end()
        assert await running.line() is None
        with anyio.fail_after(10):
            await running.ended.wait()
    assert running.result is not None
    assert running.result.exit_code == 7


async def test_what_a_program_leaves_behind_does_not_hold_it_up(fork: Sandbox) -> None:
    await fork.write([File(b"/app/x", b"")])
    with anyio.fail_after(15):
        async with program(fork, ["sh", "-c", "sleep 300 & echo here"], cwd="/app") as running:
            assert await running.line() == b"here"
            await running.ended.wait()
    assert running.result is not None
    assert running.result.exit_code == 0


async def test_a_sandbox_listens_on_its_own_loopback(fork: Sandbox) -> None:
    with await fork.listen() as listener:
        port = listener.getsockname()[1]
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(fork.exec, f"echo hello > /dev/tcp/127.0.0.1/{port}")
                await anyio.wait_readable(listener)
                connection, _ = listener.accept()
        with connection:
            assert connection.recv(10) == b"hello\n"
    gone = await fork.exec(f"exec 3<> /dev/tcp/127.0.0.1/{port}")
    assert gone.exit_code != 0
