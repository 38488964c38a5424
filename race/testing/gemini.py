"""Gemini's protocol, as a scripted model speaks it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, Field, JsonValue

from race.agent import TokenUsage
from race.testing.script import Fault, Turn
from race.testing.tokens import Schema, tokens
from race.testing.wire import Conversation, decoded

_PATH = re.compile(r".*/models/(?P<model>.+):(?P<method>generateContent|streamGenerateContent|countTokens)")


class Gemini:
    """See `race.testing.wire.Wire`."""

    def matches(self, path: str) -> bool:
        """Whether requests to a path speak it."""
        return _PATH.fullmatch(path) is not None

    def read(self, path: str, body: bytes) -> Conversation:
        """What a request says."""
        match = _PATH.fullmatch(path)
        if match is None:
            raise ValueError(f"{path} names no model")
        request = _Request.model_validate_json(body)
        turns = [i for i, c in enumerate(request.contents) if c.get("role") == "model"]
        return Conversation(
            model=match["model"],
            start=json.dumps(request.contents[:1]),
            step=len(turns),
            tools=[f.schema_of().tool(f.name) for t in request.tools or () for f in t.functions],
            stream=match["method"].startswith("stream"),
            input_tokens=tokens(request.contents),
            cached_tokens=tokens(request.contents[: turns[-1]]) if turns else 0,
            only_count=match["method"] == "countTokens",
        )

    def output_tokens(self, conversation: Conversation, turn: Turn) -> int:
        """An estimate of what a turn costs."""
        return tokens(_parts(conversation, turn))

    def answer(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> bytes:
        """A turn as one answer."""
        if conversation.only_count:
            return json.dumps({"totalTokens": conversation.input_tokens}).encode()
        return json.dumps(_answer(conversation, turn, usage, _parts(conversation, turn))).encode()

    def events(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> Iterator[bytes]:
        """A turn as a stream of answers, a part each."""
        parts = _parts(conversation, turn) or [{"text": ""}]
        for number, part in enumerate(parts, 1):
            whole = _answer(conversation, turn, usage, [part])
            if number < len(parts):
                del whole["candidates"][0]["finishReason"]
            yield f"data: {json.dumps(whole)}\r\n\r\n".encode()

    def error(self, status: int, message: str) -> Fault:
        """An error as Google reports it."""
        return Fault(
            status, json.dumps({"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}})
        )


def _parts(conversation: Conversation, turn: Turn) -> list[dict[str, Any]]:
    said = turn.refusal or turn.text
    parts: list[dict[str, Any]] = [{"text": said}] if said else []
    calls = conversation.calls(turn)
    return parts + [{"functionCall": {"name": c.name, "args": decoded(c.arguments)}} for c in calls]


def _answer(
    conversation: Conversation, turn: Turn, usage: TokenUsage, parts: list[dict[str, Any]]
) -> dict[str, Any]:
    reasons = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
    reason = "SAFETY" if turn.refusal else reasons.get(turn.finish or "", "STOP")
    counted: dict[str, Any] = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "totalTokenCount": usage.input_tokens + usage.output_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
    }
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": 0}],
        "usageMetadata": counted if usage.cost_usd is None else {**counted, "cost": usage.cost_usd},
        "modelVersion": conversation.model,
        "responseId": uuid.uuid4().hex[:12],
    }


class _Function(BaseModel):
    name: str
    parameters: Schema | None = None
    json_schema: Schema | None = Field(default=None, alias="parametersJsonSchema")

    def schema_of(self) -> Schema:
        return self.json_schema or self.parameters or Schema()


class _OfferedTools(BaseModel):
    functions: list[_Function] = Field(default_factory=list[_Function], alias="functionDeclarations")


class _Request(BaseModel):
    contents: list[dict[str, JsonValue]]
    tools: list[_OfferedTools] | None = None
