"""Anthropic's Claude Code, inside the fork: ``claude -p --output-format stream-json``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from race.agent_inside import (
    HOME,
    InsideOptions,
    Launch,
    Report,
    briefing,
    check,
    first_that_runs,
    ran,
    table,
    tables,
    text_of,
    upstream,
    work,
)
from race.sandbox import Directory
from race.tools import Tool

if TYPE_CHECKING:
    from race.agent import AgentContext, Trajectory
    from race.bash import Bash
    from race.gateway import Line, Upstream
    from race.task import Task

VERSION = "2.1.197"
"""Of ``@anthropic-ai/claude-code``, as tried."""

_FLAGS = (
    "--bare",
    "--output-format",
    "stream-json",
    "--verbose",
    "--dangerously-skip-permissions",
    "--no-session-persistence",
)


class Claude:
    """Claude Code with its own tools, over the messages protocol. The fork is its sandbox."""

    Options = InsideOptions

    def __init__(self, options: InsideOptions) -> None:
        self.options = options

    def tools(self) -> tuple[Tool, ...]:
        """The npm package, unless the base has the program."""
        if self.options.program:
            return ()
        return (Tool("claude", (f"@anthropic-ai/claude-code@{self.options.version or VERSION}",)),)

    def check(self, model: str | None) -> None:
        """See that there is a model, a server and a key."""
        check("claude", model, self._upstream())

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Let it work until it ends, or a limit is reached."""
        async with context.models.line(self._upstream(), inside=bash.sandbox, counts_steps=True) as line:
            reader = _Reader(bash, context)
            return await work("claude", self._launch(task, context, line), reader.read, bash, context)

    def _upstream(self) -> Upstream:
        return upstream(
            self.options,
            url_env="ANTHROPIC_BASE_URL",
            url="https://api.anthropic.com/v1",
            key_env="ANTHROPIC_API_KEY",
            style="x-api-key",
            version="/v1",
        )

    def _launch(self, task: Task, context: AgentContext, line: Line) -> Launch:
        found = "/opt/race/claude/node_modules/@anthropic-ai/claude-code-linux-*/claude"
        program = shlex.quote(self.options.program) if self.options.program else found
        arguments = ["-p", *_FLAGS, "--model", context.model or "", *self.options.args]
        env = {
            "HOME": HOME,
            "ANTHROPIC_BASE_URL": line.url,
            "ANTHROPIC_API_KEY": line.token,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "4",
            "IS_SANDBOX": "1",  # or it refuses to work as root
        }
        return Launch(
            # Of the two builds in the package, for glibc and for musl, the first that runs is taken.
            argv=["bash", "-c", first_that_runs(program), "claude", *arguments],
            env={**env, **self.options.env},
            files=[Directory(HOME.encode())],
            stdin=briefing(task, context),
        )


class _Reader:
    def __init__(self, bash: Bash, context: AgentContext) -> None:
        self._bash = bash
        self._recorder = context.recorder
        self._asked: dict[str, str] = {}

    def read(self, event: dict[str, Any], report: Report) -> None:
        """One event. Of a result, ``is_error`` is to be believed and ``subtype`` is not."""
        kind = event.get("type")
        if kind == "result":
            report.ended = True
            report.message = str(event.get("result") or report.message)
            report.error = report.message or str(event.get("subtype")) if event.get("is_error") else ""
        elif kind in {"assistant", "user"}:
            for block in tables(table(event.get("message")).get("content")):
                self._block(block, report)

    def _block(self, block: dict[str, Any], report: Report) -> None:
        kind = block.get("type")
        if kind == "text":
            report.message = str(block.get("text", ""))
            self._recorder.say(report.message)
        elif kind == "tool_use":
            given = table(block.get("input"))
            shown = given.get("command") or f"[{block.get('name')}] {given.get('file_path', '')}".strip()
            self._asked[str(block.get("id"))] = str(shown)
        elif kind == "tool_result":
            command = self._asked.pop(str(block.get("tool_use_id")), "")
            ran(self._bash, command, 1 if block.get("is_error") else 0, text_of(block.get("content")))
