"""Reading what an agent in a fork says of itself, event by event, and putting it into the attempt's record.

Whatever an event holds is somebody else's: what should be an object may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from race.bash import OUTPUT_CHARACTERS, Bash, BashResult, encodable, shown


@dataclass(slots=True)
class Report:
    """What an agent has said of itself.

    Attributes:
        message: its last words.
        ended: whether it said that it has ended.
        error: why it failed, if it says so.
        thread: its own id of the conversation.
    """

    message: str = ""
    ended: bool = False
    error: str = ""
    thread: str = ""


Read: TypeAlias = Callable[[dict[str, Any], Report], None]
"""Takes one event of an agent and puts what it says into the report."""


def ran(bash: Bash, command: str, exit_code: int | None, output: str) -> None:
    """Record a command that the agent says it ran."""
    text = shown(encodable(output).encode(), len(output.encode("utf-8", "replace")), OUTPUT_CHARACTERS)
    bash.observed(BashResult(encodable(command), exit_code, text, timed_out=False, seconds=0.0, timeout=0.0))


class ToolCalls:
    """The calls of an agent's own tools, each joined to what came of it.

    Args:
        bash: where they are recorded.
    """

    def __init__(self, bash: Bash) -> None:
        self._bash = bash
        self._asked: dict[str, str] = {}

    def begin(self, identity: object, name: object, given: dict[str, Any]) -> None:
        """The agent calls a tool: a command, or something with a file."""
        path = given.get("file_path") or given.get("path") or ""
        self._asked[str(identity)] = str(given.get("command") or f"[{name}] {path}".strip())

    def end(self, identity: object, output: str, *, failed: bool) -> None:
        """A call has ended."""
        ran(self._bash, self._asked.pop(str(identity), ""), 1 if failed else 0, output)


def table(value: object) -> dict[str, Any]:
    """A part of an event that should be an object, whatever it is."""
    found: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return found


def tables(value: object) -> list[dict[str, Any]]:
    """The objects in a part of an event that should be a list of them."""
    parts = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", p) for p in parts if isinstance(p, dict)]


def text_of(content: object) -> str:
    """The text of a part of an event: itself, or the texts among a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(str(p["text"]) for p in tables(content) if "text" in p)


def event_of(line: bytes) -> dict[str, Any] | None:
    """The object in a line of JSON; None if there is none."""
    try:
        event: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", event) if isinstance(event, dict) else None
