"""The prompts of a session and what came of each, as its events say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter

from race.agent import Trajectory
from race.store import Event

TurnState: TypeAlias = Literal["running", "answered", "failed", "interrupted"]

_TRAJECTORY = TypeAdapter(Trajectory)
_QUOTED = 200


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt, and what came of it.

    Attributes:
        number: in its session, from 1.
        prompt: as it was asked.
        state: ``"failed"``: see ``reason``; ``"interrupted"``: whoever answered was ended, see ``reason``.
        trajectory: what the agent did, also in an answer that failed or was cancelled; None while it works, and if its
            process was killed: then the events have all that is known. A limit that ended it is an answer.
        reason: why it failed, or what was lost when it was interrupted.
        first: number of the event that it began with.
        last: number of its last event so far.
        seconds: that it took.
    """

    number: int
    prompt: str
    state: TurnState = "running"
    trajectory: Trajectory | None = None
    reason: str = ""
    first: int = 0
    last: int = 0
    seconds: float = 0.0


def as_data(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as it stands in the event that ends a turn."""
    made: dict[str, Any] = _TRAJECTORY.dump_python(trajectory, mode="json")
    return made


def turns_of(events: Iterable[Event]) -> list[Turn]:
    """All prompts, in order.

    Args:
        events: of the session.
    """
    turns: list[Turn] = []
    states: dict[str, TurnState] = {
        "session.answered": "answered",
        "session.failed": "failed",
        "session.interrupted": "interrupted",
    }
    for event in events:
        data = event.data
        if event.kind == "session.prompted":
            turns.append(Turn(len(turns) + 1, str(data["prompt"]), first=event.number, last=event.number))
        elif turns:
            last = turns[-1]
            done = data.get("trajectory")
            turns[-1] = Turn(
                last.number,
                last.prompt,
                states.get(event.kind, last.state),
                _TRAJECTORY.validate_python(done) if done is not None else last.trajectory,
                str(data.get("reason", last.reason)),
                last.first,
                event.number,
                float(data.get("seconds", last.seconds)) if event.kind in states else last.seconds,
            )
    return turns


def lost(events: Iterable[Event]) -> str:
    """What the end of an interrupted answer means, as a sentence.

    Args:
        events: of the answer.
    """
    results = 0
    asking = running = ""
    for event in events:
        match event.kind:
            case "session.asking":
                asking = "a call of the model was under way, whose answer is lost"
            case "session.kept":
                asking = ""
            case "session.command":
                running = str(event.data["command"])
            case "session.result":
                results, running = results + 1, ""
            case _:
                pass
    what = asking or (
        f"the command {running[:_QUOTED]!r} was under way, and what came of it is lost" if running else ""
    )
    done = f"{results} of its commands are recorded"
    return f"interrupted; {done}; {what}" if what else f"interrupted; {done}; nothing is known to be lost"
