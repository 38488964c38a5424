"""What the machine does while something is measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine at one moment.

    Attributes:
        load: processes that run or wait to run, over the last minute, for each processor; None if it cannot be read.
        running: processes and threads that run or wait to run just now, but for the reader; None likewise.
        mhz: mean frequency of the processors; None where the machine does not say.
    """

    load: float | None = None
    running: int | None = None
    mhz: float | None = None


def surroundings() -> Surroundings:
    """Look at the machine. Takes some microseconds a processor; reads /proc and /sys only."""
    load: float | None = None
    running: int | None = None
    try:
        fields = Path("/proc/loadavg").read_text("ascii").split()
        load = float(fields[0]) / (os.cpu_count() or 1)
        running = max(int(fields[3].partition("/")[0]) - 1, 0)
    except (OSError, ValueError, IndexError):
        pass
    return Surroundings(load, running, _mhz())


def _mhz() -> float | None:
    """Of cpufreq where there is one, else of /proc/cpuinfo, which x86 has; a guest may be told a constant."""
    found: list[float] = []
    for place in sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")):
        try:
            found.append(float(place.read_text("ascii")) / 1000)
        except (OSError, ValueError):
            continue
    if not found:
        try:
            lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            found = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
        except (OSError, ValueError):
            return None
    return sum(found) / len(found) if found else None
