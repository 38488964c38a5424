"""The table of a report: a row for every attempt, the winner first, and one for the base."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from race.cli import wording
from race.verdict import AttemptVerdict, MetricResult, Verdict

_RANKS = ("winner", "tied", "eligible", "beaten", "ineligible", "failed", "cancelled")
_STYLES = {
    "winner": "bold green",
    "tied": "green",
    "ineligible": "red",
    "failed": "red",
    "cancelled": "yellow",
}


def result_of(attempt: AttemptVerdict, verdict: Verdict) -> str:
    """What came of an attempt, in a word."""
    if attempt.name == verdict.winner:
        return "winner"
    if attempt.name in verdict.tied_with:
        return "tied"
    return {"eliminated": "beaten", "scored": "eligible"}.get(attempt.state, attempt.state)


def in_order(verdict: Verdict) -> list[AttemptVerdict]:
    """The attempts of a race: winner, ties, other eligible ones by their speed-up, those that are out."""

    def rank(attempt: AttemptVerdict) -> tuple[int, float]:
        result = _RANKS.index(result_of(attempt, verdict))
        # One that was beaten early may stand above one that was measured to the end.
        result = _RANKS.index("eligible") if result == _RANKS.index("beaten") else result
        return result, -attempt.speedup.vs_base if attempt.speedup else 0.0

    return sorted(verdict.attempts, key=rank)


def standings_table(verdict: Verdict, *, wide: bool) -> Table:
    """The table.

    Args:
        verdict: of the race.
        wide: whether a line has room for an attempt; else intervals, spreads and costs get their own.
    """
    names = list(dict.fromkeys([*verdict.base.metrics, *(m for a in verdict.attempts for m in a.metrics)]))
    measured = any(a.speedup for a in verdict.attempts)
    uses_tokens = any(a.usage.input_tokens or a.usage.output_tokens for a in verdict.attempts)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 1 if wide else 0),
        header_style="dim",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("attempt", overflow="fold", max_width=32 if wide else 16)
    table.add_column("result", no_wrap=True)
    if measured:
        table.add_column("times base", justify="right", no_wrap=True)
    for name in names:
        table.add_column(wording.cut(name, 12), justify="right", no_wrap=True)
    worked = any(a.agent for a in verdict.attempts)
    for title in ("files", "steps") if worked else ():
        table.add_column(title, justify="right", no_wrap=True)
    if uses_tokens:
        table.add_column("tokens", justify="right", no_wrap=True)
        if wide:
            table.add_column("cost", justify="right", no_wrap=True)
    if worked:
        table.add_column("time", justify="right", no_wrap=True)
    between = " " if wide else "\n"
    for attempt in in_order(verdict):
        result = result_of(attempt, verdict)
        style = _STYLES.get(result, "")
        cells = [
            Text(wording.one_line(attempt.name), style="bold" if result == "winner" else ""),
            Text(result, style=style),
        ]
        if measured:
            cells.append(_speedup(attempt, between))
        cells += [_value(attempt.metrics.get(name), between) for name in names]
        if worked:
            cells += [Text(str(len(attempt.files_changed))), Text(str(attempt.steps))]
        if uses_tokens:
            cells += _usage(attempt, wide=wide)
        table.add_row(*cells, *([Text(wording.clock(attempt.seconds))] if worked else []))
    if verdict.base.metrics:
        cells = [Text("base"), Text("")]
        cells += [Text("1")] if measured else []
        cells += [_value(verdict.base.metrics.get(name), between) for name in names]
        table.add_row(*cells, style="dim")
    return table


def _speedup(attempt: AttemptVerdict, between: str) -> Text:
    if attempt.speedup is None:
        return Text("")
    s = attempt.speedup
    low, high = wording.times(s.low), wording.times(s.high)
    interval = f"({low} to {high})" if between == " " else f"{low}-{high}"
    return Text.assemble(wording.times(s.vs_base), between, (interval, "dim"))


def _value(metric: MetricResult | None, between: str) -> Text:
    if metric is None:
        return Text("")
    if metric.cases is not None:
        counts = metric.cases
        moved = f"+{counts.gained} -{counts.lost}" if counts.gained or counts.lost else ""
        return Text.assemble(f"{counts.passed}/{counts.total}", (f"{between}{moved}" if moved else "", "dim"))
    spread = wording.spread(metric.spread)
    return Text.assemble(
        wording.quantity(metric.value, metric.unit), (f"{between}{spread}" if spread else "", "dim")
    )


def _usage(attempt: AttemptVerdict, *, wide: bool) -> list[Text]:
    usage = attempt.usage
    used = usage.input_tokens + usage.output_tokens
    count, cost = wording.tokens(used) if used else "", wording.dollars(usage.cost_usd) if used else ""
    return [Text(count), Text(cost)] if wide else [Text.assemble(count, (f"\n{cost}" if cost else "", "dim"))]
