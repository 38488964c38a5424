"""The contract of an agent plugin, and the record of what an agent did.

An agent is a class with ``async def run(task, bash, context) -> Trajectory``. If it has an ``Options`` attribute
(a frozen pydantic model), it is constructed as ``Agent(options)`` from the keys of its entry in the race file, else
as ``Agent()``. It raises plain Python errors; the framework records them on the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from race.bash import Bash, BashResult, encodable
from race.errors import LimitReached
from race.journal import Journal
from race.memory import Memory
from race.task import Task

if TYPE_CHECKING:
    from race.gateway import GatewayAccount

Outcome: TypeAlias = Literal["done", "steps", "time", "budget", "refused"]
"""``"done"``: the agent said so itself. ``"refused"``: the model declined. Else the limit that ended it."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What the model calls of an attempt used.

    Attributes:
        input_tokens: tokens read by the model, cached ones included.
        output_tokens: tokens written by the model.
        cached_tokens: the part of ``input_tokens`` that came from a cache.
        cost_usd: what it cost, as the gateway said; None when it is not known, which is not the same as nothing.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of an agent: what was said, what was run, what came back.

    Attributes:
        number: from 1.
        text: what the agent said in this turn, if anything.
        commands: what it ran, in order.
        usage: what the turn's model calls used.
        started: seconds since the epoch.
    """

    number: int
    text: str = ""
    commands: tuple[BashResult, ...] = ()
    usage: TokenUsage = TokenUsage()
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Everything that an agent did in one attempt.

    Attributes:
        steps: in order.
        outcome: why it ended.
        message: the agent's last words, or the sentence about the limit.
        usage: of all model calls.
    """

    steps: tuple[Step, ...] = ()
    outcome: Outcome = "done"
    message: str = ""
    usage: TokenUsage = TokenUsage()


@dataclass(slots=True)
class _OpenStep:
    number: int
    started: float
    text: str = ""
    commands: list[BashResult] = field(default_factory=list[BashResult])
    usage: list[TokenUsage] = field(default_factory=list[TokenUsage])

    def closed(self) -> Step:
        return Step(self.number, self.text, tuple(self.commands), add_usage(*self.usage), self.started)


def add_usage(*parts: TokenUsage) -> TokenUsage:
    """The sum. Its cost is unknown as soon as that of one part which used tokens is."""
    priced = [p for p in parts if p.input_tokens or p.output_tokens or p.cost_usd is not None]
    known = bool(priced) and all(p.cost_usd is not None for p in priced)
    return TokenUsage(
        sum(p.input_tokens for p in parts),
        sum(p.output_tokens for p in parts),
        sum(p.cached_tokens for p in parts),
        sum(p.cost_usd or 0.0 for p in priced) if known else None,
    )


class Recorder:
    """Keeps what an attempt does, as it does it, so that nothing is lost when the agent is ended in between.

    Agents reach it as ``context.recorder``. An agent that takes turns calls `begin_step` before each, and `say` and
    `spent` with what came of it. An agent that does not still gets a step for every command.

    Args:
        max_steps: how many steps may begin.
        on_change: called with the recorder after everything recorded.
    """

    def __init__(self, max_steps: int, on_change: Callable[[Recorder], None] | None = None) -> None:
        self.max_steps = max_steps
        self._on_change = on_change
        self._steps: list[_OpenStep] = []
        self._explicit = False

    @property
    def step(self) -> int:
        """The number of the step under way, 0 before the first."""
        return len(self._steps)

    @property
    def last_command(self) -> str:
        """The command that ended last, or nothing."""
        return next((s.commands[-1].command for s in reversed(self._steps) if s.commands), "")

    @property
    def usage(self) -> TokenUsage:
        """Of all steps so far."""
        return add_usage(*self.spendings)

    @property
    def spendings(self) -> tuple[TokenUsage, ...]:
        """What each model call so far has used, in order."""
        return tuple(u for s in self._steps for u in s.usage)

    def begin_step(self) -> None:
        """A new turn begins.

        Raises:
            LimitReached: the attempt has had all its steps.
        """
        self._explicit = True
        self._begin()

    def before_command(self) -> None:
        """A command is about to run: a step of its own, unless the agent counts its steps itself.

        Raises:
            LimitReached: the attempt has had all its steps.
        """
        if not self._explicit:
            self._begin()

    def ran(self, result: BashResult) -> None:
        """A command has ended."""
        self._current().commands.append(result)
        self._changed()

    def say(self, text: str) -> None:
        """The agent said something in this turn."""
        step = self._current()
        text = encodable(text)
        step.text = f"{step.text}\n{text}" if step.text else text
        self._changed()

    def spent(self, usage: TokenUsage) -> None:
        """A model call of this turn used this much."""
        self._current().usage.append(usage)
        self._changed()

    def trajectory(self, message: str = "", outcome: Outcome = "done") -> Trajectory:
        """All that was recorded, as a value. Without a ``message`` the last thing said is taken."""
        last = next((s.text for s in reversed(self._steps) if s.text), "")
        steps = tuple(s.closed() for s in self._steps)
        return Trajectory(steps, outcome, encodable(message) or last, self.usage)

    def _begin(self) -> None:
        if len(self._steps) >= self.max_steps:
            raise LimitReached("steps", f"ended by its limit of {self.max_steps} steps")
        self._steps.append(_OpenStep(len(self._steps) + 1, time.time()))
        self._changed()

    def _current(self) -> _OpenStep:
        if not self._steps:
            self._steps.append(_OpenStep(1, time.time()))
        return self._steps[-1]

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change(self)


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What an agent knows besides its task and its bash tool.

    Attributes:
        attempt: name of the attempt.
        model: name of the model, or None if the entry has none.
        hint: the entry's hint, or nothing.
        seed: differs from attempt to attempt; the same attempt of the same race file has the same.
        time_limit: seconds that the attempt has; the framework ends it then, whatever the agent does.
        recorder: see `Recorder`.
        journal: see `Journal`; for agents that can be gone on with.
        account: the attempt's account at the race's gateway, the way to models; see `race.gateway`.
        memory: see `Memory`; None outside of sessions.
    """

    attempt: str
    model: str | None
    hint: str
    seed: int
    time_limit: float
    recorder: Recorder
    journal: Journal = field(default_factory=Journal)
    account: GatewayAccount | None = None
    memory: Memory | None = None

    @property
    def models(self) -> GatewayAccount:
        """The account, for an agent that cannot do without.

        Raises:
            RuntimeError: there is none; whoever runs an agent without a race has to open a gateway.
        """
        if self.account is None:
            raise RuntimeError("this agent needs a gateway: AgentContext(..., account=gateway.account(...))")
        return self.account


@runtime_checkable
class Agent(Protocol):
    """Entry point group ``race.agents``."""

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Work on the task in the sandbox behind ``bash``; usually ends with ``context.recorder.trajectory()``."""
        ...


@runtime_checkable
class ChecksFirst(Protocol):
    """What an agent may have besides: a look at what it needs, before any sandbox exists."""

    def check(self, model: str | None) -> None:
        """Refuse to start.

        Args:
            model: of the entry.

        Raises:
            SpecError: the entry lacks something, such as a model.
            MachineError: the machine does, such as an API key in its environment.
        """
        ...


@runtime_checkable
class Resumes(Protocol):
    """What an agent may have besides: it can go on in its fork after the race was interrupted.

    What makes its work different from one run to the next, model calls above all, goes through
    `race.journal.Journal.once` of its context; commands go through ``bash`` in an order that follows from that. Then
    ``resume`` may simply be ``run`` again: everything up to the interruption is answered from the journal.
    """

    async def resume(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Go on; otherwise like `Agent.run`."""
        ...


@runtime_checkable
class Converses(Protocol):
    """What an agent may have besides: it can be prompted again and again in one conversation; see `race.Session`."""

    async def converse(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Answer the next prompt, which is the task's; otherwise like `Agent.run`.

        What is needed to answer the one after it is kept in ``context.memory``, which holds what was kept before.
        """
        ...
