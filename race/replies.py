"""Reading what a chat.completions server answers: a turn of the model, or why there is none.

Everything in an answer is somebody else's: it may be no JSON, hold half characters, lack what the protocol
promises, or report an error under status 200. What can be read becomes a `Reply`; the rest becomes a
`CallFailed` that says whether the call is worth repeating and quotes the server.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, JsonValue, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from race.agent import TokenUsage

SHOWN = 500
"""Characters that are quoted of a server's error."""

TOO_LONG = "context_length_exceeded"
"""The error code of a conversation that has outgrown its model."""

_REFUSED_SIZES = frozenset({400, 413, 422})
_TOO_LONG_IN_WORDS = re.compile(
    r"context.{0,12}(length|window|size)|(prompt|input|request|conversation) is too (long|large)|"
    r"too many (input )?tokens",
    re.IGNORECASE,
)
_SERVER_ERROR = 500  # and above
_MAY_PASS = frozenset({408, 409, 425, 429})
_WILL_NOT_PASS = frozenset({TOO_LONG, "insufficient_quota"})

Finish: TypeAlias = Literal["stop", "length", "tool_calls", "refused"]
"""Why a turn ended: by itself, cut at a limit of tokens, to have tools called, or because the model
declined."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to have a tool called.

    Attributes:
        id: joins the call to its result.
        name: the tool, as asked; there need not be one of this name.
        arguments: decoded; None if they are no JSON object, or must not be sent again.
        raw: the arguments as they came, to be quoted.
    """

    id: str
    name: str
    arguments: Mapping[str, JsonValue] | None
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn of a model.

    Attributes:
        text: what it said, or why it declined.
        calls: the tools it wants called, in order. Those of a turn that was cut must not be run.
        finish: see `Finish`.
        usage: what the call used, as the server counted.
        carried: what the server wants back with the conversation, unread.
    """

    text: str
    calls: tuple[ToolCall, ...]
    finish: Finish
    usage: TokenUsage
    carried: tuple[JsonValue, ...] = ()


class CallFailed(Exception):  # noqa: N818 - what happened to a call; the caller decides whether it is an error
    """One call brought no turn.

    Args:
        text: why, in the server's words if it had any.
        again: whether the same call may succeed later.
        wait: seconds that the server asks to be left alone.
        code: the server's name for the error.
    """

    def __init__(self, text: str, *, again: bool = True, wait: float = 0.0, code: str = "") -> None:
        super().__init__(text)
        self.again = again
        self.wait = wait
        self.code = code


def read_reply(content: bytes) -> Reply:
    """The turn in the body of an answer with status 200.

    Raises:
        CallFailed: there is none.
    """
    try:
        body = _Body.model_validate_json(tidy(content))
    except (ValueError, RecursionError):
        raise CallFailed(f"the answer is no completion: {quoted(content)}") from None
    choice = body.choices[0] if body.choices else _Choice()
    if choice.message is None:
        error = body.error or choice.error
        code = error.get("code") if isinstance(error, dict) else None
        # Some gateways answer 200 and put the status of the server behind them into the body.
        raise read_failure(code if isinstance(code, int) else None, {}, content)
    if choice.finish_reason in {"", "error"}:
        # Nobody knows whether such a turn is whole, and half a command must not be run.
        raise CallFailed(f"the answer does not say why it ended: {quoted(content)}")
    said = choice.message
    usage = body.usage.counted()
    if said.refusal or choice.finish_reason == "content_filter":
        return Reply(said.refusal or said.text() or "stopped by a content filter", (), "refused", usage)
    finish: Finish = "stop"
    if choice.finish_reason in {"length", "tool_calls"}:
        finish = cast("Finish", choice.finish_reason)
    return Reply(said.text(), tuple(c.read() for c in said.tool_calls or ()), finish, usage)


def read_failure(status: int | None, headers: Mapping[str, str], content: bytes) -> CallFailed:
    """What an answer without a turn means for the call.

    Args:
        status: of the answer; None if that says nothing.
        headers: of the answer.
        content: its body.
    """
    try:
        error = json.loads(content)["error"]
        code = str(error.get("code") or error.get("type") or "")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        code = ""
    if status in _REFUSED_SIZES and _TOO_LONG_IN_WORDS.search(quoted(content)):
        code = TOO_LONG  # few servers have a code for it
    return CallFailed(
        f"{'no turn' if status is None else f'status {status}'}: {quoted(content)}",
        again=(status is None or status >= _SERVER_ERROR or status in _MAY_PASS)
        and code not in _WILL_NOT_PASS,
        wait=retry_after(headers),
        code=code,
    )


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds to wait, from ``Retry-After`` (in seconds, or a date) or ``retry-after-ms``; 0 if not asked."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
            except (ValueError, TypeError):  # no date; a date without a zone
                continue
        if not math.isnan(seconds):
            return max(seconds, 0.0)
    return 0.0


def decode_object(text: str) -> dict[str, JsonValue] | None:
    """The JSON object that a text holds, with half characters replaced; None if it holds none."""
    try:
        value = json.loads(tidy(text.encode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, JsonValue]", value) if isinstance(value, dict) else None


def tidy(content: bytes) -> bytes:
    """JSON with half characters replaced.

    Raises:
        ValueError: it is none.
    """
    # "\ud83d" is valid JSON for half a character, which no UTF-8 text can hold: it would raise far from here,
    # when the text is stored or sent.
    return json.dumps(json.loads(content), ensure_ascii=False).encode("utf-8", "replace")


def quoted(content: bytes) -> str:
    """What the server says in an error's body, bounded."""
    text = content.decode("utf-8", "replace").strip()
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        for found in (fields.get("error"), fields.get("message"), fields.get("detail")):
            said = cast("dict[str, Any]", found).get("message") if isinstance(found, dict) else found
            if isinstance(said, str) and said.strip():
                text = said.strip()
                break
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    if not text:
        return "(an empty body)"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(content):,} bytes)"


def _or(default: object) -> WrapValidator:
    """A field that is not worth losing a turn over: ``default`` stands in for what cannot be read."""

    def validate(value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError:
            return default

    return WrapValidator(validate)


class _Details(BaseModel):
    cached_tokens: Annotated[int, _or(0)] = 0


class _Usage(BaseModel):
    prompt_tokens: Annotated[int, _or(0)] = 0
    completion_tokens: Annotated[int, _or(0)] = 0
    prompt_tokens_details: Annotated[_Details, _or(_Details())] = _Details()
    cost: Annotated[float | None, _or(None)] = None

    def counted(self) -> TokenUsage:
        known = self.cost is not None and math.isfinite(self.cost) and self.cost >= 0
        return TokenUsage(
            max(self.prompt_tokens, 0),
            max(self.completion_tokens, 0),
            max(self.prompt_tokens_details.cached_tokens, 0),
            self.cost if known else None,
        )


class _Function(BaseModel):
    name: Annotated[str, _or("")] = ""
    arguments: JsonValue = ""


class _Call(BaseModel):
    id: Annotated[str, _or("")] = ""
    function: Annotated[_Function, _or(_Function())] = _Function()

    def read(self) -> ToolCall:
        given = self.function.arguments
        raw = given if isinstance(given, str) else json.dumps(given)  # some servers send the object itself
        return ToolCall(self.id, self.function.name, decode_object(raw), raw)


class _Message(BaseModel):
    content: JsonValue = None
    refusal: Annotated[str | None, _or(None)] = None
    tool_calls: list[_Call] | None = None

    def text(self) -> str:
        """What is said: a text, or the texts among a list of parts."""
        parts = self.content if isinstance(self.content, list) else [self.content]
        texts = (p.get("text") if isinstance(p, dict) else p for p in parts)
        return "\n".join(t for t in texts if isinstance(t, str)).strip()


class _Choice(BaseModel):
    message: _Message | None = None
    finish_reason: Annotated[str, _or("")] = ""
    error: JsonValue = None


class _Body(BaseModel):
    choices: list[_Choice] | None = None
    usage: Annotated[_Usage, _or(_Usage())] = _Usage()
    error: JsonValue = None
