"""What came of a batch, as it is kept, shown, and printed. Keys may be added, never renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from race.batch_table import BatchRow, TaskRow
from race.spec import RaceSpec
from race.statistics.variants import Estimate as _Estimate
from race.statistics.variants import Tries, best_at, eligible_rate, mean_speedup, pass_at
from race.verdict import AttemptUsage, AttemptVerdict, Verdict

TaskStatus: TypeAlias = Literal["won", "no_winner", "failed", "cancelled"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Estimate(_Value):
    """A number and its 95 % interval; no interval where there is too little to tell."""

    value: float
    low: float | None = None
    high: float | None = None


class TaskResult(_Value):
    """What came of one task."""

    task: str
    race: str
    project: str
    status: TaskStatus
    winner: str | None = None
    speedup: float | None = None
    """Of the winner, over the base."""
    error: str = ""
    """Why there is no verdict, or no winner."""
    seconds: float = 0.0
    cost_usd: float | None = None
    """None when it is not known."""


class VariantResult(_Value):
    """What came of one entry over all tasks."""

    entry: str
    attempts: int
    eligible: int
    failed: int
    cost_usd: float | None = None
    eligible_rate: Estimate | None = None
    pass_at: dict[int, Estimate]
    """By k: the chance that one of k attempts is eligible."""
    best_at: dict[int, Estimate]
    """By k: the speed-up to be expected of the best of k attempts; one that is not eligible counts as 1."""
    speedup: Estimate | None = None
    """The geometric mean of what was measured."""


class Totals(_Value):
    """Over all tasks."""

    tasks: int
    won: int
    no_winner: int
    failed: int
    cancelled: int
    attempts: int
    eligible: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None = None
    seconds: float = 0.0


class BatchResult(_Value):
    """What came of a batch."""

    batch: str
    key: str
    name: str
    status: Literal["ended", "cancelled"]
    totals: Totals
    variants: tuple[VariantResult, ...]
    tasks: tuple[TaskResult, ...]


def summed(
    row: BatchRow,
    specs: Sequence[RaceSpec],
    tasks: Sequence[TaskRow],
    verdicts: Sequence[Verdict | None],
    *,
    cancelled: bool,
    seconds: float,
) -> BatchResult:
    """The result of a batch from those of its tasks.

    Args:
        row: of the batch.
        specs: of the tasks' races.
        tasks: in the same order, like the next.
        verdicts: of the races, as far as there are any.
        cancelled: whether it was cancelled.
        seconds: that it took.
    """
    results = [_task(s, t, v) for s, t, v in zip(specs, tasks, verdicts, strict=True)]
    attempts = [a for v in verdicts if v is not None for a in _ran(v)]
    counts = {s: sum(r.status == s for r in results) for s in ("won", "no_winner", "failed", "cancelled")}
    return BatchResult(
        batch=row.id,
        key=row.key,
        name=row.name,
        status="cancelled" if cancelled else "ended",
        totals=Totals(
            tasks=len(results),
            won=counts["won"],
            no_winner=counts["no_winner"],
            failed=counts["failed"],
            cancelled=counts["cancelled"],
            attempts=len(attempts),
            eligible=sum(a.eligible for a in attempts),
            input_tokens=sum(u.input_tokens for u in bills(attempts)),
            output_tokens=sum(u.output_tokens for u in bills(attempts)),
            cost_usd=cost(bills(attempts)),
            seconds=seconds,
        ),
        variants=tuple(
            _variant(e, verdicts) for e in dict.fromkeys(e.name for s in specs for e in s.entries)
        ),
        tasks=tuple(results),
    )


def bills(attempts: Sequence[AttemptVerdict]) -> list[AttemptUsage]:
    """What agents and gates have used of models."""
    of_gates = [g.usage for a in attempts for g in a.gates.values() if g.usage is not None]
    return [*(a.usage for a in attempts), *of_gates]


def cost(usages: Sequence[AttemptUsage]) -> float | None:
    """In dollars; None as soon as that of one which used tokens is not known."""
    if any(u.cost_usd is None and (u.input_tokens or u.output_tokens) for u in usages):
        return None
    return sum(u.cost_usd or 0.0 for u in usages)


def _ran(verdict: Verdict) -> list[AttemptVerdict]:
    """The attempts that came to an end of their own: what was cancelled, or never began, says nothing of a variant."""
    return [a for a in verdict.attempts if a.state != "cancelled"]


def _task(spec: RaceSpec, task: TaskRow, verdict: Verdict | None) -> TaskResult:
    if verdict is None:
        status: TaskStatus = "failed" if task.status == "failed" else "cancelled"
        return TaskResult(
            task=task.name, race=task.race, project=spec.base.project, status=status, error=task.error
        )
    winner = verdict.attempt(verdict.winner) if verdict.winner else None
    return TaskResult(
        task=task.name,
        race=task.race,
        project=spec.base.project,
        status=verdict.status,
        winner=verdict.winner,
        speedup=winner.speedup.vs_base if winner and winner.speedup else None,
        error="" if winner else task.error or verdict.decided_by,
        seconds=verdict.seconds,
        cost_usd=cost(bills(verdict.attempts)),
    )


def _variant(entry: str, verdicts: Sequence[Verdict | None]) -> VariantResult:
    groups = [[a for a in _ran(v) if a.entry == entry] for v in verdicts if v is not None]
    groups = [g for g in groups if g]
    tries = [
        Tries(
            len(g),
            sum(a.eligible for a in g),
            tuple(a.speedup.vs_base for a in g if a.eligible and a.speedup is not None),
        )
        for g in groups
    ]
    attempts = [a for g in groups for a in g]
    most = max((t.count for t in tries), default=0)
    measured = any(t.speedups for t in tries)
    return VariantResult(
        entry=entry,
        attempts=len(attempts),
        eligible=sum(a.eligible for a in attempts),
        failed=sum(a.state == "failed" for a in attempts),
        cost_usd=cost([a.usage for a in attempts]),
        eligible_rate=_shown(eligible_rate(tries)),
        pass_at={k: e for k in range(1, most + 1) if (e := _shown(pass_at(k, tries))) is not None},
        best_at={
            k: e for k in range(1, most + 1) if measured and (e := _shown(best_at(k, tries))) is not None
        },
        speedup=_shown(mean_speedup(tries)),
    )


def _shown(estimate: _Estimate | None) -> Estimate | None:
    if estimate is None:
        return None
    return Estimate(value=estimate.value, low=estimate.low, high=estimate.high)
