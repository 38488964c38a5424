"""From what was measured to who wins, and to the verdict that says so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from race.attempt import Attempt
from race.deciding import Measured
from race.finals import Standing
from race.machine import described
from race.measuring import change_size
from race.sandbox import File
from race.spec import RaceSpec
from race.statistics.standings import Why
from race.submission import Submission, printable
from race.verdict import (
    AttemptUsage,
    AttemptVerdict,
    BaseVerdict,
    MetricResult,
    RaceStatus,
    Speedup,
    Verdict,
)

HOW: Final[Mapping[Why, str]] = {
    "decided": "the measurements decide it",
    "practical tie": "a tie within the indifference zone; the smallest change wins",
    "budget": "the best when the budget for measuring was spent; not beyond doubt",
    "only candidate": "the only eligible attempt that could be measured",
    "nobody better": "the best of the eligible",
}
"""How the measurements ended, for people, when there is a winner."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Who wins.

    Attributes:
        winner: name of the attempt, or None.
        tied_with: those that cannot be told from it.
        confidence: probability that it is the best, in [0, 1].
        reason: in a sentence, why this one, or why none.
        is_tie: whether it is known that the others are as good; else they could merely not be told apart.
    """

    winner: str | None = None
    tied_with: tuple[str, ...] = ()
    confidence: float = 0.0
    reason: str = ""
    is_tie: bool = True


def conclude(spec: RaceSpec, attempts: Sequence[Attempt], measured: Measured | None) -> Conclusion:
    """Who wins a race whose eligible attempts were measured.

    Without a metric, all that pass every gate are equal, and the smallest change wins; one that changed nothing
    never does.
    """
    eligible = [a for a in attempts if a.eligible]
    if not eligible:
        return Conclusion(reason="no attempt is eligible")
    if measured is None:
        return _smallest(eligible)
    standings = measured.standings
    if standings.winner is None:
        return Conclusion(reason=_nobody(spec))
    return Conclusion(
        standings.winner,
        standings.tied_with,
        standings.confidence,
        HOW[standings.why],
        is_tie=standings.why != "budget",
    )


def _nobody(spec: RaceSpec) -> str:
    if spec.finals.require_improvement:
        return "no eligible attempt is measurably better than the base"
    return "no eligible attempt could be measured"


def _smallest(eligible: Sequence[Attempt]) -> Conclusion:
    changed = [a for a in eligible if a.submission is not None and a.submission.changes]
    if not changed:
        return Conclusion(reason="no eligible attempt changed anything")
    first = min(changed, key=lambda a: (change_size(a.submission), a.number))
    others = tuple(a.name for a in changed if a is not first)
    reason = "the smallest change that passes every gate" if others else "the only one that passes every gate"
    return Conclusion(first.name, others, 1 / len(changed), reason)


def verdict(  # noqa: PLR0913 - a verdict has this many sides
    conclusion: Conclusion,
    *,
    race: str,
    spec: RaceSpec,
    status: RaceStatus,
    attempts: Sequence[Attempt],
    base_metrics: Mapping[str, MetricResult],
    measured: Measured | None,
    kept: str | None,
    seconds: float,
    warnings: Sequence[str],
) -> Verdict:
    """The whole verdict of a race."""
    base = {**base_metrics, **(measured.base if measured else {})}
    return Verdict(
        race=race,
        task=spec.task.name,
        status=status,
        winner=conclusion.winner,
        tied_with=conclusion.tied_with,
        confidence=conclusion.confidence,
        decided_by=conclusion.reason,
        base=BaseVerdict(metrics=base),
        attempts=tuple(_attempt(a, status, measured, kept, conclusion) for a in attempts),
        seconds=seconds,
        warnings=tuple(warnings),
        pareto=measured.pareto if measured else (),
    )


def _attempt(
    attempt: Attempt, status: RaceStatus, measured: Measured | None, kept: str | None, conclusion: Conclusion
) -> AttemptVerdict:
    standing = measured.standings[attempt.name] if measured and attempt.name in measured.names else None
    state = attempt.state
    if state is None:
        state = "cancelled" if status in ("cancelled", "failed") and standing is None else "scored"
        if standing is not None and standing.state == "eliminated":
            state = "eliminated"
    trajectory = attempt.trajectory
    submission = attempt.submission
    mine = next(
        (s.name for s in (attempt.fork, attempt.image and attempt.image.sandbox) if s and s.name == kept),
        None,
    )
    made = (attempt.image.sandbox.name if attempt.image else None) or (
        attempt.fork.name if attempt.fork else None
    )
    return AttemptVerdict(
        name=attempt.name,
        entry=attempt.entry.name,
        agent=attempt.entry.agent,
        model=attempt.entry.model,
        hint=attempt.entry.hint,
        state=state,
        eligible=attempt.eligible,
        outcome=trajectory.outcome,
        reasons=tuple(
            sound(r) for r in (*attempt.reasons, *attempt.remarks, *_remarks(attempt, standing, conclusion))
        ),
        gates=attempt.gates,
        metrics=attempt.metrics,
        speedup=_speedup(standing),
        confirmed=measured.confirmed if measured and attempt.name == conclusion.winner else None,
        p_best=standing.p_best if standing else None,
        steps=len(trajectory.steps),
        usage=AttemptUsage(
            input_tokens=trajectory.usage.input_tokens,
            output_tokens=trajectory.usage.output_tokens,
            cached_tokens=trajectory.usage.cached_tokens,
            cost_usd=trajectory.usage.cost_usd,
        ),
        message=sound(trajectory.message),
        seconds=attempt.seconds,
        files_changed=submission.files_changed if submission else (),
        packages=tuple(f"{p.name}=={p.version}" for p in submission.packages) if submission else (),
        ignored=submission.ignored if submission else (),
        machine={k: tuple(v) for k, v in submission.machine.paths.items()} if submission else {},
        notes=tuple(notes(submission)) if submission else (),
        patch=str(attempt.patch) if attempt.patch else None,
        sandbox=mine or made,
        sandbox_state="kept" if mine else "deleted",
    )


def notes(submission: Submission) -> list[str]:
    """What a reader of the change should know and the scores do not say."""
    said = described(submission.machine)
    wanted = [c.shown for c in submission.changes if _DEPENDENCIES.fullmatch(c.path.rpartition(b"/")[2])]
    if wanted:
        said.append(f"changes what is installed with the project: {', '.join(wanted[:3])}")
    hidden = [
        printable(e.path)
        for e in submission.entries
        if isinstance(e, File)
        and isinstance(e.content, bytes)
        and _INVISIBLE.search(e.content.decode(errors="replace"))
    ]
    if hidden:
        said.append(f"holds invisible characters: {', '.join(hidden[:3])}")
    effects = [
        printable(e.path)
        for e in submission.entries
        if isinstance(e, File) and isinstance(e.content, bytes) and _SIDE_EFFECTS.search(e.content)
    ]
    if effects:
        said.append(f"changes its whole process (collector, priority, threads): {', '.join(effects[:3])}")
    return said


_DEPENDENCIES = re.compile(
    rb"requirements.*\.txt|constraints.*\.txt|pyproject\.toml|setup\.(?:py|cfg)|Pipfile|.*\.lock|package\.json|"
    rb"package-lock\.json|go\.mod|go\.sum|Cargo\.toml|Gemfile|environment\.ya?ml|pom\.xml|build\.gradle"
)
_INVISIBLE = re.compile("[\u200b-\u200f\u2060-\u2064\ufeff\u00ad\u202a-\u202e\u2066-\u2069]")
_SIDE_EFFECTS = re.compile(
    rb"gc\.(?:disable|freeze|set_threshold)|os\.(?:nice|sched_setaffinity|setpriority)|sys\.setswitchinterval"
)


def _remarks(attempt: Attempt, standing: Standing | None, conclusion: Conclusion) -> list[str]:
    """Why an attempt that was scored did not win, and what else is to be known of it."""
    said: list[str] = []
    if attempt.state is None and attempt.trajectory.outcome != "done" and attempt.trajectory.message:
        said.append(f"the agent was {attempt.trajectory.message}; scored as it stood")
    if attempt.state is None and attempt.submission is not None and attempt.submission.additions:
        count = len(attempt.submission.additions)
        said.append(f"scored with {count:,} files that it added to its machine: no clean-room score")
    if not attempt.eligible or attempt.name == conclusion.winner:
        return said
    if attempt.submission is not None and not attempt.submission.changes and not attempt.submission.packages:
        said.append("changed nothing")
    elif standing is not None and standing.vs_base is not None and standing.vs_base.low <= 1:
        said.append("not measurably better than the base")
    elif attempt.name in conclusion.tied_with and conclusion.is_tie:
        said.append(f"tied with {conclusion.winner}, whose change is smaller")
    elif attempt.name in conclusion.tied_with:
        said.append(
            f"not told apart from {conclusion.winner}, which is ahead by less than can be measured so far"
        )
    elif standing is not None and standing.vs_winner is not None:
        said.append(f"beaten by {conclusion.winner}: {standing.vs_winner.estimate:.3g} times as good")
    return said


def _speedup(standing: Standing | None) -> Speedup | None:
    if standing is None or standing.vs_base is None:
        return None
    s = standing.vs_base
    return Speedup(vs_base=s.estimate, low=s.low, high=s.high)


def sound(text: str) -> str:
    """Text that can be written anywhere: lone surrogates, which no encoding takes, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
