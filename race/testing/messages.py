"""Anthropic's messages protocol, as a scripted model speaks it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, JsonValue

from race.agent import TokenUsage
from race.testing.script import Fault, Turn
from race.testing.tokens import Schema, tokens
from race.testing.wire import Conversation, decoded

_PIECE = 40  # characters of arguments in one event of a stream
_COUNT = "/count_tokens"


class Messages:
    """See `race.testing.wire.Wire`."""

    def matches(self, path: str) -> bool:
        """Whether requests to a path speak it."""
        return path.endswith(("/messages", f"/messages{_COUNT}"))

    def read(self, path: str, body: bytes) -> Conversation:
        """What a request says."""
        request = _Request.model_validate_json(body)
        turns = [i for i, m in enumerate(request.messages) if m.get("role") == "assistant"]
        return Conversation(
            model=request.model,
            start=json.dumps(request.messages[:1]),
            step=len(turns),
            tools=[t.input_schema.tool(t.name) for t in request.tools or ()],
            stream=bool(request.stream),
            input_tokens=tokens(request.messages),
            cached_tokens=tokens(request.messages[: turns[-1]]) if turns else 0,
            only_count=path.endswith(_COUNT),
        )

    def output_tokens(self, conversation: Conversation, turn: Turn) -> int:
        """An estimate of what a turn costs."""
        return tokens(_content(conversation, turn))

    def answer(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> bytes:
        """A turn as one ``message``."""
        if conversation.only_count:
            return json.dumps({"input_tokens": conversation.input_tokens}).encode()
        return json.dumps(_message(conversation, turn, usage, _content(conversation, turn))).encode()

    def events(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> Iterator[bytes]:
        """A turn as a stream of events."""
        content = _content(conversation, turn)
        whole = _message(conversation, turn, usage, content)
        began: dict[str, Any] = {
            **whole,
            "content": [],
            "stop_reason": None,
            "usage": {**whole["usage"], "output_tokens": 1},
        }
        yield _event("message_start", message=began)
        for index, block in enumerate(content):
            kind = block["type"]
            empty: dict[str, Any] = (
                {**block, "input": {}} if kind == "tool_use" else {"type": "text", "text": ""}
            )
            yield _event("content_block_start", index=index, content_block=empty)
            text = json.dumps(block["input"]) if kind == "tool_use" else block["text"]
            for start in range(0, len(text), _PIECE):
                piece = text[start : start + _PIECE]
                delta = {"type": "text_delta", "text": piece}
                if kind == "tool_use":
                    delta = {"type": "input_json_delta", "partial_json": piece}
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("ping")
        ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield _event("message_delta", delta=ended, usage={"output_tokens": usage.output_tokens})
        yield _event("message_stop")

    def error(self, status: int, message: str) -> Fault:
        """An error as Anthropic reports it."""
        inner = {"type": "invalid_request_error", "message": message}
        return Fault(status, json.dumps({"type": "error", "error": inner}))


def _event(kind: str, **data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def _content(conversation: Conversation, turn: Turn) -> list[dict[str, Any]]:
    said = turn.refusal or turn.text
    blocks: list[dict[str, Any]] = [{"type": "text", "text": said}] if said else []
    blocks += [
        {"type": "tool_use", "id": _id("toolu"), "name": c.name, "input": decoded(c.arguments)}
        for c in conversation.calls(turn)
    ]
    return blocks


def _message(
    conversation: Conversation, turn: Turn, usage: TokenUsage, content: list[dict[str, Any]]
) -> dict[str, Any]:
    natural = "tool_use" if any(b["type"] == "tool_use" for b in content) else "end_turn"
    reasons = {"length": "max_tokens", "content_filter": "refusal"}
    stop = "refusal" if turn.refusal else reasons.get(turn.finish or "", natural)
    counted: dict[str, Any] = {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }
    return {
        "id": _id("msg"),
        "type": "message",
        "role": "assistant",
        "model": conversation.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": counted if usage.cost_usd is None else {**counted, "cost": usage.cost_usd},
    }


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:16]}"


class _OfferedTool(BaseModel):
    name: str
    input_schema: Schema = Schema()


class _Request(BaseModel):
    model: str
    messages: list[dict[str, JsonValue]]
    tools: list[_OfferedTool] | None = None
    stream: bool | None = None
