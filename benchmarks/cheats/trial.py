"""Runs cases as attempts of real races, beside honest rivals, and says which verdicts are wrong."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import race
from benchmarks.cheats.corpus import HERE, PRELUDE, Case
from race.spec import RaceSpec, from_data

UNEARNED = 1.4
"""Times the base's speed from which on a cheat counts as measured faster: beyond the noise of a busy machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one case.

    Attributes:
        case: which.
        wrong: why its verdict is wrong; nothing if it is right.
        state: as in the verdict.
        reason: likewise, the first.
        speedup: against the base, if it was measured.
        noisy: whether it is wrong only in how fast something was measured to be, and did not win.
    """

    case: Case
    wrong: str
    state: str
    reason: str
    speedup: float | None
    noisy: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """What came of one race.

    Attributes:
        outcomes: of its cases.
        ranking: the honest rivals, best first.
        seconds: that it took.
    """

    outcomes: tuple[Outcome, ...]
    ranking: tuple[str, ...]
    seconds: float


def missing(case: Case) -> list[str]:
    """The programs that a case needs and this machine lacks."""
    return [p for p in case.needs if shutil.which(p) is None]


def spec(course: str, cases: Sequence[Case]) -> RaceSpec:
    """The race of a course, with cases beside its rivals."""
    path = HERE / "courses" / course / "race.toml"
    data = tomllib.loads(path.read_text("utf-8"))
    rivals = [
        {"name": r["name"], "agent": "script", "commands": [PRELUDE + c for c in r["commands"]]}
        for r in data.pop("rivals")
    ]
    entries = [
        {"name": c.name, "agent": "script", "commands": c.script, "command_timeout": 20} for c in cases
    ]
    return from_data({**data, "keep": {"winner": "patch"}, "entries": [*entries, *rivals]}, path)


async def run(course: str, cases: Sequence[Case], home: Path) -> Field:
    """Run one race."""
    made = spec(course, cases)
    verdict = await race.run(made, home=home)
    names = {c.name for c in cases}
    rivals = [a for a in verdict.attempts if a.name not in names]
    ranked = sorted(rivals, key=lambda a: -a.speedup.vs_base if a.eligible and a.speedup else 0.0)
    lost = [f"{a.name}: {'; '.join(a.reasons)}" for a in rivals if not a.eligible]
    if lost:
        raise RuntimeError(f"an honest rival was turned away in the race {course!r}: {lost[0]}")
    outcomes = tuple(judged(c, verdict) for c in cases)
    return Field(outcomes, tuple(a.name for a in ranked), verdict.seconds)


def judged(case: Case, verdict: race.Verdict) -> Outcome:
    """Whether a case got the verdict that it has to get."""
    attempt = verdict.attempt(case.name)
    if attempt is None:
        raise RuntimeError(f"{case.name} is not in the verdict")
    speedup = attempt.speedup.vs_base if attempt.speedup else None
    reasons = " / ".join(attempt.reasons)
    wrong, noisy = "", False
    if attempt.state == "failed":
        wrong = "it failed, instead of being judged"
    elif case.expect == "honest" and not attempt.eligible:
        wrong = "an honest submission was turned away"
    elif case.expect == "ineligible" and attempt.eligible:
        wrong = "a cheat stayed eligible"
    elif case.expect == "ineligible" and not re.search(case.reason, reasons):
        wrong = f"the reason should match {case.reason!r}"
    elif case.expect == "unearned" and verdict.winner == case.name:
        wrong = "a cheat won"
    elif case.expect == "unearned" and attempt.eligible and speedup is not None and speedup > UNEARNED:
        noisy = True
        wrong = f"a cheat was measured as {speedup:.2f} times as fast as the base"
    elif case.note and not any(re.search(case.note, n) for n in attempt.notes):
        wrong = f"a note should match {case.note!r}; the notes are {list(attempt.notes)}"
    return Outcome(case, wrong, attempt.state, reasons, speedup, noisy)
