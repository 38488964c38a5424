"""The responses protocol for `race.chat`: a conversation as its items, and its answers as replies.

Nothing is kept by the server (``store`` is false), so what a model thought goes back to it with the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import JsonValue

from race.agent import TokenUsage
from race.gateway.counting import counted
from race.replies import CallFailed, Finish, Reply, ToolCall, decode_object, quoted, read_failure, tidy

if TYPE_CHECKING:
    from race.chat import Message


def items(messages: Sequence[Message]) -> list[JsonValue]:
    """A conversation as it is sent."""
    sent: list[JsonValue] = []
    for message in messages:
        wire = message.wire()
        if message.role == "tool":
            output = {"type": "function_call_output", "call_id": message.answers, "output": wire["content"]}
            sent.append(cast("JsonValue", output))
            continue
        sent += message.carried
        if message.text.strip() or not message.calls:
            sent.append({"role": message.role, "content": wire["content"]})
        for call in cast("list[dict[str, Any]]", wire.get("tool_calls", [])):
            function = call["function"]
            sent.append({"type": "function_call", "call_id": call["id"], **function})
    return sent


def fields(given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The fields of a chat.completions request as this protocol names them."""
    made: dict[str, JsonValue] = {}
    for name, value in given.items():
        if name == "tools" and isinstance(value, list):
            made[name] = [_tool(t) for t in value]
        elif name == "reasoning_effort":
            made["reasoning"] = {"effort": value}
            made["include"] = ["reasoning.encrypted_content"]
        elif name in {"max_tokens", "max_completion_tokens"}:
            made["max_output_tokens"] = value
        else:
            made[name] = value
    return made


def _tool(tool: JsonValue) -> JsonValue:
    function = tool.get("function") if isinstance(tool, dict) else None
    return {"type": "function", **function} if isinstance(function, dict) else tool


def read_response(content: bytes) -> Reply:
    """The turn in the body of an answer with status 200.

    Raises:
        CallFailed: there is none.
    """
    try:
        body: Any = json.loads(tidy(content))
    except (ValueError, RecursionError):
        body = None
    answer = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    output: Any = answer.get("output")
    status = answer.get("status")
    if not isinstance(output, list) or status == "failed":
        if not answer:
            raise CallFailed(f"the answer is no response: {quoted(content)}")
        raise read_failure(None, {}, content)
    parts = [cast("dict[str, Any]", i) for i in cast("list[object]", output) if isinstance(i, dict)]
    said: list[str] = []
    refused = ""
    for part in (p for i in parts if i.get("type") == "message" for p in i.get("content") or ()):
        if part.get("type") == "refusal":
            refused = str(part.get("refusal") or "declined")
        elif isinstance(part.get("text"), str):
            said.append(part["text"])
    found = counted("responses", answer)
    usage = TokenUsage()
    if found is not None:
        usage = TokenUsage(found.tokens.read, found.tokens.written, found.tokens.cached, found.cost_usd)
    text = "\n".join(said).strip()
    details: Any = answer.get("incomplete_details") if status == "incomplete" else None
    reason = cast("dict[str, Any]", details).get("reason", "length") if isinstance(details, dict) else ""
    if refused or reason == "content_filter":
        return Reply(refused or text or "stopped by a content filter", (), "refused", usage)
    calls = tuple(_call(i) for i in parts if i.get("type") == "function_call")
    finish: Finish = "length" if reason else "tool_calls" if calls else "stop"
    thoughts = tuple(cast("JsonValue", i) for i in parts if i.get("type") == "reasoning")
    return Reply(text, calls, finish, usage, thoughts)


def _call(item: dict[str, Any]) -> ToolCall:
    given = item.get("arguments")
    raw = given if isinstance(given, str) else json.dumps(given)
    return ToolCall(str(item.get("call_id") or ""), str(item.get("name") or ""), decode_object(raw), raw)
