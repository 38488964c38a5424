"""Whether what a program says of its own speed was seen from outside as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from race.scoring import Sample

SECONDS: dict[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "min": 60.0, "h": 3600.0,
}  # fmt: skip
"""Units of time, in seconds."""
SHARE = 0.5
"""How much of a claimed saving has to be seen. A benchmark that does its work several times saves more than it claims;
what the start of a program costs more, for a library that it imports, is allowed to take away half."""
SLACK = 0.010
"""Seconds that may be missing, besides."""
NOISE = 0.05
"""Share of the base's whole time that may be missing, besides."""


def least(samples: Sequence[Sample]) -> Sample:
    """Of several samples of one program the least disturbed, with the least processor time of any.

    A busy machine makes everything take longer, the processor time as well; nothing makes it take less.
    """
    quickest = min(samples, key=lambda s: s.seconds - s.waited)
    return replace(quickest, cpu=min(s.cpu for s in samples))


def _without_waits(sample: Sample) -> float:
    share = sample.waited / sample.seconds if sample.seconds else 0.0
    return sample.value * (1 - max(sample.wait, min(share, 0.95)))


def unseen(claimed: Sample, base: Sample, unit: str) -> str:
    """Why a claimed saving of time cannot be believed, with both numbers; nothing if it can, or nothing is claimed.

    A program that does less work ends sooner, or uses less processor time; one that only prints a smaller number does
    neither. The wall time and the processor time of the whole process tree are both looked at, and the larger saving
    counts, because work on several processors saves the one and not the other.

    Args:
        claimed: what a candidate printed, with what was seen from outside.
        base: the same of the base.
        unit: of the values; anything but a unit of time claims nothing that could be seen.
    """
    if unit not in SECONDS or not (base.seconds and claimed.seconds):
        return ""
    # What a program prints on a busy machine includes its waiting for a processor, which nobody can save. Of a part
    # of a process it is not known how much: as large a share as of the whole.
    saving = (_without_waits(base) - _without_waits(claimed)) * SECONDS[unit]
    by_wall = (base.seconds - base.waited) - (claimed.seconds - claimed.waited)
    by_cpu = base.cpu - claimed.cpu if base.cpu and claimed.cpu else by_wall
    seen = max(by_wall, by_cpu)
    whole = max(base.cpu, base.seconds - base.waited)
    if saving <= 0 or seen >= SHARE * saving - SLACK - NOISE * whole:
        return ""
    return (
        f"it claims to save {saving * 1000:,.4g} ms, but its whole process took {claimed.seconds * 1000:,.4g} ms "
        f"({claimed.cpu * 1000:,.4g} ms of processor time) where that of the base took {base.seconds * 1000:,.4g} ms "
        f"({base.cpu * 1000:,.4g} ms)"
    )
