"""The agent `openai` over the responses protocol, and with a conversation that outgrows its model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from race_agents.openai import OpenAI

from race.chat import Message
from race.conversation import INTERRUPTED, LEFT_OUT, Conversation, shortened
from race.errors import LimitReached
from race.memory import Memory
from race.replies import ToolCall
from race.testing import Fault, Script, ScriptedModel

if TYPE_CHECKING:
    from conftest import Attempt

pytestmark = pytest.mark.anyio


def agent(server: ScriptedModel, **options: object) -> OpenAI:
    return OpenAI(
        OpenAI.Options.model_validate(
            {"base_url": server.url, "api_key_env": "", "retry_wait": 0.01, **options}
        )
    )


async def test_it_works_over_the_responses_protocol(attempt: Attempt) -> None:
    async with ScriptedModel(price=(1e-6, 1e-6)) as server:
        done = await attempt.run(
            agent(server, protocol="responses", reasoning_effort="low", max_tokens=9000), "touch"
        )
        assert done.usage == server.usage["touch"]
        body = server.requests[-1].json
    assert (done.message, done.outcome) == ("I wrote hello.txt.", "done")
    assert [len(s.commands) for s in done.steps] == [1, 1, 0]
    assert body["store"] is False
    assert body["reasoning"] == {"effort": "low"}
    assert body["max_output_tokens"] == 9000
    assert body["tools"][0]["name"] == "bash"
    assert [i.get("type", i.get("role")) for i in body["input"]] == [
        "system", "user", "function_call", "function_call_output", "function_call", "function_call_output",
    ]  # fmt: skip


@pytest.mark.parametrize(("model", "outcome"), [("err-refusal", "refused"), ("err-truncated", "budget")])
async def test_turns_that_are_none_over_the_responses_protocol(
    attempt: Attempt, model: str, outcome: str
) -> None:
    async with ScriptedModel() as server:
        done = await attempt.run(agent(server, protocol="responses"), model)
    assert done.outcome == outcome
    assert not [c for s in done.steps for c in s.commands]


async def test_a_conversation_that_outgrows_its_model_is_cut_and_goes_on(attempt: Attempt) -> None:
    long = json.dumps(
        {
            "error": {
                "message": "This model's maximum context length is 9 tokens.",
                "type": "invalid_request_error",
            }
        }
    )
    turns = tuple(f"seq {n}00" for n in range(1, 8))
    script = Script((*turns[:6], Fault(400, long)), "Done.")
    async with ScriptedModel({"small": script}) as server:
        # The fault is there whenever the conversation has six turns, so only the limit of steps ends this.
        with pytest.raises(LimitReached, match="limit of 20 steps"):
            await attempt.run(agent(server), "small")
        histories = [r.json["messages"] for r in server.requests]
    assert not any(r.problems for r in server.requests)
    cut = [sum(m["content"] == LEFT_OUT for m in h) for h in histories]
    assert max(cut) >= 3
    assert "the conversation outgrew the model" in " ".join(
        s.text for s in attempt.recorder.trajectory().steps
    )
    assert all(h[:2] == histories[0][:2] for h in histories)
    assert any("earlier turns of yours were left out" in m["content"] for h in histories for m in h)


def test_what_is_asked_and_the_last_turns_are_never_cut() -> None:
    messages = [Message("system", "rules"), Message("user", "task")]
    for n in range(6):
        messages.append(Message("assistant", "", [ToolCall(f"c{n}", "bash", {"command": "ls"})]))
        messages.append(Message("tool", "x" * 1000, answers=f"c{n}"))
        if n == 1:  # as in a session
            messages.append(Message("user", "and this"))
    made, seen = messages, 0
    while True:
        shorter, note = shortened(made)
        if shorter is None:
            break
        assert sum(len(m.text) for m in shorter) < sum(len(m.text) for m in made) or len(shorter) < len(made)
        assert note
        assert shorter[:2] == messages[:2]
        assert [m for m in shorter if m.text == "and this"] == [Message("user", "and this")]
        assert shorter[-2:] == messages[-2:]
        answered = {m.answers for m in shorter if m.role == "tool"}
        assert answered == {c.id for m in shorter for c in m.calls}
        made, seen = shorter, seen + 1
    assert seen >= 3


def test_a_conversation_is_kept_as_it_was_cut() -> None:
    memory = Memory("s")
    talk = Conversation(memory)
    talk.add(Message("system", "rules"), Message("user", "task"))
    for n in range(6):
        talk.add(Message("assistant", "", [ToolCall(f"c{n}", "bash", {"command": "ls"}, "{}")]))
        talk.add(Message("tool", "x" * 1000, answers=f"c{n}"))
    assert "left out" in talk.cut("too long")
    talk.add(Message("assistant", "", [ToolCall("open", "bash", {"command": "ls"}, "{}")]))
    again = Conversation(Memory("s", json.loads(json.dumps(memory.entries))))
    assert [m.wire() for m in again.messages] == [m.wire() for m in talk.messages]
    again.mend()
    assert again.messages[-1] == Message("tool", INTERRUPTED, answers="open")
