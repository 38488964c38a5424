"""Calls of a model: what is repeated, for how long, and what becomes of what fails."""

from __future__ import annotations

import itertools
import random
import time

import anyio
import pytest

from race.chat import Chat, Message
from race.errors import LimitReached, ModelError
from race.replies import ToolCall
from race.testing import ScriptedModel

pytestmark = pytest.mark.anyio

HELLO = [Message("system", "Be brief."), Message("user", "Hello.")]


def chat(
    server: ScriptedModel,
    model: str,
    *,
    request_timeout: float = 5,
    max_retries: int = 2,
    notes: list[str] | None = None,
) -> Chat:
    return Chat(
        model=model,
        base_url=server.url,
        api_key="",
        request_timeout=request_timeout,
        max_retries=max_retries,
        retry_wait=0.01,
        rng=random.Random(1),
        on_retry=None if notes is None else notes.append,
    )


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("err-429", "status 429: slow down"),
        ("err-500", "status 500: something broke"),
        ("err-reset", "the connection failed"),
        ("err-notjson", "<html>gateway error</html>"),
        ("err-empty", "an empty body"),
        ("err-choices-null", "quota of the gateway is used up"),
        ("err-error-in-200", "status 502: the model behind the gateway is down"),
        ("err-message-null", "no turn"),
    ],
)
async def test_what_may_pass_is_tried_again_so_often_and_no_more(model: str, said: str) -> None:
    notes: list[str] = []
    async with ScriptedModel() as server:
        async with chat(server, model, notes=notes) as way:
            with pytest.raises(ModelError) as failed:
                await way.ask(HELLO)
        assert server.count(model) == 3
    assert said in str(failed.value)
    assert str(failed.value).startswith(f"model {model!r}: ")
    assert str(failed.value).endswith("(after 3 calls)")
    assert len(notes) == 2
    assert all(said in note for note in notes)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("err-400", "status 400: the request is wrong"),
        ("err-401", "status 401: wrong API key"),
        ("err-quota", "status 429: you have no credit"),
        ("no-such-model", "there is no model 'no-such-model'"),
    ],
)
async def test_what_will_not_pass_is_not_tried_again(model: str, said: str) -> None:
    async with ScriptedModel() as server:
        async with chat(server, model) as way:
            with pytest.raises(ModelError) as failed:
                await way.ask(HELLO)
        assert server.count(model) == 1
    assert said in str(failed.value)


async def test_no_retries_means_one_call() -> None:
    async with ScriptedModel() as server:
        async with chat(server, "err-429", max_retries=0) as way:
            with pytest.raises(ModelError):
                await way.ask(HELLO)
        assert server.count("err-429") == 1


async def test_a_conversation_that_is_too_long_is_a_limit() -> None:
    async with ScriptedModel() as server, chat(server, "err-context") as way:
        with pytest.raises(LimitReached) as reached:
            await way.ask(HELLO)
    assert reached.value.limit == "budget"


@pytest.mark.parametrize("model", ["err-hang", "err-stall"])
async def test_a_call_has_one_deadline_whatever_trickles_in(model: str) -> None:
    async with ScriptedModel() as server:
        async with chat(server, model, request_timeout=0.2, max_retries=1) as way:
            started = time.monotonic()
            with pytest.raises(ModelError, match=r"no answer within 0.2 s \(after 2 calls\)"):
                await way.ask(HELLO)
        assert 0.4 <= time.monotonic() - started < 2
        assert server.count(model) == 2


async def test_a_slow_answer_is_waited_for() -> None:
    async with ScriptedModel() as server, chat(server, "slow:0.2:noop", request_timeout=3) as way:
        started = time.monotonic()
        assert (await way.ask(HELLO)).text == "There is nothing to do."
    assert time.monotonic() - started >= 0.2
    assert server.count("slow:0.2:noop") == 1


async def test_a_server_that_asks_for_time_gets_it() -> None:
    async with ScriptedModel(retry_after=0.3) as server, chat(server, "flaky:1:noop") as way:
        started = time.monotonic()
        assert (await way.ask(HELLO)).text == "There is nothing to do."
    assert time.monotonic() - started >= 0.3


async def test_a_wait_that_does_not_fit_is_not_begun() -> None:
    async with ScriptedModel(retry_after=30) as server, chat(server, "flaky:1:noop") as way:
        started = time.monotonic()
        with pytest.raises(
            ModelError, match=r"slow down; the next call would be in 3\d s, but only 2 s are left"
        ):
            await way.ask(HELLO, deadline=anyio.current_time() + 2)
    assert time.monotonic() - started < 1.5


async def test_nobody_listening() -> None:
    async with ScriptedModel() as server:
        gone = server.url
    async with Chat(model="m", base_url=gone, api_key="", max_retries=1, retry_wait=0.01) as way:
        with pytest.raises(ModelError, match="the connection failed"):
            await way.ask(HELLO)


async def test_waits_grow() -> None:
    begun: list[float] = []
    async with ScriptedModel() as server:
        way = Chat(
            model="flaky:4:noop",
            base_url=server.url,
            api_key="",
            max_retries=4,
            retry_wait=0.02,
            on_retry=lambda _: begun.append(time.monotonic()),
        )
        async with way:
            await way.ask(HELLO)
    gaps = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert all(gap >= 0.02 * 2**i for i, gap in enumerate(gaps))
    assert len(gaps) == 3


async def test_attempts_that_were_turned_away_do_not_come_back_together() -> None:
    told: list[str] = []

    async def turned_away(url: str, seed: int) -> None:
        """Ask until the first wait is announced, however long the machine takes to come so far."""
        with anyio.fail_after(20), anyio.CancelScope() as scope:

            def note(text: str) -> None:
                told.append(text)
                scope.cancel()

            rng = random.Random(seed)
            async with Chat(model="err-429", base_url=url, api_key="", rng=rng, on_retry=note) as way:
                await way.ask(HELLO)

    async with ScriptedModel(retry_after=50) as server:
        for seed in range(4):
            await turned_away(server.url, seed)
    waits = {note.rpartition("after ")[2] for note in told}
    assert len(waits) == 4
    assert all(50 <= float(wait.removesuffix(" s")) <= 62.5 for wait in waits)


def test_messages_hold_what_the_protocol_names() -> None:
    assert Message("assistant", " ").wire() == {"role": "assistant", "content": "(empty)"}
    calls = [ToolCall("c1", "bash", {"command": "ls"}, "raw"), ToolCall("c2", "no tool!", None, "{bad")]
    sent = Message("assistant", "a\0b", calls).wire()
    assert sent["content"] == "a\N{REPLACEMENT CHARACTER}b"
    assert sent["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}},
        {"id": "c2", "type": "function", "function": {"name": "unknown", "arguments": "{}"}},
    ]
    answer = Message("tool", "x", answers="c1").wire()
    assert answer == {"role": "tool", "content": "x", "tool_call_id": "c1"}
