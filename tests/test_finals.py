"""The finals on simulated machines: who wins, who leaves, when it ends. No clock is involved."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from benchmarks.finals.simulate import at_once
from race.errors import Rejected
from race.finals import Entrant, Rule, Standings, finals
from race.scoring import Sample


@dataclass
class Machine:
    """A noisy machine: costs by name, jitter, spikes, and a slow drift that all share."""

    costs: dict[str, float]
    seed: int = 0
    jitter: float = 0.02
    busy: float = 0.0
    seconds: float = 1.0
    calls: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    reject: Callable[[str, int], str | None] = lambda _name, _round: None

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([11, self.seed])

    async def __call__(self, entrant: Entrant, number: int, seed: int) -> Sample:
        self.calls.append((entrant.name, number, seed))
        if reason := self.reject(entrant.name, number):
            raise Rejected(reason)
        k = len(self.calls)
        noise = self.rng.normal(0, self.jitter) + 0.02 * math.sin(k / 20)
        noise += self.rng.exponential(0.3) if self.rng.random() < 0.03 else 0.0
        wait = self.rng.uniform(0.2, 0.6) if self.rng.random() < self.busy else 0.0
        noise += 0.1 * wait * self.rng.normal()
        value = self.costs[entrant.name] * math.exp(noise) / (1 - wait)
        return Sample(value, wait, self.seconds)


def hold(
    machine: Machine, *, sizes: Sequence[int] = (), seed: int = 0, mode: Any = "standard", **rule: Any
) -> Standings:
    names = list(machine.costs)
    entrants = [Entrant(name, size) for name, size in zip(names, sizes or [1] * len(names), strict=True)]
    return at_once(finals(entrants, machine, Rule.of(mode, **rule), np.random.default_rng(seed)))


@pytest.mark.anyio
async def test_the_fastest_wins_under_an_event_loop() -> None:
    machine = Machine({"base": 100, "a": 80, "b": 50, "c": 70})
    entrants = [Entrant(name) for name in machine.costs]
    standings = await finals(entrants, machine, Rule.of("quick"), np.random.default_rng(1))
    assert (standings.winner, standings.why, standings.significant) == ("b", "decided", True)
    assert standings.confidence > 0.99


@pytest.mark.parametrize("seed", range(5))
def test_the_numbers_of_a_clear_winner(seed: int) -> None:
    machine = Machine({"base": 100, "a": 60, "b": 50}, seed)
    standings = hold(machine, seed=seed)
    assert standings.winner == standings.leader == "b"
    best = standings["b"]
    assert best.vs_base is not None
    assert best.vs_base.low < 2.0 < best.vs_base.high
    assert best.vs_base.estimate == pytest.approx(2, rel=0.06)
    assert standings["base"].vs_base is not None
    assert standings["base"].vs_base.estimate == 1
    assert standings["a"].vs_winner is not None
    assert standings["a"].vs_winner.estimate == pytest.approx(50 / 60, rel=0.06)
    assert best.fitted == pytest.approx(50, rel=0.06)
    assert best.median == pytest.approx(float(np.median(best.values)))
    assert best.p_best > 0.99
    assert best.rounds == len(best.values) == len(best.waits)
    assert len(best.warmup) == 1
    assert sum(s.p_best for s in standings.entrants) == pytest.approx(1)


def test_large_differences_end_at_once() -> None:
    machine = Machine({"base": 800, "a": 400, "b": 200, "c": 100})
    standings = hold(machine, mode="quick")
    assert (standings.winner, standings.rounds, standings.runs) == ("c", 3, 16)
    assert standings["base"].state == "eliminated"
    assert "clearly worse than 'c'" in standings["base"].reason


def test_one_candidate_is_cheap() -> None:
    standings = hold(Machine({"base": 100, "a": 50}))
    assert (standings.winner, standings.why, standings.significant) == ("a", "only candidate", True)
    assert standings.runs <= 10


def test_the_base_leaves_as_soon_as_it_may() -> None:
    standings = hold(Machine({"base": 200, "a": 100, "b": 102}))
    assert standings["base"].rounds == 3
    assert standings["a"].rounds > 3


def test_only_the_base() -> None:
    machine = Machine({"base": 100})
    standings = hold(machine)
    assert (standings.winner, standings.why, standings.leader) == (None, "nobody better", None)
    assert not machine.calls
    assert standings["base"].median is None


@pytest.mark.parametrize(("sizes", "winner"), [((0, 9, 3, 5), "b"), ((0, 2, 3, 5), "a")])
def test_in_a_tie_the_smallest_change_wins(sizes: tuple[int, ...], winner: str) -> None:
    machine = Machine({"base": 200, "a": 100, "b": 100, "c": 150}, jitter=0.004)
    standings = hold(machine, sizes=sizes, mode="thorough", indifference=0.02)
    assert (standings.winner, standings.why, standings.significant) == (winner, "practical tie", False)
    assert standings.tied_with == tuple({"a", "b"} - {winner})
    assert standings.confidence > 0.9


@pytest.mark.parametrize("cost", [100.0, 105.0, 150.0])
@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_better_than_the_base(cost: float, seed: int) -> None:
    standings = hold(Machine({"base": 100, "a": cost, "b": 120}, seed, jitter=0.01), seed=seed, max_rounds=30)
    assert (standings.winner, standings.why) == (None, "nobody better")
    assert standings.tied_with == ()
    assert not standings.significant


def test_better_by_less_than_matters_is_no_winner() -> None:
    standings = hold(Machine({"base": 100.3, "a": 100}, jitter=0.001), mode="thorough")
    assert (standings.winner, standings.why) == (None, "nobody better")


def test_without_the_need_to_improve_the_best_candidate_wins() -> None:
    standings = hold(Machine({"base": 100, "a": 150, "b": 120}), require_improvement=False)
    assert (standings.winner, standings.why, standings.significant) == ("b", "decided", True)
    assert standings["base"].rounds == 3
    alone = hold(Machine({"base": 100, "a": 150}), require_improvement=False)
    assert (alone.winner, alone.why, alone.significant) == ("a", "only candidate", False)
    assert alone["a"].vs_base is not None
    assert alone["a"].vs_base.high < 1


def test_a_rejected_entrant_leaves_with_its_reason() -> None:
    machine = Machine(
        {"base": 100, "a": 10, "b": 50}, reject=lambda name, _: "wrong answer" if name == "a" else None
    )
    standings = hold(machine)
    assert standings.winner == "b"
    assert (standings["a"].state, standings["a"].reason) == ("rejected", "wrong answer")
    assert standings["a"].fitted is None
    assert standings["a"].p_best == 0
    assert [name for name, *_ in machine.calls].count("a") == 1


def test_who_was_beaten_by_a_rejected_entrant_is_back() -> None:
    costs = {"base": 200, "cheat": 10.0, "other": 10.1, "b": 50, "c": 50.5}
    caught = {"cheat": 5, "other": 5}
    machine = Machine(
        costs, reject=lambda name, number: "cheated" if number >= caught.get(name, 99) else None
    )
    standings = hold(machine)
    assert standings.winner in {"b", "c"}
    assert standings["cheat"].state == standings["other"].state == "rejected"
    measured = [{number for name, number, _ in machine.calls if name == back} for back in ("b", "c")]
    assert all(rounds >= {0, 1, 2, 3, 6} for rounds in measured)
    assert all(5 not in rounds for rounds in measured)
    assert standings["base"].state == "eliminated"
    assert "'cheat'" not in standings["base"].reason


def test_when_all_are_rejected_nobody_wins() -> None:
    machine = Machine(
        {"base": 100, "a": 50, "b": 50}, reject=lambda name, n: "no" if name != "base" and n > 1 else None
    )
    standings = hold(machine)
    assert (standings.winner, standings.why, standings.leader) == (None, "nobody better", "base")
    assert standings["a"].values != ()


def test_a_rejected_base_ends_it() -> None:
    machine = Machine(
        {"base": 100, "a": 50}, reject=lambda name, n: "it broke" if name == "base" and n == 2 else None
    )
    with pytest.raises(Rejected, match="the base 'base' has no number: it broke"):
        hold(machine)


def test_any_other_exception_ends_it() -> None:
    async def broken(_entrant: Entrant, _round: int, _seed: int) -> Sample:
        raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space"):
        at_once(finals([Entrant("base"), Entrant("a")], broken, Rule(), np.random.default_rng(2)))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_value_that_cannot_be_compared_rejects(value: float) -> None:
    async def measure(entrant: Entrant, _round: int, _seed: int) -> Sample:
        return Sample({"base": 2.0, "a": value, "b": 1.0}[entrant.name])

    entrants = [Entrant("base"), Entrant("a"), Entrant("b")]
    standings = at_once(finals(entrants, measure, Rule(), np.random.default_rng(2)))
    assert standings.winner == "b"
    assert standings["a"].state == "rejected"
    assert "not a finite number above zero" in standings["a"].reason


def test_more_is_better() -> None:
    standings = hold(Machine({"base": 100, "a": 150, "b": 200}), goal="max", timelike=False)
    assert standings.winner == "b"
    assert standings["b"].vs_base is not None
    assert standings["b"].vs_base.estimate == pytest.approx(2, rel=0.05)
    assert standings["b"].fitted == pytest.approx(200, rel=0.05)
    assert standings["base"].vs_winner is not None
    assert standings["base"].vs_winner.estimate == pytest.approx(0.5, rel=0.05)


def test_scores_are_compared_by_differences() -> None:
    rng = np.random.default_rng(4)

    async def measure(entrant: Entrant, _round: int, _seed: int) -> Sample:
        return Sample({"base": 0.5, "a": 0.7, "b": 0.75}[entrant.name] + rng.normal(0, 0.01))

    rule = Rule.of("standard", goal="max", scale="linear", timelike=False)
    entrants = [Entrant("base"), Entrant("a"), Entrant("b")]
    standings = at_once(finals(entrants, measure, rule, np.random.default_rng(2)))
    assert (standings.winner, standings.significant) == ("b", True)
    assert standings["b"].vs_base is not None
    assert standings["b"].vs_base.low < 1.5 < standings["b"].vs_base.high
    assert standings["b"].spread == pytest.approx(0.01, rel=0.8)


def test_counts_without_any_noise() -> None:
    async def measure(entrant: Entrant, _round: int, _seed: int) -> Sample:
        return Sample({"base": 5000, "a": 4000, "b": 4000, "c": 4100}[entrant.name])

    entrants = [Entrant("base"), Entrant("a", 5), Entrant("b", 2), Entrant("c", 1)]
    standings = at_once(finals(entrants, measure, Rule(timelike=False), np.random.default_rng(2)))
    assert (standings.winner, standings.why, standings.tied_with) == ("b", "practical tie", ("a",))


def test_seconds_are_a_budget() -> None:
    costs = {"base": 200.0, "a": 100.0, "b": 101.0, "c": 102.0}
    standings = hold(Machine(costs, seconds=60), seconds=1000)
    assert standings.seconds <= 1000
    assert (standings.why, standings.rounds) == ("budget", 3)
    assert standings.winner in {"a", "b", "c"}
    assert set(standings.tied_with) == {"a", "b", "c"} - {standings.winner}
    assert not standings.significant
    assert "too few rounds" in {caution.kind for caution in standings.warnings}


def test_one_round_is_always_held_but_proves_nothing() -> None:
    standings = hold(Machine({"base": 200, "a": 100}, seconds=60), seconds=1)
    assert (standings.rounds, standings.winner, standings.why) == (1, None, "budget")
    assert standings.leader == "a"
    assert standings["a"].vs_base is None
    assert [caution.kind for caution in standings.warnings] == ["too few rounds"]


def test_rounds_and_seeds() -> None:
    machine = Machine({"base": 100.0, "a": 99.5, "b": 99.7})
    standings = hold(machine, warmup=2, max_rounds=4)
    rounds = {number for _, number, _ in machine.calls}
    assert rounds == set(range(2 + standings.rounds))
    for number in rounds:
        of_round = [call for call in machine.calls if call[1] == number]
        assert len({seed for *_, seed in of_round}) == 1
        assert len({name for name, *_ in of_round}) == len(of_round)
    assert len({seed for *_, seed in machine.calls}) == len(rounds)
    orders = {tuple(name for name, n, _ in machine.calls if n == number) for number in rounds}
    assert len(orders) > 1
    assert len(standings["a"].warmup) == 2


def test_the_same_samples_give_the_same_standings() -> None:
    costs = {"base": 120.0, "a": 100.0, "b": 103.0, "c": 110.0}
    assert hold(Machine(costs, busy=0.5), seed=4) == hold(Machine(costs, busy=0.5), seed=4)


@pytest.mark.parametrize("seed", range(3))
def test_the_unit_does_not_matter(seed: int) -> None:
    costs = {"base": 120.0, "a": 100.0, "b": 104.0, "c": 110.0}
    small, large = (hold(Machine({k: v * f for k, v in costs.items()}, seed), seed=seed) for f in (1, 1e6))
    assert (small.winner, small.why, small.rounds) == (large.winner, large.why, large.rounds)
    for one, other in zip(small.entrants, large.entrants, strict=True):
        assert one.vs_base is not None
        assert other.vs_base is not None
        assert one.vs_base.low == pytest.approx(other.vs_base.low)
        assert one.p_best == pytest.approx(other.p_best, abs=1e-3)


def test_a_rate_is_the_mirror_of_a_time() -> None:
    costs = {"base": 120.0, "a": 100.0, "b": 104.0}
    times = Machine(costs, busy=0.5)
    samples: dict[tuple[str, int], Sample] = {}

    async def record(entrant: Entrant, number: int, seed: int) -> Sample:
        samples[entrant.name, number] = sample = await times(entrant, number, seed)
        return sample

    async def rate(entrant: Entrant, number: int, _seed: int) -> Sample:
        sample = samples[entrant.name, number]
        return Sample(1 / sample.value, sample.wait, sample.seconds)

    entrants = [Entrant(name) for name in costs]
    one = at_once(finals(entrants, record, Rule(), np.random.default_rng(0)))
    other = at_once(finals(entrants, rate, Rule(goal="max"), np.random.default_rng(0)))
    assert (one.winner, one.why, one.rounds) == (other.winner, other.why, other.rounds)
    for this, that in zip(one.entrants, other.entrants, strict=True):
        assert this.vs_base is not None
        assert that.vs_base is not None
        assert this.vs_base.estimate == pytest.approx(that.vs_base.estimate)


def test_waits_are_taken_out() -> None:
    right = [
        hold(Machine({"base": 200, "a": 100, "b": 105}, seed, busy=0.7), seed=seed) for seed in range(12)
    ]
    assert sum(standings.winner == "a" for standings in right) >= 11
    assert all(standings["a"].fitted == pytest.approx(100, rel=0.06) for standings in right)
    assert {caution.kind for caution in right[0].warnings} >= {"busy machine"}


def test_claims_are_as_sure_as_they_say() -> None:
    tied = [hold(Machine({"base": 200, "a": 100, "b": 100}, seed, busy=0.3), seed=seed) for seed in range(25)]
    assert sum(standings.significant for standings in tied) <= 4
    assert all(standings.winner in {"a", "b"} for standings in tied)


def test_intervals_cover_the_truth() -> None:
    inside = 0
    for seed in range(40):
        standings = hold(Machine({"base": 110, "a": 100, "b": 104}, seed, busy=0.3), seed=seed, max_rounds=6)
        speedup = standings["b"].vs_base
        assert speedup is not None
        inside += speedup.low < 110 / 104 < speedup.high
    assert inside >= 35


def test_thirty_entrants_cost_little_to_compute() -> None:
    costs = {"base": 200.0, **{f"a{k}": 100.0 + 0.1 * k for k in range(29)}}
    machine = Machine(costs)
    begin = time.process_time()
    standings = hold(machine, max_rounds=15, runs_each=30)
    spent = time.process_time() - begin
    assert standings.rounds == 30
    assert standings.runs > 600
    assert spent < 2


def test_too_many_runs_end_a_large_field() -> None:
    costs = {"base": 200.0, **{f"a{k}": 100.0 for k in range(19)}}
    standings = hold(Machine(costs), runs_each=5)
    assert standings.why == "budget"
    assert standings.runs <= 5 * 20


@pytest.mark.parametrize("entrants", [[], [Entrant("a"), Entrant("a")]])
def test_entrants_that_cannot_be_meant(entrants: list[Entrant]) -> None:
    with pytest.raises(ValueError, match="no name twice"):
        at_once(finals(entrants, Machine({}), Rule(), np.random.default_rng(2)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"indifference": 0.0}, "indifference is 0.0"),
        ({"min_rounds": 9, "max_rounds": 5}, "min_rounds"),
        ({"scale": "linear"}, "timelike=False"),
    ],
)
def test_rules_that_cannot_be_meant(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Rule.of("standard", **fields)


def test_modes() -> None:
    quick, standard, thorough = Rule.of("quick"), Rule.of("standard"), Rule.of("thorough")
    assert quick.max_rounds < standard.max_rounds < thorough.max_rounds
    assert quick.indifference > standard.indifference > thorough.indifference
    assert Rule.of("quick", seconds=9).seconds == 9
    assert Rule.of("thorough", max_rounds=2).min_rounds == 2
    with pytest.raises(ValueError, match="quick, standard, thorough"):
        Rule.of("fast")  # type: ignore[arg-type]  # what a person may write


def test_an_unknown_name() -> None:
    with pytest.raises(KeyError):
        hold(Machine({"base": 1.0}))["somebody"]


def test_scipy_is_not_needed() -> None:
    code = "import race.finals, sys; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
