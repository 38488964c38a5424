"""Any program as an agent, inside the fork: a template of its arguments and files, and how to read its outcome."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from race.agent_inside import HOME, InsideOptions, Server, briefing, execute, filled, upstream
from race.errors import AgentError, ModelError
from race.gateway.upstream import KeyStyle
from race.sandbox import Directory, File
from race.tools import Tool

if TYPE_CHECKING:
    from race.agent import AgentContext, Trajectory
    from race.bash import Bash
    from race.gateway import Line, Upstream
    from race.sandbox import Entry, ExecResult
    from race.task import Task

_SHOWN = 500


class CommandOptions(InsideOptions):
    """What an entry with ``agent = "command"`` may say.

    In ``argv``, ``files`` and ``env``, these are filled in: ``{prompt}``, ``{prompt_file}``, ``{model}``,
    ``{base_url}`` (of the gateway, with the version), ``{url}`` (without), ``{token}`` (in place of a key),
    ``{workdir}``, ``{home}``.
    """

    argv: tuple[str, ...] = Field(min_length=1)
    """The program and its arguments."""

    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Written before it starts: absolute path and content."""

    packages: tuple[str, ...] = ()
    """Of npm, with versions; they are put into ``/opt/race/command/node_modules``."""

    install: tuple[str, ...] = ()
    """Commands that install it in the base, once."""

    key_style: KeyStyle = "bearer"
    """How the model server wants its key."""

    failed: str = ""
    """A pattern that its output holds when it failed."""

    message: str = ""
    """A pattern whose first group, at its last match in the output, is its last words; default: the last line."""

    @field_validator("failed", "message")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as e:
            raise ValueError(f"{value!r} is no regular expression: {e}") from e
        return value


class Command:
    """Runs a program to its end. It failed if it says so, if its exit status does, or if its last request did."""

    Options = CommandOptions

    def __init__(self, options: CommandOptions) -> None:
        self.options = options

    def tools(self) -> tuple[Tool, ...]:
        """What the entry names."""
        o = self.options
        return (Tool("command", o.packages, o.install),) if o.packages or o.install else ()

    def check(self, model: str | None) -> None:  # noqa: ARG002 - a program may need none
        """See that there is a server and a key."""
        self._upstream().check()

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Let it work until it ends, or a limit is reached."""
        account = context.models.state
        async with context.models.line(self._upstream(), inside=bash.sandbox, counts_steps=True) as line:
            done = await self._execute(task, bash, context, line)
        if account.closed.is_set():
            return context.recorder.trajectory()
        if done is None:
            raise AgentError("the program is gone")
        output = done.stdout.decode("utf-8", "replace")
        failed = bool(self.options.failed and re.search(self.options.failed, output, re.MULTILINE))
        if failed or done.exit_code != 0 or account.trouble:
            if account.trouble:
                raise ModelError(account.trouble)
            raise AgentError(f"exit status {done.exit_code}: {output[-_SHOWN:]}")
        return context.recorder.trajectory(self._last_words(output))

    def _upstream(self) -> Upstream:
        return upstream(self.options, Server(style=self.options.key_style))

    async def _execute(self, task: Task, bash: Bash, context: AgentContext, line: Line) -> ExecResult | None:
        prompt = briefing(task, context)
        values = {"prompt": prompt, "prompt_file": f"{HOME}/prompt.txt"}
        fill = filled(line, bash, context, values)
        files: list[Entry] = [Directory(HOME.encode()), File(f"{HOME}/prompt.txt".encode(), prompt.encode())]
        files += [
            File(fill(p).encode(), fill(text).encode(), 0o600) for p, text in self.options.files.items()
        ]
        await bash.sandbox.write(files)
        env = {"HOME": HOME, **{k: fill(v) for k, v in self.options.env.items()}}
        return await execute([fill(a) for a in self.options.argv], bash, context, env)

    def _last_words(self, output: str) -> str:
        if self.options.message:
            matches = list(re.finditer(self.options.message, output, re.MULTILINE | re.DOTALL))
            return matches[-1][1 if matches[-1].re.groups else 0].strip() if matches else ""
        lines = [line for line in output.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""
