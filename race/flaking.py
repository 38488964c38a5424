"""A test that fails is repeated, on the candidate and on the base: a flaky test is told from a broken candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from race.errors import ScorerError
from race.plugins import boundary
from race.replay import ReplayImage, build
from race.scoring import Gate, Score, ScoreContext
from race.submission import Submission

if TYPE_CHECKING:
    from race.attempt import Course

REPEATS: Final = 2
"""How often the candidate is asked again."""
ON_THE_BASE: Final = 3
"""How often the base is asked when the candidate wavers; else once."""


def is_repeatable(gate: Gate, score: Score) -> bool:
    """Whether a gate says that it may answer differently when it is asked again, by its attribute ``repeatable``.

    A time-out is not repeated: it would take as long each time.
    """
    return bool(getattr(gate, "repeatable", False)) and not score.reason.startswith("timed out")


async def repeated(
    course: Course, attempt: str, image: ReplayImage, name: str, gate: Gate, failed: Score
) -> Score:
    """Ask a gate again that a candidate has failed, and ask it of the base.

    The candidate passes when it passes now and then, and the base fails now and then as well: the test flakes, whatever
    was changed. It does not when it only fails, or when only it ever fails.

    Args:
        course: of the race.
        attempt: name of the attempt.
        image: its replay image.
        name: of the gate.
        gate: to ask.
        failed: what it said.
    """
    context = ScoreContext(name, attempt, baseline=getattr(course, "baselines", {}).get(name))
    passed = 0
    for _ in range(REPEATS):
        passed += (await _ask(image, name, gate, context)).passed
    asked = REPEATS + 1
    times = ON_THE_BASE if passed else 1
    base = await build(
        course.provider,
        course.base,
        Submission(),
        course.spec,
        name=f"{course.race}-{attempt}-base",
        labels={**course.labels, "role": "replay"},
        is_base=True,
    )
    try:
        scores = [await _ask(base, name, gate, ScoreContext(name, "base")) for _ in range(times)]
    finally:
        with anyio.CancelScope(shield=True):
            await base.sandbox.delete()
    base_failed = sum(not s.passed for s in scores)
    course.emit(
        "attempt.repeated",
        attempt,
        gate=name,
        asked=asked,
        passed=passed,
        base_asked=times,
        base_failed=base_failed,
    )
    if passed and base_failed:
        said = f"flaky: failed {asked - passed} of {asked} times, and {base_failed} of {times} times for the base"
        return Score(passed=True, reason=f"{said}; first: {failed.reason}")
    if passed:
        said = f"failed {asked - passed} of {asked} times, and never in {times} for the base: the change makes it flake"
        return Score(passed=False, reason=f"{failed.reason} ({said})")
    if base_failed:
        return Score(
            passed=False, reason=f"{failed.reason} (failed {asked} of {asked} times; the base fails it too)"
        )
    return Score(passed=False, reason=failed.reason, details=failed.details)


async def _ask(image: ReplayImage, name: str, gate: Gate, context: ScoreContext) -> Score:
    async with image.replay() as replay:
        with boundary(ScorerError, f"scorer {name!r}"):
            return await gate.score(replay, context)
