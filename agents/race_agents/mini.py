"""mini-swe-agent, inside the fork."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from race.agent_events import ran
from race.agent_inside import HOME, InsideOptions, Server, briefing, check, execute, upstream
from race.errors import AgentError, ModelError, SandboxError
from race.sandbox import Directory
from race.tools import Tool

if TYPE_CHECKING:
    from race.agent import AgentContext, Trajectory
    from race.bash import Bash
    from race.gateway import Line, Upstream
    from race.task import Task

VERSION = "2.4.6"
"""Of ``mini-swe-agent``, as tried."""

_LARGEST = 64 << 20


class Mini:
    """mini-swe-agent over chat.completions; its own file, not its exit status, says how it ended."""

    Options = InsideOptions

    def __init__(self, options: InsideOptions) -> None:
        self.options = options

    def tools(self) -> tuple[Tool, ...]:
        """A virtual environment in the base, unless the base has the program."""
        if self.options.program:
            return ()
        package = f"mini-swe-agent=={self.options.version or VERSION}"
        make = f"python3 -m venv /opt/race/mini && /opt/race/mini/bin/python -m pip install -q {package}"
        return (Tool("mini", setup=(make,)),)

    def check(self, model: str | None) -> None:
        """See that there is a model, a server and a key."""
        check("mini", model, self._upstream())

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Let it work until it ends, or a limit is reached."""
        account = context.models.state
        async with context.models.line(self._upstream(), inside=bash.sandbox, counts_steps=True) as line:
            said = await self._execute(task, bash, context, line)
        told = await _told(bash)
        for message in told.get("messages") or ():
            _record(message, bash, context)
        if account.closed.is_set():
            return context.recorder.trajectory()
        info: dict[str, Any] = told.get("info") or {}
        if info.get("exit_status") == "Submitted":
            return context.recorder.trajectory(str(info.get("submission") or "").strip())
        if account.trouble:
            raise ModelError(account.trouble)
        raise AgentError(f"mini ended as {info.get('exit_status') or 'nothing'!r}: {said[-500:]}")

    def _upstream(self) -> Upstream:
        return upstream(self.options, Server())

    async def _execute(self, task: Task, bash: Bash, context: AgentContext, line: Line) -> str:
        await bash.sandbox.write([Directory(HOME.encode())])
        program = self.options.program or "/opt/race/mini/bin/mini"
        argv = [
            program,
            "-y",
            "--exit-immediately",
            "-t",
            briefing(task, context),
            "-m",
            f"openai/{context.model}",
        ]
        argv += ["-o", f"{HOME}/trajectory.json", "-c", "mini.yaml"]
        argv += ["-c", f"model.model_kwargs.api_base={line.base_url}", *self.options.args]
        env = {
            "HOME": HOME,
            "OPENAI_API_KEY": line.token,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
            **self.options.env,
        }
        done = await execute(argv, bash, context, env)
        return done.stdout.decode("utf-8", "replace") if done else ""


async def _told(bash: Bash) -> dict[str, Any]:
    try:
        found: Any = json.loads(await bash.sandbox.read(f"{HOME}/trajectory.json", limit=_LARGEST))
    except (FileNotFoundError, SandboxError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _record(message: dict[str, Any], bash: Bash, context: AgentContext) -> None:
    text = message.get("content")
    if message.get("role") == "assistant" and isinstance(text, str) and text.strip():
        context.recorder.say(text)
    extra: dict[str, Any] = message.get("extra") or {}
    for action in extra.get("actions") or ():
        ran(bash, str(action.get("command", "")), None, "")
