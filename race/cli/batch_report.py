"""What a person, a program or a spreadsheet reads of a batch at its end."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from race.batch_result import BatchResult, Estimate, VariantResult
from race.cli import wording


def report_batch(result: BatchResult, console: Console) -> None:
    """Print what came of a batch."""
    t = result.totals
    head = Text(f"{wording.count(t.won, 'winner')} of {wording.count(t.tasks, 'task')}", style="bold")
    others = ((t.no_winner, "without a winner"), (t.failed, "failed"), (t.cancelled, "cancelled"))
    for n, word in others:
        head.append(f", {n} {word}" if n else "")
    console.print(head)
    cost = "cost not known" if t.cost_usd is None else wording.dollars(t.cost_usd)
    about = [
        result.batch,
        f"key {wording.one_line(result.key)}",
        wording.count(t.attempts, "attempt"),
        wording.duration(t.seconds),
        cost,
    ]
    console.print(Text(" · ".join(about), style="dim"))
    console.print()
    console.print(_tasks(result))
    console.print()
    console.print(_variants(result))


def _tasks(result: BatchResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for name in ("task", "result", "times base", "race", "remark"):
        table.add_column(name, overflow="fold", justify="right" if name == "times base" else "left")
    styles = {"won": "green", "failed": "red"}
    for task in result.tasks:
        won = f"won by {wording.one_line(task.winner)}" if task.winner else task.status.replace("_", " ")
        table.add_row(
            Text(wording.one_line(task.task)),
            Text(won, style=styles.get(task.status, "yellow")),
            Text(wording.times(task.speedup) if task.speedup else ""),
            Text(task.race, style="dim"),
            Text(wording.cut(task.error, 200)),
        )
    return table


def _variants(result: BatchResult) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    most = max((k for v in result.variants for k in v.pass_at), default=1)
    shown = [1] if most == 1 else [1, most]
    table.add_column("variant")
    for name in (
        "attempts",
        "eligible",
        *(f"pass@{k}" for k in shown),
        *(f"best@{k}" for k in shown),
        "speed-up",
        "cost",
    ):
        table.add_column(name, justify="right", overflow="fold")
    for v in result.variants:
        cells = [str(v.attempts), _share(v.eligible_rate)]
        cells += [_share(v.pass_at.get(k)) for k in shown]
        cells += [_times(v.best_at.get(k)) for k in shown]
        cells += [_times(v.speedup), wording.dollars(v.cost_usd)]
        table.add_row(Text(wording.one_line(v.entry)), *map(Text, cells))
    return table


def _share(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    ends = (
        f" ({estimate.low:.0%} to {estimate.high:.0%})"
        if estimate.low is not None and estimate.high is not None
        else ""
    )
    return f"{estimate.value:.0%}{ends}".replace("%", " %")


def _times(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    ends = ""
    if estimate.low is not None and estimate.high is not None:
        ends = f" ({wording.times(estimate.low)} to {wording.times(estimate.high)})"
    return wording.times(estimate.value) + ends


def as_csv(result: BatchResult) -> str:
    """A row for each variant, with every number and its interval."""
    most = max((k for v in result.variants for k in v.pass_at), default=1)
    names = [
        "eligible_rate",
        *(f"pass_at_{k}" for k in range(1, most + 1)),
        *(f"best_at_{k}" for k in range(1, most + 1)),
    ]
    names.append("speedup")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = [f"{n}{end}" for n in names for end in ("", "_low", "_high")]
    writer.writerow(["variant", "attempts", "eligible", "failed", "cost_usd", *ends])
    for v in result.variants:
        numbers = [x for e in _estimates(v, most) for x in ((e.value, e.low, e.high) if e else ("", "", ""))]
        writer.writerow(
            [
                v.entry,
                v.attempts,
                v.eligible,
                v.failed,
                v.cost_usd,
                *("" if n is None else n for n in numbers),
            ]
        )
    return out.getvalue()


def _estimates(v: VariantResult, most: int) -> Iterable[Estimate | None]:
    ks = range(1, most + 1)
    return [v.eligible_rate, *map(v.pass_at.get, ks), *map(v.best_at.get, ks), v.speedup]
