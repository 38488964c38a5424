"""``race sandbox ports``: what listens in a sandbox, and forwarding to it."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import anyio
import typer

from race.cli.running import tell
from race.cli.sandbox_calls import Json, Name, Provider, on, write_json
from race.errors import SpecError
from race.forwarding import forwarded, listening
from race.sandbox import Sandbox

_HIGHEST = 65535


def register(app: typer.Typer) -> None:
    """Add this sub-command."""
    app.command()(ports)


def ports(
    name: Name,
    forwards: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PORT[:INSIDE]]...",
            help="A port of this machine's loopback, and the one of the sandbox that it leads to, if it is another. "
            "0 takes a free one.",
            show_default=False,
        ),
    ] = None,
    provider: Provider = "local",
    as_json: Json = False,
) -> None:
    """List the ports that programs in a sandbox listen on, or forward to them until this is interrupted."""
    if not forwards:
        found = on(provider, name, listening)
        if as_json:
            write_json({"ports": found})
        else:
            for each in found:
                typer.echo(each)
        return
    wanted = [_forward(each) for each in forwards]

    async def run(sandbox: Sandbox) -> None:
        await sandbox.info()
        async with contextlib.AsyncExitStack() as stack:
            made = [
                await stack.enter_async_context(
                    forwarded(sandbox, inside, outside=outside, refused=lambda error: tell(str(error)))
                )
                for outside, inside in wanted
            ]
            if as_json:
                pairs = zip(made, wanted, strict=True)
                write_json({"forwarded": [{"port": at, "inside": inside} for at, (_, inside) in pairs]})
            else:
                for at, (_, inside) in zip(made, wanted, strict=True):
                    typer.echo(f"127.0.0.1:{at} leads to port {inside} of {name}")
            sys.stdout.flush()  # whoever waits for it reads a pipe
            await anyio.sleep_forever()

    on(provider, name, run, interrupted="interrupted: nothing is forwarded any more")


def _forward(text: str) -> tuple[int, int]:
    """The port outside and the port inside."""
    outside, _, inside = text.partition(":")
    inside = inside or outside
    if (
        not (outside.isdecimal() and inside.isdecimal())
        or max(int(outside), int(inside)) > _HIGHEST
        or inside == "0"
    ):
        raise SpecError(f"{text!r} names no ports; write 8000, or 8000:80 for port 80 of the sandbox")
    return int(outside), int(inside)
