"""The race file: what is in it, what is refused, and the sentence that says why.

The file is TOML. Unknown keys are refused with the nearest known name; every complaint names its place.
Paths in it are relative to the file.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from race.errors import SpecError
from race.lineup import multiplied
from race.sandbox import Network

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
"""What tasks, entries and scorers may be called: their names become parts of file and sandbox names."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _bytes(value: object) -> object:
    """``"2 GiB"`` as a number of bytes; the letters are powers of 1024."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is no size; write a number of bytes, or such as '512M' or '2G'")
    return int(float(match[1]) * _FACTOR[match[2].lower()])


Size: TypeAlias = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NetworkSpec: TypeAlias = Network


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TaskSpec(_Table):
    """``[task]``: what every agent is asked."""

    name: str = ""
    """Default: the name of the race file's folder."""
    prompt: str = ""
    """What to do, for the agent."""
    prompt_file: str | None = None
    """A file that holds the prompt, instead."""
    protected: tuple[str, ...] = ()
    """Paths or patterns that must stay byte-identical to the base."""
    editable: tuple[str, ...] = ()
    """Patterns of the only paths that may change; empty: anything that is not protected."""
    carry: Literal["patch", "packages", "machine"] = "packages"
    """What a submission may be: the patch alone; also the Python packages that were installed, by name and version;
    or also all that was added to the machine without touching or hiding what is there."""
    build: str = ""
    """A command that makes what the submission needs, such as an extension; run in every replay before it is scored,
    in the project's folder, where alone it may write."""
    build_timeout: Seconds = 900
    """Seconds for it."""
    binaries: Literal["refuse", "allow"] = "refuse"
    """Whether a submission may add or change compiled programs, pickles and packed packages, which nobody can read."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return _checked_name(value) if value else value


class LimitsSpec(_Table):
    """``[base.limits]``: what each sandbox may use."""

    cpus: Annotated[float, Field(gt=0)] | None = None
    """Processors."""
    memory: Size | None = None
    """Bytes, or such as "2G"."""
    disk: Size | None = None
    """Bytes that a fork may write, or such as "10G"."""
    processes: Annotated[int, Field(gt=0)] | None = 4096
    """Processes and threads at once."""
    cores: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """The processors, by number, that it may run on."""


class NetworksSpec(_Table):
    """``[base.network]``: who may reach what, by phase."""

    setup: NetworkSpec = "full"
    """While the base is set up."""
    agent: NetworkSpec = "full"
    """While an agent works, and while packages that it installed are installed anew for its replay."""
    scoring: NetworkSpec = "none"
    """While a replay is scored."""


class BaseSpec(_Table):
    """``[base]``: the prepared sandbox that everything is forked from."""

    sandbox: str = "local"
    """Sandbox provider."""
    image: str = "host"
    """What the root filesystem comes from: "host", or a directory."""
    project: str = "."
    """The project: a folder, a git URL, or "race:ID" for the winner that a race has kept."""
    ref: str | None = None
    """Commit, tag or branch of a git URL or repository; default: its HEAD, for a folder the files as they are."""
    exclude: tuple[str, ...] = ()
    """Patterns of project files that stay out, so that no agent sees them; the race file itself always does."""
    workdir: str = "/app"
    """Where the project lies inside."""
    setup: tuple[str, ...] = ()
    """Commands that run once, in the project's folder; the result is cached."""
    setup_timeout: Seconds = 1800
    """Seconds for each of them."""
    env: dict[str, str] = Field(default_factory=dict)
    """The environment inside; nothing is inherited from the host's."""
    limits: LimitsSpec = LimitsSpec()
    network: NetworksSpec = NetworksSpec()

    @field_validator("workdir")
    @classmethod
    def _workdir(cls, value: str) -> str:
        if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", value) or "/." in value:
            raise ValueError(f"{value!r} must be an absolute path of plain names, such as '/app'")
        return value


class AttemptBudgetSpec(_Table):
    """``[entries.budget]``: for each attempt; what is reached first ends its agent, and its fork is scored."""

    cost_usd: Annotated[float, Field(gt=0)] | None = None
    tokens: Annotated[int, Field(gt=0)] | None = None
    requests: Annotated[int, Field(gt=0)] | None = None
    """Answers of models."""


class EntrySpec(BaseModel):
    """``[[entries]]``: one line-up of agent, model and hint. Further keys are options of the agent."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    name: str
    """Unique; attempts are named after it."""
    agent: str = "openai"
    """Agent plugin, or ``module:attribute``."""
    model: str | None = None
    """Name of the model."""
    hint: str = ""
    """Added to the prompt, for this entry only."""
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many attempts."""
    max_steps: Annotated[int, Field(ge=1)] = 30
    """Turns that an attempt may take."""
    command_timeout: Seconds = 120
    """Seconds that a command may take."""
    time_limit: Seconds = 1800
    """Seconds that an attempt may take."""
    budget: AttemptBudgetSpec = AttemptBudgetSpec()
    """What an attempt may spend on models."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return _checked_name(value)

    @property
    def options(self) -> dict[str, Any]:
        """The keys that belong to the agent."""
        return dict(self.model_extra or {})

    def attempt_names(self) -> list[str]:
        """``name``, or ``name-1`` to ``name-N``."""
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(1, self.count + 1)]


class ScorerSpec(BaseModel):
    """``[[scorers]]``: one scorer. Further keys are its options."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    use: str
    """Scorer plugin, or ``module:attribute``."""
    name: str = ""
    """Unique; default: ``use``."""

    @property
    def options(self) -> dict[str, Any]:
        """The keys that belong to the scorer."""
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        """Its name in the verdict."""
        return self.name or self.use


class BudgetSpec(_Table):
    """``[budget]``: for the whole race; what is reached first ends the agents, and their forks are scored."""

    cost_usd: Annotated[float, Field(gt=0)] | None = None
    tokens: Annotated[int, Field(gt=0)] | None = None
    requests: Annotated[int, Field(gt=0)] | None = None
    """Answers of models."""
    seconds: Seconds | None = None


class GatewaySpec(_Table):
    """``[gateway]``: how long the gateway waits for models."""

    request_timeout: Seconds = 600
    """Seconds for one request in all."""
    idle_timeout: Seconds = 180
    """Seconds for the next event of a stream."""
    patience: Seconds = 300
    """Seconds that a request waits for a busy server (status 429)."""


class FinalsSpec(_Table):
    """``[finals]``: how eligible replays are measured against each other."""

    mode: Literal["quick", "standard", "thorough"] = "standard"
    confidence: Annotated[float, Field(gt=0.5, lt=1)] | None = None
    """How sure a claim must be, such as 0.95."""
    indifference: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Differences below this share count as none."""
    max_rounds: Annotated[int, Field(ge=1)] | None = None
    seconds: Seconds | None = None
    """Time for measuring."""
    require_improvement: bool = True
    """Whether a winner must be better than the base."""


class KeepSpec(_Table):
    """``[keep]``: what stays of the winner."""

    winner: Literal["replay", "fork", "patch"] = "replay"
    """A rebuilt sandbox (base and submission), the agent's own fork as it stands, or no sandbox."""


class RaceSpec(_Table):
    """A whole race file, checked."""

    task: TaskSpec
    base: BaseSpec = BaseSpec()
    entries: tuple[EntrySpec, ...]
    scorers: tuple[ScorerSpec, ...] = ()
    budget: BudgetSpec = BudgetSpec()
    gateway: GatewaySpec = GatewaySpec()
    finals: FinalsSpec = FinalsSpec()
    keep: KeepSpec = KeepSpec()
    rounds: Annotated[int, Field(ge=1, le=20)] = 1
    """How many rounds at most; the winner of each is the base of the next."""
    path: Path
    """The file that it was read from."""
    agent_defaults: dict[str, Any] = Field(default_factory=dict)
    """The keys of ``[defaults]`` that are options of agents: each entry takes those that its agent knows."""

    @property
    def folder(self) -> Path:
        """What the paths in the file are relative to."""
        return self.path.parent

    def place(self, *keys: str | int) -> str:
        """How a message names a place in this file."""
        return f"{self.path}: {_dotted(keys)}"


def load(path: str | Path) -> RaceSpec:
    """Read and check a race file.

    Raises:
        SpecError: with every complaint, each naming its place and what would be right.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError as e:
        raise SpecError(f"{path}: no such race file; 'race init' writes one") from e
    except IsADirectoryError as e:
        raise SpecError(f"{path}: is a folder; name the race file in it, such as {path / 'race.toml'}") from e
    except OSError as e:
        raise SpecError(f"{path}: cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise SpecError(f"{path}: is not UTF-8 text (byte {e.start})") from e
    except tomllib.TOMLDecodeError as e:
        raise SpecError(f"{path}: not valid TOML: {e}") from e
    return from_data(data, path)


def from_data(data: Mapping[str, Any], path: str | Path) -> RaceSpec:
    """Check a race file's content.

    Args:
        data: as parsed from TOML.
        path: the file it stands for; paths in it are relative to its folder.

    Raises:
        SpecError: as `load`.
    """
    path = Path(path).absolute()
    tables = dict(data)
    for own in ("path", "agent_defaults"):
        if own in tables:
            raise SpecError(f"{path}: {own}: unknown key; {nearest(own, _fields_at(RaceSpec, ()))}")
    given = tables.pop("defaults", {})
    if not isinstance(given, dict):
        raise SpecError(f"{path}: defaults: must be a table")
    defaults = cast("dict[str, Any]", given)
    if "entries" in tables:
        entries = multiplied(tables["entries"], tables.pop("seed", None), path)
        tables["entries"] = _with_defaults(entries, defaults, path)
    agents = {k: v for k, v in defaults.items() if k not in EntrySpec.model_fields}
    try:
        spec = RaceSpec.model_validate({**tables, "path": path, "agent_defaults": agents})
    except ValidationError as e:
        raise SpecError("\n".join(_complaints(e, path))) from e
    return _complete(spec)


def _with_defaults(entries: Any, defaults: Mapping[str, Any], path: Path) -> object:
    if not isinstance(entries, list):
        raise SpecError(f"{path}: entries: write each as a table headed [[entries]]")
    for key in ("name", "count"):
        if key in defaults:
            raise SpecError(f"{path}: defaults.{key}: belongs to each entry, not to the defaults")
    shared = {k: v for k, v in defaults.items() if k in EntrySpec.model_fields}

    def merged(entry: Any) -> object:
        return {**shared, **cast("dict[str, Any]", entry)} if isinstance(entry, dict) else entry

    tables = cast("Sequence[Any]", entries)
    return [merged(entry) for entry in tables]


def _complete(spec: RaceSpec) -> RaceSpec:
    """Fill in what depends on other keys, and check what one key alone cannot show."""
    task = spec.task
    problems: list[str] = []
    if task.prompt_file is not None:
        if task.prompt:
            problems.append(spec.place("task") + ": has both prompt and prompt_file; keep one")
        file = spec.folder / task.prompt_file
        try:
            task = task.model_copy(update={"prompt": file.read_text("utf-8")})
        except (OSError, UnicodeDecodeError) as e:
            problems.append(spec.place("task", "prompt_file") + f": cannot read {str(file)!r}: {_why(e)}")
    if not task.prompt.strip() and not problems:
        problems.append(spec.place("task", "prompt") + ": is missing; say what the agents shall do")
    if not task.name:
        folder = re.sub(r"[^A-Za-z0-9._-]+", "-", spec.folder.name).strip("-._")[:40]
        task = task.model_copy(update={"name": folder or "task"})
    if not spec.entries:
        problems.append(
            spec.place("entries") + ": there is none; a race needs at least one [[entries]] table"
        )
    problems += _doubled("entries", spec, [e.attempt_names() for e in spec.entries])
    scorers = spec.scorers
    if all(s.use != "integrity" for s in scorers):
        scorers = (ScorerSpec(use="integrity"), *scorers)
    scorers = tuple(sorted(scorers, key=lambda s: s.use != "integrity"))
    problems += _doubled("scorers", spec, [[s.label] for s in scorers])
    for s in scorers:
        if not NAME.fullmatch(s.label):
            problems.append(spec.place("scorers") + f': {s.label!r} needs a plain name: add name = "..."')
    problems += _bad_patterns(spec)
    if problems:
        raise SpecError("\n".join(problems))
    return spec.model_copy(update={"task": task, "scorers": scorers})


def _bad_patterns(spec: RaceSpec) -> Iterable[str]:
    for key in ("protected", "editable"):
        for pattern in getattr(spec.task, key):
            parts = pattern.split("/")
            if not pattern or pattern.startswith("/") or ".." in parts:
                yield (
                    spec.place("task", key) + f": {pattern!r} must be relative to the project and stay in it"
                )


def _doubled(table: str, spec: RaceSpec, names: list[list[str]]) -> Iterable[str]:
    seen: dict[str, int] = {}
    for i, group in enumerate(names):
        for name in group:
            if name in seen:
                first = seen[name] + 1
                yield (
                    spec.place(table, i)
                    + f": the name {name!r} is taken already by number {first}; each needs its own"
                )
                break
            seen[name] = i


def _checked_name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} cannot be a name; use letters, digits, '.', '_' and '-', at most 40, "
            "beginning with a letter or digit"
        )
    return value


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"


def _dotted(keys: Iterable[str | int]) -> str:
    """``entries[2].name``, counting from 1 as people do."""
    text = ""
    for key in keys:
        text += f"[{key + 1}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a complaint about an unknown word: the nearest known one, and all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names) if names else 'none'}"


def complaints(
    error: ValidationError, keys: tuple[str | int, ...], path: Path, model: type[BaseModel]
) -> list[str]:
    """What is wrong with a table, a line each, when a plugin's own options model refused it.

    Args:
        error: what pydantic raised.
        keys: where the table is, such as ``("entries", 0)``.
        path: the race file.
        model: the options model.
    """
    return list(_complaints(error, path, keys, model))


def _complaints(
    error: ValidationError, path: Path, prefix: tuple[str | int, ...] = (), model: type[BaseModel] = RaceSpec
) -> Iterable[str]:
    for item in error.errors(include_url=False):
        loc = tuple(k for k in item["loc"] if k not in ("full", "none", "constrained-str"))
        where = f"{path}: {_dotted((*prefix, *loc))}"
        if item["type"] == "extra_forbidden":
            yield f"{where}: unknown key; {nearest(str(loc[-1]), _fields_at(model, loc[:-1]))}"
        elif item["type"] == "missing":
            yield f"{where}: is missing"
        else:
            message = item["msg"].removeprefix("Value error, ")
            given = item.get("input")
            shown = (
                f" (it is {given!r})"
                if isinstance(given, str | int | float | bool) and item["type"] != "value_error"
                else ""
            )
            yield f"{where}: {message[0].lower()}{message[1:]}{shown}"


def _fields_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """The keys that are known at a place, following tables down."""
    for key in loc:
        if isinstance(key, int):
            continue
        field = model.model_fields.get(key)
        inner = field.annotation if field else None
        for candidate in (inner, *getattr(inner, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
                break
    if model is RaceSpec:
        return [*(set(model.model_fields) - {"path", "agent_defaults"}), "defaults", "seed"]
    return list(model.model_fields)
