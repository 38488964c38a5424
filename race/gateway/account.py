"""What an attempt may spend on models, and what it has spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import anyio

from race.agent import Recorder, TokenUsage, add_usage
from race.errors import LimitReached
from race.gateway.exchanges import Exchange

FAILURES = 10
"""Requests that may fail one after the other until the attempt is ended."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent; None means no limit.

    Attributes:
        tokens: read and written.
        cost_usd: what the calls cost.
        requests: how many are answered.
    """

    tokens: int | None = None
    cost_usd: float | None = None
    requests: int | None = None


@dataclass(slots=True)
class Purse:
    """A budget with what is spent of it, of an attempt or of a whole race.

    Attributes:
        whose: as it stands in a sentence: "the attempt".
        budget: see `Budget`.
        requests: answered so far.
        usage: of them.
        unpriced: a model whose cost is not known, if there was one.
        uncounted: a model whose server does not say what it used, if there was one.
    """

    whose: str
    budget: Budget = Budget()
    requests: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    unpriced: str = ""
    uncounted: str = ""

    def add(self, usage: TokenUsage, model: str) -> None:
        """A request was answered."""
        self.requests += 1
        self.usage = add_usage(self.usage, usage)
        if usage.cost_usd is None:
            self.unpriced = self.unpriced or model or "without a name"
        if not (usage.input_tokens or usage.output_tokens):
            self.uncounted = self.uncounted or model or "without a name"

    @property
    def spent(self) -> str:
        """Why nothing more may be spent, as a sentence; nothing while more may be."""
        return self._counted_out() or self._paid_out()

    def _counted_out(self) -> str:
        budget, used = self.budget, self.usage
        tokens = used.input_tokens + used.output_tokens
        if budget.tokens is not None and tokens >= budget.tokens:
            return f"{self.whose} has spent its budget of {budget.tokens:,} tokens ({tokens:,} used)"
        if budget.tokens is not None and self.uncounted:
            return (
                f"{self.whose} has a budget of {budget.tokens:,} tokens, and the server of the model "
                f"{self.uncounted!r} does not say how many it used; give it a budget of requests"
            )
        if budget.requests is not None and self.requests >= budget.requests:
            return f"{self.whose} has had its {budget.requests:,} requests"
        return ""

    def _paid_out(self) -> str:
        budget, used = self.budget, self.usage
        if budget.cost_usd is None:
            return ""
        if self.unpriced:
            return (
                f"{self.whose} has a budget of ${budget.cost_usd:g}, and the cost of the model {self.unpriced!r} is "
                "not known; give it a budget of tokens"
            )
        if (used.cost_usd or 0.0) >= budget.cost_usd:
            return f"{self.whose} has spent its budget of ${budget.cost_usd:g} (${used.cost_usd or 0.0:.4f} used)"
        return ""


@dataclass(slots=True)
class Account:
    """An attempt's account at the gateway.

    Attributes:
        name: of the attempt.
        purse: its own budget.
        race: the budget of the whole race.
        recorder: where usage goes.
        seed: spreads its waits.
        deadline: when the attempt ends, a time of ``anyio.current_time``.
        ended: the limit that ended it, once a request was refused because of it.
        broken: why no more requests are passed on, when it is no limit but a failure.
        trouble: what was wrong with the last request; nothing when it was answered.
        closed: set once no more requests are passed on.
    """

    name: str
    purse: Purse
    race: Purse
    recorder: Recorder
    seed: int = 0
    deadline: float = math.inf
    ended: LimitReached | None = None
    broken: str = ""
    trouble: str = ""
    closed: anyio.Event = field(default_factory=anyio.Event)
    on_exchange: Callable[[Exchange], None] = lambda _: None
    _failures: int = 0
    _numbers: int = 0

    def admit(self, *, counts: bool, steps: bool) -> str:
        """Whether a request may go on; why not, or nothing.

        Args:
            counts: whether it costs tokens.
            steps: whether it is a step of the agent.
        """
        if self.broken:
            return self.broken
        if self.ended is None and (why := self.purse.spent or self.race.spent):
            self.ended = LimitReached("budget", f"ended because {why}")
        if self.ended is None and counts and steps:
            try:
                self.recorder.begin_step()
            except LimitReached as limit:
                self.ended = limit
        if self.ended is None:
            return ""
        self.closed.set()
        return str(self.ended)

    def breaks(self, why: str) -> None:
        """No more requests are passed on, because something is wrong that will not pass."""
        self.broken = self.broken or why
        self.closed.set()

    def recall(self, past: Iterable[Exchange]) -> None:
        """Count what an earlier process, or an earlier take, spent; the race has counted it already."""
        for exchange in past:
            self._numbers = max(self._numbers, exchange.number)
            if exchange.usage is not None:
                self.purse.add(exchange.usage, exchange.model)

    def number(self) -> int:
        """The next exchange's number, from 1."""
        self._numbers += 1
        return self._numbers

    def settle(self, exchange: Exchange, *, counts: bool) -> None:
        """An exchange has ended: count it, and tell whoever keeps it."""
        if exchange.usage is not None:
            self.purse.add(exchange.usage, exchange.model)
            self.race.add(exchange.usage, exchange.model)
            try:
                self.recorder.spent(exchange.usage)
            except LimitReached as limit:  # of whoever watches the recorder, such as a fleet's policy
                self.ended = self.ended or limit
                self.closed.set()
        if exchange.outcome == "answered":
            self.trouble = ""
            self._failures = 0
        elif exchange.outcome == "failed" and counts:
            self.trouble = exchange.reason
            self._failures += 1
            if self._failures >= FAILURES:
                self.breaks(f"{exchange.reason} ({self._failures} requests failed one after the other)")
        self.on_exchange(exchange)

    @property
    def left(self) -> float:
        """Seconds until the attempt ends."""
        return max(self.deadline - anyio.current_time(), 0.0)
