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
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from race.errors import SpecError
from race.gateway.exchanges import Exchange, Record
from race.gateway.protocols import Asked, Endpoint, Name, asked

_DAYS = "(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_MONTHS = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|"
    "Nov(?:ember)?|Dec(?:ember)?)"
)
_VARIES = re.compile(rf"[0-9a-f]{{8}}-[0-9a-f-]{{27}}|\b[0-9a-f]{{16,}}\b|\d+|\b{_DAYS}\b|\b{_MONTHS}\b")
_IDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "encrypted_content", "signature", "status"})


class Source:
    """The answers of a recorded race.

    Args:
        records: of the race; of one with several rounds, those of all.
    """

    def __init__(self, *records: Record) -> None:
        self._records = records
        self._attempts: dict[str, _Answers] = {}

    @classmethod
    def of(cls, folders: Iterable[str]) -> Source:
        """The answers in some folders.

        Raises:
            SpecError: there is none.
        """
        found = [Record(Path(f)) for f in folders if Path(f).is_dir()]
        if not found:
            raise SpecError(
                "the record of the race that is to be replayed is gone, or no model was asked in it"
            )
        return cls(*found)

    @property
    def folders(self) -> tuple[str, ...]:
        """Where they are."""
        return tuple(str(r.folder.absolute()) for r in self._records)

    def find(self, attempt: str, where: Endpoint, wanted: Asked) -> Exchange | None:
        """The recorded answer to a request; None if there is none that was not given yet."""
        if attempt not in self._attempts:
            self._attempts[attempt] = _Answers(self._records, attempt)
        return self._attempts[attempt].take(where, wanted)


class _Answers:
    def __init__(self, records: Iterable[Record], attempt: str) -> None:
        self._used: set[int] = set()
        self._exact: dict[str, deque[int]] = defaultdict(deque)
        self._alike: dict[str, deque[int]] = defaultdict(deque)
        self._exchanges: list[Exchange] = []
        # Of an attempt that was started anew, the last conversation counts. A request that was broken off was sent
        # again if it mattered, and that one has an answer: so it comes last.
        for record in records:
            found = sorted(
                record.read(attempt, last=True), key=lambda e: (e.outcome == "broken off", e.number)
            )
            self._take_in(found)

    def _take_in(self, found: Iterable[Exchange]) -> None:
        for exchange in found:
            if exchange.outcome == "refused":
                continue
            name = cast("Name", exchange.protocol)
            where = Endpoint(name, exchange.path, counts=True, model=exchange.model)
            try:
                wanted = asked(where, exchange.request)
            except ValueError:
                continue
            self._exact[_exact(where, wanted)].append(len(self._exchanges))
            self._alike[_alike(where, wanted)].append(len(self._exchanges))
            self._exchanges.append(exchange)

    def take(self, where: Endpoint, wanted: Asked) -> Exchange | None:
        for found in (self._exact[_exact(where, wanted)], self._alike[_alike(where, wanted)]):
            while found:
                place = found.popleft()
                if place not in self._used:
                    self._used.add(place)
                    return self._exchanges[place]
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
