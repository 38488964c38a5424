"""Paired ratios and cases."""

from __future__ import annotations

import math

import pytest

from race.paired import paired, paired_cases, paired_workloads


def test_ratios_are_those_of_rounds() -> None:
    # The second round was twice as slow for both: it says the same as the first.
    ratio = paired([100, 200, 100], [50, 100, 50], "min")
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    assert paired([100, 200], [50, 100], "max").estimate == pytest.approx(0.5)
    once = paired([1.0], [4.0], "min")
    assert (once.estimate, once.low, once.high) == (0.25, 0, math.inf)
    with pytest.raises(ValueError, match="no round"):
        paired([], [1], "min")


def test_worse_needs_both_size_and_certainty() -> None:
    surely = paired([100, 100, 100], [105, 105.1, 104.9], "min")
    assert surely.is_worse(0.02)
    assert not surely.is_worse(0.06)
    assert not paired([100, 100, 100], [101, 101.1, 100.9], "min").is_worse(0.02)
    unsure = paired([100, 100, 100], [105, 60, 190], "min")
    assert not unsure.is_worse(0.02)


def test_workloads() -> None:
    ratios = paired_workloads(
        [{"a": 4, "b": 1}, {"a": 4, "b": 1}], [{"a": 2, "b": 2}, {"a": 2, "b": 2}], "min"
    )
    assert {n: r.estimate for n, r in ratios.items()} == pytest.approx({"a": 2, "b": 0.5})
    assert paired_workloads([], [{"a": 1}], "min") == {}


def test_cases_are_told_apart_by_the_discordant_ones() -> None:
    base = {str(i): i < 70 for i in range(100)}
    same = paired_cases(base, base)
    assert (same.gained, same.lost, same.both, same.total) == (0, 0, 70, 100)
    assert same.evidence == pytest.approx(1)
    better = paired_cases(base, {**base, **{str(i): True for i in range(70, 80)}, "unknown": True})
    assert (better.gained, better.lost, better.total) == (10, 0, 100)
    assert better.difference == pytest.approx(0.1)
    assert better.evidence > 20
    mixed = paired_cases(base, {**base, **{str(i): i % 2 == 0 for i in range(60, 80)}})
    assert mixed.gained == mixed.lost == 5
    assert mixed.evidence < 1
