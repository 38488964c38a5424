"""The responses protocol, as a scripted model speaks it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, JsonValue

from race.agent import TokenUsage
from race.testing.script import Fault, Turn, error
from race.testing.tokens import Schema, tokens
from race.testing.wire import Conversation


class Responses:
    """See `race.testing.wire.Wire`."""

    def matches(self, path: str) -> bool:
        """Whether requests to a path speak it."""
        return path.endswith("/responses")

    def read(self, path: str, body: bytes) -> Conversation:  # noqa: ARG002 - the protocol's signature
        """What a request says."""
        request = _Request.model_validate_json(body)
        given = request.input
        items: list[dict[str, JsonValue]] = (
            [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
        )
        turns = _turns(items)
        return Conversation(
            model=request.model,
            start=json.dumps(items[:1]),
            step=len(turns),
            tools=[
                t.parameters.tool(t.name) if t.type == "function" else Schema().tool("local_shell")
                for t in request.tools or ()
                if t.type in {"function", "shell", "local_shell"}
            ],
            stream=bool(request.stream),
            input_tokens=tokens(items),
            cached_tokens=tokens(items[: turns[-1]]) if turns else 0,
        )

    def output_tokens(self, conversation: Conversation, turn: Turn) -> int:
        """An estimate of what a turn costs."""
        return tokens(_output(conversation, turn))

    def answer(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> bytes:
        """A turn as one ``response``."""
        return json.dumps(_response(conversation, turn, usage, _output(conversation, turn))).encode()

    def events(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> Iterator[bytes]:
        """A turn as a stream of events."""
        output = _output(conversation, turn)
        whole = _response(conversation, turn, usage, output)
        began: dict[str, Any] = {**whole, "status": "in_progress", "output": [], "usage": None}
        events: list[dict[str, Any]] = [{"type": "response.created", "response": began}]
        for index, item in enumerate(output):
            place = {"output_index": index, "item_id": item["id"]}
            empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
            added = {**item, "status": "in_progress", **empty}
            events.append({"type": "response.output_item.added", "output_index": index, "item": added})
            if item["type"] == "function_call":
                kind = "response.function_call_arguments"
                events.append({"type": f"{kind}.delta", **place, "delta": item["arguments"]})
                done = {"arguments": item["arguments"], "name": item["name"]}
                events.append({"type": f"{kind}.done", **place, **done})
            else:
                part = item["content"][0]
                place["content_index"] = 0
                events.append({"type": "response.content_part.added", **place, "part": {**part, "text": ""}})
                events.append(
                    {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []}
                )
                events.append(
                    {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
                )
                events.append({"type": "response.content_part.done", **place, "part": part})
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        events.append({"type": f"response.{whole['status']}", "response": whole})
        for number, event in enumerate(events):
            yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n".encode()

    def error(self, status: int, message: str) -> Fault:
        """An error as OpenAI reports it."""
        return error(status, message, "invalid_request_error")


def _turns(items: list[dict[str, JsonValue]]) -> list[int]:
    """Where turns of the model begin: at the first of what it said since somebody else spoke."""
    mine = [
        i.get("type") in {"function_call", "reasoning", "local_shell_call"} or i.get("role") == "assistant"
        for i in items
    ]
    return [i for i, m in enumerate(mine) if m and not (i and mine[i - 1])]


def _output(conversation: Conversation, turn: Turn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.text is not None or turn.refusal is not None:
        part: dict[str, Any] = {"type": "output_text", "text": turn.text or "", "annotations": []}
        if turn.refusal is not None:
            part = {"type": "refusal", "refusal": turn.refusal, "text": turn.refusal}
        said = {
            "type": "message",
            "id": _id("msg"),
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        items.append(said)
    items += [
        {
            "type": "function_call",
            "id": _id("fc"),
            "call_id": _id("call"),
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        for call in conversation.calls(turn)
    ]
    return items


def _response(
    conversation: Conversation, turn: Turn, usage: TokenUsage, output: list[dict[str, Any]]
) -> dict[str, Any]:
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(turn.finish or "")
    counted: dict[str, Any] = {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if cut else "completed",
        "model": conversation.model,
        "output": output,
        "usage": counted if usage.cost_usd is None else {**counted, "cost": usage.cost_usd},
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:16]}"


class _OfferedTool(BaseModel):
    type: str
    name: str = ""
    parameters: Schema = Schema()


class _Request(BaseModel):
    model: str
    input: str | list[dict[str, JsonValue]]
    tools: list[_OfferedTool] | None = None
    stream: bool | None = None
