"""From a race file to plugins that are ready: everything that can be refused before anything starts."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from race.agent import ChecksFirst
from race.attempt import Attempt
from race.errors import RaceError, SpecError
from race.plugins import agent as make_agent
from race.plugins import check_defaults
from race.plugins import provider as make_provider
from race.plugins import scorer as make_scorer
from race.sandbox import SandboxProvider
from race.scoring import Gate, Metric, NeedsModels
from race.spec import RaceSpec
from race.tools import BringsTools


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins of a race, made and checked before anything starts.

    Attributes:
        attempts: one for every attempt, in order.
        gates: by name, in order.
        metrics: by name, in order; the first decides.
        provider: of the sandboxes.
    """

    attempts: tuple[Attempt, ...]
    gates: tuple[tuple[str, Gate], ...]
    metrics: tuple[tuple[str, Metric], ...]
    provider: SandboxProvider


def assemble(
    spec: RaceSpec, home: Path, provider: SandboxProvider | None = None, *, keyless: bool = False
) -> Plugins:
    """Find and construct every plugin that a race file names.

    Args:
        spec: of the race.
        home: the state folder.
        provider: of the sandboxes, if there is one already.
        keyless: do not look for what agents need of this machine, such as keys: no model will be asked.

    Raises:
        SpecError: options that a plugin does not know or refuses, or something that the provider cannot do.
        PluginError: a plugin is unknown or has the wrong shape.
        MachineError: an agent lacks what it needs of this machine, such as a key.
    """
    check_defaults(spec)
    attempts: list[Attempt] = []
    for i, entry in enumerate(spec.entries):
        for name in entry.attempt_names():
            agent = make_agent(spec, i)
            if isinstance(agent, ChecksFirst) and not keyless:
                with _named(f"{spec.place('entries', i)} ({entry.name!r})"):
                    agent.check(entry.model)
            attempts.append(Attempt(name, entry, agent, len(attempts)))
    gates: list[tuple[str, Gate]] = []
    metrics: list[tuple[str, Metric]] = []
    for i, table in enumerate(spec.scorers):
        scorer = make_scorer(spec, i)
        if isinstance(scorer, Metric):
            metrics.append((table.label, scorer))
        else:
            gates.append((table.label, scorer))
            if isinstance(scorer, NeedsModels) and not keyless:
                with _named(f"{spec.place('scorers', i)} ({table.label!r})"):
                    scorer.check()
    provider = provider or make_provider(spec.base.sandbox, home, spec.place("base", "sandbox"))
    _check_capabilities(spec, provider, attempts)
    return Plugins(tuple(attempts), tuple(gates), tuple(metrics), provider)


@contextmanager
def _named(place: str) -> Generator[None]:
    """Say of an error where in the race file it comes from."""
    try:
        yield
    except RaceError as e:
        raise type(e)(f"{place}: {e}") from e


def _check_capabilities(spec: RaceSpec, provider: SandboxProvider, attempts: Sequence[Attempt]) -> None:
    """Refuse what the provider cannot do before anything starts."""
    can = provider.capabilities
    for phase in ("setup", "agent", "scoring"):
        asked = getattr(spec.base.network, phase)
        kind = asked if isinstance(asked, str) else "hosts"
        if kind not in can.networks:
            offered = ", ".join(sorted(can.networks))
            raise SpecError(
                f"{spec.place('base', 'network', phase)}: the provider {spec.base.sandbox!r} offers {offered} here"
            )
    asked_for = [
        (("base", "limits", n), n, getattr(spec.base.limits, n)) for n in spec.base.limits.model_fields_set
    ]
    for place, name, limit in [*asked_for, (("finals", "cores"), "cores", spec.finals.cores)]:
        if limit is not None and name not in can.limits:
            offered = ", ".join(sorted(can.limits)) or "none"
            raise SpecError(
                f"{spec.place(*place)}: the provider {spec.base.sandbox!r} cannot enforce this limit "
                f"here; it can enforce: {offered}"
            )
        if name == "cores" and limit is not None and not set(limit) <= (here := os.sched_getaffinity(0)):
            raise SpecError(
                f"{spec.place(*place)}: the processors here are {sorted(here)}, not {list(limit)}"
            )
    kinds = _image_kinds(spec)
    if not kinds & can.images:
        kind = min(kinds)
        raise SpecError(
            f"{spec.place('base', 'image')}: the provider {spec.base.sandbox!r} takes no {kind} image; "
            f"it takes: {', '.join(sorted(can.images))}"
        )
    if spec.keep.winner == "fork" and "freeze" not in can.features:
        raise SpecError(
            f"{spec.place('keep', 'winner')}: the provider {spec.base.sandbox!r} cannot hold a fork as it stands; "
            "write 'replay' or 'patch'"
        )
    if spec.task.carry == "machine" and "changes" not in can.features:
        raise SpecError(
            f"{spec.place('task', 'carry')}: the provider {spec.base.sandbox!r} does not know what an attempt adds to "
            "its machine; write 'packages' or 'patch'"
        )
    for attempt in attempts:
        if isinstance(attempt.agent, BringsTools) and not (can.isolated and "listen" in can.features):
            where = spec.place("entries", spec.entries.index(attempt.entry), "agent")
            raise SpecError(
                f"{where}: {attempt.entry.agent!r} is a program that works inside its fork, for which the provider "
                f"{spec.base.sandbox!r} has to isolate, and to offer 'listen' as a way out to the gateway"
            )


def _image_kinds(spec: RaceSpec) -> set[str]:
    """What the image of a race file may be: the path of something, or a name that an engine may know."""
    image = spec.base.image
    if image == "host":
        return {"host"}
    place = spec.folder / Path(image).expanduser()
    if place.is_dir():
        return {"oci"} if (place / "oci-layout").is_file() else {"directory"}
    if place.is_file():
        return {"tar", "oci"}
    return {"directory", "name"}
