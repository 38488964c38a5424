"""What is read from the answers of servers, good and bad."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from race.agent import TokenUsage
from race.replies import SHOWN, CallFailed, decode_object, read_failure, read_reply, retry_after


def answer(message: object = None, finish: object = "stop", **more: object) -> bytes:
    said = {"content": "Hello."} if message is None else message
    return json.dumps({"choices": [{"message": said, "finish_reason": finish}], **more}).encode()


def test_a_turn() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
        "cost": 0.01,
    }
    reply = read_reply(
        answer({"content": None, "tool_calls": [call], "reasoning": "hm"}, "tool_calls", usage=usage)
    )
    assert (reply.text, reply.finish, reply.usage) == ("", "tool_calls", TokenUsage(9, 3, 4, 0.01))
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [("c1", "bash", {"command": "ls"})]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("  Hello.\n", "Hello."),
        (None, ""),
        (5, ""),
        (
            [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hello."}, "You."],
            "Hello.\nYou.",
        ),
        ("half \ud83d", "half ?"),
    ],
)
def test_what_is_said(content: object, text: str) -> None:
    assert read_reply(answer({"content": content})).text == text


@pytest.mark.parametrize(
    ("finish", "read"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("end_turn", "stop"),
        ("content_filter", "refused"),
    ],
)
def test_why_it_ended(finish: str, read: str) -> None:
    assert read_reply(answer(finish=finish)).finish == read


@pytest.mark.parametrize("finish", [None, "", "error", 7])
def test_without_a_reason_there_is_no_turn(finish: object) -> None:
    with pytest.raises(CallFailed, match="why it ended") as failed:
        read_reply(answer(finish=finish))
    assert failed.value.again


def test_a_refusal_is_no_turn_to_act_on() -> None:
    call = {"id": "c1", "function": {"name": "bash", "arguments": "{}"}}
    reply = read_reply(answer({"content": None, "refusal": "No.", "tool_calls": [call]}))
    assert (reply.text, reply.finish, reply.calls) == ("No.", "refused", ())


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, TokenUsage()),
        ("many", TokenUsage()),
        ({"prompt_tokens": "x", "completion_tokens": 3}, TokenUsage(0, 3)),
        ({"prompt_tokens": -1, "completion_tokens": 2, "prompt_tokens_details": None}, TokenUsage(0, 2)),
        ({"prompt_tokens": 1, "cost": -0.1}, TokenUsage(1)),
        ({"prompt_tokens": 1, "cost": float("nan")}, TokenUsage(1)),
        ({"prompt_tokens": 1, "cost": 0}, TokenUsage(1, cost_usd=0.0)),
    ],
)
def test_usage_is_never_worth_losing_a_turn(usage: object, counted: TokenUsage) -> None:
    reply = read_reply(answer(usage=usage))
    assert (reply.text, reply.usage) == ("Hello.", counted)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "an empty body"),
        (b"<html>gateway error</html>", "<html>gateway error</html>"),
        (b'"text"', "text"),
        (b"null", "null"),
        (b"\xff\xfe\xfd", "no completion"),
        (b"[" * 100_000, "bytes"),
        (b'{"choices": null, "error": {"message": "quota"}}', "quota"),
        (b'{"choices": [], "message": "nothing here"}', "nothing here"),
        (b'{"choices": [{"message": null}]}', "message"),
        (b'{"choices": [{"finish_reason": "error", "error": {"message": "upstream"}}]}', "upstream"),
        (b'{"choices": "none"}', "none"),
        (b'{"error": "down for today"}', "down for today"),
        (b'{"detail": "down for \\ud83d"}', r"down for \?"),
    ],
)
def test_an_answer_without_a_turn_quotes_the_server_and_may_pass(body: bytes, said: str) -> None:
    with pytest.raises(CallFailed, match=said) as failed:
        read_reply(body)
    assert failed.value.again
    assert len(str(failed.value)) < SHOWN + 100
    str(failed.value).encode()


@pytest.mark.parametrize(
    ("error", "again"),
    [
        ({"code": 502}, True),
        ({"code": 429}, True),
        ({"code": 401}, False),
        ({"code": "insufficient_quota"}, False),
    ],
)
def test_an_error_in_an_answer_with_status_200(error: dict[str, Any], again: bool) -> None:
    with pytest.raises(CallFailed, match="quota") as failed:
        read_reply(json.dumps({"error": {"message": "quota", **error}}).encode())
    assert failed.value.again is again


@pytest.mark.parametrize(
    ("status", "again"),
    [(400, False), (401, False), (404, False), (408, True), (429, True), (500, True), (529, True)],
)
def test_a_status(status: int, again: bool) -> None:
    failed = read_failure(status, {"retry-after": "7"}, b'{"error": {"message": "no", "code": "x"}}')
    assert (str(failed), failed.again, failed.wait, failed.code) == (f"status {status}: no", again, 7.0, "x")


def test_a_quota_that_is_used_up_does_not_come_back() -> None:
    assert not read_failure(429, {}, b'{"error": {"message": "pay", "type": "insufficient_quota"}}').again


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, 0.0),
        ({"retry-after": "nan"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(headers) == seconds


def test_how_long_to_wait_until_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert 85 < retry_after({"retry-after": date}) <= 90


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": "\\ud835"}', {"a": "?"}),
        ("null", None),
        ("[]", None),
        ('"ls"', None),
        ('{"a": ', None),
        ("", None),
        ('{"a":' * 100_000, None),
        ("{" + '"a": ' + "9" * 10_000 + "}", None),
        ("\ud835", None),
    ],
)
def test_arguments(text: str, value: object) -> None:
    assert decode_object(text) == value
