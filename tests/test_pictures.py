"""Samples as pictures."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from rich.console import Console

from race.cli.strips import strips
from race.pictures import Axis, axis, rows, svg, told_apart
from race.verdict import AttemptVerdict, BaseVerdict, MetricResult, Speedup, Verdict
from tests.cli.test_report import HOSTILE, HOSTILE_CHARACTERS

SVG = "{http://www.w3.org/2000/svg}"


def measured(*samples: float, reach: float | None = 0.05, unit: str = "ms") -> MetricResult:
    middle = sorted(samples)[len(samples) // 2]
    ends = {"low": middle * (1 - reach), "high": middle * (1 + reach)} if reach is not None else {}
    return MetricResult(value=middle, unit=unit, samples=samples, level=middle, **ends)


def attempt(name: str, metric: MetricResult | None, vs_base: float = 1.0) -> AttemptVerdict:
    given: dict[str, Any] = {"metrics": {"benchmark": metric}} if metric else {}
    speedup = Speedup(vs_base=vs_base, low=vs_base, high=vs_base)
    return AttemptVerdict(name=name, entry=name, agent="nop", state="scored", speedup=speedup, **given)


def verdict(*attempts: AttemptVerdict, base: MetricResult | None = None, **fields: Any) -> Verdict:
    metrics = {"benchmark": base or measured(200, 202, 198, 205)}
    return Verdict(
        race="r", task="t", status="won", base=BaseVerdict(metrics=metrics), attempts=attempts, **fields
    )


GIVEN = verdict(
    attempt("slow", measured(180, 181, 182), 1.1),
    attempt("none", None),
    attempt("fast", measured(100, 101, 99, 140), 2.0),
    attempt("level", measured(100, 102, 101), 1.98),
    winner="fast",
    tied_with=("level",),
)


def drawn(value: Verdict, width: int = 80) -> list[str]:
    out = io.StringIO()
    table = strips(value, width)
    assert table is not None
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


def test_who_is_drawn_and_in_which_order() -> None:
    assert [(r.name, r.role) for r in rows(GIVEN)] == [
        ("fast", "winner"),
        ("level", "tied"),
        ("slow", ""),
        ("base", "base"),
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_strips_fit(width: int) -> None:
    lines = drawn(GIVEN, width)
    assert all(len(line) <= width for line in lines)
    assert len(lines) == 5
    assert lines[0].startswith("fast ")
    level = [line.index("┃") for line in lines[:4]]
    assert level[0] <= level[1] < level[2] < level[3]
    assert "─" in lines[0]
    assert any(dot in lines[0] for dot in "∙•●")
    assert "ms" in lines[4]


def test_heavier_dots_for_more_samples() -> None:
    lines = drawn(verdict(attempt("a", measured(100, 180, 180, 140, 140, 140, 120, reach=None))))
    assert all(dot in lines[0] for dot in "∙•")


def test_nothing_to_draw() -> None:
    assert strips(verdict(attempt("none", None)), 80) is None
    assert strips(verdict(attempt("once", measured(5)), base=measured(6)), 80) is None
    assert "nothing was measured" in svg(verdict())


def test_the_drawing_says_what_was_measured() -> None:
    root = ET.fromstring(svg(GIVEN))  # noqa: S314 - our own
    assert len(root.findall(f"{SVG}circle")) == 4 + 3 + 3 + 4
    texts = [t.text for t in root.findall(f"{SVG}text")]
    assert {"fast", "level", "slow", "base", "100", "200"} <= set(texts)
    for circle in root.findall(f"{SVG}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= float(root.attrib["width"])
    bars = [r for r in root.findall(f"{SVG}rect") if "rx" in r.attrib]
    assert len(bars) == 4


def test_names_are_escaped() -> None:
    hostile = f"</text><script>alert(1)</script>{HOSTILE}"
    text = svg(verdict(attempt(hostile, measured(1, 2), 2.0)).model_copy(update={"task": hostile}))
    root = ET.fromstring(text)  # noqa: S314 - our own
    assert root.find(f".//{SVG}script") is None
    assert not any(c in text for c in HOSTILE_CHARACTERS)
    lines = drawn(verdict(attempt(hostile, measured(1, 2), 2.0)))
    assert not any(c in line for c in HOSTILE_CHARACTERS for line in lines)


@pytest.mark.parametrize(
    ("samples", "log"),
    [((100.0, 101.0), False), ((1.0, 5000.0), True), ((7.0, 7.0), False), ((1e-9, 1e9), True)],
)
def test_axes(samples: tuple[float, float], log: bool) -> None:
    along = axis(
        rows(verdict(attempt("a", measured(*samples, reach=None)), base=measured(*samples, reach=None))), "s"
    )
    assert along.log == log
    assert 0 <= along.place(samples[0]) <= along.place(samples[1]) <= 1
    ticks = along.ticks()
    assert 1 <= len(ticks) <= 14
    assert all(along.first <= t <= along.last for t in ticks)


def test_a_wide_interval_does_not_squeeze_the_samples() -> None:
    wide = MetricResult(value=100, unit="ms", samples=(99, 101), level=100, low=1, high=5000)
    along = axis(rows(verdict(attempt("a", wide), base=measured(99, 101))), "ms")
    assert along.place(101) - along.place(99) > 0.5
    assert len(drawn(verdict(attempt("a", wide), base=measured(99, 101)))[0]) <= 80


def test_ticks_are_round() -> None:
    assert Axis(0.93, 2.1, log=False, unit="s").ticks() == pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8, 2.0])
    assert Axis(0.5, 3000, log=True, unit="s").ticks() == pytest.approx([1, 10, 100, 1000])


def test_names_that_begin_and_end_alike() -> None:
    names = [f"python3 -c 'sum(range({n}00000))'" for n in (60, 61)]
    short = told_apart([*names, "base"], 18)
    assert len(set(short)) == 3
    assert all(len(s) <= 18 for s in short)
    assert told_apart(["a" * 30, "b" * 30], 11) == ["aaaaa…aaaaa", "bbbbb…bbbbb"]
