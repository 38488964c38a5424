"""Sub-commands about sandboxes: ``race sandbox create ls show fork start stop freeze thaw network rm upload
download``. Those about what runs in one are in `sandbox_processes`, those about its ports in `sandbox_ports`,
those about moves in `sandbox_archives`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from race.background import ProcessInfo
from race.cli import sandbox_archives, sandbox_ports, sandbox_processes, wording
from race.cli.running import NO_WINNER, exiting, tell
from race.cli.sandbox_calls import (
    Json,
    Name,
    Names,
    Provider,
    age,
    info_data,
    network_of,
    on,
    on_each,
    told,
    with_provider,
    write_json,
)
from race.cli.sandbox_creation import create
from race.errors import RaceError
from race.forks import ForkFailure, fork_many
from race.sandbox import Network, Sandbox, SandboxInfo, SandboxProvider

app = typer.Typer(help="Sandboxes: those that races keep, bases, and your own.", no_args_is_help=True)
app.command()(create)
sandbox_processes.register(app)
sandbox_ports.register(app)
sandbox_archives.register(app)


@app.command()
def ls(provider: Provider = "local", as_json: Json = False) -> None:
    """List sandboxes."""
    infos = with_provider(provider, lambda p: p.list())
    if as_json:
        write_json([info_data(each) for each in infos])
        return
    if not infos:
        typer.echo("there is no sandbox")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "state", "forked from", "role", "race", "age", "ends in"):
        table.add_column(heading, overflow="fold")
    for info in infos:
        role = info.labels.get("role", "") + (", kept" if info.labels.get("keep") == "yes" else "")
        cells = (
            info.name,
            info.state,
            info.parent or "-",
            role,
            info.labels.get("race", ""),
            age(info.created),
        )
        table.add_row(*(Text(c) for c in (*cells, _ends(info))))
    Console().print(table)


def _ends(info: SandboxInfo) -> str:
    return wording.duration(max(info.ends - time.time(), 0)) if info.ends is not None else ""


@app.command()
def show(name: Name, provider: Provider = "local", as_json: Json = False) -> None:
    """Show what is known of a sandbox: what it descends from, its network, its lifetime, its named processes."""

    async def run(made: SandboxProvider) -> tuple[SandboxInfo, list[ProcessInfo]]:
        sandbox = await made.get(name)
        named = await sandbox.processes() if "processes" in made.capabilities.features else []
        return await sandbox.info(), named

    info, processes = with_provider(provider, run)
    if as_json:
        write_json(
            {**info_data(info), "processes": [sandbox_processes.process_data(each) for each in processes]}
        )
        return
    rows = [
        ("name", info.name),
        ("state", info.state),
        ("image", info.image),
        ("network", info.network if isinstance(info.network, str) else ", ".join(info.network)),
        ("age", age(info.created)),
        ("ends in", _ends(info)),
        ("forked from", " < ".join(info.ancestors)),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted(info.labels.items()))),
        ("processes", ", ".join(f"{each.name} ({each.state})" for each in processes)),
    ]
    for what, value in rows:
        if value:
            typer.echo(f"{what:12}{wording.one_line(value)}")


@app.command()
@exiting
def fork(
    name: Name,
    new: Annotated[list[str], typer.Argument(help="Names of the forks.", show_default=False)],
    provider: Provider = "local",
    as_json: Json = False,
) -> int:
    """Fork a sandbox, running or stopped. If one of several forks fails, the others stay."""

    async def run(sandbox: Sandbox) -> tuple[list[SandboxInfo], list[ForkFailure]]:
        made = await fork_many(sandbox, new)
        failed = [each for each in made if isinstance(each, ForkFailure)]
        return [await each.info() for each in made if not isinstance(each, ForkFailure)], failed

    infos, failed = on(provider, name, run)
    if as_json:
        problems = [{"name": each.name, "error": str(each.error)} for each in failed]
        write_json({"forks": [info_data(each) for each in infos], "failed": problems})
    else:
        told(infos, as_json=False)
    for each in failed:
        tell(str(each.error))
    return NO_WINNER if failed else 0


@app.command()
def stop(names: Names, provider: Provider = "local", as_json: Json = False) -> None:
    """End every process of sandboxes; their files stay."""
    told(on_each(provider, names, lambda s: s.stop()), as_json=as_json)


@app.command()
def start(names: Names, provider: Provider = "local", as_json: Json = False) -> None:
    """Run stopped sandboxes again."""
    told(on_each(provider, names, lambda s: s.start()), as_json=as_json)


@app.command()
def freeze(names: Names, provider: Provider = "local", as_json: Json = False) -> None:
    """Hold every process of sandboxes where it is."""
    told(on_each(provider, names, lambda s: s.freeze()), as_json=as_json)


@app.command()
def thaw(names: Names, provider: Provider = "local", as_json: Json = False) -> None:
    """Let frozen sandboxes go on."""
    told(on_each(provider, names, lambda s: s.thaw()), as_json=as_json)


@app.command()
def network(
    name: Name,
    hosts: Annotated[
        list[str], typer.Argument(help="full, none, or the hosts that it may reach.", show_default=False)
    ],
    provider: Provider = "local",
    as_json: Json = False,
) -> None:
    """Give a sandbox another network. To or from full, what runs in it is ended; its files stay."""
    wanted: Network = network_of(hosts)
    told(on_each(provider, [name], lambda s: s.set_network(wanted)), as_json=as_json)


@app.command()
@exiting
def rm(names: Names, provider: Provider = "local", as_json: Json = False) -> int:
    """Delete sandboxes. If one of several cannot be deleted, the others are."""

    async def run(made: SandboxProvider) -> tuple[list[str], dict[str, RaceError]]:
        removed: list[str] = []
        failed: dict[str, RaceError] = {}
        for name in names:
            try:
                await (await made.get(name)).delete()
                removed.append(name)
            except RaceError as error:
                failed[name] = error
        return removed, failed

    removed, failed = with_provider(provider, run)
    if as_json:
        problems = [{"name": name, "error": str(error)} for name, error in failed.items()]
        write_json({"removed": removed, "failed": problems})
    else:
        for name in removed:
            typer.echo(f"removed {name}")
    for error in failed.values():
        tell(str(error))
    return NO_WINNER if failed else 0


@app.command()
def upload(name: Name, source: Path, target: str, provider: Provider = "local") -> None:
    """Copy a file or folder into a sandbox."""
    on(provider, name, lambda s: s.upload(source, target))


@app.command()
def download(name: Name, source: str, target: Path, provider: Provider = "local") -> None:
    """Copy a file or folder out of a sandbox; the target must not exist."""
    on(provider, name, lambda s: s.download(source, target.absolute()))
