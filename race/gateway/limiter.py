"""When a request may start: one limiter for all attempts of a race.

What a server asks of one attempt (``Retry-After``) is heeded by all, and after being turned away requests start one by
one, farther apart each time, and closer again with every success.
"""

from __future__ import annotations

import random

import anyio

FIRST_GAP = 0.02
"""Seconds between two starts after the first request that was turned away."""
LONGEST_GAP = 2.0
_WIDER = 1.5
_CLOSER = 0.6
_SHORTEST_GAP = 0.005
_FIRST_BACKOFF = 0.5
_LONGEST_BACKOFF = 60.0


class Limiter:
    """Spreads the starts of requests to one server.

    Args:
        rng: spreads the waits.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - it spreads waits
        self._next = 0.0
        self._gap = 0.0
        self._widened = -1.0

    @property
    def wait(self) -> float:
        """Seconds until the next request may start, from now."""
        return max(self._next - anyio.current_time(), 0.0)

    async def start(self) -> float:
        """Wait for a place to start. Returns when that is, a time of ``anyio.current_time``."""
        while True:
            now = anyio.current_time()
            if now >= self._next:
                self._next = now + self._gap
                return now
            mine = self._next
            if self._gap:
                self._next = mine + self._gap  # those who come later queue behind
                await anyio.sleep(mine - now)
                return anyio.current_time()
            await anyio.sleep(mine - now)

    def turned_away(self, started: float, retry_after: float | None, times: int) -> float:
        """The server is busy.

        Args:
            started: when the request did. Those that started together are turned away together, which says it once.
            retry_after: seconds that it asks to be left alone; None if it does not say.
            times: how often in a row this request was turned away.

        Returns:
            Seconds that this request should wait, besides its place in the queue.
        """
        if started > self._widened:
            self._gap = min(max(self._gap * _WIDER, FIRST_GAP), LONGEST_GAP)
            self._widened = anyio.current_time()
        if retry_after is None:
            backoff = min(_FIRST_BACKOFF * 2.0 ** (times - 1), _LONGEST_BACKOFF)
            return backoff * (1 + self._rng.random() / 4)
        self._next = max(self._next, anyio.current_time() + retry_after)
        return 0.0

    def served(self) -> None:
        """The server answered."""
        self._gap = self._gap * _CLOSER if self._gap * _CLOSER > _SHORTEST_GAP else 0.0
