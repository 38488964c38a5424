"""Running a race: from the race file to the verdict.

Each step puts its event into the store before the next begins. Whatever ends a race, an error, an interrupt, a
verdict, every sandbox that it made is deleted, but for the winner's; one that cannot be deleted is named.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from race.agent import add_usage
from race.assembly import Plugins, assemble
from race.attempt import Course, run_attempt
from race.base import prepare
from race.conclusion import Conclusion, conclude
from race.conclusion import verdict as make_verdict
from race.errors import MachineError, RaceError, SandboxError
from race.home import home as default_home
from race.measuring import Measured, measure_base, run_finals
from race.pictures import svg
from race.sandbox import Sandbox
from race.spec import RaceSpec
from race.store import Event, Store, owner
from race.verdict import MetricResult, RaceStatus, Verdict

OnEvent = Callable[[Event], None]


async def run(
    spec: RaceSpec,
    *,
    fresh: bool = False,
    on_event: OnEvent | None = None,
    home: Path | None = None,
) -> Verdict:
    """Run a race to its end.

    Args:
        spec: from `race.load`.
        fresh: prepare the base anew even if it is cached.
        on_event: called with every event, in order, from the event loop.
        home: the state folder; default: ``$RACE_HOME``, or ``race/`` in the XDG state folder.

    Returns:
        The verdict. "No winner" is an ordinary one.

    Raises:
        SpecError: the race file is wrong, or what it says does not work (set-up, benchmark of the base).
        PluginError: a plugin is unknown or has the wrong shape.
        MachineError: this machine cannot run it.

    A cancelled race ends its agents, deletes its sandboxes, records a verdict with the status "cancelled", and passes
    the cancellation on.
    """
    home = home or default_home()
    plugins = assemble(spec, home)
    store = Store(home)
    try:
        race = _Race(spec, plugins, store, on_event or (lambda _: None))
        return await race.run(fresh=fresh)
    finally:
        with anyio.CancelScope(shield=True):
            await plugins.provider.aclose()
        store.close()


class _Race:
    def __init__(self, spec: RaceSpec, plugins: Plugins, store: Store, on_event: OnEvent) -> None:
        self.spec = spec
        self.plugins = plugins
        self.store = store
        self.id = f"{spec.task.name[:20]}-{secrets.token_hex(4)}"
        self.labels = {"race": self.id, "owner": owner()}
        self.warnings: list[str] = []
        self.base_metrics: dict[str, MetricResult] = {}
        self.measured: Measured | None = None
        self.kept: Sandbox | None = None
        self.conclusion = Conclusion()
        self._on_event = on_event
        self._began = time.monotonic()

    async def run(self, *, fresh: bool) -> Verdict:
        self.store.begin(self.id, self.spec.task.name, str(self.spec.path))
        self.emit("race.started", task=self.spec.task.name, attempts=[a.name for a in self.plugins.attempts])
        status: RaceStatus = "failed"
        error = ""
        try:
            course = await self._prepare(fresh=fresh)
            await self._race(course)
            await self._finals(course)
            status = "won" if self.conclusion.winner else "no_winner"
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            self.conclusion = Conclusion(reason="the race was interrupted")
            self.emit("race.cancelling")
            raise
        except Exception as e:
            error = str(e) if isinstance(e, RaceError) else f"{type(e).__name__}: {e}"
            self.conclusion = Conclusion(reason=error)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._clean_up()
            verdict = self._finish(status)
            self.emit("race.ended", status=status, winner=verdict.winner, error=error)
        return verdict

    def emit(self, kind: str, attempt: str = "", **data: Any) -> None:
        self._on_event(self.store.append(self.id, kind, attempt, **data))

    async def _prepare(self, *, fresh: bool) -> Course:
        provider = self.plugins.provider
        findings = await provider.check()
        if bad := [f for f in findings if f.required and not f.ok]:
            raise MachineError("\n".join(f"{f.name}: {f.detail}; {f.remedy}" for f in bad))
        base = await prepare(
            self.spec,
            provider,
            self.store.home,
            fresh=fresh,
            on_progress=lambda text: self.emit("base.progress", text=text),
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
        )
        self.base_metrics = await measure_base(course, self.plugins.metrics)
        metrics = {k: v.model_dump() for k, v in self.base_metrics.items()}
        self.emit("base.ready", sandbox=base.sandbox, cached=base.cached, metrics=metrics)
        return course

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
        """End every agent once the race has spent what it may."""
        budget = self.spec.budget
        spent = add_usage(*(a.trajectory.usage for a in self.plugins.attempts))
        tokens = spent.input_tokens + spent.output_tokens
        if (budget.tokens is not None and tokens >= budget.tokens) or (
            budget.cost_usd is not None and (spent.cost_usd or 0.0) >= budget.cost_usd
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
            self.kept = kept
        except SandboxError as e:
            self.warnings.append(f"the winner's sandbox could not be kept: {e}; its patch is whole")

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
            if self.kept is not None and info.name == self.kept.name:
                continue
            try:
                await (await provider.get(info.name)).delete()
                self.emit("sandbox.deleted", info.labels.get("attempt", ""), sandbox=info.name)
            except Exception as e:  # noqa: BLE001 - one that cannot be deleted must not keep the others
                self.warnings.append(
                    f"the sandbox {info.name} could not be deleted: {e}; 'race gc' tries again"
                )

    def _finish(self, status: RaceStatus) -> Verdict:
        verdict = make_verdict(
            self.conclusion,
            race=self.id,
            spec=self.spec,
            status=status,
            attempts=self.plugins.attempts,
            base_metrics=self.base_metrics,
            measured=self.measured,
            kept=self.kept.name if self.kept else None,
            seconds=time.monotonic() - self._began,
            warnings=tuple(self.warnings),
        )
        self.store.finish(verdict)
        folder = self.store.folder(self.id)
        (folder / "verdict.json").write_text(verdict.model_dump_json(indent=2) + "\n")
        if self.measured is not None:
            (folder / "samples.svg").write_text(svg(verdict), "utf-8")
        return verdict
