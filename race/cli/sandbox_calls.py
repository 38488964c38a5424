"""What the sub-commands of ``race sandbox`` share: their arguments, their provider, and how they tell things."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from race.cli.running import run_async
from race.errors import SpecError
from race.home import home
from race.plugins import provider as make_provider
from race.sandbox import Network, Sandbox, SandboxInfo, SandboxProvider

T = TypeVar("T")

Name = Annotated[str, typer.Argument(help="Name of the sandbox.", show_default=False)]
Names = Annotated[list[str], typer.Argument(help="Names of sandboxes.", show_default=False)]
Provider = Annotated[str, typer.Option("--sandbox", help="The sandbox provider.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else.")]

_ENDED = "interrupted"


def with_provider(
    provider: str, work: Callable[[SandboxProvider], Awaitable[T]], *, interrupted: str = _ENDED
) -> T:
    """Do something with a provider.

    Args:
        provider: its name.
        work: what to do.
        interrupted: what is said when an interrupt ends it.
    """

    async def run() -> T:
        made = make_provider(provider, home(), "--sandbox")
        try:
            return await work(made)
        finally:
            await made.aclose()

    return run_async(run, interrupted=interrupted)


def on(provider: str, name: str, work: Callable[[Sandbox], Awaitable[T]], *, interrupted: str = _ENDED) -> T:
    """Do something with one sandbox."""

    async def run(made: SandboxProvider) -> T:
        return await work(await made.get(name))

    return with_provider(provider, run, interrupted=interrupted)


def on_each(
    provider: str, names: Sequence[str], work: Callable[[Sandbox], Awaitable[None]]
) -> list[SandboxInfo]:
    """Do something with several sandboxes, one after the other, and look at each after that."""

    async def run(made: SandboxProvider) -> list[SandboxInfo]:
        infos: list[SandboxInfo] = []
        for name in names:
            sandbox = await made.get(name)
            await work(sandbox)
            infos.append(await sandbox.info())
        return infos

    return with_provider(provider, run)


def write_json(document: object) -> None:
    """Print the one document of a command."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def info_data(info: SandboxInfo) -> dict[str, Any]:
    """What is known of a sandbox, for JSON."""
    return {**asdict(info), "labels": dict(info.labels)}


def told(infos: Sequence[SandboxInfo], *, as_json: bool) -> None:
    """Print what sandboxes are now, or their names."""
    if as_json:
        write_json([info_data(each) for each in infos])
        return
    for each in infos:
        typer.echo(each.name)


def age(since: float) -> str:
    """How long ago, roughly: ``12s``, ``3m``, ``4h``, ``5d``."""
    seconds = time.time() - since
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{letter}"
    return f"{seconds:.0f}s"


def network_of(words: Sequence[str]) -> Network:
    """What ``full``, ``none`` or a list of hosts means, each word being one or several with commas."""
    hosts = tuple(each for word in words for each in word.split(",") if each)
    if hosts == ("full",):
        return "full"
    if hosts == ("none",):
        return "none"
    if not hosts or {"full", "none"} & set(hosts):
        raise SpecError(f"a network is full, none, or a list of hosts, not {' '.join(words)!r}")
    return hosts


def pairs(words: Sequence[str] | None, option: str) -> dict[str, str]:
    """``KEY=VALUE`` words."""
    found: dict[str, str] = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise SpecError(f"{option} takes KEY=VALUE, not {word!r}")
        found[key] = value
    return found


async def workdir(sandbox: Sandbox) -> str:
    """The project's folder in sandboxes that a race made, else the root."""
    return (await sandbox.info()).labels.get("workdir", "/")
