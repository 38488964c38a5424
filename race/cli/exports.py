"""Sub-commands about what agents did: ``export replay``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

import race
from race.cli.progress import Progress
from race.cli.report import report
from race.cli.running import NO_WINNER, exiting, run_async, tell
from race.errors import SpecError
from race.gateway import Source
from race.home import home
from race.runner import spec_of
from race.spec import load
from race.store import Store
from race.trajectories import Told, atif, attempts, jsonl, kept, send, span
from race.verdict import Verdict

RaceName = Annotated[
    str, typer.Argument(metavar="RACE", help="Id of a race, or the beginning of one; 'last' is the newest.")
]


def register(app: typer.Typer) -> None:
    """Add these sub-commands."""
    app.command()(export)
    app.command()(exiting(replay))


def export(
    name: RaceName = "last",
    form: Annotated[
        Literal["atif", "jsonl", "otel"],
        typer.Option("--format", help="ATIF documents, lines of JSON, or OpenTelemetry spans."),
    ] = "atif",
    attempt: Annotated[str, typer.Option("--attempt", help="Only this attempt; default: all.")] = "",
    to: Annotated[
        Path | None, typer.Option("--to", help="A folder for a file each; default: standard output.")
    ] = None,
) -> None:
    """Write what the agents of a race did, for other programs."""
    told = _trajectories(name, attempt)
    if form == "otel":
        tell(f"sent {send(span(t) for t in told)} spans")
        return
    texts = {
        t.attempt: json.dumps(atif(t), indent=1) if form == "atif" else "\n".join(jsonl(t)) for t in told
    }
    if to is None:
        if form == "atif" and len(told) == 1:
            sys.stdout.write(texts[told[0].attempt] + "\n")
        elif form == "atif":
            sys.stdout.write(json.dumps([atif(t) for t in told], indent=1) + "\n")
        else:
            sys.stdout.write("".join(text + "\n" for text in texts.values() if text))
        return
    to.mkdir(parents=True, exist_ok=True)
    for one, text in texts.items():
        path = to / f"{one}.{'json' if form == 'atif' else 'jsonl'}"
        path.write_text(text + "\n", "utf-8")
        typer.echo(path)


def _trajectories(name: str, attempt: str) -> list[Told]:
    store = Store(home())
    row = store.race(name)
    folder = store.folder(row.id)
    store.close()
    names = attempts(folder)
    if not names:
        raise SpecError(f"no trajectory of {row.id} was kept")
    if attempt and attempt not in names:
        raise SpecError(f"no trajectory of {attempt!r} was kept; there are: {', '.join(names)}")
    found = [kept(folder, n) for n in ([attempt] if attempt else names)]
    return [t for t in found if t is not None]


def replay(
    name: RaceName = "last",
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Another race file; default: the one that it was run from, as it was."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")] = False,
) -> int:
    """Run a race again with the recorded answers of its models: without a key, and without asking anybody."""
    store = Store(home())
    row = store.race(name)
    folders = [str(store.folder(r) / "exchanges") for r in (row.id, *(r.id for r in store.races(row.id)))]
    store.close()
    if not any(Path(f).is_dir() for f in folders):
        raise SpecError(f"no model was asked in {row.id}; there is nothing to replay")
    source = Source.of(folders)
    spec = load(file) if file is not None else spec_of(row)
    with Progress(Console(stderr=True)) as show_event:

        async def work() -> Verdict:
            return await race.run(spec, on_event=show_event, replay=source)

        verdict = run_async(work)
    if as_json:
        sys.stdout.write(verdict.model_dump_json(indent=2) + "\n")
    report(verdict, Console(stderr=as_json), diff=None)
    return 0 if verdict.winner else NO_WINNER
