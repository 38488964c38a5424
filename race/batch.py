"""Running a batch: many tasks, each a race of its own, by one process or by several that come and go.

A task is claimed in the store, run as a race, and settled there. Whoever comes with the same key and the same request
joins in; what a killed process had claimed is gone on with by another.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio

from race.batch_result import BatchResult, summed
from race.batch_spec import BatchSpec
from race.batch_table import BatchRow, BatchTable, TaskRow
from race.errors import MachineError, RaceError, SpecError
from race.home import home as default_home
from race.plugins import provider as make_provider
from race.removal import delete_sandboxes
from race.runner import OnEvent, Terms, check, open_store, resume_in, run_in
from race.sandbox import SandboxProvider
from race.slots import Slots
from race.store import Store, StoreError, TakenOverError
from race.verdict import Verdict
from race.watching import follow

_POLL = 0.2


async def run_batch(
    batch: BatchSpec, *, key: str | None = None, on_event: OnEvent | None = None, home: Path | None = None
) -> BatchResult:
    """Run a batch to its end, or join the processes that are at it.

    Args:
        batch: from `race.load_batch`.
        key: belongs to one request: with the same one, work in progress is joined and a kept result returned at
            once. None gives the batch a key of its own, and cancels it if this call is cancelled; one with a key is
            left to others then, or to the next call.
        on_event: called with every event of the batch and of its races, in order, whichever process made it.
        home: the state folder, as for `race.run`.

    Raises:
        SpecError: the key belongs to another request.
        MachineError: this machine cannot run sandboxes.
        StoreError: the store cannot be written to any more; what was written is whole.
    """
    home = home or default_home()
    with open_store(home) as store:
        table = BatchTable(store)
        return await work_on(store, table.open(batch, key), on_event, keyed=key is not None)


async def work_on(
    store: Store, row: BatchRow, on_event: OnEvent | None = None, *, keyed: bool = True
) -> BatchResult:
    """Work on a batch until it has ended, whoever ends it."""
    if row.result is not None:
        return BatchResult.model_validate_json(row.result)
    work = _Batch(store, row, keyed=keyed)
    if on_event is None:
        return await work.run()
    result: list[BatchResult] = []

    async def run() -> None:
        result.append(await work.run())

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            async for event in follow(store, row.id):
                on_event(event)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    return result[0]


async def cancel_batch(name: str, *, home: Path | None = None) -> BatchResult:
    """Cancel a batch: end its agents, delete its sandboxes, and keep what was finished.

    Raises:
        SpecError: there is none, or it has ended.
    """
    home = home or default_home()
    with open_store(home) as store:
        table = BatchTable(store)
        row = table.get(name)
        if row.result is not None:
            raise SpecError(f"the batch {row.id} has ended")
        table.cancel(row.id)
        while (row := table.get(row.id)).result is None and row.alive:  # noqa: ASYNC110 - in other processes
            await anyio.sleep(_POLL)
        return await work_on(store, row)


@dataclass(slots=True)
class _Batch:
    """This process's part in a batch."""

    store: Store
    row: BatchRow
    keyed: bool
    providers: dict[str, SandboxProvider] = field(default_factory=dict[str, SandboxProvider])

    async def run(self) -> BatchResult:
        table = BatchTable(self.store)
        spec = table.spec(self.row.id)
        try:
            await self._check(spec)
            slots = Slots(self.store.home / "batches" / self.row.id, spec.concurrency)
            at_once = min(len(spec.tasks), spec.concurrency + max(spec.concurrency // 2, 2))
            async with anyio.create_task_group() as group:
                group.start_soon(self._heed, table, group.cancel_scope)
                async with anyio.create_task_group() as workers:
                    for _ in range(at_once):
                        workers.start_soon(self._work, table, spec, slots)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        except anyio.get_cancelled_exc_class():
            if not self.keyed:
                table.cancel(self.row.id)
                with anyio.CancelScope(shield=True):
                    await self._conclude(table, spec)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                for provider in self.providers.values():
                    await provider.aclose()
        return await self._conclude(table, spec)

    async def _check(self, spec: BatchSpec) -> None:
        for task in spec.tasks:
            name = task.base.sandbox
            if name not in self.providers:
                self.providers[name] = make_provider(name, self.store.home, task.place("base", "sandbox"))
                await check(self.providers[name])

    async def _heed(self, table: BatchTable, scope: anyio.CancelScope) -> None:
        """End the work once somebody has cancelled the batch."""
        while not self._cancelled(table):  # noqa: ASYNC110 - by another process
            await anyio.sleep(_POLL * 2)
        scope.cancel()

    def _cancelled(self, table: BatchTable) -> bool:
        return table.status(self.row.id) in ("cancelling", "cancelled")

    async def _work(self, table: BatchTable, spec: BatchSpec, slots: Slots) -> None:
        """Take one task after the other until all are settled."""
        while True:
            task = table.claim(self.row.id)
            if task is not None:
                await self._do(table, spec, slots, task)
            elif all(t.status in ("done", "failed") for t in table.tasks(self.row.id)):
                return
            else:
                await anyio.sleep(_POLL)

    async def _do(self, table: BatchTable, spec: BatchSpec, slots: Slots, task: TaskRow) -> None:
        race = spec.tasks[task.number]
        terms = Terms(
            race=task.race,
            parent=task.batch,
            retries=spec.retries,
            slots=slots,
            provider=self.providers[race.base.sandbox],
            leaves=lambda: self.keyed and not self._cancelled(table),
        )
        self.store.append(task.batch, "task.started", task=task.name, race=task.race, number=task.number)
        try:
            known = next((r for r in self.store.races(task.batch) if r.id == task.race), None)
            if known is None:
                verdict = await run_in(self.store, race, terms)
            else:
                verdict = known.verdict or await resume_in(self.store, task.race, terms)
        except TakenOverError:
            return
        except StoreError:
            raise
        except MachineError as e:
            if task.tries < spec.retries:
                table.again(task, str(e))
            else:
                table.settle(task, "failed", str(e))
        except anyio.get_cancelled_exc_class():
            if terms.leaves():
                table.release(task)
            raise
        except RaceError as e:
            table.settle(task, "failed", str(e))
        except Exception as e:  # noqa: BLE001 - what breaks one task must not take the others down
            table.settle(task, "failed", f"the framework broke: {type(e).__name__}: {e}")
        else:
            table.settle(
                task,
                "done",
                verdict=verdict.status,
                winner=verdict.winner,
                reason=verdict.decided_by,
                seconds=verdict.seconds,
            )

    async def _conclude(self, table: BatchTable, spec: BatchSpec) -> BatchResult:
        """Put the result together, once, and delete what is left of tasks that were cancelled."""
        cancelled = self._cancelled(table)
        tasks = table.tasks(self.row.id)
        rows = {r.id: r for r in self.store.races(self.row.id)}
        if cancelled:
            await self._cancel_rest([r for r in rows if rows[r].verdict is None], spec)
            rows = {r.id: r for r in self.store.races(self.row.id)}
        result = summed(
            self.row,
            spec.tasks,
            tasks,
            [row.verdict if (row := rows.get(t.race)) else None for t in tasks],
            cancelled=cancelled,
            seconds=max(time.time() - self.row.created, 0.0),
        )
        ended = table.end(self.row.id, result.status, result.model_dump_json())
        return BatchResult.model_validate_json(ended.result or "")

    async def _cancel_rest(self, races: list[str], spec: BatchSpec) -> None:
        """End the races that a killed process left, without going on with them."""
        names = dict(
            zip((t.race for t in BatchTable(self.store).tasks(self.row.id)), spec.tasks, strict=True)
        )
        for race in races:
            try:
                self.store.claim(race)
            except SpecError:
                continue  # somebody is ending it
            await delete_sandboxes(self.store.home, {race})
            reason = "the batch was cancelled"
            task = names[race].task.name if race in names else race
            self.store.finish(Verdict(race=race, task=task, status="cancelled", decided_by=reason))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to report of several: one of the store if there is one, as it stops everything."""
    lost = group.subgroup(StoreError)
    error: BaseException = lost or group
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
