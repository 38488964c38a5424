"""Where a race stands, as its events say: all that another process needs to go on with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue, TypeAdapter

from race.agent import TokenUsage
from race.bash import BashResult
from race.journal import Kept
from race.scoring import Sample
from race.store import Event
from race.surroundings import Surroundings
from race.verdict import GateResult, Verdict

_RESULT = TypeAdapter(BashResult)
_RESULT_KEYS = frozenset(BashResult.__dataclass_fields__)
_SAMPLE_KEYS = frozenset(Sample.__dataclass_fields__)


@dataclass(slots=True)
class AttemptHistory:
    """How far an attempt came.

    Attributes:
        takes: how often it was started in a fork of its own.
        sandbox: the fork of the last take.
        kept: of its agent's journal, in the last take.
        seconds: that the last take has used.
        ended: whether its agent has ended.
        submitted: whether its submission is on disk.
        replay: name of the sandbox with the submission in it, once that was complete.
        gates: what they said.
        done: the data of its last event, once it has come through its gates or failed.
        remarks: what is to be known of how it came about.
    """

    takes: int = 0
    sandbox: str = ""
    kept: Kept = field(default_factory=Kept)
    seconds: float = 0.0
    ended: bool = False
    submitted: bool = False
    replay: str = ""
    gates: dict[str, GateResult] = field(default_factory=dict[str, GateResult])
    done: Mapping[str, Any] | None = None
    remarks: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class PastSample:
    """A measurement that was made, or the reason why there was none.

    Attributes:
        sample: what was measured.
        around: what the machine did meanwhile.
        rejected: why there is no number.
        broken: whether that is because the scorer broke.
    """

    sample: Sample = field(default_factory=lambda: Sample(0.0))
    around: Surroundings = field(default_factory=Surroundings)
    rejected: str = ""
    broken: bool = False


@dataclass(slots=True)
class FinalsHistory:
    """How far the finals came.

    Attributes:
        entrants: the base first; empty if they have not begun.
        seed: of the generator that orders the rounds.
        samples: by scorer, entrant and round.
    """

    entrants: list[str] = field(default_factory=list[str])
    seed: int = 0
    samples: dict[tuple[str, str, int], deque[PastSample]] = field(
        default_factory=dict[tuple[str, str, int], deque[PastSample]]
    )

    def take(self, scorer: str, entrant: str, number: int) -> PastSample | None:
        """The measurement that was made at this place, if one was."""
        found = self.samples.get((scorer, entrant, number))
        return found.popleft() if found else None


@dataclass(slots=True)
class RaceHistory:
    """Where a race stands.

    Attributes:
        seconds: that it has run.
        base: the data of the event which said that its base was ready.
        attempts: by name, those that were started.
        finals: see `FinalsHistory`.
        verdict: once it was reached; then only the clean-up may be missing.
        repeats: how many model calls had to be repeated.
        lives: how many processes have run it.
    """

    seconds: float = 0.0
    base: Mapping[str, Any] | None = None
    attempts: dict[str, AttemptHistory] = field(default_factory=dict[str, AttemptHistory])
    finals: FinalsHistory = field(default_factory=FinalsHistory)
    verdict: Verdict | None = None
    repeats: int = 0
    lives: int = 0


def history(events: Iterable[Event]) -> RaceHistory:
    """Where a race stands after these events."""
    race = RaceHistory()
    takes: dict[str, _Take] = {}
    for event in events:
        at = float(event.data.get("at", race.seconds))
        race.seconds = max(race.seconds, at)
        match event.kind:
            case "race.started" | "race.resumed":
                race.lives += 1
            case "base.ready":
                race.base = event.data
            case "race.verdict":
                race.verdict = Verdict.model_validate(event.data["verdict"])
            case "finals.started":
                race.finals = FinalsHistory(list(event.data["entrants"]), int(event.data["seed"]))
            case "finals.sample" | "finals.rejected":
                _measured(race.finals, event)
            case kind if event.attempt and kind.startswith("attempt."):
                race.repeats += kind == "attempt.repeated"
                attempt = race.attempts.setdefault(event.attempt, AttemptHistory())
                take = takes.setdefault(event.attempt, _Take())
                if kind == "attempt.started":
                    take = takes[event.attempt] = _Take(at)
                    fresh = AttemptHistory(
                        attempt.takes + 1, str(event.data["sandbox"]), remarks=attempt.remarks
                    )
                    attempt = race.attempts[event.attempt] = fresh
                _apply(attempt, take, event)
                attempt.seconds = max(attempt.seconds, at - take.began)
                attempt.kept = take.kept()
            case _:
                pass
    return race


@dataclass(slots=True)
class _Take:
    """What is gathered of the last take of an attempt."""

    began: float = 0.0
    answers: list[JsonValue] = field(default_factory=list[JsonValue])
    results: list[BashResult] = field(default_factory=list[BashResult])
    asked: int = 0
    running: str | None = None
    usages: list[TokenUsage] = field(default_factory=list[TokenUsage])

    def kept(self) -> Kept:
        return Kept(self.answers, self.results, self.asked, self.running, self.usages)


def _apply(attempt: AttemptHistory, take: _Take, event: Event) -> None:
    data = event.data
    match event.kind.removeprefix("attempt."):
        case "asking":
            take.asked = max(take.asked, int(data["call"]))
        case "answered":
            take.answers.append(data["answer"])
            take.usages.append(TokenUsage(**data["usage"]))
        case "command":
            take.running = str(data["command"])
        case "result":
            take.running = None
            take.results.append(_RESULT.validate_python({k: v for k, v in data.items() if k in _RESULT_KEYS}))
        case "ended":
            attempt.ended = True
        case "submitted":
            attempt.submitted = True
        case "replay":
            attempt.replay = str(data["sandbox"])
        case "gate":
            attempt.gates[str(data["gate"])] = GateResult(
                passed=bool(data["passed"]), reason=str(data["reason"]), usage=data.get("spent")
            )
        case "remark":
            attempt.remarks.append(str(data["text"]))
        case "done":
            attempt.done = data
        case _:
            pass


def _measured(finals: FinalsHistory, event: Event) -> None:
    data = event.data
    place = (str(data["scorer"]), "base" if data["base"] else event.attempt, int(data["round"]))
    if event.kind == "finals.sample":
        sample = PastSample(
            Sample(**{k: data[k] for k in _SAMPLE_KEYS if k in data}),
            Surroundings(**{k: data.get(k) for k in ("load", "running", "mhz")}),
        )
    else:
        sample = PastSample(rejected=str(data["reason"]), broken=bool(data["broken"]))
    finals.samples.setdefault(place, deque()).append(sample)
