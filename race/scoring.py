"""The contract of a scorer plugin.

A scorer is a class with ``async def score(replay, context) -> Score`` (a *gate*: eligible or not, with the reason) or
``async def measure(replay, context) -> Sample`` (a *metric*: one number a call; the finals decide how often and
when). If it has an ``Options`` attribute (a frozen pydantic model), it is constructed as ``Scorer(options)`` from the
keys of its table in the race file, else as ``Scorer()``. A metric has the attributes ``unit`` (text) and ``goal``
(``"min"`` or ``"max"``).

Every call gets a replay of its own: a fresh fork of the base in which nothing but the submission was put, without
any process of the agent. What a scorer does to it is seen by no other scorer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, runtime_checkable

from race.errors import Rejected
from race.sandbox import Entry, ExecResult, File, Link, Sandbox
from race.submission import Submission, printable
from race.task import Task

if TYPE_CHECKING:
    from race.gateway import GatewayAccount

Goal: TypeAlias = Literal["min", "max"]


FAILED: Final = "failed"
"""The key of a score's details under which a gate names, as a JSON list, what failed and may pass when it is asked
again, as flaky tests do; an empty list if it knows no names. Without it a gate is not asked again."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a gate says.

    Attributes:
        passed: whether the attempt stays eligible.
        reason: one sentence for people; why not, when it did not pass.
        details: more to show or to keep, by name.
    """

    passed: bool
    reason: str = ""
    details: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Attributes:
        value: finite and above zero.
        wait: share of the wall time, in [0, 1), that the measured program waited for a processor; 0 if unknown.
        seconds: wall time of the measurement as seen from outside.
        cpu: processor time of everything that was measured, in seconds; 0 if unknown.
        details: more to show or to keep, by name.
        waited: seconds, of those, that the measured program was seen to wait for a processor.
        parts: the value of each workload, by name, when there are several; ``value`` is their geometric mean then.
    """

    value: float
    wait: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Replay:
    """A fresh fork of the base with only the submission in it.

    Attributes:
        sandbox: the fork.
        submission: what was put into it; an empty one for the base itself.
        task: what was asked.
        env: what `run` adds to the sandbox's environment, the same for every replay.
        is_base: whether this is the unchanged base.
        paths: of the project's files in the base.
        original: what the base has at one of them, to be written back.
    """

    sandbox: Sandbox
    submission: Submission
    task: Task
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    is_base: bool = False
    paths: Collection[bytes] = ()
    original: Callable[[bytes], File | Link] | None = None

    @property
    def root(self) -> str:
        """What commands call the project's folder; see `race.Sandbox.place`."""
        return self.sandbox.place(self.task.workdir)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        output_limit: int = 1 << 20,
    ) -> ExecResult:
        """Run a command in the project's folder; see `race.Sandbox.exec`."""
        return await self.sandbox.exec(
            command,
            cwd=self.task.workdir,
            env={**self.env, **(env or {})},
            stdin=stdin,
            timeout=timeout,
            output_limit=output_limit,
        )

    def put(self, paths: Iterable[bytes]) -> list[Entry]:
        """What to write to have the submission's own content at some of its paths again."""
        root = self.task.workdir.encode() + b"/"
        wanted = set(paths)
        return [replace(e, path=root + e.path) for e in self.submission.entries if e.path in wanted]

    async def must_run(
        self, command: str | Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
    ) -> ExecResult:
        """Run a command that has to end with exit status 0.

        Raises:
            Rejected: it did not, or took too long; the text says so with the end of its output.
        """
        done = await self.run(command, timeout=timeout, env=env)
        must_have_worked(done, command, timeout)
        return done


class MeasureAgain(Rejected):
    """A metric does not believe its sample yet: it wants another one, in a fresh replay, and to be shown this one then.

    Args:
        sample: that it took.
        reason: why it cannot be believed.
    """

    def __init__(self, sample: Sample, reason: str) -> None:
        super().__init__(reason)
        self.sample = sample


@dataclass(frozen=True, slots=True)
class ScoreContext:
    """What a scorer knows besides its replay.

    Attributes:
        scorer: the scorer's name in this race.
        attempt: name of the attempt, ``"base"`` for the base.
        round: of the finals, from 0 (the warm-up); always 0 for gates.
        seed: the same for every attempt in a round, drawn after the agents have ended.
        baseline: the scorer's own result on the base, once there is one.
        taken: samples that the metric took for this one measurement before, and raised `MeasureAgain` with.
        account: a gate's account at the race's gateway, the way to models; see `race.gateway`.
    """

    scorer: str
    attempt: str
    round: int = 0
    seed: int = 0
    baseline: Score | Sample | None = None
    taken: tuple[Sample, ...] = ()
    account: GatewayAccount | None = None

    @property
    def models(self) -> GatewayAccount:
        """The account, for a gate that cannot do without.

        Raises:
            RuntimeError: there is none; whoever asks a gate without a race has to open a gateway.
        """
        if self.account is None:
            raise RuntimeError("this gate needs a gateway: ScoreContext(..., account=gateway.account(...))")
        return self.account


@runtime_checkable
class Calibrated(Protocol):
    """What a gate may have besides: a look at the unchanged base, before any agent starts."""

    async def calibrate(self, replay: Replay, context: ScoreContext) -> Score:
        """What every later call of `Gate.score` finds as ``context.baseline``. It is kept with the base, so all that
        counts has to be in `Score.details`.

        Raises:
            Rejected: the gate cannot work even for the unchanged project; the race ends before it begins.
        """
        ...


@runtime_checkable
class Gate(Protocol):
    """Entry point group ``race.scorers``: eligible or not, with the reason."""

    async def score(self, replay: Replay, context: ScoreContext) -> Score:
        """Judge one replay. An exception means that the scorer broke, not that the score is bad."""
        ...


@runtime_checkable
class NeedsModels(Protocol):
    """What a gate may have besides: a look at what it needs to ask models, before any sandbox exists."""

    def check(self) -> None:
        """Refuse to start.

        Raises:
            SpecError: its server is no address.
            MachineError: the environment lacks its API key.
        """
        ...


@runtime_checkable
class Metric(Protocol):
    """Entry point group ``race.scorers``: one sample a call."""

    @property
    def unit(self) -> str:
        """Of the values, such as ``"ms"``."""
        ...

    @property
    def goal(self) -> Goal:
        """Whether less or more is better."""
        ...

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        """Measure one replay once.

        Raises:
            Rejected: there is no number, and the text says why; the attempt is not eligible.
        """
        ...


def must_have_worked(done: ExecResult, command: str | Sequence[str], timeout: float) -> None:
    """Refuse a command that took too long or ended with another status than 0.

    Raises:
        Rejected: the text says which, with the end of its output.
    """
    if done.timed_out:
        raise Rejected(f"timed out: {command!r} took more than {timeout:g} s")
    if done.exit_code != 0:
        raise Rejected(f"{command!r} failed (exit status {done.exit_code}): {last_lines(done)}")


def unmet(error: Rejected) -> Score:
    """What a gate says when its command failed: it may be asked again, unless it took too long, as it would again."""
    reason = str(error)
    return Score(
        passed=False, reason=reason, details={} if reason.startswith("timed out") else {FAILED: "[]"}
    )


def last_lines(done: ExecResult, limit: int = 300) -> str:
    """The end of what a command printed, for a reason: the last lines that say something, escaped and bounded."""
    text = (done.stderr if done.stderr.strip() else done.stdout).decode("utf-8", "replace")
    lines = [printable(line.strip()) for line in text.splitlines() if line.strip()]
    said = " / ".join(lines[-3:])
    return (f"…{said[-limit:]}" if len(said) > limit else said) or "it printed nothing"


def wait_share(done: ExecResult) -> float:
    """The share of a command's wall time that it waited for a processor; see `Sample.wait`."""
    return min(max(done.usage.wait_seconds / done.seconds, 0.0), 0.95) if done.seconds > 0 else 0.0


def scoring_seed(context: ScoreContext) -> dict[str, str]:
    """Environment that varies by round and is the same for every candidate: what hash order costs or saves is
    averaged out, not won by luck (Georges et al. 2007 name such factors; here they are drawn anew each round).
    """
    return {"PYTHONHASHSEED": str(context.seed % 4_294_967_296)}
