"""Following a race or a batch from any process, event by event, so that nothing is missed and nothing comes twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio

from race.batch_table import BatchTable
from race.errors import SpecError
from race.home import home as default_home
from race.store import Event, Store

_POLL = 0.1


async def watch(
    name: str = "last", *, after: int = 0, home: Path | None = None
) -> AsyncGenerator[Event, None]:
    """The events of a race or a batch: those so far, then each as it comes, until it has ended or nobody works on it.

    Args:
        name: id of a race or batch, the beginning of one, the key of a batch, or ``"last"`` for the newest race.
        after: the number of the last event that was seen; 0 begins with the first.
        home: the state folder, as for `race.run`.

    Raises:
        SpecError: there is none.
    """
    store = Store(home or default_home())
    try:
        async for event in follow(store, find(store, name), after):
            yield event
    finally:
        store.close()


def find(store: Store, name: str) -> str:
    """The id of a race or batch.

    Raises:
        SpecError: there is none, or more than one.
    """
    try:
        return store.race(name).id
    except SpecError as no_race:
        try:
            return BatchTable(store).get(name).id
        except SpecError as no_batch:
            raise SpecError(f"{no_race}\n{no_batch}") from None


async def follow(store: Store, name: str, after: int = 0) -> AsyncGenerator[Event, None]:
    """As `watch`, with a store that is open, and an id."""
    is_batch = any(b.id == name for b in BatchTable(store).all())
    while True:
        # Asked before the events are read: whatever ended it was written before that.
        over = _over(store, name, is_batch=is_batch)
        for event in store.events_below(name, after):
            after = event.number
            yield event
        if over:
            return
        await anyio.sleep(_POLL)


def _over(store: Store, name: str, *, is_batch: bool) -> bool:
    if is_batch:
        row = BatchTable(store).get(name)
        return row.result is not None or (row.status != "running" and not row.alive)
    return not store.race(name).alive
