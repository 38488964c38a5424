"""Which process is which, and a clock that nobody can set: what leases are made of."""

from __future__ import annotations

import os
import time
from pathlib import Path

LEASE = 60.0
"""Seconds of silence after which a process that is still there is taken for stuck, and its work may be taken over."""


def process_start(pid: int) -> str:
    """What tells a process from a later one of the same number: its start time, empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def owner() -> str:
    """This process, as the label ``owner`` of a sandbox names it."""
    return f"{os.getpid()}:{process_start(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Whether the process that such a label names is still there."""
    pid, _, start = owner.partition(":")
    return pid.isdigit() and bool(start) and process_start(int(pid)) == start


def steady() -> float:
    """Seconds since the machine was started, the same for all its processes. Setting the clock does not move it."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def boot() -> str:
    """What tells this run of the machine from the one before: `steady` begins anew with each."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
