"""What is known of a batch while it runs, put together from its events and those of its races."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

from race.cli.race_state import RaceState
from race.store import Event

FEW = 5
"""Tasks that must have ended before anything is said about how long the rest will take."""


@dataclass(slots=True)
class BatchState:
    """A batch so far.

    Attributes:
        batch: its id.
        key: it was asked for with.
        began: seconds since the epoch.
        tasks: names, in order.
        races: those under way, by the task.
        ended: how each task ended that has.
        now: time of the last event.
        over: whether it has ended.
        cost: in dollars, of all attempts that have ended; None once that of one is not known.
        tokens: of all of them.
    """

    batch: str = ""
    key: str = ""
    began: float = 0.0
    tasks: list[str] = field(default_factory=list[str])
    races: dict[str, RaceState] = field(default_factory=dict[str, RaceState])
    ended: dict[str, str] = field(default_factory=dict[str, str])
    now: float = 0.0
    over: bool = False
    cost: float | None = 0.0
    tokens: int = 0
    _task_of: dict[str, str] = field(default_factory=dict[str, str])

    def apply(self, event: Event) -> None:
        """Take in one event. Kinds that are not known change nothing."""
        self.began = self.began or event.time
        self.now = max(self.now, event.time)
        data = event.data
        match event.kind:
            case "batch.started":
                self.batch, self.key = event.race, str(data.get("key", ""))
                self.tasks = [str(t) for t in data.get("tasks", ())]
            case "batch.ended":
                self.over = True
            case "task.started":
                self._task_of[str(data["race"])] = str(data["task"])
                self.races.setdefault(str(data["task"]), RaceState())
            case "task.ended":
                self.ended[str(data["task"])] = str(data.get("verdict") or data["status"])
                self.races.pop(str(data["task"]), None)
            case _ if (task := self._task_of.get(event.race)) is not None and task in self.races:
                self.races[task].apply(event)
                if event.kind == "attempt.ended":
                    self._spent(event)
            case _:
                pass

    def left(self) -> tuple[float, float, float] | None:
        """Seconds until the end, with the ends of their 95 % interval; None when too little is known.

        As many tasks as have ended in so much time are taken for a Poisson process: what is left scatters as much as
        their number does.
        """
        done, rest = len(self.ended), len(self.tasks) - len(self.ended)
        if done < FEW or not rest:
            return None
        seconds = rest * (self.now - self.began) / done
        share = 1.96 * math.sqrt(1 / done + 1 / rest)
        return seconds, seconds * math.exp(-share), seconds * math.exp(share)

    def _spent(self, event: Event) -> None:
        usage = cast("dict[str, Any]", event.data.get("usage") or {})
        used = int(usage.get("input_tokens", 0)) + int(usage.get("output_tokens", 0))
        cost = usage.get("cost_usd")
        self.tokens += used
        if cost is None and used:
            self.cost = None
        elif self.cost is not None:
            self.cost += cost or 0.0
