"""The samples of a race as a picture: for each candidate every sample, its level, and the interval of that.

What a picture shows is worked out here, on an axis from 0 to 1; `svg` draws it, and `race.cli.strips` in a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from race.submission import printable
from race.verdict import MetricResult, Verdict

LOG_FROM: Final = 4.0
"""From this ratio of the largest to the smallest value on, the axis is logarithmic."""
MOST_DOTS: Final = 2000
"""Samples of one candidate that are drawn."""


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate.

    Attributes:
        name: as in the verdict; not escaped.
        role: ``"base"``, ``"winner"``, ``"tied"`` or nothing.
        values: its samples, without the time that was spent waiting for a processor.
        level: what stands for it.
        low: the lower end of the level's interval; None without one.
        high: the upper end.
    """

    name: str
    role: str
    values: tuple[float, ...]
    level: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Axis:
    """What values are drawn along."""

    first: float
    last: float
    log: bool
    unit: str

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        if self.log:
            share = math.log(value / self.first) / math.log(self.last / self.first)
        else:
            share = (value - self.first) / (self.last - self.first)
        return min(max(share, 0.0), 1.0)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values along it, both ends within."""
        if self.log:
            low, high = math.floor(math.log10(self.first)), math.ceil(math.log10(self.last))
            steps = [1, 2, 5] if high - low <= most // 2 else [1]
            every = max(1, math.ceil((high - low) / most))
            found = [m * 10.0**e for e in range(low, high + 1, every) for m in steps]
        else:
            width = (self.last - self.first) / most
            power = 10.0 ** math.floor(math.log10(width))
            step = next(m * power for m in (1, 2, 5, 10) if m * power >= width)
            found = [n * step for n in range(math.ceil(self.first / step), math.floor(self.last / step) + 1)]
        return [v for v in found if self.first <= v <= self.last]


def rows(verdict: Verdict, metric: str = "") -> list[Row]:
    """What there is to draw of a metric; default: the one that decided.

    The winner first, then the others by their level, the base last.
    """
    metric = metric or next(iter(verdict.base.metrics), "")
    others: list[Row] = []
    for attempt in verdict.attempts:
        role = (
            "winner"
            if attempt.name == verdict.winner
            else "tied"
            if attempt.name in verdict.tied_with
            else ""
        )
        if (measured := attempt.metrics.get(metric)) and measured.samples:
            others.append(_row(attempt.name, role, measured))
    order = {a.name: -(a.speedup.vs_base if a.speedup else 0.0) for a in verdict.attempts}
    others.sort(key=lambda r: (r.role != "winner", order[r.name]))
    base = verdict.base.metrics.get(metric)
    return [*others, *([_row("base", "base", base)] if base and base.samples and others else [])]


def _row(name: str, role: str, measured: MetricResult) -> Row:
    level = measured.value if measured.level is None else measured.level
    values = measured.undisturbed or measured.samples
    return Row(name, role, values[:MOST_DOTS], level, measured.low, measured.high)


def axis(drawn: Sequence[Row], unit: str) -> Axis:
    """An axis on which all of it has room.

    Args:
        drawn: at least one row, all values above zero.
        unit: of the values.
    """
    values = [v for row in drawn for v in row.values] + [row.level for row in drawn]
    first, last = min(values), max(values)
    log = first > 0 and last / first >= LOG_FROM
    ends = [v for row in drawn for v in (row.low, row.high) if v is not None]
    if not log:
        # An interval of few samples may be far wider than they are: it may take a quarter more, then it is cut.
        margin = (last - first) / 4 or abs(first) / 50 or 1.0
        reach = [v for v in ends if first - margin <= v <= last + margin]
        first, last = min([first, *reach]), max([last, *reach])
        pad = (last - first) / 25 or abs(first) / 50 or 1.0
        return Axis(first - pad, last + pad, log, unit)
    stretch = (last / first) ** 0.04
    return Axis(first / stretch, last * stretch, log, unit)


WIDTH, NAMES, RIGHT, ROW, TOP, FOOT = 860, 220, 24, 40, 44, 40
_COLOURS = {"winner": "#15803d", "tied": "#65a30d", "base": "#6b7280", "": "#2563eb"}


def svg(verdict: Verdict) -> str:
    """The samples of a race as an SVG document; names and units in it are escaped."""
    drawn = rows(verdict)
    unit = next((m.unit for m in verdict.base.metrics.values()), "")
    height = TOP + ROW * max(len(drawn), 1) + FOOT
    title = (
        f"{_text(verdict.task, 60)}: {_text(next(iter(verdict.base.metrics), ''), 40)} in {_text(unit, 20)}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="15" font-weight="bold" fill="#111827">{title}</text>',
    ]
    if drawn:
        along = axis(drawn, unit)
        parts += _ticks(along, height)
        names = told_apart([printable(" ".join(row.name.split())) for row in drawn], 30)
        for number, row in enumerate(drawn):
            parts += _candidate(row, names[number], along, TOP + ROW * number + ROW / 2)
        note = "dots: samples without waits for a processor · line and bar: undisturbed level and its 95 % interval"
        parts.append(f'<text x="16" y="{height - 8}" font-size="11" fill="#6b7280">{note}</text>')
    else:
        parts.append(f'<text x="16" y="{TOP + ROW / 2:g}" fill="#6b7280">nothing was measured</text>')
    return "\n".join([*parts, "</svg>", ""])


def _x(along: Axis, value: float) -> float:
    return NAMES + along.place(value) * (WIDTH - NAMES - RIGHT)


def _ticks(along: Axis, height: int) -> list[str]:
    bottom = height - FOOT
    found: list[str] = []
    for value in along.ticks():
        x = _x(along, value)
        found += [
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#e5e7eb"/>',
            f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle" font-size="11">{value:.6g}</text>',
        ]
    return found


def _candidate(row: Row, name: str, along: Axis, y: float) -> list[str]:
    colour = _COLOURS[row.role]
    weight = ' font-weight="bold"' if row.role == "winner" else ""
    found = [
        f'<text x="{NAMES - 14}" y="{y + 4:g}" text-anchor="end" fill="{colour}"{weight}>{_text(name, 30)}</text>'
    ]
    if row.low is not None and row.high is not None:
        left, right = _x(along, max(row.low, along.first)), _x(along, row.high)
        found.append(
            f'<rect x="{left:.1f}" y="{y - 13:g}" width="{max(right - left, 1):.1f}" height="26" rx="3" '
            f'fill="{colour}" fill-opacity="0.14"/>'
        )
    for number, value in enumerate(row.values):
        # Samples in their order from above to below: a drift is seen as a slope, not as a wider cloud.
        at = y - 9 + 18 * (number + 0.5) / len(row.values)
        found.append(
            f'<circle cx="{_x(along, value):.1f}" cy="{at:.1f}" r="2.6" fill="{colour}" fill-opacity="0.65"/>'
        )
    x = _x(along, row.level)
    found.append(
        f'<line x1="{x:.1f}" y1="{y - 14:g}" x2="{x:.1f}" y2="{y + 14:g}" stroke="{colour}" stroke-width="2"/>'
    )
    return found


def _text(text: str, most: int) -> str:
    """Somebody's text, on one line, cut, and escaped for XML."""
    line = printable(" ".join(text.split()))
    return escape(middle_cut(line, most), {'"': "&quot;"})


def told_apart(names: Sequence[str], most: int) -> list[str]:
    """Names in at most so many characters each: without their middle or, where that leaves two alike, without what all
    the long ones begin with.
    """
    cut = [middle_cut(name, most) for name in names]
    long = [name for name in names if len(name) > most]
    if len(set(cut)) == len(set(names)) or len(long) < 2:  # noqa: PLR2004 - one is alike to none
        return cut
    alike = next((i for i, column in enumerate(zip(*long, strict=False)) if len(set(column)) > 1), 0)
    begin = max(alike - 3, 0)
    return [
        name
        if len(name) <= most
        else f"…{name[begin : begin + most - 2]}{'…' if len(name) > begin + most - 2 else ''}"
        for name in names
    ]


def middle_cut(line: str, most: int) -> str:
    """A line in at most so many characters, without its middle: names that begin alike stay apart."""
    if len(line) <= most:
        return line
    tail = (most - 1) // 2
    return f"{line[: most - 1 - tail]}…{line[len(line) - tail :]}"
