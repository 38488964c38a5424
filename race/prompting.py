"""Prompting an agent outside of a race: in a member of a fleet, or in a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio

from race.agent import Agent, AgentContext, Converses, Outcome, Recorder, Trajectory
from race.bash import Bash, BashResult
from race.errors import AgentError, AttemptError, LimitReached, ModelError
from race.gateway import Account, Budget, Gateway
from race.journal import Journal
from race.memory import Memory
from race.plugins import boundary
from race.sandbox import Sandbox
from race.spec import EntrySpec, RaceSpec, from_data
from race.task import Task

SEED = 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, and who is to answer it.

    Attributes:
        text: what to do.
        entry: as in a race file.
        agent: made from the entry.
        name: of the account that pays.
        whose: that account, as it stands in a sentence: "the session".
        workdir: where commands start.
        memory: of its session, if it has one.
    """

    text: str
    entry: EntrySpec
    agent: Agent
    name: str
    whose: str
    workdir: str
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """What is told as an agent works.

    Attributes:
        on_ask: before a model is asked, by an agent that says so.
        on_start: before a command runs.
        on_result: after it.
    """

    on_ask: Callable[[int], None] | None = None
    on_start: Callable[[str], None] | None = None
    on_result: Callable[[BashResult], None] | None = None


def entry_of(name: str, prompt: str, options: Mapping[str, Any], where: str) -> RaceSpec:
    """The only entry of a race file that a prompt amounts to, checked as any.

    Raises:
        SpecError: it has keys or values that are not known.
    """
    data: dict[str, Any] = {
        "task": {"name": "prompt", "prompt": prompt},
        "entries": [{**options, "name": name}],
    }
    return from_data(data, Path(where))


async def answer(
    prompt: Prompt, sandbox: Sandbox, gateway: Gateway, recorder: Recorder, watch: Watch | None = None
) -> Trajectory:
    """Let an agent work on a prompt until it has done, or a limit ends it; both are outcomes.

    Raises:
        AttemptError: the agent, its model or the sandbox failed.
    """
    entry, watch = prompt.entry, watch or Watch()
    workdir = sandbox.place(prompt.workdir)
    bash = Bash(
        sandbox,
        workdir=workdir,
        timeout=entry.command_timeout,
        recorder=recorder,
        on_start=watch.on_start,
        on_result=watch.on_result,
    )
    account = gateway.account(
        prompt.name,
        recorder,
        whose=prompt.whose,
        budget=Budget(**entry.budget.model_dump()),
        seed=SEED,
        deadline=anyio.current_time() + entry.time_limit,
    )
    context = AgentContext(
        prompt.name,
        entry.model,
        entry.hint.strip(),
        SEED,
        entry.time_limit,
        recorder,
        journal=Journal(on_ask=watch.on_ask),
        account=account,
        memory=prompt.memory,
    )
    agent = prompt.agent
    run = agent.converse if prompt.memory is not None and isinstance(agent, Converses) else agent.run
    state = account.state
    try:
        with anyio.move_on_after(entry.time_limit), boundary(AgentError, f"agent {entry.agent!r}"):
            return settled(await run(Task(prompt.name, prompt.text, workdir), bash, context), state)
    except LimitReached as e:
        return recorder.trajectory(str(e), outcome_of(e))
    except AttemptError:
        if state.ended is not None:
            return recorder.trajectory(str(state.ended), outcome_of(state.ended))
        if state.broken:
            raise ModelError(state.broken) from None
        raise
    waiting = f"; the model did not answer: {state.trouble}" if state.trouble else ""
    return recorder.trajectory(f"ended by its time limit of {entry.time_limit:g} s{waiting}", "time")


def settled(done: object, account: Account) -> Trajectory:
    """What an agent returned, unless its account says that it ended otherwise.

    Raises:
        TypeError: it is no trajectory.
        ModelError: the account was closed because of a failure.
        LimitReached: it was closed because of a limit.
    """
    if not isinstance(done, Trajectory):
        raise TypeError(f"run() returned {type(done).__name__}, not a Trajectory")
    if account.broken:
        raise ModelError(account.broken)
    if account.ended is not None:
        raise account.ended
    return done


def outcome_of(limit: LimitReached) -> Outcome:
    """The outcome of an agent that a limit ended."""
    return cast("Outcome", limit.limit) if limit.limit in {"steps", "time"} else "budget"
