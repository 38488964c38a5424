"""How many tokens an answer says that it used, in each protocol, streamed or not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from race.gateway.pricing import Tokens
from race.gateway.protocols import Name, ends, is_content


@dataclass(frozen=True, slots=True)
class Counted:
    """What a server says that a call used.

    Attributes:
        tokens: of the call.
        cost_usd: if the server says it.
    """

    tokens: Tokens
    cost_usd: float | None = None


def counted(protocol: Name, answer: object) -> Counted | None:
    """What a decoded answer, or one event of a stream, says; None if it says nothing.

    An event of the messages protocol may say only a part; see `StreamReader`.
    """
    if not isinstance(answer, dict):
        return None
    usage = _usage(protocol, cast("dict[str, Any]", answer))
    if usage is None:
        return None
    if protocol == "gemini":
        tokens = Tokens(
            _count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount"),
            _count(usage, "candidatesTokenCount") + _count(usage, "thoughtsTokenCount"),
            _count(usage, "cachedContentTokenCount"),
        )
    elif protocol == "messages":
        cached, put = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
        tokens = Tokens(
            _count(usage, "input_tokens") + cached + put, _count(usage, "output_tokens"), cached, put
        )
    else:
        names = ("input", "output") if protocol == "responses" else ("prompt", "completion")
        details: Any = usage.get(f"{names[0]}_tokens_details")
        tokens = Tokens(
            _count(usage, f"{names[0]}_tokens"),
            _count(usage, f"{names[1]}_tokens"),
            _count(details, "cached_tokens"),
        )
    return Counted(tokens, _cost(usage))


class StreamReader:
    """Reads along with a stream of server-sent events that is passed through.

    Attributes:
        whole: whether the stream has said that its turn is whole.
    """

    def __init__(self, protocol: Name) -> None:
        self.whole = False
        self._protocol: Name = protocol
        self._rest = b""
        self._usage: dict[str, Any] = {}
        self._counted: Counted | None = None

    @property
    def counted(self) -> Counted | None:
        """What the stream says that it used, so far."""
        return self._counted

    def feed(self, piece: bytes) -> bool:
        """The next bytes. Returns whether they brought anything but signs of life."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        brought = False
        for line in lines:
            if line.startswith(b"data:"):
                brought |= self._event(line[5:].strip().decode("utf-8", "replace"))
        return brought

    def _event(self, data: str) -> bool:
        try:
            event: Any = json.loads(data)
        except ValueError:
            event = None
        event = cast("dict[str, Any]", event) if isinstance(event, dict) else None
        self.whole = self.whole or ends(self._protocol, event, data)
        if event is not None:
            self._count(event)
        return is_content(event)

    def _count(self, event: dict[str, Any]) -> None:
        if self._protocol == "messages":
            # The beginning of a message says what was read, and the end what was written.
            for usage in (_usage("messages", event), _usage("messages", event.get("message"))):
                self._usage.update({k: v for k, v in (usage or {}).items() if v is not None})
            if self._usage:
                self._counted = counted("messages", {"usage": self._usage})
            return
        if self._protocol == "responses":
            response: Any = event.get("response")
            event = cast("dict[str, Any]", response) if isinstance(response, dict) else {}
        self._counted = counted(self._protocol, event) or self._counted


def events(body: bytes) -> Iterator[dict[str, Any]]:
    """The objects in the data of a stream of server-sent events."""
    for line in body.split(b"\n"):
        if line.startswith(b"data:"):
            try:
                event: Any = json.loads(line[5:])
            except ValueError:
                continue
            if isinstance(event, dict):
                yield cast("dict[str, Any]", event)


def _usage(protocol: Name, answer: object) -> dict[str, Any] | None:
    if not isinstance(answer, dict):
        return None
    found: Any = cast("dict[str, Any]", answer).get("usageMetadata" if protocol == "gemini" else "usage")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _count(usage: Mapping[str, Any] | object, key: str) -> int:
    value = cast("Mapping[str, Any]", usage).get(key) if isinstance(usage, Mapping) else 0
    return max(value, 0) if isinstance(value, int) else 0


def _cost(usage: Mapping[str, Any]) -> float | None:
    cost: Any = usage.get("cost")
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not math.isfinite(cost) or cost < 0:
        return None
    return float(cost)
