"""The samples of each candidate as a strip of characters, with the interval of its level."""

from __future__ import annotations

from collections import Counter

from rich.table import Table
from rich.text import Text

from race.cli import wording
from race.pictures import Axis, Row, axis, rows, told_apart
from race.verdict import Verdict

_STYLES = {"winner": "bold green", "tied": "green", "base": "dim", "": ""}
_NAMES = 18


def strips(verdict: Verdict, width: int) -> Table | None:
    """The strips under each other, on one axis; None when nobody was measured often enough to see anything.

    Args:
        verdict: of the race.
        width: columns that there are.
    """
    drawn = rows(verdict)
    if not any(len(row.values) > 1 for row in drawn):
        return None
    along = axis(drawn, next(iter(verdict.base.metrics.values())).unit)
    names = told_apart([wording.one_line(row.name) for row in drawn], _NAMES)
    room = max(width - max(map(len, names)) - 2, 20)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, width=room)
    for name, row in zip(names, drawn, strict=True):
        grid.add_row(Text(name, style=_STYLES[row.role]), _strip(row, along, room))
    grid.add_row("", _scale(along, room))
    return grid


def _strip(row: Row, along: Axis, room: int) -> Text:
    """A cell for each piece of the axis: more samples, a heavier dot; a line for the interval; a bar at the level."""

    def cell(value: float) -> int:
        return round(along.place(value) * (room - 1))

    counts = Counter(map(cell, row.values))
    level = cell(row.level)
    inside = (
        range(cell(max(row.low, along.first)), cell(row.high) + 1) if row.low is not None and row.high else ()
    )
    text = Text()
    for at in range(room):
        if at == level:
            text.append("┃", _STYLES[row.role] or "bold")
        elif counts[at]:
            text.append("∙•●"[min(counts[at], 3) - 1], _STYLES[row.role])
        else:
            text.append("─" if at in inside else " ", "dim")
    return text


def _scale(along: Axis, room: int) -> Text:
    """The values of the axis, as many as have room."""
    line = [" "] * room
    taken = -2
    for value in along.ticks(8):
        at = round(along.place(value) * (room - 1))
        shown = wording.number(value)
        begin = min(max(at - len(shown) // 2, 0), room - len(shown))
        if begin > taken + 1:
            line[begin : begin + len(shown)] = shown
            taken = begin + len(shown)
    unit = f" {wording.one_line(along.unit)}"
    if taken + len(unit) <= room:
        line[taken : taken + len(unit)] = unit
    return Text("".join(line), style="dim")
