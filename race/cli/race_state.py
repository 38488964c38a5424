"""What is known of a race while it runs, put together from its events.

What agents wrote in them is kept as it came; whoever shows it makes it safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, cast

from race.cli import wording
from race.store import Event

Phase = Literal["waiting", "working", "judging", "eligible", "out", "measuring"]


@dataclass(slots=True)
class AttemptProgress:
    """How far an attempt is.

    Attributes:
        name: of the attempt.
        phase: what happens to it.
        state: the word for that which people are shown.
        step: the number of the agent's turn.
        detail: the last command, or the last that was said of it.
        ran: how the last command ended; None while it runs.
        input_tokens: of the agent's model calls so far, like the next two.
        output_tokens: see there.
        cost: in dollars; None if it is not known.
        began: seconds since the epoch, None before.
        ended: likewise, of the agent and its gates.
        samples: of the metric that decides, without the warm-up.
    """

    name: str
    phase: Phase = "waiting"
    state: str = "waiting"
    step: int = 0
    detail: str = ""
    ran: str | None = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    began: float | None = None
    ended: float | None = None
    samples: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class RaceState:
    """A race so far.

    Attributes:
        race: its id.
        began: seconds since the epoch.
        base: what is being done about the base, or its numbers.
        phase: what the race as a whole is at, beyond its base and attempts.
        attempts: by name, in order.
        scorer: the metric that decides, once the finals have begun.
        unit: of that metric.
        goal: of that metric, if it is known.
        round: of the finals; 0 is the warm-up.
        ended: whether it is over.
    """

    race: str = ""
    began: float = 0.0
    base: str = ""
    phase: str = ""
    attempts: dict[str, AttemptProgress] = field(default_factory=dict[str, AttemptProgress])
    scorer: str = ""
    unit: str = ""
    goal: str = ""
    round: int = 0
    ended: bool = False
    _base_samples: list[float] = field(default_factory=list[float])
    _units: dict[str, str] = field(default_factory=dict[str, str])

    def apply(self, event: Event) -> None:
        """Take in one event. Kinds that are not known change nothing."""
        if not self.began:
            self.race, self.began = event.race, event.time
        scope, _, what = event.kind.partition(".")
        if scope == "attempt" and event.attempt:
            self._attempt(
                self.attempts.setdefault(event.attempt, AttemptProgress(event.attempt)), what, event
            )
        elif scope == "base":
            self._base(what, event.data)
        elif scope == "finals":
            self._finals(what, event)
        elif event.kind in ("race.started", "race.resumed"):
            self.phase = ""
            for name in event.data.get("attempts", ()):
                self.attempts.setdefault(str(name), AttemptProgress(str(name)))
        elif event.kind == "race.cancelling":
            self.phase = "interrupted; cleaning up"
        elif event.kind == "race.ended":
            self.ended = True
            self.phase = ""
        elif event.kind == "lane.waiting":
            self.phase = "waiting for another race to end its measuring"

    def leader(self) -> tuple[AttemptProgress, float] | None:
        """Who is best in the finals so far, and how many times as good as the base; None if not known."""
        measured = [a for a in self.attempts.values() if a.samples]
        if not measured or not self._base_samples or self.goal not in ("min", "max"):
            return None
        sign = 1 if self.goal == "min" else -1
        best = min(measured, key=lambda a: sign * median(a.samples))
        return best, (median(self._base_samples) / median(best.samples)) ** sign

    def _base(self, what: str, data: Mapping[str, Any]) -> None:
        self.phase = ""
        if what == "progress":
            self.base = str(data.get("text", ""))
        elif what == "ready":
            shown: list[str] = []
            for name, metric in cast("dict[str, dict[str, Any]]", data.get("metrics", {})).items():
                self._units[name] = str(metric.get("unit", ""))
                shown.append(f"{name} {wording.quantity(float(metric['value']), self._units[name])}")
            ready = "ready, from the cache" if data.get("cached") else "ready"
            self.base = f"{ready} ({', '.join(shown)})" if shown else ready

    def _attempt(self, attempt: AttemptProgress, what: str, event: Event) -> None:
        data = event.data
        match what:
            case "started" | "resumed":
                attempt.phase, attempt.state = "working", "starting"
                attempt.began = attempt.began or event.time
                attempt.detail = " ".join(str(w) for w in (data.get("agent"), data.get("model")) if w)
            case "command" | "result":
                attempt.step = int(data.get("step", attempt.step))
                attempt.state = f"step {attempt.step}"
                attempt.detail = str(data.get("command", ""))
                attempt.ran = None if what == "command" else _ending(data)
                self._spent(attempt, data)
            case "ended":
                attempt.phase, attempt.state, attempt.ran = "judging", "handing in", ""
                attempt.step = int(data.get("steps", attempt.step))
                attempt.detail = str(data.get("message", ""))
                self._spent(attempt, data)
            case "submitted":
                attempt.state = "judging"
                attempt.detail = wording.count(len(data.get("files", ())), "file") + " changed"
            case "gate":
                passed = "passed" if data.get("passed") else f"did not pass: {data.get('reason', '')}"
                attempt.state, attempt.detail = "judging", f"{data.get('gate', '')} {passed}"
            case "done":
                attempt.phase = "eligible" if data.get("eligible") else "out"
                attempt.state, attempt.ended, attempt.ran = str(data.get("state", "done")), event.time, ""
                attempt.detail = "; ".join(str(r) for r in data.get("reasons", ()))
            case _:
                pass

    def _spent(self, attempt: AttemptProgress, data: Mapping[str, Any]) -> None:
        usage = cast("dict[str, Any]", data.get("usage") or {})
        attempt.input_tokens = int(usage.get("input_tokens", attempt.input_tokens))
        attempt.output_tokens = int(usage.get("output_tokens", attempt.output_tokens))
        attempt.cost = usage.get("cost_usd", attempt.cost)

    def _finals(self, what: str, event: Event) -> None:
        data = event.data
        self.phase = ""
        if what == "started":
            self.scorer = str(data.get("scorer", ""))
            self.goal = str(data.get("goal", ""))
            self.unit = str(data.get("unit", self._units.get(self.scorer, "")))
            for name in data.get("entrants", ()):
                if name in self.attempts:
                    self.attempts[name].phase, self.attempts[name].state = "measuring", "measuring"
        elif what == "sample":
            number, value = int(data.get("round", 0)), float(data.get("value", 0))
            if data.get("scorer") != self.scorer:
                self.phase = f"measuring {data.get('scorer', '')} as well"
                return
            self.round = max(self.round, number)
            samples = self._base_samples if data.get("base") else None
            if event.attempt in self.attempts:
                attempt = self.attempts[event.attempt]
                samples = attempt.samples
                attempt.detail = wording.quantity(median([*samples, value] if number else [value]), self.unit)
            if samples is not None and number:
                samples.append(value)


def _ending(data: Mapping[str, Any]) -> str:
    """How a command ended, if not well."""
    if data.get("timed_out"):
        return "timed out"
    code = data.get("exit_code")
    return "" if code in (0, None) else f"exit {code}"
