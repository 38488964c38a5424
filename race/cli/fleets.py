"""Sub-commands about fleets: ``race fleet create ls show exec prompt scale rm``."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from race.agent import Trajectory
from race.cli import wording
from race.cli.running import NO_WINNER, exiting, run_async, tell
from race.errors import SpecError
from race.fleet import Answer, Fleet, FleetPolicy, FleetSpec, fleets
from race.sandbox import ExecResult

T = TypeVar("T")

app = typer.Typer(help="Fleets: named sandboxes that live until they are deleted.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the fleet.", show_default=False)]
Members = Annotated[
    list[str] | None, typer.Option("--member", help="Id of a member; may be given again. Default: all.")
]
AtOnce = Annotated[int, typer.Option("--at-once", min=1, help="In how many members at the same time.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else.")]
Default = Annotated[
    list[str] | None,
    typer.Option(
        "--default",
        help="What prompts to a member say, such as agent=openai,model=NAME, or a JSON object; given again, for "
        "members in turn.",
    ),
]


@app.command()
def create(  # noqa: PLR0913, PLR0917 - one for each option
    name: Name,
    count: Annotated[int, typer.Option("--count", min=0, help="How many members.")] = 1,
    source: Annotated[
        str | None, typer.Option("--from", help="The sandbox that members are forked from.")
    ] = None,
    image: Annotated[str, typer.Option("--image", help="Else: what they are made from.")] = "host",
    network: Annotated[str, typer.Option("--network", help="full or none.")] = "full",
    workdir: Annotated[str, typer.Option("--workdir", help="Where commands start and agents work.")] = "/",
    provider: Annotated[str, typer.Option("--sandbox", help="The sandbox provider.")] = "local",
    max_members: Annotated[int, typer.Option("--max-members", min=1, help="Most members at once.")] = 64,
    creations: Annotated[int, typer.Option("--creations", min=1, help="Most that are created at once.")] = 4,
    lifetime: Annotated[float | None, typer.Option("--lifetime", help="Seconds.")] = None,
    cost_usd: Annotated[
        float | None, typer.Option("--cost-usd", help="What prompts may cost in all.")
    ] = None,
    default: Default = None,
) -> None:
    """Make a fleet."""
    if network not in ("full", "none"):
        raise SpecError(f"--network is 'full' or 'none', not {network!r}")
    policy = FleetPolicy(max_members=max_members, creations=creations, lifetime=lifetime, cost_usd=cost_usd)
    spec = FleetSpec(
        sandbox=provider, source=source, image=image, network=network, workdir=workdir, policy=policy
    )

    async def work() -> list[str]:
        async with Fleet.create(name, count, spec=spec, defaults=_defaults(default)) as fleet:
            return [m.id for m in fleet.members]

    for member in run_async(work):
        typer.echo(member)


def _defaults(given: Sequence[str] | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for text in given or ():
        if text.startswith("{"):
            found.append(_json_object(text))
            continue
        pairs = [p.partition("=") for p in text.split(",")]
        if any(not k or not eq for k, eq, _ in pairs):
            raise SpecError(f"--default {text!r} is no list such as agent=openai,model=NAME")
        found.append({k: v for k, _, v in pairs})
    return found


def _json_object(text: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(text)
    except ValueError as e:
        raise SpecError(f"--default {text!r} is no JSON: {e}") from e
    return data


@app.command()
def ls(as_json: Json = False) -> None:
    """List the fleets."""
    rows = fleets()
    if as_json:
        data = [{"fleet": n, "members": c, **s.model_dump()} for n, s, c in rows]
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
        return
    for name, spec, count in rows:
        typer.echo(f"{name}  {wording.count(count, 'member')}  {spec.source or spec.image}")


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show a fleet's members, policy and spending."""

    async def work(fleet: Fleet) -> dict[str, Any]:
        members = [{"id": m.id, "sandbox": m.sandbox, "defaults": dict(m.defaults)} for m in fleet.members]
        return {"fleet": name, **fleet.spec.model_dump(), "spent_usd": fleet.spent_usd, "members": members}

    data = _on(name, work)
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
        return
    limits = ", ".join(f"{k} {v}" for k, v in data["policy"].items() if v is not None)
    typer.echo(f"{name}: {limits}; spent {wording.dollars(data['spent_usd'])}")
    table = Table(box=None, pad_edge=False)
    for heading in ("member", "sandbox", "defaults"):
        table.add_column(heading, overflow="fold")
    for m in data["members"]:
        defaults = ", ".join(f"{k}={v}" for k, v in m["defaults"].items())
        table.add_row(Text(m["id"]), Text(m["sandbox"]), Text(wording.one_line(defaults)))
    Console().print(table)


def _on(name: str, work: Callable[[Fleet], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Fleet.attach(name) as fleet:
            return await work(fleet)

    return run_async(run)


@app.command("exec", context_settings={"allow_interspersed_args": False})
@exiting
def exec_(
    name: Name,
    command: Annotated[list[str], typer.Argument(help="The command; one word is a shell command.")],
    member: Members = None,
    at_once: AtOnce = 8,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds for each.")] = None,
    as_json: Json = False,
) -> int:
    """Run a command in all members, or some. Exit status 0 if it ended with 0 everywhere."""
    asked = command[0] if len(command) == 1 else command
    answers = _on(name, lambda f: f.exec(asked, members=member, at_once=at_once, timeout=timeout))
    if as_json:
        sys.stdout.write(json.dumps([_exec_data(a) for a in answers], indent=2) + "\n")
    else:
        for a in answers:
            _say(a.member, a.error or _output(a.result))
    return 0 if all(a.result is not None and a.result.exit_code == 0 for a in answers) else NO_WINNER


def _output(done: ExecResult | None) -> str:
    if done is None:
        return ""
    ended = "timed out" if done.timed_out else f"exit status {done.exit_code}"
    said = (done.stdout + done.stderr).decode("utf-8", "replace").rstrip()
    return said if done.exit_code == 0 else f"{said}\n[{ended}]".lstrip()


def _exec_data(a: Answer[ExecResult]) -> dict[str, Any]:
    done = a.result
    data: dict[str, Any] = {"member": a.member, "error": a.error or None, "seconds": a.seconds}
    if done is not None:
        data |= {
            "exit_code": done.exit_code,
            "timed_out": done.timed_out,
            "stdout": done.stdout.decode("utf-8", "replace"),
            "stderr": done.stderr.decode("utf-8", "replace"),
        }
    return data


def _say(member: str, text: str) -> None:
    for line in text.splitlines() or [""]:
        typer.echo(f"{member}: {wording.one_line(line)}")


@app.command()
@exiting
def prompt(  # noqa: PLR0917 - one for each option
    name: Name,
    text: Annotated[str, typer.Argument(help="What to do.")],
    member: Members = None,
    at_once: AtOnce = 8,
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds for each.")] = 1800,
    agent: Annotated[str | None, typer.Option("--agent", help="In place of the members' own.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="In place of the members' own.")] = None,
    as_json: Json = False,
) -> int:
    """Let an agent work in all members, or some."""
    options = {k: v for k, v in (("agent", agent), ("model", model)) if v is not None}
    answers = _on(
        name, lambda f: f.prompt(text, members=member, at_once=at_once, time_limit=time_limit, **options)
    )
    if as_json:
        sys.stdout.write(json.dumps([_prompt_data(a) for a in answers], indent=2) + "\n")
    else:
        for a in answers:
            _say(a.member, a.error or (a.result.message if a.result else ""))
    return 0 if all(not a.error for a in answers) else NO_WINNER


def _prompt_data(a: Answer[Trajectory]) -> dict[str, Any]:
    data: dict[str, Any] = {"member": a.member, "error": a.error or None, "seconds": a.seconds}
    if a.result is not None:
        usage = a.result.usage
        data |= {
            "outcome": a.result.outcome,
            "message": a.result.message,
            "steps": len(a.result.steps),
            "usage": {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cost_usd": usage.cost_usd,
            },
        }
    return data


@app.command()
def scale(
    name: Name,
    count: Annotated[int, typer.Argument(min=0, help="How many members it shall have.")],
    default: Default = None,
) -> None:
    """Make further members, or delete the newest."""
    members = _on(name, lambda f: f.scale(count, defaults=_defaults(default)))
    typer.echo(f"{name}: {wording.count(len(members), 'member')}")


@app.command()
@exiting
def rm(name: Name) -> int:
    """Delete a fleet with all its members; those that could not be deleted are named."""
    problems = _on(name, lambda f: f.delete())
    for line in problems:
        tell(line)
    if not problems:
        typer.echo(f"removed {name}")
    return NO_WINNER if problems else 0
