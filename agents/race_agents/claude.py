"""Anthropic's Claude Code, inside the fork: ``claude -p --output-format stream-json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from race.agent_events import Read, Report, ToolCalls, table, tables, text_of
from race.agent_inside import Server
from race.coding_agent import CodingAgent, Profile, Setting, Start

if TYPE_CHECKING:
    from race.agent import AgentContext
    from race.bash import Bash

_FLAGS = ("--bare", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")


def _start(setting: Setting) -> Start:
    kept = ["--resume", setting.thread] if setting.thread else []
    if not setting.keeps:
        kept = ["--no-session-persistence"]
    return Start(
        ["-p", *_FLAGS, *kept, "--model", setting.model],
        {
            "ANTHROPIC_BASE_URL": setting.line.url,
            "ANTHROPIC_API_KEY": setting.line.token,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "4",
            "IS_SANDBOX": "1",  # or it refuses to work as root
        },
    )


class _Reader:
    def __init__(self, bash: Bash, context: AgentContext) -> None:
        self._recorder = context.recorder
        self._calls = ToolCalls(bash)

    def read(self, event: dict[str, Any], report: Report) -> None:
        """One event. Of a result, ``is_error`` is to be believed and ``subtype`` is not."""
        kind = event.get("type")
        report.thread = str(event.get("session_id") or report.thread)
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
            self._calls.begin(block.get("id"), block.get("name"), table(block.get("input")))
        elif kind == "tool_result":
            output = text_of(block.get("content"))
            self._calls.end(block.get("tool_use_id"), output, failed=bool(block.get("is_error")))


def _reader(bash: Bash, context: AgentContext) -> Read:
    return _Reader(bash, context).read


class Claude(CodingAgent):
    """Claude Code over the messages protocol."""

    profile = Profile(
        name="claude",
        package="@anthropic-ai/claude-code",
        version="2.1.197",
        # There are two builds in the package, for glibc and for musl.
        program="node_modules/@anthropic-ai/claude-code-linux-*/claude",
        server=Server(
            "https://api.anthropic.com/v1", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "x-api-key", "/v1"
        ),
        start=_start,
        reader=_reader,
    )
