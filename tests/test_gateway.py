"""The gateway: real HTTP from an agent's side, a scripted model on the other."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from race.agent import Recorder, TokenUsage
from race.gateway import (
    Account,
    Budget,
    Exchange,
    Gateway,
    GatewayAccount,
    Line,
    Record,
    Source,
    Timeouts,
    Upstream,
)
from race.gateway.counting import StreamReader, counted
from race.gateway.masking import Mask
from race.gateway.pricing import Tokens, price
from race.gateway.protocols import endpoint
from race.testing import Fault, Script, ScriptedModel

pytestmark = pytest.mark.anyio

KEY = "sk-very/secret-0123456789"
SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def request(protocol: str, model: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    """Path and body of the first request of a conversation."""
    if protocol == "chat":
        tool: dict[str, Any] = {"type": "function", "function": {"name": "bash", "parameters": SHELL}}
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello."}], "tools": [tool]}
        path = "/v1/chat/completions"
    elif protocol == "responses":
        body = {"input": "Hello.", "tools": [{"type": "function", "name": "bash", "parameters": SHELL}]}
        path = "/v1/responses"
    elif protocol == "messages":
        body = {
            "messages": [{"role": "user", "content": "Hello."}],
            "tools": [{"name": "bash", "input_schema": SHELL}],
        }
        path = "/v1/messages?beta=true"
    else:
        declared = {"functionDeclarations": [{"name": "bash", "parametersJsonSchema": SHELL}]}
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"/v1beta/models/{model}:{method}", {
            "contents": [{"role": "user", "parts": [{"text": "Hello."}]}],
            "tools": [declared],
        }
    return path, {"model": model, **body, **({"stream": True} if stream else {})}


def post(url: str, body: object, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """One request, in this thread."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(sent, timeout=10) as answer:  # noqa: S310 - loopback
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()


async def ask(
    line: Line, protocol: str, model: str, *, stream: bool = False, style: str = "bearer"
) -> tuple[int, bytes]:
    path, body = request(protocol, model, stream=stream)
    token = {"bearer": {"Authorization": f"Bearer {line.token}"}}.get(style, {style: line.token})
    return await anyio.to_thread.run_sync(post, line.url + path, body, token)


@asynccontextmanager
async def opened(
    server: ScriptedModel | str,
    *,
    budget: Budget | None = None,
    key: str = "",
    steps: int = 50,
    **options: Any,
) -> AsyncGenerator[tuple[Line, Account]]:
    async with Gateway(**options) as gateway:
        account = gateway.account("one", Recorder(steps), budget=budget)
        url = server if isinstance(server, str) else server.url
        async with account.line(Upstream(url, key), counts_steps=True) as line:
            yield line, account.state


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ["chat", "responses", "messages", "gemini"])
async def test_what_is_counted_is_what_was_served(protocol: str, stream: bool, tmp_path: Path) -> None:
    record = Record(tmp_path)
    async with ScriptedModel(price=(1e-6, 5e-6)) as server, opened(server, record=record) as (line, account):
        status, body = await ask(line, protocol, "touch", stream=stream)
        assert status == 200
        assert b"echo hello" in body
        assert account.purse.usage == server.usage["touch"]
        assert account.recorder.usage == server.usage["touch"]
        assert account.recorder.step == 1
    (exchange,) = record.read("one")
    assert exchange.response == body
    assert (exchange.outcome, exchange.model, exchange.status) == ("answered", "touch", 200)
    assert exchange.usage == server.usage["touch"]
    assert Exchange.from_line(exchange.line()) == exchange


async def test_a_stream_is_passed_on_unchanged_and_at_once() -> None:
    with ScriptedModel({"slow": Script(final="word " * 50)}) as server:
        path, body = request("messages", "slow", stream=True)
        _, direct = await anyio.to_thread.run_sync(post, server.url + path.removeprefix("/v1"), body, {})
        async with opened(server) as (line, _):
            _, passed = await ask(line, "messages", "slow", stream=True)
    assert len(passed) == len(direct)
    assert passed.split(b'"id": "')[0] == direct.split(b'"id": "')[0]


@pytest.mark.parametrize("style", ["bearer", "x-api-key", "x-goog-api-key"])
async def test_only_the_token_of_the_line_opens_it_and_the_key_is_put_in(
    style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    async with ScriptedModel() as server, opened(server, key="A_KEY") as (line, _):
        assert (await ask(line, "chat", "noop", style=style))[0] == 200
        path, body = request("chat", "noop", stream=False)
        for headers in ({}, {"Authorization": "Bearer race-guess"}, {"Authorization": f"Bearer {KEY}"}):
            status, answer = await anyio.to_thread.run_sync(post, line.url + path, body, headers)
            assert (status, json.loads(answer)["error"]["type"]) == (401, "authentication_error")
        assert [r.headers["authorization"] for r in server.requests] == [f"Bearer {KEY}"]
        assert line.token not in str(server.requests)
        status, _ = await anyio.to_thread.run_sync(
            post, line.url + "/v1/files", {}, {"x-api-key": line.token}
        )
        assert status == 404
    assert len(server.requests) == 1


async def test_a_key_that_the_server_says_is_masked_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    angry = Fault(401, json.dumps({"error": {"message": f"wrong key {KEY}", "type": "authentication_error"}}))
    scripts = {"angry": Script(final=angry), "leaky": Script(final=f"I know {KEY}. " * 5)}
    async with (
        ScriptedModel(scripts) as server,
        opened(server, key="A_KEY", record=Record(tmp_path)) as (line, account),
    ):
        seen = [await ask(line, "messages", "leaky", stream=s) for s in (False, True)]
        seen.append(await ask(line, "chat", "angry"))
        # A key that is wrong will not be right for the next request.
        assert account.broken == "status 401: wrong key ***"
        assert (await ask(line, "chat", "noop"))[0] == 401
    text = str(seen) + "".join(f.read_text() for f in tmp_path.iterdir())
    assert KEY not in text
    assert line.token not in text
    assert text.count("***") >= 11


def test_a_secret_that_is_cut_between_pieces_is_masked() -> None:
    secret = "sk-0123456789"  # noqa: S105 - made up
    for cut in range(len(secret) + 1):
        mask = Mask([secret])
        shown = mask.feed(f"a {secret[:cut]}".encode()) + mask.feed(f"{secret[cut:]} b".encode()) + mask.end()
        assert shown == b"a *** b"
    mask = Mask([secret])
    assert mask.feed(b"data: x\n\n") == b"data: x\n\n"
    assert mask.feed(b"sk-01") + mask.feed(b" no") + mask.end() == b"sk-01 no"


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages", "gemini"])
@pytest.mark.parametrize("budget", [Budget(requests=3), Budget(tokens=100), Budget(cost_usd=1e-4)])
async def test_a_spent_attempt_gets_what_agents_respect(protocol: str, budget: Budget) -> None:
    async with ScriptedModel(price=(1e-6, 1e-6)) as server, opened(server, budget=budget) as (line, account):
        statuses = []
        for _ in range(20):
            status, body = await ask(line, protocol, "err-loop")
            statuses.append(status)
            if status != 200:
                break
        assert statuses == [200] * (len(statuses) - 1) + [401]
        error = json.loads(body)["error"]
        assert error["type"] == "authentication_error"
        assert account.ended is not None
        assert account.ended.limit == "budget"
        assert str(account.ended) == error["message"]
        assert len(server.requests) == account.purse.requests == len(statuses) - 1
        before = account.purse.usage
        used = before.input_tokens + before.output_tokens
        one = used / account.purse.requests
        assert budget.tokens is None or budget.tokens <= used < budget.tokens + one
        assert budget.requests is None or account.purse.requests == 3


async def test_a_limit_of_steps_ends_an_agent_that_does_not_count() -> None:
    async with ScriptedModel() as server, opened(server, steps=2) as (line, account):
        statuses = [(await ask(line, "chat", "err-loop"))[0] for _ in range(3)]
        assert statuses == [200, 200, 401]
        assert account.ended is not None
        assert account.ended.limit == "steps"


async def test_the_budget_of_the_race_is_everybodys() -> None:
    async with ScriptedModel() as server, Gateway(Budget(requests=3)) as gateway:
        accounts = [gateway.account(n, Recorder(9)) for n in ("a", "b")]
        async with accounts[0].line(Upstream(server.url)) as a, accounts[1].line(Upstream(server.url)) as b:
            statuses = [(await ask(line, "chat", "noop"))[0] for line in (a, b, a, b, a)]
            path, body = request("chat", "noop", stream=False)
            wrong = {"Authorization": f"Bearer {a.token}"}
            assert (await anyio.to_thread.run_sync(post, b.url + path, body, wrong))[0] == 401
    assert statuses == [200, 200, 200, 401, 401]
    assert "the race has had its 3 requests" in str(accounts[1].state.ended)
    assert accounts[1].state.purse.requests == 1


async def test_a_budget_that_cannot_be_held_ends_the_attempt_with_that_reason() -> None:
    mute = Script(
        final=Fault(body=json.dumps({"choices": [{"message": {"content": "."}, "finish_reason": "stop"}]}))
    )
    async with ScriptedModel({"mute": mute}) as server:
        for budget, model, why in (
            (Budget(cost_usd=5), "noop", "the cost of the model 'noop' is not known"),
            (Budget(tokens=500), "mute", "does not say how many it used"),
        ):
            async with opened(server, budget=budget) as (line, account):
                assert [(await ask(line, "chat", model))[0] for _ in range(2)] == [200, 401]
                assert why in str(account.ended)


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages", "gemini"])
@pytest.mark.parametrize("model", ["err-notjson", "err-empty", "err-reset", "err-hang", "err-stall"])
async def test_what_is_no_turn_is_a_proper_error(protocol: str, model: str) -> None:
    timeouts = Timeouts(request=0.4, idle=0.3)
    async with ScriptedModel() as server, opened(server, timeouts=timeouts) as (line, account):
        with anyio.fail_after(8):
            status, body = await ask(line, protocol, model, stream=model == "err-stall")
        assert status in {502, 504}
        assert json.loads(body)["error"]["message"] == account.trouble
        assert account.purse.usage == TokenUsage()
        assert account.trouble


@pytest.mark.parametrize("model", ["err-choices-null", "err-error-in-200", "err-message-null"])
async def test_an_error_with_status_200_is_told_as_one(model: str) -> None:
    async with ScriptedModel() as server, opened(server) as (line, account):
        status, _ = await ask(line, "chat", model)
        assert status == 502
        assert account.trouble


async def test_a_stream_that_ends_early_is_broken_off(tmp_path: Path) -> None:
    cut = Fault(
        headers={"Content-Type": "text/event-stream"},
        body='data: {"choices": [{"delta": {"content": "x"}}]}\n\n',
    )
    async with (
        ScriptedModel({"cut": Script(final=cut)}) as server,
        opened(server, record=Record(tmp_path)) as (line, account),
    ):
        status, body = await ask(line, "chat", "cut", stream=True)
        assert (status, account.trouble) == (0, "the stream ended early")
        assert body
    (exchange,) = Record(tmp_path).read("one")
    assert exchange.outcome == "failed"


async def test_one_failure_after_the_other_ends_the_attempt() -> None:
    async with ScriptedModel() as server, opened(server) as (line, account):
        statuses = [(await ask(line, "chat", "err-500"))[0] for _ in range(11)]
        assert statuses == [500] * 10 + [401]
        assert "something broke (10 requests failed one after the other)" in account.broken


async def test_half_of_all_requests_turned_away_and_sixteen_attempts_at_once() -> None:
    turned = [0]
    names = [f"flaky:{n % 2 + 1}:touch" for n in range(16)]
    async with ScriptedModel() as server, Gateway() as gateway:
        accounts: list[GatewayAccount] = []

        async def one(name: str) -> None:
            account = gateway.account(f"a{len(accounts)}", Recorder(9))
            accounts.append(account)
            async with account.line(Upstream(server.url)) as line:
                path, body = request("chat", name, stream=False)
                body["messages"][0]["content"] = account.state.name
                headers = {"Authorization": f"Bearer {line.token}"}
                for _ in range(2):
                    status, _ = await anyio.to_thread.run_sync(post, line.url + path, body, headers)
                    assert status == 200

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(one, name)
        turned[0] = sum(r.status == 429 for r in server.requests)
        served = sum(r.status == 200 for r in server.requests)
    assert turned[0] == 24
    assert served == 32
    assert sum(a.state.purse.requests for a in accounts) == 32
    total = sum(a.state.purse.usage.input_tokens for a in accounts)
    assert total == sum(u.input_tokens for u in server.usage.values())


async def test_what_one_attempt_is_told_all_heed() -> None:
    async with ScriptedModel(retry_after=0.5) as server, Gateway() as gateway:
        accounts = [gateway.account(n, Recorder(9)) for n in ("a", "b")]
        async with (
            accounts[0].line(Upstream(server.url)) as a,
            accounts[1].line(Upstream(server.url)) as b,
            anyio.create_task_group() as group,
        ):
            began = anyio.current_time()
            group.start_soon(lambda: ask(a, "chat", "flaky:1:noop"))
            while not any(r.status == 429 for r in server.requests):  # noqa: ASYNC110 - of another thread
                await anyio.sleep(0.01)
            await anyio.sleep(0.05)
            await ask(b, "chat", "noop")
            assert anyio.current_time() - began >= 0.5


async def test_a_wait_beyond_the_attempts_end_is_told_and_ends_it() -> None:
    async with ScriptedModel(retry_after=500) as server, opened(server) as (line, account):
        status, _ = await ask(line, "chat", "err-429")
        assert status == 429
        assert account.broken == "the model's server is busy or out of credit: slow down"
        assert (await ask(line, "chat", "noop"))[0] == 401


async def test_an_agent_that_goes_away_is_not_waited_for(tmp_path: Path) -> None:
    async with ScriptedModel() as server, opened(server, record=Record(tmp_path)) as (line, _):
        path, body = request("chat", "err-hang", stream=False)
        async with await anyio.connect_tcp("127.0.0.1", int(line.url.rpartition(":")[2])) as stream:
            data = json.dumps(body).encode()
            fields = f"Host: x\r\nAuthorization: Bearer {line.token}\r\nContent-Length: {len(data)}"
            head = f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n"
            await stream.send(head.encode() + data)
            while not server.requests:  # noqa: ASYNC110 - of another thread
                await anyio.sleep(0.01)
        with anyio.fail_after(5):
            while not list(Record(tmp_path).read("one")):  # noqa: ASYNC110 - a file
                await anyio.sleep(0.01)
    (exchange,) = Record(tmp_path).read("one")
    assert exchange.outcome == "broken off"


async def test_replay_needs_no_server_and_no_key(tmp_path: Path) -> None:
    async with (
        ScriptedModel(price=(1e-6, 1e-6)) as server,
        opened(server, record=Record(tmp_path)) as (line, account),
    ):
        first = [await ask(line, p, "touch", stream=s) for p in ("chat", "messages") for s in (False, True)]
        usage = account.purse.usage
    os.environ.pop("NO_SUCH_KEY", None)
    async with Gateway(source=Source(Record(tmp_path))) as gateway:
        account2 = gateway.account("one", Recorder(9))
        async with account2.line(Upstream("https://nowhere.invalid/v1", "NO_SUCH_KEY")) as line:
            again = [
                await ask(line, p, "touch", stream=s) for p in ("chat", "messages") for s in (False, True)
            ]
            assert again == first
            assert account2.state.purse.usage == usage
            status, body = await ask(line, "chat", "another")
            assert status == 401
            assert "the record of the race holds no answer to request 5 of 'one'" in body.decode()
            assert account2.state.broken


def test_endpoints() -> None:
    assert endpoint("POST", "/v1beta/models/gemini-3:streamGenerateContent?key=abc&alt=sse") is not None
    found = endpoint("POST", "/v1beta/models/gemini-3:streamGenerateContent?key=abc&alt=sse")
    assert found is not None
    assert found.path == "/models/gemini-3:streamGenerateContent?alt=sse"
    assert endpoint("POST", "/v1/files") is None
    assert endpoint("DELETE", "/v1/responses") is None
    assert endpoint("GET", "/v1/models/../files") is None


def test_prices() -> None:
    known = price("gpt-4o", Tokens(1_000_000, 0, 0))
    cached = price("openai/gpt-4o", Tokens(1_000_000, 0, 1_000_000))
    assert known is not None
    assert cached is not None
    assert 0 < cached < known
    assert price("local/foo", Tokens(10, 10)) is None


def test_what_is_not_as_it_should_be_counts_as_nothing() -> None:
    odd = {"usage": {"prompt_tokens": "many", "completion_tokens": -3, "cost": float("nan")}}
    found = counted("chat", odd)
    assert found is not None
    assert (found.tokens, found.cost_usd) == (Tokens(), None)
    assert counted("chat", []) is None
    reader = StreamReader("chat")
    assert reader.feed(b": ping\n\n") is False
    assert reader.feed(b'data: {"choices": [{"finish') is False
    assert reader.feed(b'_reason": "stop"}]}\n\n') is True
    assert reader.whole


async def test_replay_takes_the_last_conversation_and_an_answer_before_none(tmp_path: Path) -> None:
    record = Record(tmp_path)
    body = json.dumps(request("chat", "touch", stream=False)[1]).encode()

    def exchange(number: int, answer: str, outcome: Any) -> Exchange:
        return Exchange(
            number,
            "one",
            "chat",
            "/chat/completions",
            "touch",
            body,
            200,
            "application/json",
            answer.encode(),
            outcome,
        )

    record.append(exchange(1, '"of the first take"', "answered"))
    record.begin_anew("one")
    record.append(exchange(2, '"half', "broken off"))
    record.append(exchange(3, '"of the second"', "answered"))
    async with Gateway(source=Source(record)) as gateway:
        account = gateway.account("one", Recorder(9))
        async with account.line(Upstream("https://nowhere.invalid/v1")) as line:
            assert await ask(line, "chat", "touch") == (200, b'"of the second"')
    assert [e.number for e in record.read("one")] == [1, 2, 3]  # all that was paid is still counted
