"""Finding plugins, checking their shape, giving them their options, and giving their failures a type."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from race.agent import Agent
from race.errors import AttemptError, LimitReached, PluginError, RaceError, Rejected, SpecError
from race.sandbox import SandboxProvider
from race.scoring import Gate, Metric
from race.spec import EntrySpec, RaceSpec, ScorerSpec, complaints, nearest


def names(group: str) -> list[str]:
    """The names of the installed plugins of a kind: ``"agents"``, ``"scorers"`` or ``"sandboxes"``."""
    return sorted({e.name for e in entry_points(group=f"race.{group}")})


def find(group: str, name: str, where: str) -> Any:
    """The plugin class of a name, or of ``module:attribute``.

    Args:
        group: ``"agents"``, ``"scorers"`` or ``"sandboxes"``.
        name: as in the race file.
        where: the place that named it, for the message.

    Raises:
        PluginError: there is none, or it cannot be imported.
    """
    kind = {"agents": "agent", "scorers": "scorer", "sandboxes": "sandbox provider"}[group]
    point = next((e for e in entry_points(group=f"race.{group}") if e.name == name), None)
    if point is None and ":" not in name:
        raise PluginError(f"{where}: there is no {kind} {name!r}; {nearest(name, names(group))}")
    try:
        if point is not None:
            return point.load()
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)
    except Exception as e:
        raise PluginError(f"{where}: the {kind} {name!r} cannot be imported: {type(e).__name__}: {e}") from e


def agent(spec: RaceSpec, index: int) -> Agent:
    """The agent of an entry, with its options.

    Raises:
        PluginError: unknown, or not an agent.
        SpecError: the entry has keys that it does not know, or values that it refuses.
    """
    entry = spec.entries[index]
    where = spec.place("entries", index, "agent")
    cls = find("agents", entry.agent, where)
    known = _option_names(cls)
    made = _construct(
        cls,
        {**{k: v for k, v in spec.agent_defaults.items() if k in known}, **entry.options},
        (spec, ("entries", index)),
        set(EntrySpec.model_fields),
    )
    if not callable(getattr(made, "run", None)):
        raise PluginError(f"{where}: {entry.agent!r} is no agent: it has no method run(task, bash, context)")
    return cast("Agent", made)


def check_defaults(spec: RaceSpec) -> None:
    """Refuse a key in ``[defaults]`` that no entry's agent knows.

    Raises:
        SpecError: with the key and the known ones.
    """
    known: set[str] = set()
    for i, entry in enumerate(spec.entries):
        known |= _option_names(find("agents", entry.agent, spec.place("entries", i, "agent")))
    for key in sorted(set(spec.agent_defaults) - known):
        every = (known | set(EntrySpec.model_fields)) - {"name", "count"}
        raise SpecError(f"{spec.place('defaults', key)}: unknown key; {nearest(key, every)}")


def scorer(spec: RaceSpec, index: int) -> Gate | Metric:
    """A scorer of the race, with its options.

    Raises:
        PluginError: unknown, or neither a gate nor a metric.
        SpecError: its table has keys that it does not know, or values that it refuses.
    """
    table = spec.scorers[index]
    where = spec.place("scorers", index, "use")
    cls = find("scorers", table.use, where)
    made = _construct(cls, table.options, (spec, ("scorers", index)), set(ScorerSpec.model_fields))
    gate, metric = callable(getattr(made, "score", None)), callable(getattr(made, "measure", None))
    if gate == metric:
        raise PluginError(
            f"{where}: {table.use!r} is no scorer: it needs either score(replay, context), as a gate, "
            "or measure(replay, context), as a metric"
        )
    if metric and (
        getattr(made, "goal", None) not in ("min", "max") or not isinstance(getattr(made, "unit", None), str)
    ):
        raise PluginError(f"{where}: the metric {table.use!r} needs unit, a text, and goal, 'min' or 'max'")
    return cast("Gate | Metric", made)


def provider(name: str, home: Path, where: str) -> SandboxProvider:
    """A sandbox provider, with a folder of its own below ``home``.

    Raises:
        PluginError: unknown, or not a provider.
    """
    cls = find("sandboxes", name, where)
    made = cls(home / "sandboxes" / name.replace(":", "-"))
    if not isinstance(made, SandboxProvider):
        raise PluginError(
            f"{where}: {name!r} is no sandbox provider: it lacks methods of race.SandboxProvider"
        )
    return made


@contextmanager
def boundary(kind: type[AttemptError], what: str) -> Generator[None]:
    """Give what a plugin raises its type; pass on what has one, outcomes, and cancellation.

    Args:
        kind: the type for plain Python errors.
        what: who broke, such as ``"agent 'openai'"``.
    """
    try:
        yield
    except (RaceError, LimitReached, Rejected):
        raise
    except Exception as e:
        text = str(e).strip()
        raise kind(f"{what} broke: {type(e).__name__}{': ' + text if text else ''}") from e


def _option_names(cls: Any) -> set[str]:
    model = getattr(cls, "Options", None)
    return set(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else set()


def _construct(
    cls: Any, options: Mapping[str, Any], place: tuple[RaceSpec, tuple[str | int, ...]], own: set[str]
) -> object:
    spec, keys = place
    path = spec.path
    model = getattr(cls, "Options", None)
    unknown = sorted(set(options) - _option_names(cls))
    if unknown:
        where = spec.place(*keys, unknown[0])
        raise SpecError(f"{where}: unknown key; {nearest(unknown[0], _option_names(cls) | own)}")
    if model is None:
        return cls()
    try:
        return cls(model.model_validate(dict(options), context={"spec": spec}))
    except ValidationError as e:
        raise SpecError("\n".join(complaints(e, spec.at(*keys), path, model))) from e
