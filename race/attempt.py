"""One attempt: an agent at work in its fork, what it handed in, and what the gates say of it.

Whatever goes wrong in an attempt is recorded on it; nothing of it reaches a sibling.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import JsonValue

from race.agent import Agent, AgentContext, Recorder, Resumes, Trajectory, add_usage
from race.atomic import storing
from race.base import Base
from race.bash import Bash
from race.capture import capture
from race.errors import (
    AgentError,
    AttemptError,
    LimitReached,
    ModelError,
    Rejected,
    SandboxError,
)
from race.flaking import ask, is_repeatable, repeated
from race.gateway import Account, Budget, Gateway
from race.handoff import deposit
from race.history import AttemptHistory, FinalsHistory
from race.journal import DivergedError, Journal, Kept
from race.kept import keep_submission, kept_submission
from race.plugins import boundary
from race.project import is_left_over
from race.prompting import outcome_of, settled
from race.replay import ReplayImage, build, task_of
from race.sandbox import Sandbox, SandboxProvider
from race.scoring import Gate, Score, ScoreContext
from race.slots import Slots
from race.spec import EntrySpec, RaceSpec
from race.store import StoreError
from race.submission import Submission
from race.trajectories import Told, keep, kept
from race.verdict import AttemptState, AttemptUsage, GateResult, MetricResult

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
    remarks: list[str] = field(default_factory=list[str])
    """What is to be known of how it came about, whatever its result."""
    gates: dict[str, GateResult] = field(default_factory=dict[str, GateResult])
    metrics: dict[str, MetricResult] = field(default_factory=dict[str, MetricResult])
    trajectory: Trajectory = field(default_factory=Trajectory)
    submission: Submission | None = None
    patch: Path | None = None
    seconds: float = 0.0
    fork: Sandbox | None = None
    image: ReplayImage | None = None
    past: AttemptHistory = field(default_factory=AttemptHistory)
    """How far an earlier process came with it."""
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
        gateway: the way to models.
        baselines: what gates said of the base, by name.
        deposits: lets one submission at a time be kept.
        finals: what an earlier process has measured.
        retries: how often an attempt that broke through no fault of its agent is started again.
        slots: lets a limited number of agents work at once.
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
    gateway: Gateway
    baselines: Mapping[str, Score] = field(default_factory=dict[str, Score])
    deposits: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))
    finals: FinalsHistory = field(default_factory=FinalsHistory)
    retries: int = 0
    slots: Slots = field(default_factory=Slots)


class _BrokenWorkError(AttemptError):
    """The machinery around an attempt broke; its agent may not have had a fair chance."""


async def run_attempt(course: Course, attempt: Attempt) -> None:
    """Run one attempt up to its gates, or go on with it.

    What broke is the attempt's result; nothing is raised but cancellation and `StoreError`, without which there is no
    use in going on.
    """
    attempt.remarks = list(attempt.past.remarks)
    if attempt.past.done is not None:
        await _restore(course, attempt, attempt.past)
        return
    for take in range(course.retries + 1):
        again = take < course.retries
        try:
            await _run_once(course, attempt, again=again)
        except _BrokenWorkError as e:
            course.emit("attempt.retry", attempt.name, reason=str(e))
            await _begin_anew(course, attempt, f"was started anew in a new fork after: {e}")
        else:
            break
    course.emit(
        "attempt.done",
        attempt.name,
        state=attempt.state or "eligible",
        reasons=attempt.reasons,
        seconds=attempt.seconds,
        eligible=attempt.eligible,
    )


async def _restore(course: Course, attempt: Attempt, past: AttemptHistory) -> None:
    """An attempt that was done keeps its result."""
    done = past.done or {}
    attempt.gates = dict(past.gates)
    attempt.reasons = [str(r) for r in done["reasons"]]
    attempt.seconds = float(done["seconds"])
    attempt.trajectory = _did(course, attempt)
    attempt.submission = kept_submission(course.folder, attempt.name)
    if attempt.submission is not None:
        attempt.patch = course.folder / f"{attempt.name}.patch"
    if done["eligible"]:
        await _replay(course, attempt)
    else:
        attempt.state = done["state"]


def _did(course: Course, attempt: Attempt) -> Trajectory:
    """What its agent did, as an earlier process kept it."""
    told = kept(course.folder, attempt.name)
    return told.trajectory if told is not None else Trajectory()


async def _begin_anew(course: Course, attempt: Attempt, why: str) -> None:
    """Forget the last take, but for its number, and remember why."""
    course.emit("attempt.remark", attempt.name, text=why)
    attempt.remarks.append(why)
    attempt.past = AttemptHistory(attempt.past.takes)
    attempt.state, attempt.reasons, attempt.gates = None, [], {}
    attempt.trajectory, attempt.submission, attempt.patch = Trajectory(), None, None
    for left in (attempt.fork, attempt.image.sandbox if attempt.image else None):
        if left is not None:
            with contextlib.suppress(SandboxError):  # the clean-up at the end of the race tries again
                await left.delete()
    attempt.fork = attempt.image = None
    if (stop := attempt.stop) is not None:
        attempt.stop = anyio.CancelScope(deadline=stop.deadline)
        if stop.cancel_called:
            attempt.stop.cancel()


async def _run_once(course: Course, attempt: Attempt, *, again: bool) -> None:
    """One take. What the machinery broke is raised as `_BrokenWorkError` if it may be tried again."""
    began = time.monotonic()
    past = attempt.past
    try:
        if past.submitted and (known := kept_submission(course.folder, attempt.name)) is not None:
            attempt.submission, attempt.gates = known, dict(past.gates)
            attempt.patch = course.folder / f"{attempt.name}.patch"
            attempt.trajectory = _did(course, attempt)
            attempt.seconds = past.seconds
        else:
            await _work_and_hand_in(course, attempt)
        await _replay(course, attempt)
        if attempt.image is not None:
            await _judge(course, attempt, attempt.image)
    except (StoreError, _BrokenWorkError):
        raise
    except (ModelError, SandboxError) as e:
        if again:
            raise _BrokenWorkError(str(e)) from e
        attempt.end("failed", str(e))
    except AttemptError as e:
        attempt.end("failed", str(e))
    except Exception as e:  # noqa: BLE001 - a bug of ours in one attempt must not take the others down
        attempt.end("failed", f"the framework broke: {type(e).__name__}: {e}")
    finally:
        attempt.seconds = attempt.seconds or time.monotonic() - began


async def _work_and_hand_in(course: Course, attempt: Attempt) -> None:
    known = kept(course.folder, attempt.name) if attempt.past.ended and attempt.fork else None
    if known is not None:
        attempt.trajectory = known.trajectory
        attempt.seconds = attempt.past.seconds
        await _end_work(course, attempt)
    else:
        attempt.past.ended = False
        async with course.slots.one():
            try:
                began = await _fork_and_work(course, attempt)
            except DivergedError as e:
                await _begin_anew(course, attempt, f"was started anew in a new fork: {e}")
                began = await _fork_and_work(course, attempt)
            attempt.seconds = time.monotonic() - began
            await _end_work(course, attempt)
    await _hand_in(course, attempt)


async def _fork(course: Course, attempt: Attempt) -> Sandbox:
    """A new fork for an attempt, or the one that it has."""
    spec, entry, name = course.spec, attempt.entry, attempt.name
    if attempt.fork is not None and isinstance(attempt.agent, Resumes):
        state = (await attempt.fork.info()).state
        if state != "running":
            await (attempt.fork.thaw() if state == "frozen" else attempt.fork.start())
        course.emit("attempt.resumed", name, sandbox=attempt.fork.name, agent=entry.agent, model=entry.model)
        return attempt.fork
    if attempt.past.sandbox:
        why = "its fork was gone" if attempt.fork is None else f"its agent {entry.agent!r} cannot go on"
        await _begin_anew(
            course, attempt, f"was started anew in a new fork, because the race was interrupted and {why}"
        )
    parent = await course.provider.get(course.base.sandbox)
    labels = {**course.labels, "attempt": name, "role": "attempt"}
    take = attempt.past.takes + 1
    sandbox = f"{course.race}-{name}" + (f".{take}" if take > 1 else "")
    fork = await parent.fork(sandbox, network=spec.base.network.agent, labels=labels)
    attempt.past = AttemptHistory(take, sandbox)
    attempt.fork = fork
    if take > 1:
        course.gateway.begin_anew(name)
    course.emit("attempt.started", name, sandbox=fork.name, agent=entry.agent, model=entry.model)
    return fork


async def _fork_and_work(course: Course, attempt: Attempt) -> float:
    """Let the agent work. Returns the time of `time.monotonic` that its work counts from."""
    spec, entry, name = course.spec, attempt.entry, attempt.name
    fork = await _fork(course, attempt)
    began = time.monotonic() - attempt.past.seconds

    def changed(recorder: Recorder) -> None:
        attempt.trajectory = recorder.trajectory()
        course.on_spent()

    recorder = Recorder(entry.max_steps, changed)
    journal = _journal(course, attempt, recorder)
    bash = Bash(
        fork,
        workdir=fork.place(spec.base.workdir),
        timeout=entry.command_timeout,
        recorder=recorder,
        on_start=lambda c: course.emit("attempt.command", name, step=recorder.step, command=c[:500]),
        on_result=lambda r: course.emit(
            "attempt.result", name, step=recorder.step, **asdict(r), usage=asdict(recorder.usage)
        ),
        journal=journal,
    )
    account = course.gateway.account(
        name,
        recorder,
        budget=Budget(**entry.budget.model_dump()),
        seed=attempt.number + 1,
        deadline=anyio.current_time() + max(entry.time_limit - attempt.past.seconds, 0.0),
    )
    context = AgentContext(
        name,
        entry.model,
        entry.hint.strip(),
        attempt.number + 1,
        entry.time_limit,
        recorder,
        journal=journal,
        account=account,
    )
    attempt.trajectory = await _work(course, attempt, bash, context, account.state)
    return began


def _journal(course: Course, attempt: Attempt, recorder: Recorder) -> Journal:
    name = attempt.name
    before = 0

    def asks(call: int) -> None:
        nonlocal before
        before = len(recorder.spendings)
        course.emit("attempt.asking", name, call=call)

    def answered(call: int, answer: JsonValue) -> None:
        used = add_usage(*recorder.spendings[before:])
        course.emit("attempt.answered", name, call=call, answer=answer, usage=asdict(used))

    def repeated(call: int) -> None:
        why = f"call {call} of its model was made again: the answer had not reached the disk when the race was killed"
        attempt.remarks.append(why)
        course.emit("attempt.repeated", name, call=call)
        course.emit("attempt.remark", name, text=why)

    return Journal(
        attempt.past.kept, on_ask=asks, on_answer=answered, on_repeat=repeated, on_recall=recorder.spent
    )


async def _end_work(course: Course, attempt: Attempt) -> None:
    """Hold what an agent left, and write down what it did."""
    fork = attempt.fork
    if fork is None:
        raise SandboxError("the fork is gone")
    # Nothing of the agent goes on from here: what it left running can neither change what is handed in nor
    # disturb what is measured. Only a fork that is to be kept as it stands keeps its processes, held still.
    with anyio.CancelScope(shield=True):
        await (fork.freeze() if course.spec.keep.winner == "fork" else fork.stop())
    ended = attempt.trajectory
    if attempt.past.ended:
        return
    entry = attempt.entry
    told = Told(course.race, attempt.name, entry.agent, entry.model, course.spec.task.prompt, ended)
    await anyio.to_thread.run_sync(keep, course.folder, told)
    course.emit(
        "attempt.ended",
        attempt.name,
        outcome=ended.outcome,
        message=ended.message[:2000],
        steps=len(ended.steps),
        usage=asdict(ended.usage),
    )


async def _work(
    course: Course, attempt: Attempt, bash: Bash, context: AgentContext, account: Account
) -> Trajectory:
    """Let the agent work until it has done, or a limit ends it; both are outcomes, and the fork counts.

    However an agent takes it that its account is closed, the reason for that is the reason for its end.
    """
    limit = attempt.entry.time_limit
    left = max(limit - attempt.past.seconds, 0.0)
    run = attempt.agent.run
    if attempt.past.sandbox and isinstance(attempt.agent, Resumes) and attempt.past.kept != Kept():
        run = attempt.agent.resume
    recorder = context.recorder
    attempt.stop = attempt.stop or anyio.CancelScope()
    try:
        with (
            attempt.stop,
            anyio.move_on_after(left) as timer,
            boundary(AgentError, f"agent {attempt.entry.agent!r}"),
        ):
            task = replace(task_of(course.spec), workdir=bash.workdir)
            return settled(await run(task, bash, context), account)
    except LimitReached as e:
        return recorder.trajectory(str(e), outcome_of(e))
    except AttemptError as e:
        if account.ended is not None:
            return recorder.trajectory(str(account.ended), outcome_of(account.ended))
        if account.broken:
            raise ModelError(account.broken) from None
        if isinstance(e, SandboxError):
            # It may be the agent's own doing, and what an agent did is never tried again.
            raise AgentError(f"its fork broke while it worked: {e}") from e
        raise
    if timer.cancelled_caught:
        waiting = f"; the model did not answer: {account.trouble}" if account.trouble else ""
        return recorder.trajectory(f"ended by its time limit of {limit:g} s{waiting}", "time")
    return recorder.trajectory("ended because the budget of the race is spent", "budget")


async def _hand_in(course: Course, attempt: Attempt) -> None:
    if attempt.fork is None:
        raise SandboxError("the fork is gone")
    submission = await capture(attempt.fork, course.base, machine=course.spec.task.carry == "machine")
    attempt.submission = submission
    with storing(course.folder):
        await anyio.to_thread.run_sync(
            deposit, course.folder, attempt.name, submission, course.base.repository, limiter=course.deposits
        )
    await anyio.to_thread.run_sync(keep_submission, course.folder, attempt.name, submission)
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
    labels = {**course.labels, "attempt": attempt.name, "role": "replay"}
    if attempt.past.replay:
        sandbox = await course.provider.get(attempt.past.replay)
        attempt.image = ReplayImage(sandbox, course.base, submission, course.spec, labels=labels)
        return
    try:
        attempt.image = await build(
            course.provider,
            course.base,
            submission,
            course.spec,
            name=f"{course.race}-{attempt.name}-replay",
            labels=labels,
        )
    except Rejected as e:
        attempt.end("ineligible", str(e))
        return
    course.emit("attempt.replay", attempt.name, sandbox=attempt.image.sandbox.name)


async def _judge(course: Course, attempt: Attempt, image: ReplayImage) -> None:
    """Ask the gates in order; the first that does not pass ends the attempt."""
    for name, gate in course.gates:
        if name in attempt.gates:
            if not attempt.gates[name].passed:
                attempt.end("ineligible", f"{name}: {attempt.gates[name].reason or 'did not pass'}")
                return
            continue
        recorder = Recorder(sys.maxsize, lambda _: course.on_spent())
        account = course.gateway.account(
            f"{attempt.name}~{name}", recorder, whose=f"the scorer {name!r}", seed=attempt.number + 1
        )
        context = ScoreContext(name, attempt.name, baseline=course.baselines.get(name), account=account)
        score = await ask(image, name, gate, context)
        if is_repeatable(score):
            score = await repeated(course, context, image, gate, score)
            if score.passed:
                attempt.reasons.append(f"{name}: {score.reason}")
        purse = account.state.purse
        used = AttemptUsage(**asdict(purse.usage)) if purse.requests else None
        attempt.gates[name] = GateResult(passed=score.passed, reason=score.reason, usage=used)
        # Not as "usage": whoever watches takes that for the agent's.
        spent = used.model_dump() if used is not None else None
        course.emit(
            "attempt.gate", attempt.name, gate=name, passed=score.passed, reason=score.reason, spent=spent
        )
        if not score.passed:
            attempt.end("ineligible", f"{name}: {score.reason or 'did not pass'}{_left_out(attempt)}")
            return


def _left_out(attempt: Attempt) -> str:
    """What the agent had in its fork and the replay has not: what works in the one may fail in the other."""
    submission = attempt.submission
    if submission is None or not (submission.ignored or submission.outside):
        return ""
    wanted = [p for p in submission.ignored if not is_left_over(p.encode())]
    parts = [f"{', '.join(wanted[:3])}, which git ignores"] if wanted else []
    kinds = {k: n for k, n in submission.machine.counts.items() if k != "bytecode"}
    if count := sum(kinds.values()):
        parts.append(f"{count} files outside of the project")
    return f" (it may have worked in the fork, which had {' and '.join(parts)})" if parts else ""
