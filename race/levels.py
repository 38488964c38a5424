"""The level of a candidate and its interval, as the verdict keeps them and pictures show them."""

from __future__ import annotations

import math

from race.finals import Rule, Standing
from race.scoring import Sample
from race.statistics.boundary import t_quantile
from race.verdict import MetricResult


def leveled(result: MetricResult, standing: Standing, rule: Rule) -> MetricResult:
    """Put the fitted level of an entrant, with its interval, beside its samples.

    The interval is that of the mean of as many undisturbed samples as there were (Student's t), on the rule's scale.
    """
    plain = tuple(
        rule.value(rule.effect(Sample(value, wait)))
        for value, wait in zip(standing.values, standing.waits, strict=True)
    )
    result = result.model_copy(update={"undisturbed": plain})
    if standing.fitted is None:
        return result
    if standing.spread is None or standing.rounds < 2:  # noqa: PLR2004 - one sample has no spread
        return result.model_copy(update={"level": standing.fitted})
    reach = t_quantile(0.975, standing.rounds - 1) * standing.spread / math.sqrt(standing.rounds)
    if rule.scale == "log":
        ends = standing.fitted * math.exp(-min(reach, 50.0)), standing.fitted * math.exp(min(reach, 50.0))
    else:
        ends = standing.fitted - reach, standing.fitted + reach
    return result.model_copy(update={"level": standing.fitted, "low": ends[0], "high": ends[1]})
