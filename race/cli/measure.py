"""``race measure``: the finals alone, for commands of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from race.cli import wording
from race.cli.report import report
from race.cli.running import NO_WINNER, exiting, run_async, tell
from race.comparison import Measures, Method, compare
from race.errors import SpecError
from race.finals import Rule
from race.pictures import svg
from race.readers import Format
from race.readers.json_text import path_steps
from race.scoring import Goal, Sample
from race.statistics.rule import Mode
from race.verdict import Verdict


def register(app: typer.Typer) -> None:
    """Add this sub-command."""
    app.command()(exiting(measure))


def measure(  # noqa: PLR0913, PLR0917 - a command line has as many options as it needs
    commands: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="Commands to choose from.", show_default=False)
    ],
    base: Annotated[str, typer.Option("--base", metavar="CMD", help="The command to compare them with.")],
    what: Annotated[Measures, typer.Option("--measure", help="What is measured of each run.")] = "time",
    reads: Annotated[
        Format, typer.Option("--format", help="With --measure output: what the commands print.")
    ] = "auto",
    path: Annotated[
        str, typer.Option("--path", help="With --measure output: where in JSON the number is.")
    ] = "",
    unit: Annotated[str, typer.Option("--unit", help="With --measure output: of the number.")] = "ms",
    goal: Annotated[Goal, typer.Option("--goal", help="With --measure output: what is better.")] = "min",
    mode: Annotated[Mode, typer.Option("--mode", help="How much is measured.")] = "standard",
    confidence: Annotated[
        float | None, typer.Option("--confidence", help="How sure a claim must be, such as 0.95.")
    ] = None,
    indifference: Annotated[
        float | None, typer.Option("--indifference", help="Differences below this share count as none.")
    ] = None,
    max_rounds: Annotated[int | None, typer.Option("--max-rounds", help="Rounds at most.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Time for measuring.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that one run may take.")] = 600,
    prepare: Annotated[
        str, typer.Option("--prepare", metavar="CMD", help="Run before each sample, unmeasured.")
    ] = "",
    cpus: Annotated[
        str,
        typer.Option("--cpus", help="Processors to use, such as 2,3; helps where nothing else runs on them."),
    ] = "",
    any_winner: Annotated[
        bool, typer.Option("--any-winner", help="The winner need not be better than the base.")
    ] = False,
    picture: Annotated[Path | None, typer.Option("--svg", help="Draw the samples into this file.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else.")
    ] = False,
) -> int:
    """Measure commands against each other and a base, on this machine and without sandboxes."""
    given = {
        "confidence": confidence,
        "indifference": indifference,
        "max_rounds": max_rounds,
        "seconds": seconds,
    }
    try:
        if path:
            path_steps(path)
        rule = Rule.of(
            mode, require_improvement=not any_winner, **{k: v for k, v in given.items() if v is not None}
        )
    except ValueError as e:
        raise SpecError(f"race measure: {e}") from e
    method = Method(what, unit, goal, reads, path, timeout, prepare, _cpus(cpus))

    def on_sample(name: str, number: int, sample: Sample) -> None:
        value = wording.quantity(sample.value, method.shown_unit)
        at = f"round {number - rule.warmup + 1}" if number >= rule.warmup else "warm-up"
        tell(f"{at}: {wording.cut(name, 40)}: {value}")

    async def work() -> Verdict:
        return await compare(
            base,
            commands,
            rule=rule,
            method=method,
            on_sample=on_sample,
            on_wait=lambda: tell("waiting: something else is measuring on this machine"),
        )

    verdict = run_async(work)
    if picture is not None:
        _write(picture, svg(verdict))
    if as_json:
        sys.stdout.write(verdict.model_dump_json(indent=2) + "\n")
    report(verdict, Console(stderr=as_json))
    return 0 if verdict.winner else NO_WINNER


def _write(picture: Path, drawn: str) -> None:
    try:
        picture.write_text(drawn, "utf-8")
    except OSError as e:
        raise SpecError(f"--svg: {picture} cannot be written: {e.strerror}") from e


def _cpus(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    allowed = os.sched_getaffinity(0)
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not set(found) <= allowed:
        raise SpecError(
            f"--cpus: {text!r} is no list of processors; there are: {', '.join(map(str, sorted(allowed)))}"
        )
    return found
