"""Sub-commands about sandboxes: ``race sandbox ls exec shell fork stop start rm``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from race.cli.running import exiting, run_async
from race.cli.terminal import attach
from race.errors import SandboxError
from race.home import home
from race.plugins import provider as make_provider
from race.sandbox import Sandbox, SandboxProvider

T = TypeVar("T")

app = typer.Typer(help="Sandboxes: those that races keep, bases, and your own.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the sandbox.", show_default=False)]
Provider = Annotated[str, typer.Option("--sandbox", help="The sandbox provider.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else.")]


def _with(provider: str, work: Callable[[SandboxProvider], Awaitable[T]]) -> T:
    async def run() -> T:
        made = make_provider(provider, home(), "--sandbox")
        try:
            return await work(made)
        finally:
            await made.aclose()

    return run_async(run)


def _on(provider: str, name: str, work: Callable[[Sandbox], Awaitable[T]]) -> T:
    async def run(made: SandboxProvider) -> T:
        return await work(await made.get(name))

    return _with(provider, run)


@app.command()
def ls(provider: Provider = "local", as_json: Json = False) -> None:
    """List sandboxes."""
    infos = _with(provider, lambda p: p.list())
    if as_json:
        sys.stdout.write(
            json.dumps([{**asdict(i), "labels": dict(i.labels)} for i in infos], indent=2) + "\n"
        )
        return
    if not infos:
        typer.echo("there is no sandbox")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "state", "forked from", "role", "race", "age"):
        table.add_column(heading, overflow="fold")
    for info in infos:
        role = info.labels.get("role", "") + (", kept" if info.labels.get("keep") == "yes" else "")
        age = _age(time.time() - info.created)
        cells = (info.name, info.state, info.parent or "-", role, info.labels.get("race", ""), age)
        table.add_row(*(Text(c) for c in cells))
    Console().print(table)


def _age(seconds: float) -> str:
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{letter}"
    return f"{seconds:.0f}s"


@app.command("exec", context_settings={"allow_interspersed_args": False})
@exiting
def exec_(
    name: Name,
    command: Annotated[
        list[str], typer.Argument(help="The command and its arguments; one word is a shell command.")
    ],
    cwd: Annotated[
        str, typer.Option("--cwd", help="Working directory; default: the project's folder, if there is one.")
    ] = "",
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds.")] = None,
    provider: Provider = "local",
) -> int:
    """Run a command in a sandbox. Its exit status is the command's."""
    stdin = None if sys.stdin.isatty() else sys.stdin.buffer.read()

    async def run(sandbox: Sandbox) -> int:
        done = await sandbox.exec(
            command[0] if len(command) == 1 else command,
            cwd=cwd or await _workdir(sandbox),
            stdin=stdin,
            timeout=timeout,
            output_limit=64 << 20,
        )
        sys.stdout.buffer.write(done.stdout)
        sys.stdout.flush()
        sys.stderr.buffer.write(done.stderr)
        sys.stderr.flush()
        if done.timed_out:
            raise SandboxError(f"timed out after {timeout:g} s")
        code = done.exit_code or 0
        return code if code >= 0 else 128 - code

    return _on(provider, name, run)


async def _workdir(sandbox: Sandbox) -> str:
    """The project's folder in sandboxes that a race made, else the root."""
    return (await sandbox.info()).labels.get("workdir", "/")


@app.command()
@exiting
def shell(name: Name, provider: Provider = "local") -> int:
    """Open a shell in a sandbox, on this terminal."""

    async def run(sandbox: Sandbox) -> int:
        return await attach(sandbox, await _workdir(sandbox))

    return _on(provider, name, run)


@app.command()
def fork(
    name: Name, new: Annotated[str, typer.Argument(help="Name of the fork.")], provider: Provider = "local"
) -> None:
    """Fork a sandbox, running or stopped."""
    _on(provider, name, lambda s: s.fork(new))
    typer.echo(new)


@app.command()
def stop(name: Name, provider: Provider = "local") -> None:
    """End every process of a sandbox; its files stay."""
    _on(provider, name, lambda s: s.stop())


@app.command()
def start(name: Name, provider: Provider = "local") -> None:
    """Run a stopped sandbox again."""
    _on(provider, name, lambda s: s.start())


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(help="Names of sandboxes.")], provider: Provider = "local"
) -> None:
    """Delete sandboxes."""

    async def run(made: SandboxProvider) -> None:
        for name in names:
            await (await made.get(name)).delete()
            typer.echo(f"removed {name}")

    _with(provider, run)


@app.command()
def upload(name: Name, source: Path, target: str, provider: Provider = "local") -> None:
    """Copy a file or folder into a sandbox."""
    _on(provider, name, lambda s: s.upload(source, target))


@app.command()
def download(name: Name, source: str, target: Path, provider: Provider = "local") -> None:
    """Copy a file or folder out of a sandbox; the target must not exist."""
    _on(provider, name, lambda s: s.download(source, target.absolute()))
