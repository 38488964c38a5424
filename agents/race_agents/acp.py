"""Any agent that speaks the Agent Client Protocol, inside the fork; opencode, gemini and qwen come ready."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import anyio
from pydantic import Field, model_validator

from race.acp import Connection
from race.agent_events import ran, table, tables, text_of
from race.agent_inside import (
    GRACE,
    InsideOptions,
    Server,
    briefing,
    check,
    filled,
    first_that_runs,
    home,
    upstream,
)
from race.errors import AgentError, ModelError
from race.gateway.upstream import KeyStyle
from race.program import program
from race.sandbox import Directory, File
from race.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from race.agent import AgentContext, Trajectory
    from race.bash import Bash
    from race.gateway import Line, Upstream
    from race.memory import Memory
    from race.sandbox import Entry
    from race.task import Task


@dataclass(frozen=True, slots=True)
class _Known:
    """An agent that was tried: its package, its command, and what makes it use the gateway."""

    package: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    server: Server = field(default_factory=Server)


_OPENCODE = {
    "model": "race/{model}",
    "small_model": "race/{model}",
    "autoupdate": False,
    "share": "disabled",
    "permission": {"edit": "allow", "bash": "allow", "webfetch": "deny"},
    "provider": {
        "race": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "race",
            "options": {"baseURL": "{base_url}", "apiKey": "{token}"},
            "models": {"{model}": {"name": "{model}", "limit": {"context": 200000, "output": 32000}}},
        }
    },
}

# Of the builds in the package, for newer and older processors, the first that runs is taken.
_OPENCODE_START = first_that_runs("/opt/race/opencode/node_modules/opencode-linux-*/bin/opencode")

KNOWN: Mapping[str, _Known] = {
    "opencode": _Known(
        "opencode-ai@1.18.33",
        ("bash", "-c", _OPENCODE_START, "opencode", "acp"),
        {"OPENCODE_CONFIG": "{home}/opencode.json", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        {"{home}/opencode.json": json.dumps(_OPENCODE)},
    ),
    "gemini": _Known(
        "@google/gemini-cli@0.61.0",
        (
            "/opt/race/gemini/node_modules/.bin/gemini",
            "--experimental-acp",
            "--yolo",
            "--skip-trust",
            "-m",
            "{model}",
        ),
        {"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "{token}", "GEMINI_CLI_NO_RELAUNCH": "true"},
        {
            "{home}/.gemini/settings.json": json.dumps(
                {"security": {"auth": {"selectedType": "gemini-api-key"}}}
            )
        },
        Server(
            "https://generativelanguage.googleapis.com/v1beta",
            "GOOGLE_GEMINI_BASE_URL",
            "GEMINI_API_KEY",
            "x-goog-api-key",
        ),
    ),
    "qwen": _Known(
        "@qwen-code/qwen-code@0.15.10",
        (
            "/opt/race/qwen/node_modules/.bin/qwen",
            "--acp",
            "--yolo",
            "--auth-type",
            "openai",
            "-m",
            "{model}",
        ),
        {"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": "{token}", "OPENAI_MODEL": "{model}"},
    ),
}
"""By name, at the versions that were tried."""


class AcpOptions(InsideOptions):
    """What an entry with ``agent = "acp"`` may say.

    In ``argv``, ``files`` and ``env``, these are filled in: ``{model}``, ``{base_url}`` (of the gateway, with the
    version), ``{url}`` (without), ``{token}`` (in place of a key), ``{workdir}``, ``{home}``.
    """

    use: Literal["opencode", "gemini", "qwen"] | None = None
    """An agent that was tried; or say how to start another with ``argv``."""

    argv: tuple[str, ...] = ()
    """The program and its arguments, so that it speaks the protocol."""

    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Written before it starts: absolute path and content."""

    packages: tuple[str, ...] = ()
    """Of npm, with versions; they are put into ``/opt/race/acp/node_modules``."""

    key_style: KeyStyle = "bearer"
    """How the model server wants its key."""

    @model_validator(mode="after")
    def _one_of_two(self) -> AcpOptions:
        if (self.use is None) == (not self.argv):
            raise ValueError(f"say either use = one of {', '.join(sorted(KNOWN))}, or argv = [...]")
        return self


class Acp:
    """Drives an agent by the Agent Client Protocol: one session, one prompt, leave for everything."""

    Options = AcpOptions

    def __init__(self, options: AcpOptions) -> None:
        self.options = options
        self._known = KNOWN.get(options.use or "")

    def tools(self) -> tuple[Tool, ...]:
        """The npm packages, unless the base has the program."""
        if self._known is not None and self.options.use is not None and not self.options.program:
            return (Tool(self.options.use, (self._known.package,)),)
        return (Tool("acp", self.options.packages),) if self.options.packages else ()

    def check(self, model: str | None) -> None:
        """See that there is a model, a server and a key."""
        check("acp", model, self._upstream())

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Let it work until it ends its turn, or a limit is reached."""
        return await self._work(task, bash, context)

    async def converse(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Go on with the conversation, if the agent offers to load one (``session/load``)."""
        return await self._work(task, bash, context)

    async def _work(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        account = context.models.state
        heard = _Heard(bash, context)
        stop = ""
        async with context.models.line(self._upstream(), inside=bash.sandbox, counts_steps=True) as line:
            argv, env, files = self._filled(line, bash, context)
            await bash.sandbox.write(files)
            async with program(bash.sandbox, argv, cwd=bash.workdir, env=env) as running:
                connection = Connection(running, heard.update)

                async def close() -> None:
                    await account.closed.wait()
                    await anyio.sleep(GRACE)
                    group.cancel_scope.cancel()

                problem: AgentError | None = None
                async with anyio.create_task_group() as group:
                    group.start_soon(connection.listen)
                    group.start_soon(close)
                    try:
                        thread, loaded = await _thread(connection, bash.workdir, context.memory)
                        heard.listening = True
                        prompt = task.prompt if loaded else briefing(task, context)
                        said = [{"type": "text", "text": prompt}]
                        ended = await connection.ask("session/prompt", sessionId=thread, prompt=said)
                        stop = str(ended.get("stopReason", ""))
                        if context.memory is not None:
                            context.memory.keep({"thread": thread, "ended": True})
                            running.send_end()
                            with anyio.move_on_after(GRACE):  # it may still have to write down what was said
                                await running.ended.wait()
                    except AgentError as e:
                        problem = e
                    group.cancel_scope.cancel()
        heard.close_text()
        if account.closed.is_set():
            return context.recorder.trajectory(heard.message)
        if problem is not None or account.trouble:
            raise ModelError(account.trouble) if account.trouble else problem or AgentError("it failed")
        return context.recorder.trajectory(heard.message, "refused" if stop == "refusal" else "done")

    def _upstream(self) -> Upstream:
        server = self._known.server if self._known is not None else Server(style=self.options.key_style)
        return upstream(self.options, server)

    def _filled(
        self, line: Line, bash: Bash, context: AgentContext
    ) -> tuple[list[str], dict[str, str], list[Entry]]:
        o, known = self.options, self._known or _Known("", ())
        fill = filled(line, bash, context)
        argv = [*known.argv, *o.argv]
        if o.program:
            argv[0] = o.program
        place = home(context)
        env = {"HOME": place, **{k: fill(v) for k, v in {**known.env, **o.env}.items()}}
        files: list[Entry] = [Directory(place.encode())]
        texts = {**known.files, **o.files}
        files += [File(fill(p).encode(), fill(text).encode(), 0o600) for p, text in texts.items()]
        return [fill(a) for a in (*argv, *o.args)], env, files


async def _thread(connection: Connection, workdir: str, memory: Memory | None) -> tuple[str, bool]:
    """The agent's id of the conversation to go on with, and whether that is an old one, which it has loaded."""
    can = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    offered = await connection.ask("initialize", protocolVersion=1, clientCapabilities=can)
    if memory is not None and not table(offered.get("agentCapabilities")).get("loadSession"):
        raise AgentError(
            "it starts anew with every prompt (it does not offer session/load), so it has no sessions"
        )
    kept = [table(e) for e in memory.entries] if memory is not None else []
    if kept:
        thread = str(kept[-1].get("thread"))
        try:
            await connection.ask("session/load", sessionId=thread, cwd=workdir, mcpServers=[])
        except AgentError:
            if any(e.get("ended") for e in kept):
                raise
        else:
            return thread, True
    made = await connection.ask("session/new", cwd=workdir, mcpServers=[])
    thread = str(made.get("sessionId"))
    if memory is not None:
        memory.keep({"thread": thread, "ended": False})
    return thread, False


class _Heard:
    """Puts the updates of a session into the record."""

    def __init__(self, bash: Bash, context: AgentContext) -> None:
        self.message = ""
        self.listening = False  # what comes while an old conversation is loaded was heard before
        self._bash = bash
        self._recorder = context.recorder
        self._pieces: list[str] = []
        self._asked: dict[str, str] = {}

    def update(self, update: dict[str, Any]) -> None:
        if not self.listening:
            return
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            content = table(update.get("content"))
            self._pieces.append(str(content.get("text", "")))
            return
        self.close_text()
        if kind not in {"tool_call", "tool_call_update"}:
            return
        identity = str(update.get("toolCallId"))
        command = table(update.get("rawInput")).get("command")
        if command or identity not in self._asked:
            self._asked[identity] = str(command or update.get("title") or "")
        if update.get("status") in {"completed", "failed"}:
            ran(
                self._bash,
                self._asked.pop(identity),
                0 if update["status"] == "completed" else 1,
                _text(update),
            )

    def close_text(self) -> None:
        """What the agent said in pieces is whole."""
        text = "".join(self._pieces).strip()
        self._pieces.clear()
        if text:
            self.message = text
            self._recorder.say(text)


def _text(update: dict[str, Any]) -> str:
    return "\n".join(text_of([table(p.get("content"))]) for p in tables(update.get("content")))
