"""The statistics behind the finals, on made-up samples."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from race.statistics.boundary import boundary, normal_deviate, t_quantile
from race.statistics.cautions import ADVICE, Measured, cautions
from race.statistics.decision import Looks, decide, draws
from race.statistics.fit import Fit, fit_rounds
from race.statistics.mixture import Array

LEVELS = np.array([0.0, 0.05, 0.1, 0.3])


def noise(seed: int, rounds: int, arms: int, spread: float = 0.02) -> Array:
    return np.random.default_rng([5, seed]).normal(0, spread, (rounds, arms))


def fitted(y: Array, waits: Array | None = None, *, one_sided: bool = True) -> Fit:
    return fit_rounds(y, np.zeros_like(y) if waits is None else waits, one_sided=one_sided, floor=0.001)


@pytest.mark.parametrize("one_sided", [True, False])
def test_clean_samples_give_levels_and_errors(*, one_sided: bool) -> None:
    deviates: list[float] = []
    for seed in range(40):
        fit = fitted(LEVELS + noise(seed, 8, 4), one_sided=one_sided)
        difference, error = fit.against(0)
        assert error[0] == 0
        assert difference == pytest.approx(LEVELS, abs=0.05)
        deviates += list((difference - LEVELS)[1:] / error[1:])
    assert 0.7 < float(np.std(deviates)) < 1.25


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize(("arms", "rounds"), [(2, 3), (2, 6), (3, 4), (5, 3), (5, 10)])
def test_small_samples_are_not_overrated(arms: int, rounds: int, *, one_sided: bool) -> None:
    beyond = 0
    for seed in range(80):
        fit = fitted(noise(100 + seed, rounds, arms), one_sided=one_sided)
        difference, error = fit.against(0)
        beyond += bool(abs(difference[1]) > t_quantile(0.975, fit.df) * error[1])
    assert beyond <= 10


def test_disturbance_only_adds() -> None:
    errors: list[float] = []
    medians: list[float] = []
    for seed in range(20):
        rng = np.random.default_rng([6, seed])
        y = (
            LEVELS
            + noise(seed, 12, 4)
            + np.where(rng.random((12, 4)) < 0.5, rng.uniform(0.2, 0.7, (12, 4)), 0)
        )
        errors.append(float(np.abs(fitted(y).against(0)[0] - LEVELS).max()))
        middle = np.median(y, 0)
        medians.append(float(np.abs(middle - middle[0] - LEVELS).max()))
    assert np.median(errors) < 0.05
    assert np.median(errors) < np.median(medians) / 4


def test_rounds_are_taken_out() -> None:
    shifts = np.linspace(0, 0.5, 10)[:, None]
    fit = fitted(LEVELS + shifts + noise(1, 10, 4))
    assert fit.against(0)[0] == pytest.approx(LEVELS, abs=0.04)
    assert np.corrcoef(fit.rounds, shifts[:, 0])[0, 1] > 0.95


def test_arms_that_left_early_are_still_compared() -> None:
    y = LEVELS + noise(2, 12, 4)
    y[3:, 3] = np.nan
    fit = fitted(y)
    difference, error = fit.against(0)
    assert (np.abs(difference - LEVELS)[1:] < 3.5 * error[1:]).all()
    assert error[3] > 1.3 * error[1]
    assert np.isnan(fit.residuals[5, 3])
    assert fit.weights[5, 3] == 0


def test_samples_that_waited_count_less() -> None:
    waits = np.zeros((8, 4))
    waits[::2, 1] = 0.6
    y = LEVELS + noise(3, 8, 4) + waits * noise(4, 8, 4, 0.1)
    fit = fitted(y, waits)
    assert fit.weights[::2, 1].mean() < 0.4
    assert fit.weights[1::2, 1].mean() > 0.8


def test_the_order_of_arms_and_rounds_does_not_matter() -> None:
    y = LEVELS + noise(5, 9, 4)
    arms, rounds = np.array([2, 0, 3, 1]), np.random.default_rng(0).permutation(9)
    one, other = fitted(y), fitted(y[rounds][:, arms])
    assert other.effects == pytest.approx(one.effects[arms])
    assert other.scale == pytest.approx(one.scale[arms])
    assert other.covariance == pytest.approx(one.covariance[np.ix_(arms, arms)], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("shift", [-7.0, 3.0])
def test_a_common_shift_does_not_matter(shift: float) -> None:
    y = LEVELS + noise(6, 7, 4)
    one, other = fitted(y), fitted(y + shift)
    assert other.against(1)[0] == pytest.approx(one.against(1)[0], abs=1e-9)
    assert other.against(1)[1] == pytest.approx(one.against(1)[1])


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_on_two_sides_the_unit_does_not_matter(factor: float) -> None:
    y = LEVELS + noise(7, 7, 4)
    zero = np.zeros_like(y)
    one = fit_rounds(y, zero, one_sided=False, floor=1e-6)
    other = fit_rounds(y * factor, zero, one_sided=False, floor=1e-6 * factor)
    assert other.effects == pytest.approx(one.effects * factor)
    assert other.scale == pytest.approx(one.scale * factor)
    assert other.covariance == pytest.approx(one.covariance * factor**2)


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_noisy_arm_has_a_spread_of_its_own(seed: int, *, one_sided: bool) -> None:
    y = LEVELS + noise(80 + seed, 12, 4, 0.01) * np.array([1, 1, 1, 10])
    fit = fitted(y, one_sided=one_sided)
    assert fit.scale[3] > 3 * fit.scale[:3].max()
    difference, error = fit.against(0)
    assert abs(difference[3] - 0.3) < 3.5 * error[3]
    assert error[3] > 3 * error[1]


@pytest.mark.parametrize("one_sided", [True, False])
def test_samples_without_noise(*, one_sided: bool) -> None:
    fit = fitted(np.tile(LEVELS, (3, 1)), one_sided=one_sided)
    assert fit.against(0)[0] == pytest.approx(LEVELS)
    assert fit.against(0)[1][1] < 0.003


def test_an_arm_that_goes_wild_keeps_a_level() -> None:
    y = np.tile(LEVELS, (4, 1))
    y[:, 3] = [0, 1e6, -1e6, 5]
    fit = fitted(y, one_sided=False)
    assert np.isfinite(fit.effects).all()
    assert fit.against(0)[0][:3] == pytest.approx(LEVELS[:3], abs=1e-3)


def test_one_round_teaches_no_spread() -> None:
    fit = fitted(LEVELS[None, :])
    assert fit.df == 0
    decision = decide(fit, [0, 1, 2, 3], Looks(3, 15, 0.05, 4), base=3, indifference=0.01)
    assert (decision.leader, decision.beaten, decision.outcome) == (0, (), None)


@pytest.mark.parametrize(
    ("probability", "df", "value"), [(0.975, 3, 3.182), (0.975, 10, 2.228), (0.95, 5, 2.015)]
)
def test_quantiles_of_t(probability: float, df: float, value: float) -> None:
    assert t_quantile(probability, df) == pytest.approx(value, rel=0.02)


def test_t_as_a_normal_deviate() -> None:
    assert normal_deviate(np.array([2.228, 3.169]), 10) == pytest.approx([1.960, 2.576], rel=0.01)
    assert normal_deviate(np.array([2.0]), 1e6) == pytest.approx([2.0], rel=1e-3)


def test_boundaries_keep_their_level() -> None:
    rng = np.random.default_rng(99)
    limit, crossed, rounds = boundary(3, 14, 0.05), 0, np.arange(1, 15)
    for _ in range(2000):
        x = rng.standard_normal(14)
        mean = np.cumsum(x) / rounds
        variance = (np.cumsum(x * x) - rounds * mean**2)[2:] / (rounds - 1)[2:]
        t = mean[2:] / np.sqrt(variance / rounds[2:])
        crossed += bool((normal_deviate(t, (rounds - 1)[2:].astype(float)) > limit).any())
    assert 0.035 < crossed / 2000 < 0.065
    assert boundary(3, 6, 0.05) < limit < boundary(3, 14, 0.01)
    assert limit > 1.96


def looks(arms: int = 4) -> Looks:
    return Looks(3, 15, 0.05, arms)


def test_the_beaten_leave_and_the_best_is_claimed() -> None:
    decision = decide(fitted(LEVELS + noise(9, 10, 4)), [0, 1, 2, 3], looks(), base=3, indifference=0.01)
    assert (decision.leader, decision.outcome) == (0, "claimed")
    assert set(decision.beaten) >= {2, 3}
    assert decision.rivals == ()


def test_a_tie_and_its_rivals() -> None:
    y = np.array([0, 0.001, 0.3, 0.5]) + noise(10, 12, 4, 0.004)
    decision = decide(fitted(y), [0, 1, 2, 3], looks(), base=3, indifference=0.02)
    assert decision.outcome == "tied"
    assert {decision.leader, *decision.rivals} == {0, 1}


def test_no_candidate_can_be_better_than_the_base() -> None:
    y = np.array([0.0, 0.0, 0.05, 0.5]) + noise(11, 12, 4, 0.004)
    decision = decide(fitted(y), [0, 1, 2, 3], looks(), base=0, indifference=0.02)
    assert decision.outcome == "no better"


def test_undecided() -> None:
    y = np.array([0.0, 0.02, 0.05, 0.03]) + noise(12, 3, 4, 0.04)
    decision = decide(fitted(y), [0, 1, 2, 3], looks(), base=3, indifference=0.01)
    assert decision.outcome is None
    assert len(decision.rivals) == 3


def test_one_undisturbed_sample_proves_nothing() -> None:
    y = LEVELS + noise(14, 3, 4, 0.005)
    y[1:, 3] += [0.4, 0.7]
    fit = fitted(y)
    assert fit.clean[3] < 2
    decision = decide(fit, [0, 1, 2, 3], looks(), base=None, indifference=0.01)
    assert 2 in decision.beaten
    assert 3 in decision.rivals


def test_draws_have_the_moments_of_the_fit() -> None:
    fit = fitted(LEVELS + noise(13, 40, 4))
    drawn = draws(fit, [0, 1, 2, 3], np.random.default_rng(0), count=20_000)
    difference, error = fit.against(0)
    apart = drawn - drawn[:, [0]]
    assert apart.mean(0)[1:] == pytest.approx(difference[1:], abs=0.002)
    assert apart.std(0)[1:] == pytest.approx(error[1:], rel=0.15)


def measured(y: Array, *, waits: Array | None = None, first: Array | None = None) -> Measured:
    waits = np.zeros_like(y) if waits is None else waits
    fit = fit_rounds(y, waits, one_sided=True, floor=0.001)
    return Measured(
        names=["base", "a", "b", "c"],
        y=y,
        first=y[0] + 0.1 if first is None else first,
        waits=waits,
        fit=fit,
        margin=0.01,
        log=True,
        undecided=None,
        enough=3,
    )


def seen(m: Measured) -> set[tuple[str, str | None]]:
    found = cautions(m)
    assert all(caution.advice == ADVICE[caution.kind] and caution.detail for caution in found)
    return {(caution.kind, caution.entrant) for caution in found}


def test_clean_samples_raise_no_caution() -> None:
    raised = [seen(measured(LEVELS + noise(seed, rounds, 4))) for rounds in (3, 8, 20) for seed in range(40)]
    assert sum(bool(kinds) for kinds in raised) <= 1


def test_two_heaps() -> None:
    y = LEVELS + noise(20, 16, 4)
    y[::2, 2] += 0.4
    assert ("bimodal samples", "b") in seen(measured(y))


def test_a_machine_that_makes_wait() -> None:
    waits = np.full((8, 4), 0.3)
    assert seen(measured(LEVELS + noise(21, 8, 4), waits=waits)) == {("busy machine", None)}


def test_a_machine_that_disturbs_unseen() -> None:
    rng = np.random.default_rng(22)
    y = LEVELS + noise(22, 12, 4) + np.where(rng.random((12, 4)) < 0.45, rng.uniform(0.3, 0.9, (12, 4)), 0)
    assert ("busy machine", None) in seen(measured(y))


def test_a_trend() -> None:
    y = LEVELS + noise(23, 12, 4) + np.linspace(0, 0.3, 12)[:, None]
    m = measured(y)
    assert ("drift", None) in seen(m)
    assert "slower" in next(c.detail for c in cautions(m) if c.kind == "drift")


def test_first_samples_that_are_still_slow() -> None:
    y = LEVELS + noise(24, 6, 4)
    y[0] += 0.4
    assert ("warm-up", None) in seen(measured(y))


def test_results_that_are_kept_between_runs() -> None:
    y = LEVELS + noise(25, 6, 4)
    assert seen(measured(y, first=y[0] + [0.1, 0.1, 2.0, 0.1])) == {("first sample unlike the rest", "b")}
    assert seen(measured(y, first=y[0] + 2.0)) == set()


def test_an_arm_that_scatters() -> None:
    y = LEVELS + noise(26, 8, 4, 0.01) * np.array([1, 12, 1, 1])
    assert ("noisy entrant", "a") in seen(measured(y))


def test_too_few_rounds() -> None:
    assert ("too few rounds", None) in seen(measured(LEVELS + noise(27, 2, 4)))
    m = replace(measured(LEVELS + noise(28, 6, 4)), undecided=math.log(1.034))
    (caution,) = cautions(m)
    assert caution.kind == "too few rounds"
    assert "3.4%" in caution.detail
