"""OpenAI's Codex, inside the fork: ``codex exec --json``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from race.agent_events import Read, Report, ran, table
from race.agent_inside import Server
from race.coding_agent import CodingAgent, Profile, Setting, Start
from race.sandbox import File

if TYPE_CHECKING:
    from race.agent import AgentContext
    from race.bash import Bash

_FLAGS = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


def _start(setting: Setting) -> Start:
    # Without `allow_login_shell = false` its shells would read the start-up files, which set PATH anew.
    config = (
        f"model = {json.dumps(setting.model)}\n"
        'model_provider = "race"\n'
        "allow_login_shell = false\n"
        "[model_providers.race]\n"
        'name = "race"\n'
        f'base_url = "{setting.line.base_url}"\n'
        'env_key = "RACE_TOKEN"\n'
        'wire_api = "responses"\n'
        "request_max_retries = 4\n"
        "stream_max_retries = 4\n"
    )
    if setting.thread:
        arguments = ["exec", "resume", *_FLAGS]
        last = [setting.thread, "-"]
    else:
        arguments = ["exec", *_FLAGS, *([] if setting.keeps else ["--ephemeral"]), "-C", setting.workdir]
        last = ["-"]
    return Start(
        arguments,
        {"CODEX_HOME": f"{setting.home}/codex", "RACE_TOKEN": setting.line.token},
        [File(f"{setting.home}/codex/config.toml".encode(), config.encode(), 0o600)],
        last,
    )


def _reader(bash: Bash, context: AgentContext) -> Read:
    def read(event: dict[str, Any], report: Report) -> None:
        kind = event.get("type")
        if kind == "thread.started":
            report.thread = str(event.get("thread_id") or "")
        elif kind == "turn.completed":
            report.ended, report.error = True, ""
        elif kind == "turn.failed":
            report.error = str(table(event.get("error")).get("message") or "its turn failed")
        elif kind == "item.completed":
            item = table(event.get("item"))
            if item.get("type") == "agent_message":
                report.message = str(item.get("text", ""))
                context.recorder.say(report.message)
            elif item.get("type") == "command_execution":
                code = item.get("exit_code")
                output = str(item.get("aggregated_output") or "")
                ran(bash, str(item.get("command", "")), code if isinstance(code, int) else None, output)

    return read


class Codex(CodingAgent):
    """Codex over the responses protocol."""

    profile = Profile(
        name="codex",
        package="@openai/codex",
        version="0.171.0",
        # The npm package starts a native program that outlives it; that one is started at once.
        program="node_modules/@openai/codex-linux-*/vendor/*/bin/codex",
        server=Server(),
        start=_start,
        reader=_reader,
    )
