"""How long a sandbox lives, as its PID 1 keeps it, whether an orchestrator is there or not."""

from __future__ import annotations

import time

_LOOK_AT_LEAST = 30.0
"""Seconds: what waits does not notice that the machine was asleep, so it looks now and then."""


def now() -> float:
    """Seconds since the machine was started, also those that it was asleep; setting the clock does not move it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lifetime:
    """The time that a sandbox has.

    Args:
        whole: seconds from now; None if it has no end.
        idle: seconds without use; None if that does not matter.
    """

    def __init__(self, whole: float | None, idle: float | None) -> None:
        self._end = None if whole is None else now() + whole
        self._idle = idle
        self._used = now()

    def left(self, *, in_use: bool) -> float | None:
        """Seconds that it has left; 0 when it is over, None if it has no end.

        Args:
            in_use: whether something is going on in it, with which its idle time begins anew.
        """
        at = now()
        if in_use:
            self._used = at
        ends = [] if self._end is None else [self._end]
        if self._idle is not None:
            ends.append(self._used + self._idle)
        return max(0.0, min(ends) - at) if ends else None

    def patience(self) -> float | None:
        """How long to wait at most before it is looked at again."""
        left = self.left(in_use=False)
        return None if left is None else min(left, _LOOK_AT_LEAST)
