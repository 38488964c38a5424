"""Many forks of one sandbox at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio

from race.errors import RaceError
from race.sandbox import Limits, Network, Sandbox

AT_ONCE = 16
"""How many forks are being made at the same time."""


@dataclass(frozen=True, slots=True)
class ForkFailure:
    """A fork that could not be made.

    Attributes:
        name: that it was to have.
        error: why not.
    """

    name: str
    error: RaceError


async def fork_many(
    sandbox: Sandbox,
    names: Sequence[str],
    *,
    network: Network | None = None,
    limits: Limits | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Sandbox | ForkFailure]:
    """Fork a sandbox several times. Arguments are those of `race.sandbox.Sandbox.fork`.

    Returns:
        In the order of the names, each fork or why there is none: the failure of one does not touch the others.
    """
    made: dict[int, Sandbox | ForkFailure] = {}
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def fork(place: int, name: str) -> None:
        async with limiter:
            try:
                made[place] = await sandbox.fork(name, network=network, limits=limits, labels=labels)
            except RaceError as error:
                made[place] = ForkFailure(name, error)

    async with anyio.create_task_group() as group:
        for place, name in enumerate(names):
            group.start_soon(fork, place, name)
    return [made[place] for place in range(len(names))]
