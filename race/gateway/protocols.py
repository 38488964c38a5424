"""The four protocols between agents and models, as far as a gateway that passes bytes through must know them.

For each: which requests there are, what a request asks for, how an answer says that it is whole, and how an error is
written so that agents believe it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

Name: TypeAlias = Literal["chat", "responses", "messages", "gemini", "models"]

_VERSION = re.compile(r"^/v\d+[a-z]*(?=/)")
_GEMINI = re.compile(
    r"/models/(?P<model>[^/:]+(?:/[^/:]+)*):(?P<method>generateContent|streamGenerateContent|countTokens)"
)
_GEMINI_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a request is, by its method and path.

    Attributes:
        protocol: see `Name`; ``"models"`` lists models.
        path: below the version, with the query but without a key in it.
        counts: whether it costs tokens.
        model: if the path names it.
        stream: if the path says so.
    """

    protocol: Name
    path: str
    counts: bool
    model: str = ""
    stream: bool = False


def endpoint(method: str, target: str) -> Endpoint | None:
    """What a request is; None if it is none that goes to a model.

    Args:
        method: of HTTP.
        target: path and query.
    """
    path, _, query = target.partition("?")
    path = _VERSION.sub("", path)
    query = "&".join(part for part in query.split("&") if part and not part.startswith("key="))
    below = f"{path}?{query}" if query else path
    if method == "GET" and re.fullmatch(r"/models(/[\w.:/-]+)?", path) and ".." not in path:
        return Endpoint("models", below, counts=False)
    if method != "POST":
        return None
    if match := _GEMINI.fullmatch(path):
        kind = match["method"]
        return Endpoint("gemini", below, kind != "countTokens", match["model"], kind.startswith("stream"))
    known: dict[str, tuple[Name, bool]] = {
        "/chat/completions": ("chat", True),
        "/responses": ("responses", True),
        "/messages": ("messages", True),
        "/messages/count_tokens": ("messages", False),
    }
    if path not in known:
        return None
    protocol, counts = known[path]
    return Endpoint(protocol, below, counts)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for.

    Attributes:
        model: its name.
        stream: whether the answer is to be streamed.
        body: what is to be sent, which differs from what came only in that a stream must report its usage.
    """

    model: str
    stream: bool
    body: bytes


def asked(where: Endpoint, body: bytes) -> Asked:
    """Read a request.

    Raises:
        ValueError: it is not a JSON object.
    """
    if not body and where.protocol == "models":
        return Asked("", stream=False, body=body)
    data = json.loads(body)
    if not isinstance(data, dict):
        raise ValueError("the request is no JSON object")  # noqa: TRY004 - bad data, not a bad call
    request = cast("dict[str, Any]", data)
    model = where.model or str(request.get("model") or "")
    stream = where.stream or request.get("stream") is True
    if where.protocol == "chat" and stream:
        options: Any = request.get("stream_options")
        if not (isinstance(options, dict) and cast("dict[str, Any]", options).get("include_usage")):
            request["stream_options"] = {
                **(options if isinstance(options, dict) else {}),
                "include_usage": True,
            }
            body = json.dumps(request).encode()
    return Asked(model, stream, body)


def fault(protocol: Name, data: object) -> str:
    """What is wrong with the decoded answer of status 200; nothing if it is a turn."""
    if not isinstance(data, dict):
        return "the answer is no JSON object"
    answer = cast("dict[str, Any]", data)
    if protocol == "chat":
        choices = answer.get("choices")
        first: Any = choices[0] if isinstance(choices, list) and choices else None  # pyright: ignore[reportUnknownVariableType] - mypy knows the list
        whole = isinstance(first, dict) and isinstance(cast("dict[str, Any]", first).get("message"), dict)
    elif protocol == "responses":
        whole = isinstance(answer.get("output"), list) and answer.get("status") != "failed"
    elif protocol == "messages":
        whole = isinstance(answer.get("content"), list)
    elif protocol == "gemini":
        whole = isinstance(answer.get("candidates"), list) or "promptFeedback" in answer
    else:
        whole = True
    return "" if whole else message_of(answer) or "the answer holds no turn of a model"


def message_of(answer: object) -> str:
    """The sentence in an error's body, if there is one."""
    if not isinstance(answer, dict):
        return ""
    error: Any = cast("dict[str, Any]", answer).get("error")
    if isinstance(error, dict):
        error = cast("dict[str, Any]", error).get("message")
    return error.strip() if isinstance(error, str) else ""


def ends(protocol: Name, event: Mapping[str, Any] | None, data: str) -> bool:
    """Whether an event of a stream says that the turn is whole.

    Args:
        protocol: of the stream.
        event: the decoded ``data`` of the event, if it is an object.
        data: as it came.
    """
    if protocol == "chat":
        return data == "[DONE]" or any(_field(c, "finish_reason") for c in _items(event, "choices"))
    if event is None:
        return False
    if protocol == "gemini":
        return (
            any(_field(c, "finishReason") for c in _items(event, "candidates")) or "promptFeedback" in event
        )
    kind = event.get("type")
    if protocol == "responses":
        return kind in {"response.completed", "response.incomplete", "response.failed", "error"}
    return kind in {"message_stop", "error"}


def is_content(event: Mapping[str, Any] | None) -> bool:
    """Whether an event brings anything, or only keeps the connection open."""
    return event is None or event.get("type") != "ping"


def error_body(protocol: Name, status: int, kind: str, message: str) -> bytes:
    """An error as the protocol's clients understand it.

    Args:
        protocol: of the request.
        status: of the answer.
        kind: such as ``"authentication_error"``.
        message: for people.
    """
    if protocol == "messages":
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    if protocol == "gemini":
        name = _GEMINI_STATUS.get(status, "UNAVAILABLE")
        error = {"code": status, "message": message, "status": name, "type": kind}
        return json.dumps({"error": error}).encode()
    code = "invalid_api_key" if kind == "authentication_error" else kind
    return json.dumps({"error": {"message": message, "type": kind, "code": code, "param": None}}).encode()


def _items(event: Mapping[str, Any] | None, key: str) -> Sequence[Any]:
    found = event.get(key) if event else None
    return cast("Sequence[Any]", found) if isinstance(found, list) else ()


def _field(item: object, key: str) -> object:
    return cast("dict[str, Any]", item).get(key) if isinstance(item, dict) else None
