"""Events of a race as lines of text, for whoever has no terminal. What agents wrote is escaped and cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from race.cli import wording
from race.cli.race_state import RaceState
from race.store import Event

WIDTH = 100
"""Columns that somebody's text may take in a line."""


def line(  # noqa: PLR0911 - one for each kind of event
    event: Event, state: RaceState, round_before: tuple[int, str]
) -> str | None:
    """What to say of an event; None if it is not worth a line.

    Args:
        event: what happened.
        state: of the race, with the event.
        round_before: the round of the finals, and how they stood, before the event.
    """
    data = event.data
    name = wording.one_line(event.attempt)
    match event.kind.partition(".")[::2]:
        case ("race", "started"):
            names = [wording.one_line(str(n)) for n in data.get("attempts", ())]
            attempts = f"{wording.count(len(names), 'attempt')} ({wording.listed(names)})"
            return f"race {wording.one_line(event.race)}: {attempts}"
        case ("race", "resumed"):
            return f"going on with race {wording.one_line(event.race)}"
        case ("race", "cancelling"):
            return "interrupted; cleaning up"
        case ("race", "ended"):
            return _ended(data)
        case ("base", "progress" | "ready"):
            return f"base: {wording.cut(state.base, WIDTH)}"
        case ("lane", "waiting"):
            return state.phase
        case ("finals", "started"):
            names = [wording.one_line(str(n)) for n in data.get("entrants", ())]
            return f"finals: measuring {wording.listed(names, 12)} with {wording.one_line(state.scorer)}"
        case ("finals", "sample") if 0 < round_before[0] < state.round:
            return f"finals: {round_before[1]}"
        case ("attempt", what):
            said = _of_attempt(what, data, state, event.attempt)
            return f"{name}: {said}" if said else None
        case _:
            return None


def standing(state: RaceState) -> str:
    """How the finals stand."""
    what = f"round {state.round}" if state.round else "warming up"
    best = state.leader()
    if best is None:
        return what
    return f"{what}, {wording.one_line(best[0].name)} leads with {wording.times(best[1])} times the base"


def _of_attempt(  # noqa: PLR0911 - likewise
    what: str, data: Mapping[str, Any], state: RaceState, name: str
) -> str | None:
    match what:
        case "started" | "resumed":
            who = " ".join(str(w) for w in (data.get("agent"), data.get("model")) if w)
            return f"{what} ({wording.cut(who, WIDTH)})"
        case "retry":
            return f"broke, and is started again: {wording.cut(str(data.get('reason', '')), WIDTH)}"
        case "command":
            return f"step {data.get('step', 0)} $ {wording.command(str(data.get('command', '')), WIDTH)}"
        case "result" if data.get("timed_out"):
            seconds = wording.duration(float(data.get("seconds", 0)))
            return f"step {data.get('step', 0)} timed out after {seconds}"
        case "ended":
            attempt = state.attempts[name]
            spent = ""
            if attempt.input_tokens or attempt.output_tokens:
                used = wording.tokens(attempt.input_tokens + attempt.output_tokens)
                cost = "cost not known" if attempt.cost is None else wording.dollars(attempt.cost)
                spent = f", {used} tokens, {cost}"
            steps = wording.count(int(data.get("steps", 0)), "step")
            why = str(data.get("outcome", ""))
            said = wording.cut(str(data.get("message", "")), WIDTH) if why in ("done", "refused") else ""
            return f"ended: {outcome(why)} ({steps}{spent})" + (f'; it says: "{said}"' if said else "")
        case "submitted":
            files = [str(f) for f in data.get("files", ())]
            packages = [str(p) for p in data.get("packages", ())]
            with_packages = f" and {wording.count(len(packages), 'package')}" if packages else ""
            names = (
                f" ({wording.cut(wording.listed([*files, *packages]), WIDTH)})" if files or packages else ""
            )
            return f"handed in {wording.count(len(files), 'changed file')}{with_packages}{names}"
        case "gate" if data.get("passed"):  # if not, the attempt is done and says so
            return f"{wording.one_line(str(data.get('gate', '')))} passed"
        case "done":
            reasons = wording.cut("; ".join(str(r) for r in data.get("reasons", ())), WIDTH)
            return wording.one_line(str(data.get("state", ""))) + (f": {reasons}" if reasons else "")
        case _:
            return None


def outcome(word: str) -> str:
    """Why an agent ended, for people."""
    known = {
        "done": "it was done",
        "steps": "out of steps",
        "time": "out of time",
        "budget": "out of budget",
        "refused": "the model refused",
    }
    return known.get(word, wording.one_line(word))


def _ended(data: Mapping[str, Any]) -> str:
    status = str(data.get("status", ""))
    if status == "won":
        return f"won by {wording.one_line(str(data.get('winner')))}"
    shown = {"no_winner": "ended without a winner", "cancelled": "cancelled", "failed": "failed"}.get(
        status, status
    )
    return wording.one_line(shown)
