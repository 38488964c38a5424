"""Running a race: from the race file to the verdict.

Each step puts its event into the store before the next begins. Whatever ends a race, an error, an interrupt, a
verdict, every sandbox that it made is deleted, but for the winner's; one that cannot be deleted is named.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from race.agent import add_usage
from race.assembly import Plugins, assemble
from race.atomic import write_atomically
from race.attempt import Course, run_attempt
from race.base import Base, prepare, reopen
from race.calibration import calibrate
from race.conclusion import Conclusion, conclude
from race.conclusion import verdict as make_verdict
from race.deciding import Measured, run_finals
from race.errors import MachineError, RaceError, SandboxError, SpecError
from race.gateway import Budget, Gateway, Record, Source, Timeouts
from race.heartbeat import heartbeat
from race.history import RaceHistory, history
from race.home import home as default_home
from race.measuring import measure_base
from race.pictures import svg
from race.sandbox import SandboxProvider
from race.slots import Slots
from race.spec import RaceSpec, load
from race.store import Event, RaceRow, Store, StoreError, TakenOverError, owner
from race.takeover import take_over
from race.tools import needed
from race.verdict import MetricResult, RaceStatus, Verdict

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a race is run under besides its race file.

    Attributes:
        race: its id; None for a new one.
        parent: the batch, or the race of several rounds, that it is part of.
        fresh: prepare the base anew even if it is cached.
        retries: how often an attempt that broke through no fault of its agent is started again.
        slots: lets a limited number of agents work at once.
        provider: of its sandboxes, checked and shared with other races; None for one of its own.
        leaves: whether it is left to be gone on with when it is cancelled.
        replay: answers of an earlier race, in place of any model.
    """

    race: str | None = None
    parent: str = ""
    fresh: bool = False
    retries: int = 0
    slots: Slots = field(default_factory=Slots)
    provider: SandboxProvider | None = None
    leaves: Callable[[], bool] = lambda: False
    replay: Source | None = None

    @property
    def replayed(self) -> tuple[str, ...]:
        """The folders of the answers, if it is a replay."""
        return self.replay.folders if self.replay is not None else ()


async def run(
    spec: RaceSpec,
    *,
    fresh: bool = False,
    on_event: OnEvent | None = None,
    home: Path | None = None,
    replay: Source | None = None,
) -> Verdict:
    """Run a race to its end.

    Args:
        spec: from `race.load`.
        fresh: prepare the base anew even if it is cached.
        on_event: called with every event, in order, from the event loop.
        home: the state folder; default: ``$RACE_HOME``, or ``race/`` in the XDG state folder.
        replay: answers of an earlier race of the same file: models are not asked, and no key is needed.

    Returns:
        The verdict. "No winner" is an ordinary one.

    Raises:
        SpecError: the race file is wrong, or what it says does not work (set-up, benchmark of the base).
        PluginError: a plugin is unknown or has the wrong shape.
        MachineError: this machine cannot run it.
        StoreError: the store cannot be written to any more, or another process has taken the race over. What was
            written is whole, and `resume` goes on from there.

    A cancelled race ends its agents, deletes its sandboxes, records a verdict with the status "cancelled", and passes
    the cancellation on.
    """
    home = home or default_home()
    with open_store(home) as store:
        return await run_in(store, spec, Terms(fresh=fresh, replay=replay), on_event)


async def resume(race: str, *, on_event: OnEvent | None = None, home: Path | None = None) -> Verdict:
    """Go on with a race whose process is gone.

    What was finished keeps its result, living forks are taken over, agents that can go on in the middle of their work,
    and measurements that were made count.

    Args:
        race: its id, the beginning of one, or ``"last"``.
        on_event: called with every further event, in order, from the event loop.
        home: the state folder, as for `run`.

    Raises:
        SpecError: there is no such race, it has ended, its process is at work, or its base is gone.
        PluginError: as `run`, like the other errors.
    """
    home = home or default_home()
    with open_store(home) as store:
        return await resume_in(store, race, Terms(), on_event)


@contextmanager
def open_store(home: Path) -> Generator[Store, None, None]:
    """The store of a state folder, with its leases renewed, until the block ends."""
    store = Store(home)
    try:
        with heartbeat(store):
            yield store
    finally:
        store.close()


async def run_in(store: Store, spec: RaceSpec, terms: Terms, on_event: OnEvent | None = None) -> Verdict:
    """As `run`, with a store that is open."""
    if spec.rounds > 1:
        from race.rounds import run_rounds  # noqa: PLC0415 - made of the races of this module

        return await run_rounds(store, spec, terms, on_event)
    plugins = assemble(spec, store.home, terms.provider, keyless=terms.replay is not None)
    race = _Race(spec, plugins, store, terms, on_event)
    store.begin(
        race.id,
        spec.task.name,
        str(spec.path),
        spec=spec.model_dump_json(),
        parent=terms.parent,
        replay=terms.replayed,
    )
    return await race.run(RaceHistory())


async def resume_in(store: Store, name: str, terms: Terms, on_event: OnEvent | None = None) -> Verdict:
    """As `resume`, with a store that is open."""
    row = store.race(name)
    spec = spec_of(row)
    if row.replay and terms.replay is None:  # it stays a replay: no model is asked
        terms = replace(terms, replay=Source.of(row.replay))
    if spec.rounds > 1:
        from race.rounds import resume_rounds  # noqa: PLC0415 - likewise

        return await resume_rounds(store, row.id, terms, on_event)
    plugins = assemble(spec, store.home, terms.provider, keyless=terms.replay is not None)
    race = _Race(spec, plugins, store, replace(terms, race=row.id), on_event)
    store.claim(row.id)
    return await race.run(history(store.events(row.id)))


def spec_of(row: RaceRow) -> RaceSpec:
    """The race file of a race, as it was when the race began."""
    return RaceSpec.model_validate_json(row.spec) if row.spec else load(row.file)


class _Race:
    def __init__(
        self, spec: RaceSpec, plugins: Plugins, store: Store, terms: Terms, on_event: OnEvent | None
    ) -> None:
        self.spec = spec
        self.plugins = plugins
        self.store = store
        self.terms = terms
        self.id = terms.race or f"{spec.task.name[:20]}-{secrets.token_hex(4)}"
        self.labels = {"race": self.id, "owner": owner()}
        warning = plugins.provider.capabilities.warning
        self.warnings = [warning] if warning else []
        self.base_metrics: dict[str, MetricResult] = {}
        self.measured: Measured | None = None
        self.kept: str | None = None
        self.conclusion = Conclusion()
        self.gateway = Gateway(
            Budget(spec.budget.tokens, spec.budget.cost_usd, spec.budget.requests),
            Timeouts(spec.gateway.request_timeout, spec.gateway.idle_timeout, spec.gateway.patience),
            Record(store.folder(self.id) / "exchanges"),
            terms.replay,
        )
        self._on_event = on_event
        self._began = time.monotonic()

    async def run(self, past: RaceHistory) -> Verdict:
        """Run it, or go on with it, to its end."""
        try:
            return await self._run(past)
        except BaseException as e:
            if isinstance(e, anyio.get_cancelled_exc_class()) and self.terms.leaves():
                self.store.release(self.id)
                raise
            if (lost := _lost_store(e)) is not None:
                # Nothing can be written down any more, so nothing is done any more: it is as if the process were gone.
                if not isinstance(lost, TakenOverError):
                    with contextlib.suppress(StoreError):
                        self.store.release(self.id)
                raise lost from None
            raise
        finally:
            if self.terms.provider is None:
                with anyio.CancelScope(shield=True):
                    await self.plugins.provider.aclose()

    async def _run(self, past: RaceHistory) -> Verdict:
        self._began -= past.seconds
        names = [a.name for a in self.plugins.attempts]
        self.emit("race.resumed" if past.lives else "race.started", task=self.spec.task.name, attempts=names)
        status: RaceStatus = "failed"
        error = ""
        verdict = past.verdict
        lost = False
        try:
            if verdict is None:
                async with self.gateway:
                    course = await self._prepare(past)
                    await self._race(course)
                await self._finals(course)
                status = "won" if self.conclusion.winner else "no_winner"
        except anyio.get_cancelled_exc_class():
            lost = self.terms.leaves()
            if lost:
                raise
            status = "cancelled"
            self.conclusion = Conclusion(reason="the race was interrupted")
            self.emit("race.cancelling")
            raise
        except Exception as e:
            lost = _lost_store(e) is not None
            error = str(e) if isinstance(e, RaceError) else f"{type(e).__name__}: {e}"
            self.conclusion = Conclusion(reason=error)
            raise
        finally:
            if not lost:
                with anyio.CancelScope(shield=True):
                    verdict = await self._end(verdict, status, error)
        if verdict is None:
            raise AssertionError("whatever is lost is raised above")
        return verdict

    def emit(self, kind: str, attempt: str = "", **data: Any) -> None:
        event = self.store.append(self.id, kind, attempt, at=round(self._seconds(), 3), **data)
        if self._on_event is not None:
            self._on_event(event)

    def _seconds(self) -> float:
        """That it has run, in all its processes together."""
        return time.monotonic() - self._began

    async def _prepare(self, past: RaceHistory) -> Course:
        provider = self.plugins.provider
        if self.terms.provider is None:
            await check(provider)
        base = await self._base(past)
        self.warnings += await take_over(
            self.id,
            provider,
            self.plugins.attempts,
            past,
            owner=owner(),
            keep_forks=self.spec.keep.winner == "fork",
        )
        course = Course(
            self.id,
            self.spec,
            base,
            provider,
            self.plugins.gates,
            self.store.home,
            self.store.folder(self.id),
            self.labels,
            self.emit,
            self._watch_budget,
            self.gateway,
            finals=past.finals,
            retries=self.terms.retries,
            slots=self.terms.slots,
        )
        course = replace(course, baselines=await calibrate(course, self.plugins.gates))
        if past.base is not None:
            known = past.base["metrics"]
            self.base_metrics = {k: MetricResult.model_validate(v) for k, v in known.items()}
            return course
        self.base_metrics = await measure_base(course, self.plugins.metrics)
        metrics = {k: v.model_dump() for k, v in self.base_metrics.items()}
        self.emit(
            "base.ready",
            sandbox=base.sandbox,
            cached=base.cached,
            metrics=metrics,
            key=base.key,
            workdir=base.workdir,
            commit=base.commit,
        )
        return course

    async def _base(self, past: RaceHistory) -> Base:
        """The base; of a race that is gone on with, the one that it began with."""
        provider, home = self.plugins.provider, self.store.home
        if past.base is not None and (base := await reopen(provider, home, past.base)) is not None:
            return base
        base = await prepare(
            self.spec,
            provider,
            home,
            fresh=self.terms.fresh,
            on_progress=lambda text: self.emit("base.progress", text=text),
            tools=needed(a.agent for a in self.plugins.attempts),
        )
        if past.base is not None and past.base["key"] != base.key:
            raise SpecError(
                f"the base of {self.id} is gone, and its project has changed since; run the race file again"
            )
        return base

    async def _race(self, course: Course) -> None:
        """All agents at once; each attempt goes on to its gates as soon as its agent has ended."""
        seconds = self.spec.budget.seconds
        async with anyio.create_task_group() as group:
            for attempt in self.plugins.attempts:
                if seconds is not None:
                    left = seconds - (time.monotonic() - self._began)
                    attempt.stop = anyio.CancelScope(deadline=anyio.current_time() + left)
                group.start_soon(run_attempt, course, attempt)

    def _watch_budget(self) -> None:
        """End every agent once the race has spent what it may.

        The gateway refuses by itself what comes after; this is for agents that are at something else, and for those
        that do not use it.
        """
        budget = self.spec.budget
        spent = add_usage(*(a.trajectory.usage for a in self.plugins.attempts))
        tokens = spent.input_tokens + spent.output_tokens
        if (
            self.gateway.purse.spent
            or (budget.tokens is not None and tokens >= budget.tokens)
            or (budget.cost_usd is not None and (spent.cost_usd or 0.0) >= budget.cost_usd)
        ):
            for attempt in self.plugins.attempts:
                if attempt.stop is not None:
                    attempt.stop.cancel()

    async def _finals(self, course: Course) -> None:
        """Measure the eligible, decide, and keep the winner."""
        attempts = self.plugins.attempts
        eligible = [a for a in attempts if a.eligible]
        if eligible and self.plugins.metrics:
            self.measured = await run_finals(course, eligible, self.plugins.metrics)
            self.warnings += self.measured.warnings
        self.conclusion = conclude(self.spec, attempts, self.measured)
        winner = next((a for a in attempts if a.name == self.conclusion.winner), None)
        if winner is None or self.spec.keep.winner == "patch":
            return
        as_it_stands = self.spec.keep.winner == "fork"
        kept = winner.fork if as_it_stands else winner.image.sandbox if winner.image else None
        if kept is None:
            return
        try:
            await kept.label({"keep": "yes", "workdir": self.spec.base.workdir})
            await (kept.thaw() if as_it_stands else kept.start())
            self.kept = kept.name
        except SandboxError as e:
            self.warnings.append(f"the winner's sandbox could not be kept: {e}; its patch is whole")

    async def _end(self, verdict: Verdict | None, status: RaceStatus, error: str) -> Verdict:
        """Write down the verdict, clean up, and end. A race that is killed in here goes on from the verdict."""
        if verdict is None:
            verdict = self._verdict(status)
            self.emit("race.verdict", verdict=verdict.model_dump(mode="json"))
        else:
            self.kept = next((a.sandbox for a in verdict.attempts if a.sandbox_state == "kept"), None)
        before = len(self.warnings)
        await self._clean_up()
        verdict = verdict.model_copy(update={"warnings": (*verdict.warnings, *self.warnings[before:])})
        text = verdict.model_dump_json(indent=2) + "\n"
        folder = self.store.folder(self.id)
        if self.measured is not None:
            await anyio.to_thread.run_sync(write_atomically, folder / "samples.svg", svg(verdict))
        await anyio.to_thread.run_sync(write_atomically, folder / "verdict.json", text)
        ended = self.store.finish(verdict, error)
        if self._on_event is not None:
            self._on_event(ended)
        return verdict

    async def _clean_up(self) -> None:
        """Delete every sandbox of this race but the one that is kept, children before parents."""
        provider = self.plugins.provider
        try:
            mine = [i for i in await provider.list() if i.labels.get("race") == self.id]
        except Exception as e:  # noqa: BLE001 - the verdict must still be written
            self.warnings.append(
                f"sandboxes could not be listed for clean-up: {e}; 'race gc' removes what is left"
            )
            return
        for info in reversed(mine):
            if info.name == self.kept:
                continue
            try:
                await (await provider.get(info.name)).delete()
            except Exception as e:  # noqa: BLE001 - one that cannot be deleted must not keep the others
                self.warnings.append(
                    f"the sandbox {info.name} could not be deleted: {e}; 'race gc' tries again"
                )
            else:
                self.emit("sandbox.deleted", info.labels.get("attempt", ""), sandbox=info.name)

    def _verdict(self, status: RaceStatus) -> Verdict:
        return make_verdict(
            self.conclusion,
            race=self.id,
            spec=self.spec,
            status=status,
            attempts=self.plugins.attempts,
            base_metrics=self.base_metrics,
            measured=self.measured,
            kept=self.kept,
            seconds=self._seconds(),
            warnings=tuple(self.warnings),
        )


async def check(provider: SandboxProvider) -> None:
    """See that sandboxes work here.

    Raises:
        MachineError: they do not; the text says what is missing.
    """
    findings = await provider.check()
    if bad := [f for f in findings if f.required and not f.ok]:
        raise MachineError("\n".join(f"{f.name}: {f.detail}; {f.remedy}" for f in bad))


def _lost_store(error: BaseException) -> StoreError | None:
    """The failure of the store in an error, or in a group of errors, if there is one."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return next((lost for e in inner if (lost := _lost_store(e)) is not None), None)
    return None
