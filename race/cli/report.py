"""What a person reads at the end of a race.

Who won and how surely, everybody's numbers, why the others did not, and what to type next. What agents wrote
is escaped, and it says whose words they are.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from race.batch_result import bills, cost
from race.cli import wording
from race.cli.patch_text import patch_size, short_diff
from race.cli.standings_table import in_order, standings_table
from race.cli.strips import strips
from race.store import RaceRow
from race.verdict import AttemptVerdict, Round, Verdict

__all__ = ["listing", "report", "short_diff"]

WORDS = 3
"""Lines that are quoted of the winner's last words."""
_WIDE = 100


def report(verdict: Verdict, console: Console, *, diff: bytes | str | None = None) -> None:
    """Print what came of a race.

    Args:
        verdict: of the race.
        console: where to.
        diff: the winner's patch.
    """
    winner = verdict.attempt(verdict.winner) if verdict.winner else None
    console.print(_headline(verdict, winner))
    if verdict.winner and verdict.decided_by:
        console.print(Text(wording.sentence(verdict.decided_by)))
    if winner is not None and winner.confirmed is not None:
        again = winner.confirmed
        ends = f"{wording.times(again.low)} to {wording.times(again.high)}"
        console.print(
            Text(f"Measured once more, with fresh seeds: {wording.times(again.vs_base)} times ({ends}).")
        )
    console.print(_subtitle(verdict))
    if verdict.attempts:
        console.print()
        console.print(standings_table(verdict, wide=console.width >= _WIDE))
    _section(console, "Rounds", [(f"{r.number}", _round(r)) for r in verdict.lineage])
    if (drawn := strips(verdict, min(console.width, _WIDE))) is not None:
        console.print()
        console.print(drawn)
    if verdict.pareto:
        front = wording.listed([wording.one_line(n) for n in verdict.pareto], 12)
        _section(console, "Beaten by nobody in all metrics together (the Pareto front)", [("", Text(front))])
    _section(console, "Remarks" if winner else "Why nobody won", _reasons(verdict))
    _section(console, "Warnings", [("", Text(wording.one_line(w), style="yellow")) for w in verdict.warnings])
    if winner is not None:
        _winner(console, winner, diff.encode("utf-8", "surrogateescape") if isinstance(diff, str) else diff)
    _next(console, verdict, winner)


def _round(each: Round) -> Text:
    if each.winner is None:
        return Text("nobody was measurably better than the round before")
    name = wording.one_line(each.winner)
    if each.speedup is None:
        return Text(name)
    s = each.speedup
    ends = f"{wording.times(s.low)} to {wording.times(s.high)}"
    return Text(
        f"{name}, {wording.times(s.vs_base)} times ({ends}); {wording.times(each.total)} times in all"
    )


def _headline(verdict: Verdict, winner: AttemptVerdict | None) -> Text:
    if winner is None:
        what, style = {
            "cancelled": ("The race was cancelled", "bold yellow"),
            "failed": ("The race failed", "bold red"),
        }.get(verdict.status, ("No winner", "bold yellow"))
        reason = wording.one_line(verdict.decided_by)
        return Text.assemble((what, style), (f": {reason}" if reason else ""))
    name = wording.one_line(winner.name)
    tied = [wording.one_line(n) for n in verdict.tied_with]
    head = Text.assemble(
        (f"{name} wins", "bold green"), (f" a tie with {wording.listed(tied)}" if tied else "")
    )
    if winner.speedup is not None:
        s = winner.speedup
        unit = next(iter(winner.metrics.values())).unit if winner.metrics else ""
        low, high = wording.times(s.low), wording.times(s.high)
        head.append(f": {wording.times(s.vs_base)} times", "bold")
        head.append(
            f" {wording.comparison(unit)} {'its' if len(verdict.lineage) > 1 else 'the'} base ({low} to {high})"
        )
        if verdict.confidence > 0:
            head.append(f", {wording.percent(verdict.confidence)} sure")
        if len(verdict.lineage) > 1:
            head.append(f"; {wording.times(verdict.lineage[-1].total)} times in all rounds together")
    return head


def _subtitle(verdict: Verdict) -> Text:
    about = [
        wording.one_line(verdict.race),
        wording.count(len(verdict.attempts), "attempt"),
        wording.duration(verdict.seconds),
    ]
    if (cost := _cost(verdict)) is None or cost > 0:
        about.append("cost not known" if cost is None else wording.dollars(cost))
    return Text(" · ".join(about), style="dim")


def _cost(verdict: Verdict) -> float | None:
    """In dollars, of all attempts and of the gates that asked models; None as soon as a part of it is not known."""
    return cost(bills(verdict.attempts))


def _reasons(verdict: Verdict) -> list[tuple[str, Text]]:
    found: list[tuple[str, Text]] = []
    for attempt in in_order(verdict):
        reasons = attempt.reasons
        if not reasons and attempt.state in ("failed", "ineligible"):
            reasons = ("no reason was recorded",)
        style = "red" if attempt.state in ("failed", "ineligible") else ""
        found += [(wording.one_line(attempt.name), Text(wording.one_line(r), style=style)) for r in reasons]
    return found


def _section(console: Console, title: str, rows: Sequence[tuple[str, Text]]) -> None:
    """A heading and attributed lines: indented where they wrap on a terminal, unbroken in a file."""
    if not rows:
        return
    console.print()
    console.print(Text(title, style="bold"))
    if not console.is_terminal:
        for name, text in rows:
            console.print(Text.assemble("  ", f"{name}: " if name else "", text), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    if any(name for name, _ in rows):
        grid.add_column(overflow="fold", max_width=max(console.width // 3, 12))
    grid.add_column(overflow="fold")
    before = ""
    for name, text in rows:
        grid.add_row(*(["" if name == before else name] if name else []), text)
        before = name
    console.print(Padding(grid, (0, 0, 0, 2)))


def _winner(console: Console, winner: AttemptVerdict, patch: bytes | None) -> None:
    name = wording.one_line(winner.name)
    said = [line for line in winner.message.splitlines() if line.strip()]
    if said:
        console.print()
        console.print(Text(f"{name} says", style="bold"))
        for line in said[:WORDS]:
            quoted = Text.assemble(("  │ ", "dim"), (wording.cut(line, max(console.width - 4, 20)), "italic"))
            console.print(quoted, soft_wrap=True)
        if len(said) > WORDS:
            console.print(
                Text.assemble(("  │ ", "dim"), (f"… {wording.count(len(said) - WORDS, 'more line')}", "dim"))
            )
    if patch is None:
        return
    size = patch_size(patch)
    console.print()
    counts = Text.assemble((f"{name} changed {wording.count(size.files, 'file')}", "bold"))
    if size.added or size.removed:
        counts.append("  ").append(f"+{size.added:,}", "green").append(" ").append(
            f"-{size.removed:,}", "red"
        )
    if size.binary:
        counts.append(f"  {size.binary:,} binary", "dim")
    console.print(counts)
    if winner.packages:
        packages = wording.listed([wording.one_line(p) for p in winner.packages], 12)
        console.print(Text(f"  and installed {packages}"))
    for note in winner.notes:
        console.print(Text(f"  {wording.one_line(note)}", style="dim"), soft_wrap=not console.is_terminal)
    if apart := _apart(winner):
        console.print(Text(f"  {apart}", style="dim"))
    for changed in short_diff(patch).split("\n") if patch else ():
        shown = Text("  ").append_text(changed)
        if console.is_terminal:
            console.print(shown, no_wrap=True, overflow="ellipsis")
        else:
            console.print(shown, soft_wrap=True)


def _apart(winner: AttemptVerdict) -> str:
    """What a scorer measured apart, such as the time of an import."""
    found = [
        f"{wording.one_line(key.removesuffix('_ms').replace('_', ' '))} {wording.one_line(value)} ms"
        for result in winner.metrics.values()
        for key, value in result.details.items()
        if key.endswith("_ms")
    ]
    return f"measured apart: {', '.join(found)}" if found else ""


def _next(console: Console, verdict: Verdict, winner: AttemptVerdict | None) -> None:
    race = shlex.quote(wording.one_line(verdict.race))
    rows: list[tuple[str, str]] = []
    where: list[tuple[str, str]] = []
    if winner is not None:
        name = wording.one_line(winner.name)
        if winner.patch:
            where.append(("patch", wording.one_line(winner.patch)))
            rows.append((f"race diff {race}", "see the whole change"))
            rows.append(
                (f"race apply {race} --branch {shlex.quote(f'race/{name}')}", "put it on a new branch")
            )
        if winner.sandbox and winner.sandbox_state == "kept":
            sandbox = wording.one_line(winner.sandbox)
            where.append(("sandbox", sandbox))
            rows.append((f"race sandbox shell {shlex.quote(sandbox)}", "look around in it"))
    else:
        rows += [
            (
                f"race diff {race} {shlex.quote(wording.one_line(a.name))}",
                f"see what {wording.one_line(a.name)} changed",
            )
            for a in verdict.attempts
            if a.patch and a.files_changed
        ][:3]
    if not rows:
        return
    console.print()
    for label, place in where:
        console.print(Text.assemble((f"{label:9}", "dim"), place), soft_wrap=True)
    if where:
        console.print()
    width = max(len(command) for command, _ in rows)
    for command, purpose in rows:
        line = Text.assemble((command, "cyan"))
        if width + len(purpose) + 5 <= console.width:
            line.append(f"{' ' * (width - len(command))}   # {purpose}", "dim")
        console.print(line, soft_wrap=True)


def listing(rows: Sequence[RaceRow], console: Console) -> None:
    """Print the races of a store, as they come."""
    if not rows:
        console.print(Text("There is no race yet; 'race run FILE' starts one."))
        return
    wide = console.width >= _WIDE
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("race", no_wrap=True)
    table.add_column("result", overflow="fold")
    table.add_column("times base", justify="right", no_wrap=True)
    if wide:
        table.add_column("attempts", justify="right", no_wrap=True)
        table.add_column("cost", justify="right", no_wrap=True)
        table.add_column("took", justify="right", no_wrap=True)
    table.add_column("started", no_wrap=True)
    for row in rows:
        table.add_row(*_listed(row, wide=wide))
    console.print(table)


def _listed(row: RaceRow, *, wide: bool) -> list[RenderableType]:
    verdict = row.verdict
    winner = verdict.attempt(verdict.winner) if verdict and verdict.winner else None
    words = {"no_winner": "no winner", "won": f"won by {wording.one_line(winner.name)}" if winner else "won"}
    styles = {
        "won": "green",
        "running": "cyan",
        "failed": "red",
        "interrupted": "yellow",
        "cancelled": "yellow",
    }
    speedup = wording.times(winner.speedup.vs_base) if winner and winner.speedup else ""
    cells: list[RenderableType] = [
        Text(wording.one_line(row.id)),
        Text(words.get(row.status, wording.one_line(row.status)), style=styles.get(row.status, "")),
        Text(speedup),
    ]
    if wide:
        cost = _cost(verdict) if verdict else None
        cells += [
            Text(str(len(verdict.attempts)) if verdict else ""),
            Text(wording.dollars(cost) if verdict and cost != 0 else ""),
            Text(wording.clock(verdict.seconds) if verdict else ""),
        ]
    started = datetime.fromtimestamp(row.created).astimezone()
    return [*cells, Text(f"{started:%Y-%m-%d %H:%M}", style="dim")]
