"""Sub-commands about batches, and following anything that runs: ``batch cancel watch``."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Protocol

import anyio
import typer
from rich.console import Console

from race.batch import cancel_batch, run_batch, work_on
from race.batch_result import BatchResult
from race.batch_spec import BatchSpec, load_batch
from race.batch_table import BatchRow, BatchTable
from race.cli.batch_progress import BatchProgress
from race.cli.batch_report import as_csv, report_batch
from race.cli.progress import Progress
from race.cli.running import NO_WINNER, InterruptedRunError, exiting, run_async, tell
from race.errors import MachineError, SpecError
from race.home import home
from race.runner import open_store
from race.store import Event, Store
from race.teleport import apply_all
from race.watching import find, follow

LIVES = 5
"""How many workers may end before their batch has, until that is taken for a failure."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else.")]
Csv = Annotated[
    bool, typer.Option("--csv", help="Print a table of the variants as CSV to stdout, and nothing else.")
]
Batch = Annotated[str, typer.Argument(metavar="BATCH", help="Id or key of a batch; 'last' is the newest.")]


def register(app: typer.Typer) -> None:
    """Add these sub-commands."""
    app.command()(exiting(batch))
    app.command("batch-worker", hidden=True)(worker)
    app.command()(exiting(cancel))
    app.command()(watch)


class Shows(Protocol):
    """Something that shows events."""

    def __call__(self, event: Event, /) -> None:
        """Show one."""
        ...


def batch(
    file: Annotated[Path, typer.Argument(help="The batch file.", show_default=False)],
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="Belongs to this request: work under it is joined, and its result is kept."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return at once; the batch goes on by itself. Needs --key.")
    ] = False,
    as_json: Json = False,
    csv: Csv = False,
) -> int:
    """Run a batch: many tasks, each with its own race."""
    spec = load_batch(file)
    if detach and key is None:
        raise SpecError("--detach needs a --key, under which the batch can be found again")
    if key is None:
        with BatchProgress(Console(stderr=True)) as show:
            result = run_async(lambda: run_batch(spec, on_event=show))
        return _print(result, as_json=as_json, csv=csv)
    return _keyed(spec, key, detach=detach, as_json=as_json, csv=csv)


def _keyed(spec: BatchSpec, key: str, *, detach: bool, as_json: bool, csv: bool) -> int:
    store = Store(home())
    row = BatchTable(store).open(spec, key)
    if row.result is None:
        first = _start_worker(row)
        if detach:
            store.close()
            tell(f"{row.id} goes on by itself; 'race watch {key}' shows it, 'race cancel {key}' ends it")
            return 0
        try:
            with BatchProgress(Console(stderr=True)) as show:
                row = run_async(lambda: _attend(store, row, first, show))
        except InterruptedRunError:
            tell(f"the batch goes on; 'race watch {key}' shows it, 'race cancel {key}' ends it")
            raise
    store.close()
    return _print(BatchResult.model_validate_json(row.result or ""), as_json=as_json, csv=csv)


def _start_worker(row: BatchRow) -> subprocess.Popen[bytes]:
    """A process that works on a batch whatever becomes of this one."""
    folder = home() / "batches" / row.id
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "worker.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-m", "race", "batch-worker", row.id],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


async def _attend(store: Store, row: BatchRow, first: subprocess.Popen[bytes], show: Shows) -> BatchRow:
    """Show a batch until it has ended, and see to it that somebody works on it."""
    workers = [first]

    async def see_to_it() -> None:
        while True:
            await anyio.sleep(1)
            if workers[-1].poll() is None or BatchTable(store).get(row.id).result is not None:
                continue
            if len(workers) == LIVES:
                log = home() / "batches" / row.id / "worker.log"
                raise MachineError(f"nobody can work on {row.id}; what its workers said is in {log}")
            workers.append(_start_worker(row))

    async with anyio.create_task_group() as group:
        group.start_soon(see_to_it)
        async with aclosing(follow(store, row.id)) as events:
            async for event in events:
                show(event)
        group.cancel_scope.cancel()
    return BatchTable(store).get(row.id)


def worker(batch: Batch) -> None:
    """Work on a batch until it has ended."""

    async def work() -> None:
        with open_store(home()) as store:
            await work_on(store, BatchTable(store).get(batch))

    run_async(work)


def cancel(name: Batch = "last", as_json: Json = False, csv: Csv = False) -> int:
    """Cancel a batch: end its agents and delete its sandboxes. What was finished is kept."""
    return _print(run_async(lambda: cancel_batch(name)), as_json=as_json, csv=csv)


def _print(result: BatchResult, *, as_json: bool, csv: bool) -> int:
    if as_json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    elif csv:
        sys.stdout.write(as_csv(result))
    report_batch(result, Console(stderr=as_json or csv))
    return 0 if result.totals.won == result.totals.tasks else NO_WINNER


def show_batch(name: str, *, as_json: bool) -> int | None:
    """Show a batch again; None if there is none of this name."""
    store = Store(home())
    try:
        row = BatchTable(store).get(name)
    except SpecError:
        return None
    finally:
        store.close()
    if row.result is None:
        how = (
            "is still running"
            if row.alive
            else f"is not worked on; 'race batch FILE --key {row.key}' goes on with it"
        )
        raise SpecError(f"{row.id} {how}")
    return _print(BatchResult.model_validate_json(row.result), as_json=as_json, csv=False)


def watch(
    name: Annotated[
        str, typer.Argument(metavar="RACE|BATCH", help="Id of a race or batch, or key of a batch.")
    ] = "last",
    after: Annotated[int, typer.Option("--after", help="Begin after the event of this number.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each event as one line of JSON to stdout, and nothing else.")
    ] = False,
) -> None:
    """Follow a race or a batch from another terminal, until it has ended or nobody works on it."""
    store = Store(home())
    found = find(store, name)
    is_batch = any(b.id == found for b in BatchTable(store).all())

    async def run(show: Shows) -> None:
        async with aclosing(follow(store, found, after)) as events:
            async for event in events:
                show(event)

    if as_json:
        run_async(lambda: run(_print_event))
    elif is_batch:
        with BatchProgress(Console()) as shown:
            run_async(lambda: run(shown))
    else:
        with Progress(Console()) as shown_race:
            run_async(lambda: run(shown_race))
        row = store.race(found)
        if row.verdict is None:
            tell(f"{found} was interrupted; 'race resume {found}' goes on with it")
    store.close()


def _print_event(event: Event) -> None:
    sys.stdout.write(json.dumps(asdict(event)) + "\n")
    sys.stdout.flush()


def apply_batch(name: str, *, prefix: str, to: Path | None) -> int:
    """Put the winner of each task on a branch of its own repository."""
    store = Store(home())
    landings = apply_all(store, BatchTable(store).get(name).id, prefix=prefix or "race/", to=to)
    store.close()
    for each in landings:
        if each.commit:
            typer.echo(f"{each.task}: branch {each.branch} in {each.folder}: {each.commit[:12]}")
        else:
            typer.echo(f"{each.task}: not applied: {each.problem}")
    return 0 if all(each.commit for each in landings) else NO_WINNER
