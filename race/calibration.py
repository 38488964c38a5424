"""What gates say of the unchanged base before any agent starts: kept with the base, and shown to them later."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import anyio

from race.attempt import Course
from race.errors import Rejected, ScorerError, SpecError
from race.measuring import base_image, tables_key
from race.plugins import boundary
from race.scoring import Calibrated, Gate, Score, ScoreContext


async def calibrate(course: Course, gates: Sequence[tuple[str, Gate]]) -> Mapping[str, Score]:
    """Let every gate that wants to look at the unchanged base.

    Raises:
        SpecError: a gate cannot work even there.
    """
    asking = [(name, gate) for name, gate in gates if isinstance(gate, Calibrated)]
    if not asking:
        return {}
    base, spec = course.base, course.spec
    known = course.home / "bases" / base.key / f"gates-{tables_key(spec)}.json"
    if base.cached and (found := _kept(known)) is not None:
        return found
    course.emit("base.progress", text="asking the gates about the base")
    scores: dict[str, Score] = {}
    image = await base_image(course)
    try:
        for name, gate in asking:
            async with image.replay() as replay:
                try:
                    with boundary(ScorerError, f"scorer {name!r}"):
                        scores[name] = await gate.calibrate(replay, ScoreContext(name, "base"))
                except Rejected as e:
                    where = next(i for i, s in enumerate(spec.scorers) if s.label == name)
                    raise SpecError(
                        f"{spec.place('scorers', where)} ({name!r}): does not work for the unchanged project: {e}"
                    ) from e
    finally:
        with anyio.CancelScope(shield=True):
            await image.sandbox.delete()
    known.write_text(json.dumps({k: asdict(v) for k, v in scores.items()}))
    return scores


def _kept(path: Path) -> dict[str, Score] | None:
    try:
        return {k: Score(**v) for k, v in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError):
        return None
