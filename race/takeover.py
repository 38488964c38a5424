"""Taking over the sandboxes of a race whose process is gone."""

from __future__ import annotations

from collections.abc import Sequence

from race.attempt import Attempt
from race.errors import SandboxError
from race.history import AttemptHistory, RaceHistory
from race.process import is_alive
from race.sandbox import SandboxProvider


async def take_over(
    race: str,
    provider: SandboxProvider,
    attempts: Sequence[Attempt],
    past: RaceHistory,
    *,
    owner: str,
    keep_forks: bool,
) -> list[str]:
    """Give each attempt its history and the sandboxes that it goes on in, and delete all others of the race.

    Args:
        race: id of the race.
        provider: of its sandboxes.
        attempts: of the race.
        past: how far it came.
        owner: this process, for the sandboxes' label.
        keep_forks: whether forks are needed beyond their submission, because the winner's is to be kept.

    Returns:
        A line about each sandbox that could not be deleted.
    """
    # What was half made when the process was killed is in no list, but has its name.
    await provider.collect()
    every = await provider.list()
    infos = [i for i in every if i.labels.get("race") == race]
    # Those of a check whose process is gone: most likely the one that is taken over from.
    trials = [
        i.name for i in every if i.labels.get("role") == "trial" and not is_alive(i.labels.get("owner", ""))
    ]
    there = {i.name for i in infos}
    wanted: set[str] = set()
    for attempt in attempts:
        attempt.past = past.attempts.get(attempt.name, AttemptHistory())
        in_race = attempt.past.done is None or bool(attempt.past.done["eligible"])
        if attempt.past.sandbox in there and in_race and (keep_forks or not attempt.past.submitted):
            attempt.fork = await provider.get(attempt.past.sandbox)
            await attempt.fork.label({"owner": owner})
            wanted.add(attempt.past.sandbox)
        if attempt.past.replay in there and in_race:
            await (await provider.get(attempt.past.replay)).label({"owner": owner})
            wanted.add(attempt.past.replay)
        else:
            attempt.past.replay = ""
    return await delete_all(provider, [*trials, *(i.name for i in infos if i.name not in wanted)])


async def delete_all(provider: SandboxProvider, names: Sequence[str]) -> list[str]:
    """Delete sandboxes that are given parents first. Returns a line about each that could not be."""
    problems: list[str] = []
    for name in reversed(names):
        try:
            await (await provider.get(name)).delete()
        except SandboxError as e:
            problems.append(f"the sandbox {name} could not be deleted: {e}; 'race gc' tries again")
    return problems
