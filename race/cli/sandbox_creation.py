"""``race sandbox create``."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from race.cli.sandbox_calls import Json, Name, Provider, network_of, pairs, told, with_provider
from race.errors import SpecError
from race.sandbox import Limits, SandboxInfo, SandboxProvider, SandboxSpec
from race.spec import LimitsSpec


def create(  # noqa: PLR0913, PLR0917 - one for each option
    name: Name,
    image: Annotated[
        str,
        typer.Option(
            "--image", help="host, or the path of a root filesystem, a tar file of one, or an OCI image."
        ),
    ] = "host",
    network: Annotated[
        list[str] | None,
        typer.Option(
            "--network", help="full, none, or hosts with commas; may be given again. Default: none."
        ),
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", help="KEY=VALUE; may be given again.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="KEY=VALUE; may be given again.")] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", help="Processors.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Bytes, or such as 2G.")] = None,
    disk: Annotated[
        str | None, typer.Option("--disk", help="Bytes that it may write, or such as 10G.")
    ] = None,
    processes: Annotated[int, typer.Option("--processes", help="Processes and threads at once.")] = 4096,
    cores: Annotated[str | None, typer.Option("--cores", help="Which processors, such as 0,2-3.")] = None,
    lifetime: Annotated[
        float | None, typer.Option("--lifetime", help="Seconds from its start until it is stopped.")
    ] = None,
    idle_lifetime: Annotated[
        float | None, typer.Option("--idle-lifetime", help="Seconds without use until it is stopped.")
    ] = None,
    provider: Provider = "local",
    as_json: Json = False,
) -> None:
    """Make a sandbox."""
    spec = SandboxSpec(
        name,
        image=image,
        env=pairs(env, "--env"),
        limits=_limits(cpus, memory, disk, processes, cores),
        network=network_of(network or ["none"]),
        labels=pairs(label, "--label"),
        lifetime=lifetime,
        idle_lifetime=idle_lifetime,
    )

    async def run(made: SandboxProvider) -> list[SandboxInfo]:
        return [await (await made.create(spec)).info()]

    told(with_provider(provider, run), as_json=as_json)


def _limits(
    cpus: float | None, memory: str | None, disk: str | None, processes: int, cores: str | None
) -> Limits:
    given = {
        "cpus": cpus,
        "memory": memory,
        "disk": disk,
        "processes": processes,
        "cores": None if cores is None else cores_of(cores),
    }
    try:
        table = LimitsSpec.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"--{first['loc'][0]}: {first['msg']}") from None
    return Limits(table.cpus, table.memory, table.disk, table.processes, table.cores)


def cores_of(text: str) -> tuple[int, ...]:
    """``0,2-3`` as ``(0, 2, 3)``."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise SpecError(f"--cores takes numbers and ranges such as 0,2-3, not {text!r}")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
