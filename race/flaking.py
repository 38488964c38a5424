"""A test that fails is repeated, on the candidate and on the base: a flaky test is told from a broken candidate."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from race.errors import ScorerError
from race.moved import moved
from race.plugins import boundary
from race.replay import ReplayImage, build
from race.scoring import FAILED, Gate, Score, ScoreContext
from race.submission import Submission

if TYPE_CHECKING:
    from race.attempt import Course

REPEATS: Final = 2
"""How often the candidate is asked again."""
ON_THE_BASE: Final = 10
"""How often the base is asked at most when the candidate wavers: enough to see a test that fails every fifth time with
a probability of 0.9."""


def is_repeatable(score: Score) -> bool:
    """Whether a gate says that it may answer differently when it is asked again."""
    return not score.passed and FAILED in score.details


async def repeated(
    course: Course, context: ScoreContext, image: ReplayImage, gate: Gate, failed: Score
) -> Score:
    """Ask a gate again that a candidate has failed, and ask it of the base.

    The candidate passes when it passes now and then, and all that fails for it now and then does so for the base as
    well: the test flakes, whatever was changed. It does not when it only fails, or when only it ever fails.

    Args:
        course: of the race.
        context: in which the gate was asked.
        image: the attempt's replay image.
        gate: to ask.
        failed: what it said.
    """
    name, attempt = context.scorer, context.attempt
    answers = [failed]
    for _ in range(REPEATS):
        answers.append(await ask(image, name, gate, context))
        if not answers[-1].passed and not is_repeatable(answers[-1]):
            return answers[-1]
    bad = [a for a in answers if not a.passed]
    names = _names(bad)
    of_base = await _base_until(course, context, gate, names) if len(bad) < len(answers) else []
    base_failed = [s for s in of_base if not s.passed]
    told = {"asked": len(answers), "passed": len(answers) - len(bad)}
    told |= {"base_asked": len(of_base), "base_failed": len(base_failed)}
    course.emit("attempt.gate_repeated", attempt, gate=name, **told)
    if len(bad) == len(answers):
        return replace(failed, reason=f"{failed.reason} (failed {len(bad)} of {len(bad)} times)")
    said = f"failed {len(bad)} of {len(answers)} times"
    if base_failed and names <= _names(base_failed):
        said = f"flaky: {said}, and {len(base_failed)} of {len(of_base)} times for the base"
        return Score(passed=True, reason=f"{said}; first: {failed.reason}")
    said = f"{said}, and never in {len(of_base)} for the base: the change makes it flake"
    return Score(passed=False, reason=f"{failed.reason} ({said})")


async def _base_until(course: Course, context: ScoreContext, gate: Gate, wanted: set[str]) -> list[Score]:
    """Ask the base until all that failed for the candidate has failed for it, or often enough."""
    of_base = replace(context, attempt="base")
    scores: list[Score] = []
    base = await build(
        course.provider,
        course.base,
        Submission(),
        course.spec,
        name=f"{course.race}-{context.attempt}-base",
        labels={**course.labels, "role": "replay"},
        is_base=True,
    )
    try:
        for _ in range(ON_THE_BASE):
            scores.append(await ask(base, context.scorer, gate, of_base))
            bad = [s for s in scores if not s.passed]
            if bad and wanted <= _names(bad):
                break
    finally:
        with anyio.CancelScope(shield=True):
            await base.sandbox.delete()
    return scores


def _names(scores: Iterable[Score]) -> set[str]:
    return {str(n) for s in scores for n in json.loads(s.details.get(FAILED, "[]"))}


async def ask(image: ReplayImage, name: str, gate: Gate, context: ScoreContext) -> Score:
    """Ask a gate in a replay of its own. It does not pass if a protected file was changed meanwhile.

    Raises:
        ScorerError: the scorer broke.
    """
    async with image.replay() as replay:
        with boundary(ScorerError, f"scorer {name!r}"):
            score: Any = await gate.score(replay, context)
            if not isinstance(score, Score):
                raise TypeError(f"score() returned {type(score).__name__}, not a Score")
        if score.passed and (changed := await moved(replay)):
            return Score(passed=False, reason=changed)
        return score
