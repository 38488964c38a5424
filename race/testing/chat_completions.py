"""The chat.completions protocol, as a scripted model speaks it, and what a strict server refuses of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from race.agent import TokenUsage
from race.testing.script import Fault, Turn, error
from race.testing.tokens import Schema, tokens
from race.testing.wire import Conversation, Tool

_CHUNK = 40  # characters of arguments in one event of a stream


class ChatCompletions:
    """See `race.testing.wire.Wire`."""

    def matches(self, path: str) -> bool:
        """Whether requests to a path speak it."""
        return path.endswith("/chat/completions")

    def read(self, path: str, body: bytes) -> Conversation:  # noqa: ARG002 - the protocol's signature
        """What a request says."""
        request = _Request.model_validate_json(body)
        turns = [i for i, m in enumerate(request.messages) if m.get("role") == "assistant"]
        return Conversation(
            model=request.model,
            start=json.dumps(request.messages[:2]),
            step=len(turns),
            tools=[t.function.tool() for t in request.tools or () if t.function],
            stream=bool(request.stream),
            input_tokens=tokens(request.messages),
            cached_tokens=tokens(request.messages[: turns[-1]]) if turns else 0,
            problems=tuple(problems(request.messages)),
        )

    def output_tokens(self, conversation: Conversation, turn: Turn) -> int:
        """An estimate of what a turn costs."""
        return tokens(self._message(conversation, turn))

    def answer(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> bytes:
        """A turn as one ``chat.completion``."""
        message = self._message(conversation, turn)
        choice = {"index": 0, "message": message, "finish_reason": _finish(turn, message), "logprobs": None}
        body = {**_head(conversation, "chat.completion"), "choices": [choice], "usage": _usage(usage)}
        return json.dumps(body).encode()

    def events(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> Iterator[bytes]:
        """A turn as a stream of ``chat.completion.chunk``."""
        message = self._message(conversation, turn)
        head = _head(conversation, "chat.completion.chunk")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{k: message[k]} for k in ("content", "refusal") if message[k]]
        for index, call in enumerate(message.get("tool_calls", ())):
            arguments = call["function"]["arguments"]
            opening = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
            deltas.append({"tool_calls": [opening]})
            for start in range(0, len(arguments), _CHUNK):
                part = {"index": index, "function": {"arguments": arguments[start : start + _CHUNK]}}
                deltas.append({"tool_calls": [part]})
        choices: list[list[dict[str, Any]]] = [
            [{"index": 0, "delta": d, "finish_reason": None}] for d in deltas
        ]
        choices += [[{"index": 0, "delta": {}, "finish_reason": _finish(turn, message)}], []]
        for choice in choices:
            chunk = {**head, "choices": choice, "usage": None if choice else _usage(usage)}
            yield f"data: {json.dumps(chunk)}\n\n".encode()
        yield b"data: [DONE]\n\n"

    def error(self, status: int, message: str) -> Fault:
        """An error as OpenAI reports it."""
        return error(status, message, "invalid_request_error")

    def _message(self, conversation: Conversation, turn: Turn) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": turn.text, "refusal": turn.refusal}
        calls = conversation.calls(turn)
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{uuid.uuid4().hex[:16]}",
                    "type": "function",
                    "function": {"name": c.name, "arguments": c.arguments},
                }
                for c in calls
            ]
        return message


def problems(messages: Sequence[object]) -> Iterator[str]:
    """What a strict server refuses in a list of messages, a line each.

    Refused are unknown fields, content that is empty or null where no tool is called, arguments that are no
    JSON object, and tool calls that are not answered exactly once, directly after them.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    for number, raw in enumerate(messages):
        try:
            message = _MESSAGE.validate_python(raw)
        except ValidationError as wrong:
            for e in wrong.errors():
                yield f"messages[{number}].{'.'.join(str(p) for p in e['loc'])}: {e['msg']}"
            continue
        if isinstance(message, _ToolResult):
            if message.tool_call_id in waiting:
                waiting.remove(message.tool_call_id)
            else:
                yield f"messages[{number}]: no call waits for the answer {message.tool_call_id!r}"
            continue
        if waiting:
            yield f"messages[{number}]: the calls {waiting!r} are not answered"
        waiting = [c.id for c in message.tool_calls or ()] if isinstance(message, _Assistant) else []
        if len(seen | set(waiting)) < len(seen) + len(waiting):
            yield f"messages[{number}]: the ids {waiting!r} are not new"
        seen |= set(waiting)
    if waiting:
        yield f"the calls {waiting!r} are not answered"


def _finish(turn: Turn, message: dict[str, Any]) -> str:
    natural = "tool_calls" if message.get("tool_calls") else "stop"
    return natural if turn.finish is None else turn.finish


def _head(conversation: Conversation, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:12]}",
        "object": kind,
        "created": 0,
        "model": conversation.model,
    }


def _usage(usage: TokenUsage) -> dict[str, Any]:
    counted: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    return counted if usage.cost_usd is None else {**counted, "cost": usage.cost_usd}


def _json_object(text: str) -> str:
    if not isinstance(json.loads(text), dict):
        raise ValueError("is no JSON object")  # noqa: TRY004 - bad data, not a bad call
    return text


class _OfferedFunction(BaseModel):
    name: str
    parameters: Schema = Schema()

    def tool(self) -> Tool:
        return self.parameters.tool(self.name)


class _OfferedTool(BaseModel):
    function: _OfferedFunction | None = None


class _Request(BaseModel):
    model: str
    messages: list[dict[str, JsonValue]]
    tools: list[_OfferedTool] | None = None
    stream: bool | None = None


_Filled = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Part(_Strict):
    type: Literal["text"]
    text: _Filled


_Content = _Filled | Annotated[list[_Part], Field(min_length=1)]


class _Function(_Strict):
    name: _Identifier
    arguments: Annotated[str, AfterValidator(_json_object)]


class _Call(_Strict):
    id: _Identifier
    type: Literal["function"]
    function: _Function


class _Said(_Strict):
    role: Literal["system", "developer", "user"]
    content: _Content


class _Assistant(_Strict):
    role: Literal["assistant"]
    content: _Content | Literal[""] | None = None
    tool_calls: Annotated[list[_Call], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> _Assistant:
        if not (self.content or self.tool_calls):
            raise ValueError("neither content nor calls of tools")
        return self


class _ToolResult(_Strict):
    role: Literal["tool"]
    tool_call_id: _Identifier
    content: _Content


_MESSAGE: TypeAdapter[_Said | _Assistant | _ToolResult] = TypeAdapter(
    Annotated[_Said | _Assistant | _ToolResult, Field(discriminator="role")]
)
