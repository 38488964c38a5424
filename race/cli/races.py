"""Sub-commands about races: ``init run demo resume list show diff apply rm``."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import race
from race.cli.batches import apply_batch, show_batch
from race.cli.progress import Progress
from race.cli.report import listing, report, short_diff
from race.cli.running import NO_WINNER, exiting, run_async, tell
from race.errors import SpecError
from race.handoff import apply_to_branch, apply_to_tree, deltas
from race.home import home
from race.removal import delete_sandboxes
from race.runner import OnEvent
from race.spec import RaceSpec, load
from race.starter import write
from race.store import RaceRow, Store
from race.verdict import AttemptVerdict, Verdict

RaceFile = Annotated[Path, typer.Argument(help="The race file.", show_default=False)]
RaceName = Annotated[
    str, typer.Argument(metavar="RACE", help="Id of a race, or the beginning of one; 'last' is the newest.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else.")]


def register(app: typer.Typer) -> None:
    """Add these sub-commands."""
    app.command()(init)
    app.command("run")(exiting(run_race))
    app.command()(exiting(demo))
    app.command("resume")(exiting(resume))
    app.command("list")(list_races)
    app.command()(exiting(show))
    app.command()(diff)
    app.command()(exiting(apply))
    app.command()(rm)


def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a race file that is there.")] = False,
) -> None:
    """Write a race file for a project: its tests, its benchmark, what to protect, and a place for the prompt."""
    path = write(folder, force=force)
    typer.echo(f"wrote {path}; put in your prompt and entries, then: race run {path}")


def run_race(
    file: RaceFile,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Prepare the base anew even if it is cached.")
    ] = False,
    as_json: Json = False,
    go_on: Annotated[
        bool | None,
        typer.Option(
            "--resume/--new",
            help="Go on with the last race of this file if it was interrupted, or begin a new one in any case; "
            "default: ask on a terminal, else begin a new one.",
        ),
    ] = None,
) -> int:
    """Run a race."""
    spec = load(file)
    left = _interrupted(spec)
    if left is not None and go_on is None:
        said = f"the race {left} of this file was interrupted"
        if sys.stdin.isatty() and sys.stderr.isatty():
            go_on = typer.confirm(f"{said}; go on with it?", default=True, err=True)
        else:
            tell(f"{said}; this is a new one ('race resume {left}' goes on with that)")
    if left is not None and go_on:
        return resume(left, as_json=as_json)
    return _run(lambda on_event: race.run(spec, fresh=fresh, on_event=on_event), as_json=as_json)


def resume(name: RaceName = "last", as_json: Json = False) -> int:
    """Go on with a race that was interrupted: nothing that was finished is done again, or paid for again."""
    return _run(lambda on_event: race.resume(name, on_event=on_event), as_json=as_json)


def _interrupted(spec: RaceSpec) -> str | None:
    """The last race of a file, if its process is gone and it has no verdict."""
    store = Store(home())
    rows = [r for r in store.races(parent="") if r.file == str(spec.path)]
    store.close()
    return rows[-1].id if rows and rows[-1].status == "interrupted" else None


def demo(
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Prepare the base anew even if it is cached.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Run a small race that needs no key and no model: three scripts make a slow program faster."""
    with tempfile.TemporaryDirectory(prefix="race-demo-") as temporary:
        folder = Path(temporary) / "primes"
        shutil.copytree(_demo_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
        spec = load(folder / "demo.toml")
        return _run(lambda on_event: race.run(spec, fresh=fresh, on_event=on_event), as_json=as_json)


def _demo_folder() -> Path:
    package = Path(race.__file__).parent
    for place in (package / "demo", package.parent / "benchmarks" / "primes"):
        if (place / "demo.toml").is_file():
            return place
    raise SpecError("this installation lacks the demo; install forkrace again")


def _run(race_it: Callable[[OnEvent], Awaitable[Verdict]], *, as_json: bool) -> int:
    console = Console(stderr=as_json)
    with Progress(Console(stderr=True)) as show_event:

        async def work() -> Verdict:
            return await race_it(show_event)

        verdict = run_async(work)
    if as_json:
        sys.stdout.write(verdict.model_dump_json(indent=2) + "\n")
    report(verdict, console, diff=_winning_patch(verdict))
    return 0 if verdict.winner else NO_WINNER


def _winning_patch(verdict: Verdict) -> bytes | None:
    winner = verdict.attempt(verdict.winner) if verdict.winner else None
    return Path(winner.patch).read_bytes() if winner and winner.patch else None


def list_races(as_json: Json = False) -> None:
    """List the races that the store knows."""
    store = Store(home())
    rows = store.races()
    if as_json:
        sys.stdout.write(json.dumps([_row_data(r) for r in rows], indent=2) + "\n")
    else:
        listing(rows, Console())


def _row_data(row: RaceRow) -> dict[str, Any]:
    return {
        "race": row.id,
        "task": row.task,
        "file": row.file,
        "created": row.created,
        "status": row.status,
        "winner": row.verdict.winner if row.verdict else None,
    }


def show(name: RaceName = "last", as_json: Json = False) -> int:
    """Show what came of a race, or of a batch."""
    if name != "last" and (status := show_batch(name, as_json=as_json)) is not None:
        return status
    verdict = _verdict(name)
    if as_json:
        sys.stdout.write(verdict.model_dump_json(indent=2) + "\n")
    else:
        report(verdict, Console(), diff=_winning_patch(verdict))
    return 0 if verdict.winner else NO_WINNER


def diff(
    name: RaceName = "last",
    attempt: Annotated[str, typer.Argument(help="The attempt; default: the winner.")] = "",
) -> None:
    """Print what an attempt changed, as a patch. On a terminal, what could act on it is shown escaped."""
    chosen = _attempt(_verdict(name), attempt)
    if chosen.patch is None:
        raise SpecError(f"{chosen.name!r} handed nothing in")
    patch = Path(chosen.patch).read_bytes()
    if sys.stdout.isatty():
        Console().print(short_diff(patch, lines=sys.maxsize))
    else:
        sys.stdout.buffer.write(patch)


def apply(
    name: RaceName = "last",
    attempt: Annotated[str, typer.Option("--attempt", help="The attempt; default: the winner.")] = "",
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder to change; default: the project of the race file.")
    ] = None,
    branch: Annotated[
        str,
        typer.Option(
            "--branch", help="Put it as a commit onto a new branch, and leave the working tree alone."
        ),
    ] = "",
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Of a batch: put each winner onto a new branch of its own repository. --branch is what the branches' "
            "names begin with, and --to a folder for clones of the projects that are git URLs.",
        ),
    ] = False,
) -> int:
    """Put what an attempt changed into a working tree, or onto a new branch."""
    if every:
        return apply_batch(name, prefix=branch, to=to)
    store = Store(home())
    row = store.race(name)
    chosen = _attempt(_ended(row), attempt)
    folder = to or _project_of(row)
    if not folder.is_dir():
        raise SpecError(f"there is no folder {str(folder)!r} to apply to; name one with --to")
    changes = deltas(store.folder(row.id), chosen.name)
    if not changes:
        raise SpecError(f"{chosen.name!r} changed nothing")
    if branch:
        commit = apply_to_branch(folder, branch, changes, _message(row, chosen))
        typer.echo(f"branch {branch} in {folder}: {commit[:12]}, {len(changes)} files")
        return 0
    for path in apply_to_tree(folder, changes):
        typer.echo(path)
    tell(f"applied {chosen.name} of {row.id} to {folder}")
    return 0


def _project_of(row: RaceRow) -> Path:
    """The folder that a race's project came from."""
    spec = load(row.file)
    folder = spec.folder / Path(spec.base.project).expanduser()
    if spec.base.ref is not None or not folder.is_dir():
        raise SpecError(f"the project of {row.id} is {spec.base.project!r}; name a working tree with --to")
    return folder


def _message(row: RaceRow, attempt: AttemptVerdict) -> str:
    """A commit message of the framework's own words; nothing in it was written by an agent."""
    speed = f", {attempt.speedup.vs_base:.3g} times the base" if attempt.speedup else ""
    return f"{row.task}: {attempt.name}\n\nFrom race {row.id}{speed}.\n"


def rm(
    name: Annotated[str, typer.Argument(metavar="RACE", help="Id of a race, or the beginning of one.")],
) -> None:
    """Forget a race: its record, its patches, and the sandbox that was kept."""
    store = Store(home())
    row = store.race(name)
    if row.alive:
        raise SpecError(f"{row.id} is running; interrupt it first")
    below = [r.id for r in store.races(row.id)]
    for problem in run_async(lambda: delete_sandboxes(home(), {row.id, *below})):
        tell(problem)
    for each in (row.id, *below):
        shutil.rmtree(store.folder(each), ignore_errors=True)
        store.remove(each)
    typer.echo(f"removed {row.id}")


def _verdict(name: str) -> Verdict:
    return _ended(Store(home()).race(name))


def _ended(row: RaceRow) -> Verdict:
    if row.verdict is None:
        how = "is still running" if row.alive else f"was interrupted; 'race resume {row.id}' goes on with it"
        raise SpecError(f"{row.id} {how}")
    return row.verdict


def _attempt(verdict: Verdict, name: str) -> AttemptVerdict:
    chosen = name or verdict.winner
    names = ", ".join(a.name for a in verdict.attempts)
    if not chosen:
        raise SpecError(f"{verdict.race} has no winner; name an attempt: {names}")
    found = verdict.attempt(chosen)
    if found is None:
        raise SpecError(f"{verdict.race} has no attempt {chosen!r}; it has: {names}")
    return found
