# ruff: noqa: PLR2004 - the thresholds of each check stand in it, with what they are thresholds of
"""What looks wrong with measurements, as data: a kind, who it is about, what was seen, and what to do about it.

After the outlier and first-run checks of hyperfine (``outlier_detection.rs``, ``warnings.rs``) and the stability
checks of pyperf (``pyperf check``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from race.statistics.fit import Fit
from race.statistics.mixture import MAD, Array

Kind: TypeAlias = Literal[
    "bimodal samples",
    "busy machine",
    "drift",
    "first sample unlike the rest",
    "noisy entrant",
    "too few rounds",
    "warm-up",
]

ADVICE: Final[dict[Kind, str]] = {
    "bimodal samples": "Look for what differs between its runs: a cache, a seed, the placement of memory or threads.",
    "busy machine": "Stop what else runs here, or raise the rounds; the result holds, but is less sure.",
    "drift": "Let the machine cool and settle, fix the processor's frequency, or take longer samples.",
    "first sample unlike the rest": "See whether it keeps results between runs: then later samples measure a look-up.",
    "noisy entrant": "Raise the rounds, or make its samples longer; its level is uncertain.",
    "too few rounds": "Raise the rounds or the seconds to tell smaller differences apart.",
    "warm-up": "Raise the warm-up rounds, or do more work in each sample.",
}


@dataclass(frozen=True, slots=True)
class Caution:
    """One thing that looks wrong.

    Attributes:
        kind: what it is.
        entrant: whom it is about; None for all of them.
        detail: what was seen, for people.
        advice: what to do about it, for people.
    """

    kind: Kind
    entrant: str | None
    detail: str
    advice: str

    @property
    def sentence(self) -> str:
        """All of it, for people and for programs that look at how it begins: the kind, then whom it is about."""
        who = f" ({self.entrant})" if self.entrant else ""
        return f"{self.kind}{who}: {self.detail}; {self.advice[0].lower()}{self.advice[1:]}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What the checks look at; A arms, R rounds; smaller is better.

    Attributes:
        names: of the arms.
        y: (R, A) samples with waits taken out, NaN where an arm was not measured.
        first: (A,) the first sample of all, from the warm-up; NaN without one.
        waits: (R, A) share of each sample's time spent waiting for a processor.
        fit: of ``y``.
        margin: a difference that does not matter, in units of ``y``.
        log: whether ``y`` is on the log scale, where differences are ratios.
        undecided: the smallest difference that could have been seen, if the budget ended it all.
        enough: rounds below which nothing should be concluded.
    """

    names: Sequence[str]
    y: Array
    first: Array
    waits: Array
    fit: Fit
    margin: float
    log: bool
    undecided: float | None
    enough: int

    def says(self, kind: Kind, arm: int | None, detail: str) -> Caution:
        """A caution with the advice that belongs to it."""
        return Caution(kind, None if arm is None else self.names[arm], detail, ADVICE[kind])

    def show(self, difference: float) -> str:
        """A difference for people."""
        return f"{math.expm1(min(difference, 50.0)):.1%}" if self.log else f"{difference:.3g}"

    def samples(self, arm: int) -> Array:
        """The samples of an arm without the shifts of the rounds."""
        column = self.y[:, arm] - self.fit.rounds
        return np.asarray(column[np.isfinite(column)])

    def known(self) -> list[int]:
        """The arms that were fitted."""
        return [arm for arm in range(len(self.names)) if math.isfinite(self.fit.effects[arm])]


def cautions(measured: Measured) -> tuple[Caution, ...]:
    """All that looks wrong."""
    return tuple(caution for check in CHECKS for caution in check(measured))


def too_few_rounds(m: Measured) -> Iterator[Caution]:
    """The budget ended it before it was decided, or before anything should be concluded."""
    if m.undecided is not None and math.isfinite(m.undecided) and m.fit.df > 0:
        yield m.says(
            "too few rounds", None, f"a difference below {m.show(m.undecided)} could not be told from none"
        )
    elif len(m.y) < m.enough or m.undecided is not None:
        yield m.says("too few rounds", None, f"there were only {len(m.y)} rounds")


def busy_machine(m: Measured) -> Iterator[Caution]:
    """Programs waited for a processor, or many samples are disturbed without a visible wait."""
    seen = np.isfinite(m.y)
    if not seen.any():
        return
    waited = float(m.waits[seen].mean())
    slower = m.fit.residuals[seen] > 3 * m.margin
    disturbed = float(np.mean((m.fit.weights[seen] < 0.1) & slower & (m.waits[seen] < 0.05)))
    if waited > 0.1:
        yield m.says("busy machine", None, f"{waited:.0%} of the time was spent waiting for a processor")
    elif disturbed > 0.25 and seen.sum() >= 8:
        yield m.says("busy machine", None, f"{disturbed:.0%} of the samples were disturbed")


def drift(m: Measured) -> Iterator[Caution]:
    """The rounds have a trend (Mann 1945 and Kendall 1975; its size after Theil 1950)."""
    shifts = m.fit.rounds
    count = len(shifts)
    if count < 6:
        return
    later, earlier = np.tril_indices(count, -1)
    rises = shifts[later] - shifts[earlier]
    deviate = abs(np.sign(rises).sum()) / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    change = float(np.median(rises / (later - earlier))) * (count - 1)
    if deviate > 2.6 and abs(change) > 5 * m.margin:
        way = "slower" if change > 0 else "faster"
        detail = f"from the first to the last round everything became {way} by {m.show(abs(change))}"
        yield m.says(
            "drift", None, detail if m.log else detail.replace(way, "worse" if change > 0 else "better")
        )


def warm_up(m: Measured) -> Iterator[Caution]:
    """The first measured samples are still worse than the rest."""
    late: list[int] = []
    known = [arm for arm in m.known() if np.isfinite(m.y[:, arm]).sum() >= 4]
    for arm in known:
        column = m.y[np.isfinite(m.y[:, arm]), arm]
        rest = column[1:]
        spread = MAD * float(np.median(np.abs(rest - np.median(rest))))
        if column[0] - np.median(rest) > max(5 * spread, 3 * m.margin) and column[0] > rest.max():
            late.append(arm)
    if late and 2 * len(late) > len(known):
        worst = max(float(m.y[np.isfinite(m.y[:, a]), a][0] - np.nanmedian(m.y[:, a])) for a in late)
        yield m.says("warm-up", None, f"the first measured samples are still worse by up to {m.show(worst)}")


def first_unlike(m: Measured) -> Iterator[Caution]:
    """One arm's very first sample is far worse than its others, and those of the other arms are not."""
    known = [arm for arm in m.known() if math.isfinite(m.first[arm])]
    excess = {arm: float(m.first[arm] - np.nanmedian(m.y[:, arm])) for arm in known}
    least = math.log(2) if m.log else 20 * m.margin
    for arm in known:
        others = [excess[other] for other in known if other != arm]
        if others and excess[arm] - max(float(np.median(others)), 0.0) > least:
            yield m.says(
                "first sample unlike the rest", arm, f"its first sample is worse by {m.show(excess[arm])}"
            )


def noisy(m: Measured) -> Iterator[Caution]:
    """One arm's samples scatter far more than the others'."""
    known = [arm for arm in m.known() if np.isfinite(m.y[:, arm]).sum() >= 3]
    spreads = m.fit.scale
    for arm in known:
        others = [float(spreads[other]) for other in known if other != arm]
        if others and spreads[arm] > max(3 * float(np.median(others)), 3 * m.margin):
            yield m.says("noisy entrant", arm, f"its samples scatter by {m.show(float(spreads[arm]))}")


def bimodal(m: Measured) -> Iterator[Caution]:
    """One arm's samples are two heaps, without the shifts that all share or as they are."""
    for arm in m.known():
        seen = np.isfinite(m.y[:, arm])
        raw = np.asarray(m.y[seen, arm])
        found = _heaps(m, m.samples(arm))
        if found is None and (found := _heaps(m, raw)) is not None and _shared(m, arm, raw, found[0]):
            found = None
        if found is not None:
            share, gap = float(found[0].mean()), found[1]
            yield m.says(
                "bimodal samples", arm, f"{share:.0%} of its samples are worse by {m.show(gap)} than the rest"
            )


def _heaps(m: Measured, samples: Array) -> tuple[npt.NDArray[np.bool_], float] | None:
    """Which samples are in the worse of two heaps, and how far that is from the other; None if there are no two.

    Two means, and Ashman, Bird and Zepf 1994: their distance in spreads.
    """
    count = len(samples)
    if count < 10:
        return None
    ordered = np.sort(samples)
    least = max(3, math.ceil(count / 4))
    splits = range(least, count - least + 1)
    split = min(splits, key=lambda at: float(ordered[:at].var() * at + ordered[at:].var() * (count - at)))
    low, high = ordered[:split], ordered[split:]
    gap = float(high.mean() - low.mean())
    within = math.sqrt((float(low.var()) + float(high.var())) / 2)
    if gap > max(6 * within, 3 * m.margin) and high[0] - low[-1] > gap / 2:
        return samples >= high[0], gap
    return None


def _shared(m: Measured, arm: int, raw: Array, worse: npt.NDArray[np.bool_]) -> bool:
    """Whether the other arms were worse in the same rounds: then it is the machine."""
    seen = np.isfinite(m.y[:, arm])
    gap = float(raw[worse].mean() - raw[~worse].mean())
    for other in m.known():
        column = m.y[seen, other]
        both = np.isfinite(column)
        if other == arm or not (both & worse).any() or not (both & ~worse).any():
            continue
        if float(column[both & worse].mean() - column[both & ~worse].mean()) > gap / 2:
            return True
    return False


CHECKS: Final[tuple[Callable[[Measured], Iterator[Caution]], ...]] = (
    too_few_rounds,
    busy_machine,
    drift,
    warm_up,
    first_unlike,
    noisy,
    bimodal,
)
