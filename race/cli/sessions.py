"""Sub-commands about sessions: ``race session open prompt ls show events rm``."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from race.agent import Trajectory
from race.cli import wording
from race.cli.running import NO_WINNER, exiting, run_async, tell
from race.errors import AttemptError, SpecError
from race.session import Session, sessions
from race.store import Event
from race.turns import Turn

T = TypeVar("T")

app = typer.Typer(help="Sessions: conversations with an agent in a sandbox.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="Id of a session, or the beginning of one; 'last' is the newest."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else.")]


@app.command("open")
def open_(  # noqa: PLR0913, PLR0917 - one for each option
    sandbox: Annotated[str, typer.Argument(help="Name of the sandbox.", show_default=False)],
    agent: Annotated[str, typer.Option("--agent", help="The agent.")] = "openai",
    model: Annotated[str | None, typer.Option("--model", help="Its model.")] = None,
    workdir: Annotated[
        str | None, typer.Option("--workdir", help="Where commands start; default: the project's folder.")
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key of an entry in a race file, such as max_steps=50, with a value in JSON or as a text; may be "
            "given again.",
        ),
    ] = None,
    cost_usd: Annotated[float | None, typer.Option("--cost-usd", help="What the session may cost.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", help="The tokens that it may use.")] = None,
    provider: Annotated[str, typer.Option("--sandbox", help="The sandbox provider.")] = "local",
    as_json: Json = False,
) -> None:
    """Begin a session in a sandbox, and print its id."""
    options: dict[str, Any] = {"agent": agent, **_settings(more)}
    if model is not None:
        options["model"] = model
    budget = {k: v for k, v in (("cost_usd", cost_usd), ("tokens", tokens)) if v is not None}
    if budget:
        options["budget"] = budget

    async def work() -> str:
        async with Session.open(sandbox, provider=provider, workdir=workdir, **options) as session:
            return session.id

    name = run_async(work)
    typer.echo(json.dumps({"session": name}) if as_json else name)


def _settings(given: Sequence[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise SpecError(f"--set {text!r} is not KEY=VALUE, such as max_steps=50")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def _on(name: str, work: Callable[[Session], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Session.attach(name) as session:
            return await work(session)

    return run_async(run)


@app.command()
@exiting
def prompt(
    name: Name,
    text: Annotated[str, typer.Argument(help="What to do; '-' reads it from standard input.")],
    time_limit: Annotated[float | None, typer.Option("--time-limit", help="Seconds for the answer.")] = None,
    as_json: Json = False,
) -> int:
    """Let the agent of a session answer. Exit status 1 if it failed, or a limit ended it."""
    asked = sys.stdin.read() if text == "-" else text

    async def work(session: Session) -> Turn:
        before = session.turns
        try:
            await session.prompt(asked, time_limit=time_limit)
        except AttemptError as e:
            tell(str(e))
        if before and before[-1].state == "running":  # whoever answered it was killed
            was = session.turn(len(before))
            tell(f"prompt {was.number} was {was.reason}")
        return session.turns[-1]

    turn = _on(name, work)
    if as_json:
        _write(_turn_data(turn))
    else:
        for line in (turn.trajectory or Trajectory()).message.splitlines():
            typer.echo(wording.one_line(line))
    made = turn.trajectory
    return 0 if turn.state == "answered" and made is not None and made.outcome == "done" else NO_WINNER


@app.command()
def ls(as_json: Json = False) -> None:
    """List the sessions."""
    rows = sessions()
    if as_json:
        _write([{"session": r.id, **{k: v for k, v in asdict(r).items() if k != "id"}} for r in rows])
        return
    if not rows:
        typer.echo("there is no session")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("session", "sandbox", "agent", "model", "prompts", "status"):
        table.add_column(heading, overflow="fold")
    for r in rows:
        cells = (r.id, r.sandbox, r.agent, r.model or "-", str(r.prompts), r.status)
        table.add_row(*(Text(wording.one_line(c)) for c in cells))
    Console().print(table)


@app.command()
def show(name: Name = "last", as_json: Json = False) -> None:
    """Show the prompts of a session, and what came of each."""

    async def work(session: Session) -> dict[str, Any]:
        return {
            "session": session.id,
            "sandbox": session.sandbox,
            "agent": session.entry.agent,
            "model": session.entry.model,
            "usage": asdict(session.usage),
            "prompts": [_turn_data(t) for t in session.turns],
        }

    data = _on(name, work)
    if as_json:
        _write(data)
        return
    spent = data["usage"]
    cost = "at an unknown cost" if spent["cost_usd"] is None else f"for {wording.dollars(spent['cost_usd'])}"
    tokens = spent["input_tokens"] + spent["output_tokens"]
    typer.echo(f"{data['session']} in {data['sandbox']}: {data['agent']}, {tokens:,} tokens {cost}")
    for turn in data["prompts"]:
        typer.echo(f"{turn['number']}. {wording.one_line(turn['prompt'])}")
        typer.echo(f"   {turn['state']}: {wording.one_line(turn['message'] or turn['reason'] or '')}")


@app.command()
def events(
    name: Name = "last",
    after: Annotated[int, typer.Option("--after", min=0, help="Only those with larger numbers.")] = 0,
    as_json: Json = False,
) -> None:
    """Print what happened in a session, by number."""

    async def work(session: Session) -> list[Event]:
        return session.events(after)

    found = _on(name, work)
    if as_json:
        _write([{"number": e.number, "time": e.time, "kind": e.kind, **e.data} for e in found])
        return
    for e in found:
        text = next((str(e.data[k]) for k in ("prompt", "command", "output", "reason") if e.data.get(k)), "")
        typer.echo(f"{e.number}  {e.kind.removeprefix('session.')}  {wording.one_line(text)}".rstrip())


@app.command()
def rm(
    name: Annotated[str, typer.Argument(metavar="SESSION", help="Id of a session.", show_default=False)],
) -> None:
    """Forget a session; its sandbox stays as it is."""

    async def work(session: Session) -> str:
        await session.delete()
        return session.id

    typer.echo(f"removed {_on(name, work)}")


def _turn_data(turn: Turn) -> dict[str, Any]:
    made = turn.trajectory
    return {
        "number": turn.number,
        "prompt": turn.prompt,
        "state": turn.state,
        "reason": turn.reason or None,
        "outcome": made.outcome if made else None,
        "message": made.message or None if made else None,
        "steps": len(made.steps) if made else None,
        "usage": asdict(made.usage) if made else None,
        "seconds": turn.seconds,
        "events": {"first": turn.first, "last": turn.last},
    }


def _write(data: object) -> None:
    sys.stdout.write(json.dumps(data, indent=2) + "\n")
