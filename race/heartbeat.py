"""Renewing the leases of a process, so that others can tell that it is at work and not stuck."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from contextlib import contextmanager

from race.process import LEASE
from race.store import Store, StoreError

EVERY = LEASE / 12
"""Seconds from one renewal to the next."""


@contextmanager
def heartbeat(store: Store) -> Generator[None, None, None]:
    """Renew every lease that a store holds, for as long as the block runs.

    A lease that was lost is not reported here: the next event of its race is refused, which says so.
    """
    over = threading.Event()

    def beat() -> None:
        while not over.wait(EVERY):
            with contextlib.suppress(StoreError):
                store.beat()

    thread = threading.Thread(target=beat, name="race-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
