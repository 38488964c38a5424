"""The coding agent pi, inside the fork: ``pi -p --mode json``."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from race.agent_inside import (
    HOME,
    InsideOptions,
    Launch,
    Report,
    briefing,
    check,
    ran,
    table,
    text_of,
    upstream,
    work,
)
from race.sandbox import File
from race.tools import Tool

if TYPE_CHECKING:
    from race.agent import AgentContext, Trajectory
    from race.bash import Bash
    from race.gateway import Line, Upstream
    from race.task import Task

VERSION = "0.73.1"
"""Of ``@mariozechner/pi-coding-agent``, as tried."""

_WINDOW = 200_000
_LONGEST_TURN = 32_000


class Pi:
    """Pi with its own tools, over the chat.completions protocol. The fork is its sandbox; it needs Node.js there."""

    Options = InsideOptions

    def __init__(self, options: InsideOptions) -> None:
        self.options = options

    def tools(self) -> tuple[Tool, ...]:
        """The npm package, unless the base has the program."""
        if self.options.program:
            return ()
        return (Tool("pi", (f"@mariozechner/pi-coding-agent@{self.options.version or VERSION}",)),)

    def check(self, model: str | None) -> None:
        """See that there is a model, a server and a key."""
        check("pi", model, self._upstream())

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Let it work until it ends, or a limit is reached."""
        async with context.models.line(self._upstream(), inside=bash.sandbox, counts_steps=True) as line:
            reader = _Reader(bash, context)
            return await work("pi", self._launch(task, context, line), reader.read, bash, context)

    def _upstream(self) -> Upstream:
        return upstream(
            self.options, url_env="OPENAI_BASE_URL", url="https://api.openai.com/v1", key_env="OPENAI_API_KEY"
        )

    def _launch(self, task: Task, context: AgentContext, line: Line) -> Launch:
        nothing = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)  # the gateway counts
        model: dict[str, Any] = {
            "id": context.model,
            "name": context.model,
            "reasoning": False,
            "input": ["text"],
            "contextWindow": _WINDOW,
            "maxTokens": _LONGEST_TURN,
            "cost": nothing,
        }
        provider = {
            "baseUrl": line.base_url,
            "api": "openai-completions",
            "apiKey": line.token,
            "models": [model],
        }
        config = json.dumps({"providers": {"race": provider}})
        program = shlex.quote(self.options.program or "/opt/race/pi/node_modules/.bin/pi")
        flags = ["-p", "--mode", "json", "--no-session", "--offline", "--provider", "race"]
        arguments = [*flags, "--model", context.model or "", *self.options.args]
        return Launch(
            argv=["bash", "-c", f'exec {program} "$@"', "pi", *arguments],
            env={"HOME": HOME, "PI_CODING_AGENT_DIR": f"{HOME}/pi", **self.options.env},
            files=[File(f"{HOME}/pi/models.json".encode(), config.encode(), 0o600)],
            stdin=briefing(task, context),
        )


class _Reader:
    def __init__(self, bash: Bash, context: AgentContext) -> None:
        self._bash = bash
        self._recorder = context.recorder
        self._asked: dict[str, str] = {}

    def read(self, event: dict[str, Any], report: Report) -> None:
        """One event. Pi exits with 0 whatever happened; the last message says how it ended."""
        kind = event.get("type")
        if kind == "agent_end":
            report.ended = True
        elif kind == "message_end" and table(event.get("message")).get("role") == "assistant":
            self._said(table(event["message"]), report)
        elif kind == "tool_execution_start":
            given = table(event.get("args"))
            shown = given.get("command") or f"[{event.get('toolName')}] {given.get('path', '')}".strip()
            self._asked[str(event.get("toolCallId"))] = str(shown)
        elif kind == "tool_execution_end":
            output = text_of(table(event.get("result")).get("content"))
            command = self._asked.pop(str(event.get("toolCallId")), "")
            ran(self._bash, command, 1 if event.get("isError") else 0, output)

    def _said(self, message: dict[str, Any], report: Report) -> None:
        report.error = str(message.get("errorMessage") or "") if message.get("stopReason") == "error" else ""
        text = "\n".join(
            str(p.get("text", "")) for p in message.get("content") or () if p.get("type") == "text"
        )
        if text:
            report.message = text
            self._recorder.say(text)
