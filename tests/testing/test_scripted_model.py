"""The scripted model: a real server, which real clients and bare HTTP talk to."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import anyio
import openai
import pytest

from race.agent import TokenUsage
from race.testing import Call, Fault, Script, ScriptedModel, Turn
from race.testing.chat_completions import problems
from race.testing.script import FAULTS, SCRIPTS

if TYPE_CHECKING:
    from pathlib import Path

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": "Hello."}


def called(identity: str = "c1", arguments: str = "{}", **more: object) -> dict[str, Any]:
    function = {"name": "bash", "arguments": arguments}
    return {
        "role": "assistant",
        "tool_calls": [{"id": identity, "type": "function", "function": function}],
        **more,
    }


def told(identity: str = "c1", content: object = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def post(
    url: str, body: object, path: str = "/chat/completions"
) -> tuple[int, dict[str, Any], dict[str, str]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), dict(error.headers)


def ask(server: ScriptedModel, model: str, *history: dict[str, Any], **more: object) -> dict[str, Any]:
    status, body, _ = post(
        server.url, {"model": model, "messages": [USER, *history], "tools": [BASH], **more}
    )
    assert status == 200, body
    return body["choices"][0]


@pytest.mark.anyio
async def test_it_serves_within_an_event_loop() -> None:
    async with ScriptedModel() as server:
        async with openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0) as client:
            done = await client.chat.completions.create(
                model="noop", messages=[{"role": "user", "content": "?"}]
            )
        assert done.choices[0].message.content == "There is nothing to do."
    with pytest.raises(OSError, match="attempts failed"):
        await anyio.connect_tcp("127.0.0.1", int(server.url.rpartition(":")[2].partition("/")[0]))


def test_a_script_is_played_turn_by_turn_whoever_asks() -> None:
    with ScriptedModel({"two": Script(("echo a", Turn("And:", ("echo b", "echo c"))), "End.")}) as server:
        first = ask(server, "two")
        assert (first["finish_reason"], first["message"]["content"]) == ("tool_calls", None)
        assert json.loads(first["message"]["tool_calls"][0]["function"]["arguments"]) == {"command": "echo a"}
        second = ask(server, "two", called(), told())
        assert (second["message"]["content"], len(second["message"]["tool_calls"])) == ("And:", 2)
        last = ask(server, "provider/two", called(), told(), called("c2"), told("c2"))
        assert (last["finish_reason"], last["message"]["content"]) == ("stop", "End.")
        again = ask(server, "two")["message"]["tool_calls"][0]["function"]
        assert again == first["message"]["tool_calls"][0]["function"]
        assert (server.count("two"), server.count("provider/two")) == (3, 1)


def test_repeat_begins_again() -> None:
    with ScriptedModel({"r": Script(("echo a", "echo b"), repeat=True)}) as server:
        third = ask(server, "r", called(), told(), called("c2"), told("c2"))
        assert "echo a" in third["message"]["tool_calls"][0]["function"]["arguments"]


def test_commands_go_into_the_shell_that_is_offered() -> None:
    shell = {
        "properties": {"cmd": {"type": ["array", "null"]}, "why": {"type": "string"}},
        "required": ["cmd", "why"],
    }
    other = {"type": "function", "function": {"name": "read_file", "parameters": {}}}
    with ScriptedModel() as server:
        offered = {"type": "function", "function": {"name": "Shell", "parameters": shell}}
        call = ask(server, "touch", tools=[other, offered])["message"]["tool_calls"][0]["function"]
        assert call["name"] == "Shell"
        assert json.loads(call["arguments"]) == {
            "cmd": ["bash", "-c", "echo hello > hello.txt"],
            "why": "run a command",
        }
        assert "tool_calls" not in ask(server, "touch", tools=[other])["message"]


def test_usage_is_counted_by_model() -> None:
    with ScriptedModel(price=(1.0, 10.0)) as server:
        bodies = [post(server.url, {"model": "noop", "messages": [USER] * n}) for n in (1, 2)]
        post(server.url, {"model": "err-500", "messages": [USER]})
        told_of = [b["usage"] for _, b, _ in bodies]
        total = server.usage
    assert set(total) == {"noop"}
    read, written = (sum(u[k] for u in told_of) for k in ("prompt_tokens", "completion_tokens"))
    assert total["noop"] == TokenUsage(read, written, 0, sum(u["cost"] for u in told_of))
    assert total["noop"].cost_usd == pytest.approx(read + 10 * written)
    assert 0 < told_of[0]["prompt_tokens"] < told_of[1]["prompt_tokens"]
    assert written > 0


def test_a_stream_says_the_same_as_a_whole_answer() -> None:
    script = Script((Turn("Look:", ("echo " + "x" * 200, "echo b")),))
    with ScriptedModel({"s": script}) as server, openai.OpenAI(api_key="k", base_url=server.url) as client:
        whole = ask(server, "s")["message"]
        text, arguments, ends, usage = "", ["", ""], [], None
        with client.chat.completions.create(
            model="s", messages=[{"role": "user", "content": "Hello."}], tools=[BASH], stream=True
        ) as stream:
            for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    ends.append(choice.finish_reason)
                    for part in choice.delta.tool_calls or ():
                        arguments[part.index] += part.function.arguments or ""
    assert text == whole["content"] == "Look:"
    assert arguments == [c["function"]["arguments"] for c in whole["tool_calls"]]
    assert [e for e in ends if e] == ["tool_calls"]
    assert usage is not None
    assert usage.total_tokens > 0


def test_requests_are_kept() -> None:
    log = io.StringIO()
    with ScriptedModel(log=log) as server:
        post(server.url, {"model": "noop", "messages": [USER]})
        post(server.url, {"model": "err-401", "messages": [USER]})
        post(server.url, b"no json")
    assert [(r.model, r.status) for r in server.requests] == [("noop", 200), ("err-401", 401), ("", 400)]
    assert server.requests[0].json["messages"] == [USER]
    assert server.requests[0].headers["content-type"] == "application/json"
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["status"] for line in lines] == [200, 401, 400]
    assert json.loads(lines[0]["body"])["model"] == "noop"


GOOD = [{"role": "system", "content": "s"}, USER, called(content="t"), told(), called("c2"), told("c2"), USER]


def test_a_good_history_has_no_problems() -> None:
    assert list(problems(GOOD)) == []
    assert list(problems([USER, called(content=""), told(content=[{"type": "text", "text": "x"}])])) == []


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ([called()], "not answered"),
        ([called(), USER], "not answered"),
        ([called(), told(), told()], "no call waits"),
        ([told()], "no call waits"),
        ([called(), told("other")], "no call waits"),
        ([called(), told(), called(), told()], "not new"),
        ([called(arguments='{"command": "ls'), told()], "arguments"),
        ([called(arguments="[]"), told()], "no JSON object"),
        ([{"role": "assistant", "content": None}], "neither content nor"),
        ([{"role": "assistant", "content": ""}], "neither content nor"),
        ([{"role": "assistant", "content": "x", "tool_calls": []}], "tool_calls"),
        ([{"role": "user", "content": "  "}], "content"),
        ([{"role": "user", "content": None}], "content"),
        ([called(), told(content="")], "content"),
        ([{"role": "assistant", "content": "x", "refusal": None}], "refusal"),
        ([{"role": "user"}], "content"),
        ([{"role": "robot", "content": "x"}], "robot"),
        ([called("has space"), told("has space")], "id"),
    ],
)
def test_a_strict_server_refuses(history: list[dict[str, Any]], problem: str) -> None:
    with ScriptedModel() as strict, ScriptedModel(strict=False) as lenient:
        request = {"model": "noop", "messages": [USER, *history]}
        status, body, _ = post(strict.url, request)
        assert status == 400
        assert problem in body["error"]["message"]
        assert post(lenient.url, request)[0] == 200
        assert strict.requests[0].problems == lenient.requests[0].problems != ()


@pytest.mark.parametrize(
    ("name", "fault"), [(n, f) for n, f in FAULTS.items() if f.how == "answer" and f.status != 200]
)
def test_faults_have_their_status(name: str, fault: Fault) -> None:
    with ScriptedModel(retry_after=3) as server:
        status, body, headers = post(server.url, {"model": name, "messages": [USER]})
    assert (status, body) == (fault.status, json.loads(fault.body))
    assert headers.get("Retry-After") == ("3" if name == "err-429" else None)


def test_flaky_turns_every_conversation_away_first() -> None:
    with ScriptedModel() as server:

        def statuses(text: str) -> list[int]:
            request = {"model": "x/flaky:2:noop", "messages": [{"role": "user", "content": text}]}
            return [post(server.url, request)[0] for _ in range(3)]

        assert statuses("one") == [429, 429, 200]
        assert statuses("two") == [429, 429, 200]


def test_what_is_not_there() -> None:
    with ScriptedModel() as server:
        assert post(server.url, {}, "/nothing")[0] == 404
        status, body, _ = post(server.url, {"model": "nobody", "messages": [USER]})
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert "sieve" in body["error"]["message"]
        with urllib.request.urlopen(server.url + "/models", timeout=5) as answer:  # noqa: S310
            listed = [m["id"] for m in json.loads(answer.read())["data"]]
    assert listed == server.models == sorted({*SCRIPTS, *FAULTS})


@pytest.mark.parametrize("model", ["err-hang", "err-stall", "slow:30:noop"])
def test_it_closes_at_once_whatever_is_under_way(model: str) -> None:
    threads = threading.active_count()
    outcome: list[BaseException | None] = []

    def call() -> None:
        try:
            post(server.url, {"model": model, "messages": [USER]})
        except OSError as error:
            outcome.append(error)
        except ValueError as error:  # the answer broke off
            outcome.append(error)

    with ScriptedModel() as server:
        client = threading.Thread(target=call)
        client.start()
        while not server.requests:
            time.sleep(0.01)
        started = time.monotonic()
    assert time.monotonic() - started < 0.5
    client.join(2)
    assert len(outcome) == 1
    assert threading.active_count() == threads


def test_many_at_once() -> None:
    with ScriptedModel() as server:
        done: list[str] = []

        def converse() -> None:
            done.append(ask(server, "sieve", called(), told(), called("c2"), told("c2"))["finish_reason"])

        clients = [threading.Thread(target=converse) for _ in range(30)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(5)
    assert done == ["tool_calls"] * 30
    assert server.count("sieve") == 30


def test_the_sieve_counts_right() -> None:
    program = next(c for c in SCRIPTS["sieve"].commands if isinstance(c, str) and "def count_primes" in c)
    source = program.partition("\n")[2].rpartition("\n")[0]
    space: dict[str, Any] = {}
    exec(source, space)  # noqa: S102 - it is this package's own
    for n in range(300):
        assert space["count_primes"](n) == sum(all(i % d for d in range(2, i)) for i in range(2, n)), n
    assert space["count_primes"](1_000_000) == 78_498


def test_turns_can_be_anything() -> None:
    odd = Turn("t", (Call("who", "?"),), finish="length", refusal="no", output_tokens=7)
    with ScriptedModel({"odd": Script(final=odd)}) as server:
        choice = ask(server, "odd")
        assert server.usage["odd"].output_tokens == 7
    assert (choice["finish_reason"], choice["message"]["refusal"]) == ("length", "no")
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "who", "arguments": "?"}


def test_it_serves_from_a_shell(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "race.testing", "--log", str(log)]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert "sieve" in process.stdout.readline()
            assert post(url, {"model": "noop", "messages": [USER]})[0] == 200
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    assert json.loads(log.read_text())["model"] == "noop"
