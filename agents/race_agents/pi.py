"""The coding agent pi, inside the fork: ``pi -p --mode json``. It needs Node.js there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from race.agent_events import Read, Report, ToolCalls, table, text_of
from race.agent_inside import Server
from race.coding_agent import CodingAgent, Profile, Setting, Start
from race.sandbox import File

if TYPE_CHECKING:
    from race.agent import AgentContext
    from race.bash import Bash

_WINDOW = 200_000
_LONGEST_TURN = 32_000


def _start(setting: Setting) -> Start:
    model: dict[str, Any] = {
        "id": setting.model,
        "name": setting.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": _WINDOW,
        "maxTokens": _LONGEST_TURN,
        "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),  # the gateway counts
    }
    provider = {
        "baseUrl": setting.line.base_url,
        "api": "openai-completions",
        "apiKey": setting.line.token,
        "models": [model],
    }
    config = json.dumps({"providers": {"race": provider}})
    kept = ["--session", setting.thread] if setting.thread else []
    if not setting.keeps:
        kept = ["--no-session"]
    return Start(
        ["-p", "--mode", "json", *kept, "--offline", "--provider", "race", "--model", setting.model],
        {"PI_CODING_AGENT_DIR": f"{setting.home}/pi"},
        [File(f"{setting.home}/pi/models.json".encode(), config.encode(), 0o600)],
    )


class _Reader:
    def __init__(self, bash: Bash, context: AgentContext) -> None:
        self._recorder = context.recorder
        self._calls = ToolCalls(bash)

    def read(self, event: dict[str, Any], report: Report) -> None:
        """One event. Pi exits with 0 whatever happened; the last message says how it ended."""
        kind = event.get("type")
        if kind == "session":
            report.thread = str(event.get("id") or "")
        elif kind == "agent_end":
            report.ended = True
        elif kind == "message_end" and table(event.get("message")).get("role") == "assistant":
            self._said(table(event["message"]), report)
        elif kind == "tool_execution_start":
            self._calls.begin(event.get("toolCallId"), event.get("toolName"), table(event.get("args")))
        elif kind == "tool_execution_end":
            output = text_of(table(event.get("result")).get("content"))
            self._calls.end(event.get("toolCallId"), output, failed=bool(event.get("isError")))

    def _said(self, message: dict[str, Any], report: Report) -> None:
        report.error = str(message.get("errorMessage") or "") if message.get("stopReason") == "error" else ""
        text = "\n".join(
            str(p.get("text", "")) for p in message.get("content") or () if p.get("type") == "text"
        )
        if text:
            report.message = text
            self._recorder.say(text)


def _reader(bash: Bash, context: AgentContext) -> Read:
    return _Reader(bash, context).read


class Pi(CodingAgent):
    """Pi over the chat.completions protocol."""

    profile = Profile(
        name="pi",
        package="@mariozechner/pi-coding-agent",
        version="0.73.1",
        program="node_modules/.bin/pi",
        server=Server(),
        start=_start,
        reader=_reader,
    )
