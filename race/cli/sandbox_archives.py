"""``race sandbox export`` and ``import``: sandboxes that move from one machine to another."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer

from race.cli.sandbox_calls import Json, Name, Provider, info_data, on, with_provider, write_json
from race.errors import SpecError
from race.sandbox import Sandbox, SandboxInfo, SandboxProvider

_OTHER_SYSTEM = "other_system"


def register(app: typer.Typer) -> None:
    """Add these sub-commands."""
    app.command("export")(export)
    app.command("import")(load)


def export(
    name: Name,
    file: Annotated[
        Path, typer.Argument(help="The file to write, which must not exist.", show_default=False)
    ],
    provider: Provider = "local",
    as_json: Json = False,
) -> None:
    """Write a stopped sandbox, with all that it was forked from, to one file."""

    async def run(sandbox: Sandbox) -> None:
        await sandbox.export(file.absolute())

    on(provider, name, run, interrupted="interrupted: nothing is left of the file")
    size = file.stat().st_size
    if as_json:
        write_json({"name": name, "file": str(file.absolute()), "bytes": size})
    else:
        typer.echo(f"wrote {file} ({size / 1e6:.1f} MB)")


def load(
    file: Annotated[Path, typer.Argument(help="What `race sandbox export` wrote.", show_default=False)],
    name: Annotated[
        str | None, typer.Option("--name", help="Its name here; default: the one that it had.")
    ] = None,
    other_system: Annotated[
        bool,
        typer.Option(
            "--other-system",
            help="Take a sandbox that was made from the host of another machine, though this one's programs differ.",
        ),
    ] = False,
    provider: Provider = "local",
    as_json: Json = False,
) -> None:
    """Make a stopped sandbox from a file that was exported here or on another machine."""
    if not file.is_file():
        raise SpecError(f"there is no file {str(file)!r}")

    async def run(made: SandboxProvider) -> SandboxInfo:
        more = {_OTHER_SYSTEM: True} if other_system else {}
        if more and _OTHER_SYSTEM not in inspect.signature(made.load).parameters:
            raise SpecError(f"--other-system means nothing to the provider {provider!r}")
        return await (await made.load(file.absolute(), name, **more)).info()

    info = with_provider(provider, run, interrupted="interrupted: nothing is left of the import")
    if as_json:
        write_json(info_data(info))
    else:
        typer.echo(f"{info.name}: stopped; `race sandbox start {info.name}` runs it")
