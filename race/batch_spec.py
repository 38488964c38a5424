"""The batch file: many tasks, each a race of its own, with what they share said once."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from race.errors import SpecError
from race.spec import NAME, RaceSpec, Seconds, complaints, from_data, nearest

T = TypeVar("T", bound=BaseModel)

SHARED = ("task", "base", "defaults", "entries", "scorers", "budget", "finals")
"""The tables of a race file that a batch file may have for all its tasks."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class BatchTable(_Table):
    """``[batch]``: how the tasks are run."""

    name: str = ""
    """Default: the name of the file's folder."""
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 4
    """How many agents work at once, over all processes that work on this batch."""
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    """How often an attempt is started again that broke through no fault of its agent."""
    keep: Literal["nothing", "winners"] = "nothing"
    """Whether the sandboxes of the winners stay; patches always do."""


class TaskTable(_Table):
    """``[[tasks]]``: one task. What it does not say is taken from the tables that all share."""

    name: str
    """Unique in the batch."""
    prompt: str = ""
    prompt_file: str | None = None
    context: str = ""
    """Added to the prompt, for this task only."""
    protected: tuple[str, ...] | None = None
    editable: tuple[str, ...] | None = None
    carry: Literal["patch", "packages"] | None = None
    project: str | None = None
    """The task's own repository: a folder, or a git URL."""
    ref: str | None = None
    time_limit: Seconds | None = None
    """Seconds that each of its attempts may take."""
    command_timeout: Seconds | None = None
    max_steps: Annotated[int, Field(ge=1)] | None = None
    base: dict[str, Any] = Field(default_factory=dict)
    """More keys of ``[base]``, in place of those that all share."""
    entries: tuple[dict[str, Any], ...] | None = None
    scorers: tuple[dict[str, Any], ...] | None = None


class BatchSpec(_Table):
    """A whole batch, checked."""

    name: str
    concurrency: int
    retries: int
    tasks: tuple[RaceSpec, ...]
    """One race for each task."""
    path: Path
    """The file that it was read from."""

    @property
    def hash(self) -> str:
        """What tells this request from another: all of it but how many agents work at once."""
        data = self.model_dump(mode="json", exclude={"concurrency"})
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def load_batch(path: str | Path) -> BatchSpec:
    """Read and check a batch file.

    Raises:
        SpecError: with every complaint, each naming its place and what would be right.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as e:
        raise SpecError(f"{path}: no such batch file") from e
    except OSError as e:
        raise SpecError(f"{path}: cannot be read: {e.strerror}") from e
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise SpecError(f"{path}: not valid TOML: {e}") from e
    return batch_from_data(data, path)


def batch_from_data(data: Mapping[str, Any], path: str | Path) -> BatchSpec:
    """Check a batch file's content; see `load_batch`."""
    path = Path(path).absolute()
    for key in data:
        if key not in {"batch", "tasks", *SHARED}:
            raise SpecError(f"{path}: {key}: unknown key; {nearest(key, ['batch', 'tasks', *SHARED])}")
    table = _checked(BatchTable, data.get("batch", {}), ("batch",), path)
    given = data.get("tasks", [])
    rows = cast("list[object]", given) if isinstance(given, list) else []
    if not rows:
        raise SpecError(f"{path}: tasks: there is none; a batch needs at least one [[tasks]] table")
    tasks: list[RaceSpec] = []
    problems: list[str] = []
    seen: set[str] = set()
    for i, row in enumerate(rows):
        try:
            task = _checked(TaskTable, row, ("tasks", i), path)
            if not NAME.fullmatch(task.name) or task.name in seen:
                why = "is there twice" if task.name in seen else "is no plain name"
                raise SpecError(f"{path}: tasks[{i + 1}].name: {task.name!r} {why}")  # noqa: TRY301 - one of several
            seen.add(task.name)
            tasks.append(_race(data, task, table, path))
        except SpecError as e:
            problems += str(e).splitlines()
    if problems:
        raise SpecError("\n".join(dict.fromkeys(problems)))
    return BatchSpec(
        name=table.name or path.parent.name,
        concurrency=table.concurrency,
        retries=table.retries,
        tasks=tuple(tasks),
        path=path,
    )


def _race(data: Mapping[str, Any], task: TaskTable, table: BatchTable, path: Path) -> RaceSpec:
    """The race of one task."""
    own = task.model_dump(exclude_none=True)
    merged: dict[str, Any] = {k: data[k] for k in SHARED if k in data}
    asked = {k: own[k] for k in ("prompt", "prompt_file", "protected", "editable", "carry") if own.get(k)}
    merged["task"] = {**data.get("task", {}), **asked, "name": task.name}
    merged["base"] = {
        **data.get("base", {}),
        **task.base,
        **{k: own[k] for k in ("project", "ref") if k in own},
    }
    for key in ("entries", "scorers"):
        if key in own:
            merged[key] = list(own[key])
    limits = {k: own[k] for k in ("time_limit", "command_timeout", "max_steps") if k in own}
    if limits:
        merged["defaults"] = {**data.get("defaults", {}), **limits}
        merged["entries"] = [{**e, **limits} for e in merged.get("entries", [])]
    merged["keep"] = {"winner": "replay" if table.keep == "winners" else "patch"}
    try:
        spec = from_data(merged, path)
    except SpecError as e:
        raise SpecError("\n".join(f"{line} (task {task.name!r})" for line in str(e).splitlines())) from e
    if task.context:
        prompt = f"{spec.task.prompt.rstrip()}\n\n{task.context.strip()}"
        spec = spec.model_copy(update={"task": spec.task.model_copy(update={"prompt": prompt})})
    return spec


def _checked(model: type[T], data: object, keys: tuple[str | int, ...], path: Path) -> T:
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise SpecError("\n".join(complaints(e, keys, path, model))) from e
