"""What went through the gateway, as it is kept for trajectories and replays: a line of JSON for each exchange."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from race.agent import TokenUsage

ExchangeOutcome: TypeAlias = Literal["answered", "refused", "failed", "broken off"]
"""``"refused"``: the attempt's budget was spent; ``"failed"``: the server did not answer, or not with a turn;
``"broken off"``: the agent went away before the end."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what came of it, without keys.

    Attributes:
        number: in the attempt, from 1, in the order of their beginnings.
        attempt: whose.
        protocol: ``"chat"``, ``"responses"``, ``"messages"``, ``"gemini"`` or ``"models"``.
        path: below the version.
        model: as asked for.
        request: the body.
        status: of the answer; 0 if none was sent.
        content_type: of the answer.
        response: the body, as far as it came.
        outcome: see `ExchangeOutcome`.
        reason: why it failed or was refused.
        usage: what it used; None if it was not answered.
        tries: how often it was sent.
        started: seconds since the epoch.
        first_byte: seconds from its beginning to the first byte of the answer.
        seconds: from its beginning to its end.
    """

    number: int
    attempt: str
    protocol: str
    path: str
    model: str
    request: bytes
    status: int = 0
    content_type: str = ""
    response: bytes = b""
    outcome: ExchangeOutcome = "answered"
    reason: str = ""
    usage: TokenUsage | None = None
    tries: int = 1
    started: float = 0.0
    first_byte: float = 0.0
    seconds: float = 0.0

    def line(self) -> str:
        """As a line of JSON."""
        data = {**asdict(self), "request": _text(self.request), "response": _text(self.response)}
        return json.dumps(data, ensure_ascii=True)

    @classmethod
    def from_line(cls, line: str) -> Exchange:
        """The exchange of a line.

        Raises:
            ValueError: it is none.
        """
        data: dict[str, Any] = json.loads(line)
        try:
            usage = data.pop("usage")
            request, response = _bytes(data.pop("request")), _bytes(data.pop("response"))
            return cls(
                **data, request=request, response=response, usage=TokenUsage(**usage) if usage else None
            )
        except (TypeError, KeyError, AttributeError) as e:
            raise ValueError(f"this is no exchange: {e}") from e


_ANEW = '{"begins": "anew"}'


class Record:
    """Where a race's exchanges are kept: a file for each attempt.

    Args:
        folder: made when it is first needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, exchange: Exchange) -> None:
        """Keep one. It is in the file when this returns, though perhaps not yet on the disk."""
        self._append(exchange.attempt, exchange.line())

    def begin_anew(self, attempt: str) -> None:
        """An attempt is started anew: what comes now is another conversation."""
        self._append(attempt, _ANEW)

    def _append(self, attempt: str, line: str) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / f"{attempt}.jsonl").open("ab+") as file:
            # A kill may have cut the line before, which must not take this one with it.
            cut = file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write((b"\n" if cut else b"") + line.encode() + b"\n")

    def read_all(self) -> Iterator[Exchange]:
        """Those of all attempts."""
        for path in sorted(self.folder.glob("*.jsonl")):
            yield from self.read(path.stem)

    def read(self, attempt: str, *, last: bool = False) -> Iterator[Exchange]:
        """Those of an attempt, in the order of their ends. A line that was cut by a kill is left out.

        Args:
            attempt: whose.
            last: only those since it was started anew for the last time.
        """
        try:
            text = (self.folder / f"{attempt}.jsonl").read_text("utf-8")
        except FileNotFoundError:
            return
        lines = text.split("\n")
        if last and _ANEW in lines:
            lines = lines[len(lines) - lines[::-1].index(_ANEW) :]
        for line in lines:
            try:
                yield Exchange.from_line(line)
            except ValueError:
                continue


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(data: str | dict[str, str]) -> bytes:
    return data.encode("utf-8") if isinstance(data, str) else base64.b64decode(data["base64"])
