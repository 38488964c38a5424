"""The agent that lets a model use bash: real HTTP to a scripted model, real commands in a real sandbox."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import ValidationError
from race_agents.openai import IDLE_TURNS, OpenAI

from race.agent import Agent, ChecksFirst, TokenUsage
from race.errors import LimitReached, MachineError, ModelError, SandboxError, SpecError
from race.testing import Call, Fault, Script, ScriptedModel, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Attempt

pytestmark = pytest.mark.anyio

KEY = "sk-very/secret-0123456789"

SLOW_COUNT = """cat > primes.py <<'END'
def count_primes(n):
    return sum(all(i % d for d in range(2, i)) for i in range(2, n))
END"""


def agent(server: ScriptedModel, **options: object) -> OpenAI:
    quick = {"base_url": server.url, "api_key_env": "", "retry_wait": 0.01, "max_retries": 2}
    return OpenAI(OpenAI.Options.model_validate({**quick, **options}))


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}

    def put(values: dict[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    put(variables)
    try:
        yield
    finally:
        put(before)


def histories(server: ScriptedModel) -> list[list[dict[str, Any]]]:
    return [r.json["messages"] for r in server.requests]


def answers(server: ScriptedModel) -> list[str]:
    return [m["content"] for m in histories(server)[-1] if m["role"] == "tool"]


async def test_a_model_works_until_it_says_so(attempt: Attempt) -> None:
    await attempt.bash(SLOW_COUNT)
    attempt.begin(steps=20)
    async with ScriptedModel(price=(2e-6, 8e-6)) as server:
        done = await attempt.run(agent(server), "anyone/sieve")
    assert (done.outcome, done.message) == (
        "done",
        "I replaced the trial division by a sieve over the odd numbers.",
    )
    assert [len(s.commands) for s in done.steps] == [1, 1, 1, 0]
    assert done.steps[2].commands[0].output == "25\n"
    assert done.usage == server.usage["anyone/sieve"]
    assert done.usage.cached_tokens > 0
    assert done.usage.cost_usd == pytest.approx(
        done.usage.input_tokens * 2e-6 + done.usage.output_tokens * 8e-6
    )
    assert "bytearray" in (await attempt.fork.read("/app/primes.py")).decode()


async def test_the_conversation_only_grows_and_holds_plain_fields(attempt: Attempt) -> None:
    fields = {
        "system": {"role", "content"},
        "user": {"role", "content"},
        "assistant": {"role", "content", "tool_calls"},
        "tool": {"role", "content", "tool_call_id"},
    }
    two = Turn(calls=("echo a", "printf '\\0'"))
    async with ScriptedModel({"talker": Script((two, Turn("Now b.", ("echo b",))), "Both.")}) as server:
        await attempt.run(agent(server), "talker")
    sent = histories(server)
    assert [len(h) for h in sent] == [2, 5, 7]
    assert all(sent[i + 1][: len(h)] == h for i, h in enumerate(sent[:-1]))
    assert not any(r.problems for r in server.requests)
    for message in sent[-1]:
        assert set(message) <= fields[message["role"]]
        assert message["content"].strip()
        assert "\0" not in message["content"]
        for call in message.get("tool_calls", ()):
            assert set(call) == {"id", "type", "function"}
            assert set(call["function"]) == {"name", "arguments"}
            assert set(json.loads(call["function"]["arguments"])) == {"command"}


async def test_what_the_model_is_told(attempt: Attempt) -> None:
    async with ScriptedModel() as server:
        await attempt.run(agent(server), "noop", hint="Use a sieve.", time_limit=60)
        system, user = (m["content"] for m in histories(server)[0])
        await attempt.run(agent(server, system_prompt="You are terse."), "noop")
        own = histories(server)[1][0]["content"]
    for part in ("/app", "- bench.py", "- *.py", "bash", "10 seconds", "20 turns", "60 seconds"):
        assert part in system
    assert user == "Make count_primes faster.\n\nHint: Use a sieve."
    assert own.startswith("You are terse.\n")
    assert "- bench.py" in own
    assert histories(server)[1][1]["content"] == "Make count_primes faster."


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("err-badargs", ["not a JSON object"]),
        (
            "err-args-not-object",
            ["not a JSON object", "not a JSON object", "not a JSON object", "must be a string"],
        ),
        ("err-notool", ["there is no tool 'no_such_tool'; the only one is 'bash'"]),
        ("err-nul", ["NUL byte"]),
    ],
)
async def test_a_wrong_call_is_answered_and_mended(attempt: Attempt, model: str, told: list[str]) -> None:
    async with ScriptedModel() as server:
        done = await attempt.run(agent(server), model)
    assert (done.outcome, done.message) == ("done", "The call went wrong, so I did it another way.")
    assert [c.output for s in done.steps for c in s.commands] == ["again\n"]
    assert not any(r.problems for r in server.requests)
    got = answers(server)
    assert len(got) == len(told) + 1
    for answer, part in zip(got, told, strict=False):
        assert answer.startswith("Not run: ")
        assert part in answer
        assert '{"command": "ls -la"}' in answer
    assert part in done.steps[0].text
    kept = [c["function"]["arguments"] for m in histories(server)[-1] for c in m.get("tool_calls", ())]
    assert kept == ["{}"] * len(told) + ['{"command": "echo again"}']


async def test_a_long_wrong_call_is_quoted_in_part(attempt: Attempt) -> None:
    bad = Script((Turn(calls=(Call("bash", "x" * 100_000),)),))
    async with ScriptedModel({"wordy": bad}) as server:
        await attempt.run(agent(server), "wordy")
    assert len(answers(server)[0]) < 600
    assert "100,000 characters" in answers(server)[0]
    assert len(server.requests[-1].body) < 10_000


async def test_ids_that_are_missing_or_repeated_are_replaced(attempt: Attempt) -> None:
    def call(identity: str | None, command: str) -> dict[str, Any]:
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        return {"id": identity, "type": "function", "function": function}

    calls = [call("same", "echo 1"), call("same", "echo 2"), call(None, "echo 3"), call("", "echo 4")]
    calls[3]["function"]["arguments"] = {"command": "echo 4"}  # an object where a text belongs
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    body = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    async with ScriptedModel({"sloppy": Script((Fault(body=body),))}) as server:
        done = await attempt.run(agent(server), "sloppy")
    assert [c.output for s in done.steps for c in s.commands] == ["1\n", "2\n", "3\n", "4\n"]
    assert not any(r.problems for r in server.requests)
    assert done.usage == server.usage["sloppy"]


async def test_half_characters_pass_through(attempt: Attempt) -> None:
    async with ScriptedModel() as server:
        done = await attempt.run(agent(server, system_prompt="\ud83d"), "err-surrogate", hint="\ude00")
    assert done.message == "the other ? half"
    assert done.steps[0].text == "half a ? smile"
    assert "?" in done.steps[0].commands[0].output
    json.dumps(dataclasses.asdict(done), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("model", "options"), [("err-truncated", {}), ("err-relabelled", {"max_tokens": 1000})]
)
async def test_nothing_of_a_cut_turn_is_run(attempt: Attempt, model: str, options: dict[str, object]) -> None:
    async with ScriptedModel() as server:
        done = await attempt.run(agent(server, **options), model)
    assert done.outcome == "budget"
    assert "cut at its limit of tokens" in done.message
    assert await attempt.files() == []
    assert server.count(model) == IDLE_TURNS
    assert "nothing of it was run" in histories(server)[1][-1]["content"]
    assert not any(r.problems for r in server.requests)


async def test_a_cut_turn_can_be_made_up_for(attempt: Attempt) -> None:
    cut = Turn("I begin", ("touch cut",), finish="length")
    script = Script((cut, cut, "touch whole", cut, cut), "Done.")
    async with ScriptedModel({"hasty": script}) as server:
        done = await attempt.run(agent(server), "hasty")
    assert (done.outcome, done.message) == ("done", "Done.")
    assert await attempt.files() == ["whole"]


@pytest.mark.parametrize(
    ("model", "said"),
    [("err-refusal", "I cannot help with that."), ("err-filter", "stopped by a content filter")],
)
async def test_a_refusal_is_an_outcome(attempt: Attempt, model: str, said: str) -> None:
    async with ScriptedModel() as server:
        done = await attempt.run(agent(server), model)
    assert (done.outcome, done.message) == ("refused", said)
    assert server.count(model) == 1


@pytest.mark.parametrize(("model", "told"), [("err-nocall", "held none"), ("err-empty-turn", "was empty")])
async def test_a_turn_without_anything_is_pointed_out_but_not_for_ever(
    attempt: Attempt, model: str, told: str
) -> None:
    async with ScriptedModel() as server:
        done = await attempt.run(agent(server), model)
    assert done.outcome == "done"
    assert server.count(model) == IDLE_TURNS
    assert told in done.message
    assert told in done.steps[0].text
    assert told in histories(server)[1][-1]["content"]
    assert not any(r.problems for r in server.requests)


async def test_a_turn_without_a_call_is_the_last(attempt: Attempt) -> None:
    async with ScriptedModel({"shy": Script((Turn("Let me look at the file."), "touch later"))}) as server:
        done = await attempt.run(agent(server), "shy")
    assert (done.outcome, done.message, len(done.steps)) == ("done", "Let me look at the file.", 1)


async def test_a_turn_without_a_reason_for_its_end_is_not_run(attempt: Attempt) -> None:
    async with ScriptedModel() as server:
        with pytest.raises(ModelError, match="does not say why it ended"):
            await attempt.run(agent(server), "err-nofinish")
    assert await attempt.files() == []


async def test_the_limit_on_steps_ends_it_and_the_work_stays(attempt: Attempt) -> None:
    attempt.begin(steps=3)
    async with ScriptedModel({"busy": Script(("echo x >> work",), repeat=True)}) as server:
        with pytest.raises(LimitReached, match="3 steps"):
            await attempt.run(agent(server), "busy")
    assert server.count("busy") == 3
    assert await attempt.fork.read("/app/work") == b"x\nx\nx\n"
    assert attempt.recorder.usage == server.usage["busy"]


async def test_a_conversation_that_is_too_long_ends_it_and_the_work_stays(attempt: Attempt) -> None:
    full = Fault(400, '{"error": {"message": "too long", "code": "context_length_exceeded"}}')
    async with ScriptedModel({"long": Script(("touch work", full))}) as server:
        with pytest.raises(LimitReached, match="too long") as reached:
            await attempt.run(agent(server), "long")
    assert reached.value.limit == "budget"
    assert await attempt.files() == ["work"]


async def test_a_failed_call_is_noted_and_repeated(attempt: Attempt) -> None:
    async with ScriptedModel() as server:
        done = await attempt.run(agent(server), "flaky:2:touch")
    assert (done.outcome, done.message) == ("done", "I wrote hello.txt.")
    assert done.steps[0].text.count("status 429: slow down; called again after") == 2
    assert await attempt.files() == ["hello.txt"]


async def test_no_wait_goes_beyond_the_time_of_the_attempt(attempt: Attempt) -> None:
    async with ScriptedModel(retry_after=100) as server:
        started = time.monotonic()
        with pytest.raises(
            ModelError, match=r"slow down; the next call would be in 1\d\d s, but only [45] s are left"
        ):
            await attempt.run(agent(server), "err-429", time_limit=5)
    assert time.monotonic() - started < 3
    assert server.count("err-429") == 1


async def test_a_lost_sandbox_ends_it_with_what_was_spent(attempt: Attempt) -> None:
    async def lose() -> None:
        while not await attempt.files():  # noqa: ASYNC110 - nothing tells of files in a sandbox
            await anyio.sleep(0.02)
        await attempt.fork.stop()

    async with (
        ScriptedModel({"m": Script(("touch begun; sleep 30", "echo more"))}, price=(1e-6, 1e-6)) as server,
        anyio.create_task_group() as group,
    ):
        group.start_soon(lose)
        with pytest.raises(SandboxError):
            await attempt.run(agent(server), "m")
    assert server.count("m") == 1
    assert attempt.recorder.usage == server.usage["m"]


async def test_cancelling_it_closes_its_connections(attempt: Attempt) -> None:
    async with ScriptedModel() as server:
        with anyio.move_on_after(0.3) as scope:
            await attempt.run(agent(server), "err-hang")
        assert scope.cancelled_caught
        assert server.count("err-hang") == 1


async def test_a_cost_that_nobody_states_is_unknown(attempt: Attempt) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Done."}, "finish_reason": "stop"}]})
    async with ScriptedModel({"silent": Script(final=Fault(body=body))}) as server:
        unpriced = await attempt.run(agent(server), "local/noop")
        attempt.begin(steps=5)
        uncounted = await attempt.run(agent(server), "silent")
    assert unpriced.usage.input_tokens > 0
    assert unpriced.usage.cost_usd is None
    assert uncounted.usage == TokenUsage()
    assert uncounted.message == "Done."


async def test_options_go_into_the_request(attempt: Attempt) -> None:
    options = {
        "temperature": 0.5,
        "reasoning_effort": "low",
        "seed": 11,
        "max_tokens": 5000,
        "extra_body": {"top_k": 4, "temperature": 0.25},
    }
    async with ScriptedModel() as server:
        await attempt.run(agent(server, **options), "noop")
        await attempt.run(agent(server), "noop")
        for seed in (1, 2):
            await attempt.run(agent(server, seed="attempt"), "noop", seed=seed)
    given, plain, *seeds = (r.json for r in server.requests)
    wanted = {"temperature": 0.25, "reasoning_effort": "low", "seed": 11, "max_tokens": 5000, "top_k": 4}
    assert {k: given[k] for k in wanted} == wanted
    assert set(plain) == {"model", "messages", "tools"}
    assert [s["seed"] for s in seeds] == [1, 2]


async def test_the_key_is_sent_and_shown_nowhere(attempt: Attempt) -> None:
    leaky = Script((Turn(f"I know {KEY}", (f"echo {KEY}",)),), f"Bye, {KEY}")
    escaped = json.dumps({"error": {"message": "x" * 490 + KEY}}).replace("/", "\\/")
    scripts = {"leaky": leaky, "angry": Script(final=Fault(401, escaped)), KEY: Script(final=Fault(body=KEY))}
    with environment(MY_KEY=f" {KEY}\n"):
        async with ScriptedModel(scripts) as server:
            own = agent(server, api_key_env="MY_KEY")
            done = await attempt.run(own, "leaky", hint=f"The key is {KEY}")
            errors: list[str] = []
            for model in ("angry", KEY):
                attempt.begin(steps=5)
                with pytest.raises(ModelError) as refused:
                    await attempt.run(own, model)
                errors += [str(refused.value), str(attempt.recorder.trajectory())]
    assert {r.headers["authorization"] for r in server.requests} == {f"Bearer {KEY}"}
    assert done.message == "Bye, ***"
    for text in (repr(done), *errors, *(r.body.decode() for r in server.requests if r.model == "leaky")):
        assert KEY not in text
        assert KEY[:8] not in text


@pytest.mark.parametrize("model", [None, "", "  "])
def test_a_model_is_needed(model: str | None) -> None:
    with pytest.raises(SpecError, match="needs a model"):
        OpenAI(OpenAI.Options(api_key_env="")).check(model)


@pytest.mark.parametrize("value", [None, "", " \n"])
def test_a_key_is_needed(value: str | None) -> None:
    with environment(OPENAI_API_KEY=value):
        options = OpenAI.Options(base_url="http://127.0.0.1:1/v1")
        with pytest.raises(MachineError, match=r"OPENAI_API_KEY, which is not set; .*api_key_env = \"\""):
            OpenAI(options).check("m")
        OpenAI(options.model_copy(update={"api_key_env": ""})).check("m")
    with (
        environment(OTHER="key-1\N{EM DASH}2"),
        pytest.raises(MachineError, match="OTHER holds characters") as odd,
    ):
        OpenAI(OpenAI.Options(api_key_env="OTHER")).check("m")
    assert "key-1" not in str(odd.value)


def test_a_server_is_needed() -> None:
    with environment(OPENAI_BASE_URL=None, OPENAI_API_KEY=KEY):
        OpenAI(OpenAI.Options()).check("m")
        with pytest.raises(SpecError, match=r"'localhost:8080/v1' .* no http"):
            OpenAI(OpenAI.Options(base_url="localhost:8080/v1")).check("m")
    for wrong in ("nowhere", "http://", "http://[::1/v1", "http://host:port/v1", "file:///v1"):
        with environment(OPENAI_BASE_URL=wrong), pytest.raises(SpecError, match=re.escape(repr(wrong))):
            OpenAI(OpenAI.Options(api_key_env="")).check("m")


async def test_the_server_may_come_from_the_environment(attempt: Attempt) -> None:
    async with ScriptedModel() as server:
        with environment(OPENAI_BASE_URL=server.url):
            done = await attempt.run(OpenAI(OpenAI.Options(api_key_env="")), "noop")
    assert done.message == "There is nothing to do."


@pytest.mark.parametrize(
    "options",
    [{"base": "x"}, {"max_retries": -1}, {"request_timeout": 0}, {"seed": "always"}, {"max_tokens": 0}],
)
def test_options_that_are_wrong_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        OpenAI.Options.model_validate(options)


def test_it_is_an_agent_that_checks_first() -> None:
    made = OpenAI(OpenAI.Options())
    assert isinstance(made, Agent)
    assert isinstance(made, ChecksFirst)


def test_the_slow_import_is_left_until_it_is_needed() -> None:
    look = "import sys, race_agents.openai; raise SystemExit('openai' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", look], check=False, env={"PYTHONPATH": ":".join(sys.path)}
        ).returncode
        == 0
    )
