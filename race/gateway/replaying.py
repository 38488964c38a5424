"""Answering from a record: the same conversations again, without a key and without a network.

A request is looked up among those of the same attempt: first by its exact content, then by what the model had said in
it. The second is for what differs from run to run without being another conversation: a time that a command took, a
date, a process number, an id that an agent makes up.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict, deque
from typing import cast

from pydantic import JsonValue

from race.gateway.exchanges import Exchange, Record
from race.gateway.protocols import Asked, Endpoint, Name, asked

_VARIES = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+")
_IDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "encrypted_content", "signature", "status"})


class Source:
    """The answers of a recorded race.

    Args:
        record: of the race.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._attempts: dict[str, _Answers] = {}

    def find(self, attempt: str, where: Endpoint, wanted: Asked) -> Exchange | None:
        """The recorded answer to a request; None if there is none that was not given yet."""
        if attempt not in self._attempts:
            self._attempts[attempt] = _Answers(self._record, attempt)
        return self._attempts[attempt].take(where, wanted)


class _Answers:
    def __init__(self, record: Record, attempt: str) -> None:
        self._used: set[int] = set()
        self._exact: dict[str, deque[Exchange]] = defaultdict(deque)
        self._alike: dict[str, deque[Exchange]] = defaultdict(deque)
        for exchange in sorted(record.read(attempt), key=lambda e: e.number):
            if exchange.outcome == "refused":
                continue
            name = cast("Name", exchange.protocol)
            where = Endpoint(name, exchange.path, counts=True, model=exchange.model)
            try:
                wanted = asked(where, exchange.request)
            except ValueError:
                continue
            self._exact[_exact(where, wanted)].append(exchange)
            self._alike[_alike(where, wanted)].append(exchange)

    def take(self, where: Endpoint, wanted: Asked) -> Exchange | None:
        for found in (self._exact[_exact(where, wanted)], self._alike[_alike(where, wanted)]):
            while found:
                exchange = found.popleft()
                if exchange.number not in self._used:
                    self._used.add(exchange.number)
                    return exchange
        return None


def _exact(where: Endpoint, wanted: Asked) -> str:
    return _hash([where.path, _decoded(wanted.body)])


def _alike(where: Endpoint, wanted: Asked) -> str:
    """What stays the same of a conversation from run to run: who spoke, what the model said, what was asked of it."""
    request = _decoded(wanted.body)
    turns: JsonValue = None
    if isinstance(request, dict):
        turns = request.get("messages") or request.get("input") or request.get("contents")
    said = [_turn(t) for t in turns] if isinstance(turns, list) else [_steady(turns)]
    return _hash([where.path, wanted.model, said])


def _turn(turn: JsonValue) -> JsonValue:
    if isinstance(turn, dict) and (
        turn.get("role") == "tool" or str(turn.get("type", "")).endswith("_output")
    ):
        return "result"
    return _steady(turn)


def _steady(value: JsonValue) -> JsonValue:
    """The same value without ids, with numbers and ids in its texts made equal, and without results of tools."""
    if isinstance(value, dict):
        if value.get("type") == "tool_result" or "functionResponse" in value:
            return "result"
        return {k: _steady(v) for k, v in value.items() if k not in _IDS}
    if isinstance(value, list):
        return [_steady(v) for v in value]
    return _VARIES.sub("0", value) if isinstance(value, str) else value


def _decoded(body: bytes) -> JsonValue:
    try:
        found: JsonValue = json.loads(body)
    except ValueError:
        return body.hex()
    return found


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
