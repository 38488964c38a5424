"""Running somebody's agent inside a fork: a program that reports what it does as lines of JSON.

Success, limit and failure are told apart by what the agent reports and by what the gateway saw of it, never by an exit
status alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from race.agent import AgentContext, Trajectory
from race.agent_events import Read, Report, event_of, table
from race.bash import Bash, encodable
from race.chat import PUBLIC_URL
from race.errors import AgentError, ModelError, SpecError
from race.gateway import Line, Upstream
from race.gateway.upstream import KeyStyle
from race.memory import Memory
from race.program import Program, program
from race.sandbox import Entry, ExecResult
from race.task import Task

HOME = "/var/lib/race-agent"
"""The home folder of an agent inside a fork."""

GRACE = 5.0
"""Seconds that an agent has to end by itself once its account is closed."""

_SHOWN = 500


class InsideOptions(BaseModel):
    """What an entry whose agent is a program in the fork may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str | None = None
    """Of the agent, instead of the one that was tried with this version of race."""

    program: str | None = None
    """A program that is in the base already; then nothing is installed."""

    base_url: str | None = None
    """The model server, with the version. Default: what the agent itself takes from the environment."""

    api_key_env: str | None = None
    """The environment variable of this machine that holds the API key; empty for a server that needs none."""

    args: tuple[str, ...] = ()
    """More arguments for the agent."""

    env: dict[str, str] = Field(default_factory=dict[str, str])
    """More of its environment."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How an agent is started.

    Attributes:
        argv: the program and its arguments.
        env: its environment, on top of the sandbox's.
        files: written before.
        stdin: what it reads.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    files: Sequence[Entry] = ()
    stdin: str = ""


def first_that_runs(pattern: str) -> str:
    """Text for bash that becomes the first program of a pattern which runs here, with the arguments given."""
    if "*" not in pattern:
        return f'exec {pattern} "$@"'
    return f'for p in {pattern}; do "$p" --version >/dev/null 2>&1 && exec "$p" "$@"; done; exit 127'


@dataclass(frozen=True, slots=True)
class Server:
    """Where an agent's models are, unless its entry says otherwise. Default: those of OpenAI.

    Attributes:
        url: its own, with the version.
        url_env: the environment variable that the agent takes it from.
        key_env: the environment variable that it takes the key from.
        style: how the key is sent.
        version: what the address in ``url_env`` lacks, such as ``/v1``.
    """

    url: str = PUBLIC_URL
    url_env: str = "OPENAI_BASE_URL"
    key_env: str = "OPENAI_API_KEY"
    style: KeyStyle = "bearer"
    version: str = ""


def upstream(options: InsideOptions, server: Server) -> Upstream:
    """The model server of an entry.

    Args:
        options: of the entry.
        server: of its agent.
    """
    named = os.environ.get(server.url_env, "").strip().rstrip("/")
    if named and server.version and not named.endswith(server.version):
        named += server.version
    key = server.key_env if options.api_key_env is None else options.api_key_env
    return Upstream(options.base_url or named or server.url, key, server.style)


def check(agent: str, model: str | None, server: Upstream) -> None:
    """See that an entry has what it needs.

    Raises:
        SpecError: it names no model.
        MachineError: the environment lacks the key.
    """
    if not (model or "").strip():
        raise SpecError(f"an entry with agent {agent!r} needs a model")
    server.check()


def briefing(task: Task, context: AgentContext) -> str:
    """What an agent with a system prompt of its own is told."""
    lines = [task.prompt.strip()]
    if context.hint:
        lines += ["", f"Hint: {context.hint}"]
    if context.memory is None:
        lines += [
            "",
            f"The project is in {task.workdir}. You are judged by what is changed there when you end.",
        ]
        lines += ["Nobody is there to answer questions."]
    else:
        lines += ["", f"The project is in {task.workdir}."]
    return "\n".join([*lines, *task.rules])


def filled(
    line: Line, bash: Bash, context: AgentContext, more: Mapping[str, str] | None = None
) -> Callable[[str], str]:
    """What fills in the places of a text, such as ``{model}``.

    Args:
        line: gives ``{base_url}`` (with the version), ``{url}`` (without) and ``{token}``.
        bash: gives ``{workdir}``.
        context: gives ``{model}`` and ``{home}``.
        more: further places.
    """
    values = {
        "model": context.model or "",
        "base_url": line.base_url,
        "url": line.url,
        "token": line.token,
        "workdir": bash.workdir,
        "home": home(context),
        **(more or {}),
    }
    places = re.compile(r"\{(" + "|".join(values) + r")\}")
    return lambda text: places.sub(lambda m: values[m[1]], text)


async def work(name: str, launch: Launch, read: Read, bash: Bash, context: AgentContext) -> Trajectory:
    """Let a program work until it ends, or until its account is closed and its grace is over.

    Raises:
        ModelError: the model did not answer, or the agent's last request failed.
        AgentError: the agent failed, or ended without saying so.
    """
    account = context.models.state
    report = Report()
    if launch.files:
        await bash.sandbox.write(launch.files)
    async with program(bash.sandbox, launch.argv, cwd=bash.workdir, env=launch.env) as running:

        async def listen() -> None:
            await running.send(encodable(launch.stdin).encode())
            running.send_end()
            while (line := await running.line()) is not None:
                if (event := event_of(line)) is not None:
                    read(event, report)
                    _remember(report, context.memory)
            await running.ended.wait()
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            await account.closed.wait()
            await anyio.sleep(GRACE)
            group.cancel_scope.cancel()
    if account.closed.is_set():
        return context.recorder.trajectory(report.message)  # the account says why
    if account.trouble and not report.ended:
        raise ModelError(account.trouble)
    if report.error:
        raise (
            ModelError(account.trouble) if account.trouble else AgentError(f"{name}: {report.error[:_SHOWN]}")
        )
    if not report.ended:
        raise AgentError(f"{name} ended without a result{_how(running)}")
    return context.recorder.trajectory(report.message)


async def thread(bash: Bash, context: AgentContext) -> str:
    """An agent's own id of the conversation that it is to go on with; nothing if it begins one.

    Raises:
        AgentError: what it kept of the conversation in the sandbox is gone.
    """
    kept = context.memory.entries if context.memory is not None else ()
    if not kept:
        return ""
    last = table(kept[-1])
    identity = str(last.get("thread", ""))
    found = await bash.sandbox.exec(["find", home(context), "-name", f"*{identity}*", "-type", "f"])
    if found.stdout.strip():
        return identity
    if any(table(e).get("ended") for e in kept):
        raise AgentError(
            f"what the agent kept of its conversation {identity} is gone from {home(context)}; open another session"
        )
    return ""  # it was ended before it had kept anything


def home(context: AgentContext) -> str:
    """The agent's home folder. Sessions have one each, for several may be at work in one sandbox."""
    return f"{HOME}/{context.memory.session}" if context.memory is not None else HOME


def _remember(report: Report, memory: Memory | None) -> None:
    entry: dict[str, JsonValue] = {"thread": report.thread, "ended": report.ended}
    if memory is not None and report.thread and (not memory.entries or memory.entries[-1] != entry):
        memory.keep(entry)


async def execute(
    argv: Sequence[str], bash: Bash, context: AgentContext, env: Mapping[str, str]
) -> ExecResult | None:
    """Run a program to its end; None if its account was closed and its grace is over.

    Args:
        argv: the program and its arguments.
        bash: of the attempt.
        context: of the attempt.
        env: added to the sandbox's environment.
    """
    done: list[ExecResult] = []

    async def run() -> None:
        done.append(await bash.sandbox.exec(argv, cwd=bash.workdir, env=env, merge_stderr=True))
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await context.models.state.closed.wait()
        await anyio.sleep(GRACE)
        group.cancel_scope.cancel()
    return done[0] if done else None


def _how(running: Program) -> str:
    done = running.result
    if done is None:
        return ""
    said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
    return (
        f" (exit status {done.exit_code}): {said[-_SHOWN:]}" if said else f" (exit status {done.exit_code})"
    )
