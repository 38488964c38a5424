"""Sub-commands about the machine: ``doctor gc``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from race.cli.running import CANNOT, exiting, run_async, tell
from race.home import home
from race.plugins import provider as make_provider
from race.removal import collect
from race.sandbox import Capabilities, Finding
from race.store import Store
from race.testing import CheckResult, checked

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else.")]


def register(app: typer.Typer) -> None:
    """Add these sub-commands."""
    app.command()(exiting(doctor))
    app.command()(exiting(gc))


def doctor(
    sandbox: Annotated[str, typer.Option("--sandbox", help="The sandbox provider to look at.")] = "local",
    full: Annotated[
        bool, typer.Option("--full", help="Try every promise of the sandbox contract on this provider.")
    ] = False,
    image: Annotated[
        str, typer.Option("--image", help="With --full: what sandboxes are made from.")
    ] = "host",
    checks: Annotated[
        list[str] | None,
        typer.Option("--check", help="With --full: only the check of this name; repeatable."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Find out by trying whether this machine can run races, and say what to do where it cannot."""
    if full:
        return _conformance(sandbox, image, checks or [], as_json=as_json)
    state = home()
    Store(state).close()

    async def look() -> tuple[list[Finding], Capabilities]:
        provider = make_provider(sandbox, state, "--sandbox")
        try:
            return await provider.check(), provider.capabilities
        finally:
            await provider.aclose()

    findings, can = run_async(look)
    works = all(f.ok for f in findings if f.required)
    if as_json:
        document: dict[str, Any] = {
            "works": works,
            "home": str(state),
            "findings": [asdict(f) for f in findings],
            "capabilities": {
                "isolated": can.isolated,
                "networks": sorted(can.networks),
                "limits": sorted(can.limits),
                "images": sorted(can.images),
                "features": sorted(can.features),
                "warning": can.warning,
            },
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return 0 if works else CANNOT
    console = Console()
    for finding in findings:
        mark, style = ("ok", "green") if finding.ok else ("no", "red" if finding.required else "yellow")
        console.print(Text.assemble((f"{mark:3}", style), f"{finding.name}: {finding.detail}"))
        if not finding.ok and finding.remedy:
            console.print(Text(f"   {finding.remedy}", style="bold"))
    console.print(
        Text(
            f"networks: {', '.join(sorted(can.networks))}; "
            f"limits that hold: {', '.join(sorted(can.limits)) or 'none'}; "
            f"images: {', '.join(sorted(can.images))}; "
            f"features: {', '.join(sorted(can.features)) or 'none'}"
        )
    )
    if can.warning:
        console.print(Text(can.warning, style="yellow"))
    console.print(Text(f"state: {state}"))
    console.print(Text("races work here" if works else "races do not work here", style="bold"))
    return 0 if works else CANNOT


def _conformance(sandbox: str, image: str, only: list[str], *, as_json: bool) -> int:
    """Run the conformance suite on a provider, for whoever writes one."""
    state = home()
    console = Console(stderr=as_json)
    styles = {"passed": "green", "failed": "red", "left out": "yellow"}

    async def look() -> list[CheckResult]:
        results: list[CheckResult] = []
        provider = make_provider(sandbox, state, "--sandbox")
        try:
            again = lambda: make_provider(sandbox, state, "--sandbox")  # noqa: E731 - as short as it gets
            async for each in checked(provider, image=image, again=again, only=only):
                results.append(each)
                line = f"{each.name}: {each.reason}" if each.reason else each.name
                console.print(Text.assemble((f"{each.outcome:9}", styles[each.outcome]), line))
        finally:
            await provider.aclose()
        return results

    results = run_async(look)
    failed = sum(r.outcome == "failed" for r in results)
    if as_json:
        document = {"works": not failed, "checks": [asdict(r) for r in results]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        passed, left = (sum(r.outcome == o for r in results) for o in ("passed", "left out"))
        console.print(Text(f"{passed} passed, {failed} failed, {left} left out", style="bold"))
    return 1 if failed else 0


def gc(
    bases: Annotated[
        bool, typer.Option("--bases", help="Also remove cached bases that nothing was forked from.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Remove what killed processes left, and nothing that is in use or kept."""
    removed, problems = run_async(lambda: collect(home(), bases=bases))
    if as_json:
        sys.stdout.write(json.dumps({"removed": removed, "problems": problems}, indent=2) + "\n")
    else:
        for line in removed:
            typer.echo(f"removed {line}")
        if not removed:
            typer.echo("nothing to remove")
    for line in problems:
        tell(line)
    return 1 if problems else 0
