"""OpenAI's Codex, inside the fork: ``codex exec --json``."""

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
    first_that_runs,
    ran,
    table,
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

VERSION = "0.171.0"
"""Of ``@openai/codex``, as tried."""

_FLAGS = ("--json", "--ephemeral", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


class Codex:
    """Codex with its own tools, over the responses protocol. The fork is its sandbox."""

    Options = InsideOptions

    def __init__(self, options: InsideOptions) -> None:
        self.options = options

    def tools(self) -> tuple[Tool, ...]:
        """The npm package, unless the base has the program."""
        if self.options.program:
            return ()
        return (Tool("codex", (f"@openai/codex@{self.options.version or VERSION}",)),)

    def check(self, model: str | None) -> None:
        """See that there is a model, a server and a key."""
        check("codex", model, self._upstream())

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Let it work until it ends, or a limit is reached."""
        async with context.models.line(self._upstream(), inside=bash.sandbox, counts_steps=True) as line:

            def read(event: dict[str, Any], report: Report) -> None:
                _read(event, report, bash, context)

            return await work("codex", self._launch(task, bash, context, line), read, bash, context)

    def _upstream(self) -> Upstream:
        return upstream(
            self.options, url_env="OPENAI_BASE_URL", url="https://api.openai.com/v1", key_env="OPENAI_API_KEY"
        )

    def _launch(self, task: Task, bash: Bash, context: AgentContext, line: Line) -> Launch:
        # Without `allow_login_shell = false` its shells would read the start-up files, which set PATH anew.
        config = (
            f"model = {json.dumps(context.model)}\n"
            'model_provider = "race"\n'
            "allow_login_shell = false\n"
            "[model_providers.race]\n"
            'name = "race"\n'
            f'base_url = "{line.base_url}"\n'
            'env_key = "RACE_TOKEN"\n'
            'wire_api = "responses"\n'
            "request_max_retries = 4\n"
            "stream_max_retries = 4\n"
        )
        # The npm package starts a native program that outlives it; that one is started at once.
        found = "/opt/race/codex/node_modules/@openai/codex-linux-*/vendor/*/bin/codex"
        program = shlex.quote(self.options.program) if self.options.program else found
        arguments = ["exec", *_FLAGS, "-C", bash.workdir, *self.options.args, "-"]
        return Launch(
            argv=["bash", "-c", first_that_runs(program), "codex", *arguments],
            env={"HOME": HOME, "CODEX_HOME": f"{HOME}/codex", "RACE_TOKEN": line.token, **self.options.env},
            files=[File(f"{HOME}/codex/config.toml".encode(), config.encode(), 0o600)],
            stdin=briefing(task, context),
        )


def _read(event: dict[str, Any], report: Report, bash: Bash, context: AgentContext) -> None:
    kind = event.get("type")
    if kind == "turn.completed":
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
