"""One attempt: an agent at work in its fork, what it handed in, and what the gates say of it.

Whatever goes wrong in an attempt is recorded on it; nothing of it reaches a sibling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from race.agent import Agent, AgentContext, Outcome, Recorder, Trajectory
from race.base import Base
from race.bash import Bash
from race.capture import capture
from race.errors import AgentError, AttemptError, LimitReached, Rejected, SandboxError, ScorerError
from race.flaking import is_repeatable, repeated
from race.handoff import deposit
from race.plugins import boundary
from race.replay import ReplayImage, build, task_of
from race.sandbox import Sandbox, SandboxProvider
from race.scoring import Gate, Score, ScoreContext
from race.spec import EntrySpec, RaceSpec
from race.submission import Submission
from race.verdict import AttemptState, GateResult, MetricResult

Emit = Callable[..., None]
"""``emit(kind, attempt, **data)`` puts an event into the store and before whoever watches."""


@dataclass(slots=True)
class Attempt:
    """The state of one attempt, from its beginning to its verdict.

    Attributes:
        name: unique in the race.
        entry: whose attempt it is.
        agent: the plugin.
        number: its place in the race, from 0.
    """

    name: str
    entry: EntrySpec
    agent: Agent
    number: int
    state: AttemptState | None = None
    reasons: list[str] = field(default_factory=list[str])
    gates: dict[str, GateResult] = field(default_factory=dict[str, GateResult])
    metrics: dict[str, MetricResult] = field(default_factory=dict[str, MetricResult])
    trajectory: Trajectory = field(default_factory=Trajectory)
    submission: Submission | None = None
    patch: Path | None = None
    seconds: float = 0.0
    fork: Sandbox | None = None
    image: ReplayImage | None = None
    stop: anyio.CancelScope | None = None
    """While it runs: cancelled, or past its deadline, when the budget of the race is spent."""

    @property
    def eligible(self) -> bool:
        """Whether it may win, as far as is known."""
        return self.state is None and self.image is not None

    def end(self, state: AttemptState, reason: str) -> None:
        """It cannot win any more."""
        self.state = state
        self.reasons.append(reason)


@dataclass(frozen=True, slots=True)
class Course:
    """What all attempts of a race share.

    Attributes:
        race: id of the race.
        spec: of the race.
        base: of the race.
        provider: of the base's sandbox.
        gates: in order, by name.
        home: the state folder.
        folder: where patches are kept.
        labels: for every sandbox of the race.
        emit: see `Emit`.
        on_spent: told when an attempt used tokens.
        deposits: lets one submission at a time be kept.
    """

    race: str
    spec: RaceSpec
    base: Base
    provider: SandboxProvider
    gates: Sequence[tuple[str, Gate]]
    home: Path
    folder: Path
    labels: dict[str, str]
    emit: Emit
    on_spent: Callable[[], None]
    deposits: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))


async def run_attempt(course: Course, attempt: Attempt) -> None:
    """Run one attempt up to its gates. Never raises but for cancellation: what broke is the attempt's result."""
    began = time.monotonic()
    try:
        await _fork_and_work(course, attempt)
        attempt.seconds = time.monotonic() - began
        await _hand_in(course, attempt)
        await _replay(course, attempt)
        if attempt.image is not None:
            await _judge(course, attempt, attempt.image)
    except AttemptError as e:
        attempt.end("failed", str(e))
    except Exception as e:  # noqa: BLE001 - a bug of ours in one attempt must not take the others down
        attempt.end("failed", f"the framework broke: {type(e).__name__}: {e}")
    finally:
        attempt.seconds = attempt.seconds or time.monotonic() - began
    course.emit(
        "attempt.done",
        attempt.name,
        state=attempt.state or "eligible",
        reasons=attempt.reasons,
        seconds=attempt.seconds,
        eligible=attempt.eligible,
    )


async def _fork_and_work(course: Course, attempt: Attempt) -> None:
    spec, entry, name = course.spec, attempt.entry, attempt.name
    parent = await course.provider.get(course.base.sandbox)
    labels = {**course.labels, "attempt": name, "role": "attempt"}
    fork = await parent.fork(f"{course.race}-{name}", network=spec.base.network.agent, labels=labels)
    attempt.fork = fork
    course.emit("attempt.started", name, sandbox=fork.name, agent=entry.agent, model=entry.model)

    def changed(recorder: Recorder) -> None:
        attempt.trajectory = recorder.trajectory()
        course.on_spent()

    recorder = Recorder(entry.max_steps, changed)
    bash = Bash(
        fork,
        workdir=spec.base.workdir,
        timeout=entry.command_timeout,
        recorder=recorder,
        on_start=lambda c: course.emit("attempt.command", name, step=recorder.step, command=c[:500]),
        on_result=lambda r: course.emit(
            "attempt.result", name, step=recorder.step, **asdict(r), usage=asdict(recorder.usage)
        ),
    )
    context = AgentContext(
        name, entry.model, entry.hint.strip(), attempt.number + 1, entry.time_limit, recorder
    )
    attempt.trajectory = await _work(course, attempt, bash, context)
    # Nothing of the agent goes on from here: what it left running can neither change what is handed in nor
    # disturb what is measured. Only a fork that is to be kept as it stands keeps its processes, held still.
    with anyio.CancelScope(shield=True):
        await (fork.freeze() if spec.keep.winner == "fork" else fork.stop())
    ended = attempt.trajectory
    course.emit(
        "attempt.ended",
        name,
        outcome=ended.outcome,
        message=ended.message[:2000],
        steps=len(ended.steps),
        usage=asdict(ended.usage),
    )


async def _work(course: Course, attempt: Attempt, bash: Bash, context: AgentContext) -> Trajectory:
    """Let the agent work until it has done, or a limit ends it; both are outcomes, and the fork counts."""
    limit = attempt.entry.time_limit
    recorder = context.recorder
    attempt.stop = attempt.stop or anyio.CancelScope()
    try:
        with (
            attempt.stop,
            anyio.move_on_after(limit) as timer,
            boundary(AgentError, f"agent {attempt.entry.agent!r}"),
        ):
            done: object = await attempt.agent.run(task_of(course.spec), bash, context)
            if not isinstance(done, Trajectory):
                raise TypeError(f"run() returned {type(done).__name__}, not a Trajectory")
            return done
    except LimitReached as e:
        return recorder.trajectory(str(e), _outcome(e.limit))
    if timer.cancelled_caught:
        return recorder.trajectory(f"ended by its time limit of {limit:g} s", "time")
    return recorder.trajectory("ended because the budget of the race is spent", "budget")


def _outcome(limit: str) -> Outcome:
    if limit == "steps":
        return "steps"
    return "time" if limit == "time" else "budget"


async def _hand_in(course: Course, attempt: Attempt) -> None:
    if attempt.fork is None:
        raise SandboxError("the fork is gone")
    submission = await capture(attempt.fork, course.base)
    attempt.submission = submission
    await anyio.to_thread.run_sync(
        deposit, course.folder, attempt.name, submission, course.base.repository, limiter=course.deposits
    )
    attempt.patch = course.folder / f"{attempt.name}.patch"
    course.emit(
        "attempt.submitted",
        attempt.name,
        files=submission.files_changed[:200],
        packages=[f"{p.name}=={p.version}" for p in submission.packages],
        problems=submission.problems,
        bytes=len(submission.patch),
    )


async def _replay(course: Course, attempt: Attempt) -> None:
    """Build the replay that everything is scored in. A submission that breaks the rules gets none."""
    submission = attempt.submission or Submission()
    ended = attempt.trajectory
    if ended.outcome != "done" and not submission.changes and not submission.problems:
        attempt.end("failed", f"{ended.message or ended.outcome}, having changed nothing")
        return
    if submission.problems:
        reason = "; ".join(submission.problems[:5])
        attempt.gates["integrity"] = GateResult(passed=False, reason=reason)
        attempt.end("ineligible", f"integrity: {reason}")
        return
    try:
        attempt.image = await build(
            course.provider,
            course.base,
            submission,
            course.spec,
            name=f"{course.race}-{attempt.name}-replay",
            labels={**course.labels, "attempt": attempt.name, "role": "replay"},
        )
    except Rejected as e:
        attempt.end("ineligible", str(e))


async def _judge(course: Course, attempt: Attempt, image: ReplayImage) -> None:
    """Ask the gates in order; the first that does not pass ends the attempt."""
    for name, gate in course.gates:
        context = ScoreContext(name, attempt.name)
        async with image.replay() as replay:
            with boundary(ScorerError, f"scorer {name!r}"):
                score: Any = await gate.score(replay, context)
                if not isinstance(score, Score):
                    raise TypeError(f"score() returned {type(score).__name__}, not a Score")
        if not score.passed and is_repeatable(gate, score):
            score = await repeated(course, attempt.name, image, name, gate, score)
            if score.passed:
                attempt.reasons.append(f"{name}: {score.reason}")
        attempt.gates[name] = GateResult(passed=score.passed, reason=score.reason)
        course.emit("attempt.gate", attempt.name, gate=name, passed=score.passed, reason=score.reason)
        if not score.passed:
            attempt.end("ineligible", f"{name}: {score.reason or 'did not pass'}")
            return
