"""The command's entry point: which sub-commands there are, and what their failures look like from a shell.

Exit status: 0 there is a winner (or the command did what it was asked); 1 the race ended without one; 2 the call or the
file is wrong; 3 this machine cannot; 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from race.cli import batches, exports, fleets, machine, measure, races, sandboxes, sessions
from race.cli.running import INTERRUPTED, InterruptedRunError, status_of, tell
from race.errors import RaceError

app = typer.Typer(
    name="race",
    help="Fork one prepared sandbox N times, run an agent in each, keep the winner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"race {installed_version('forkrace')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Fork one prepared sandbox N times, run an agent in each, keep the winner."""


races.register(app)
batches.register(app)
exports.register(app)
measure.register(app)
machine.register(app)
app.add_typer(sandboxes.app, name="sandbox")
app.add_typer(fleets.app, name="fleet")
app.add_typer(sessions.app, name="session")


def main() -> None:
    """Run the command and exit with its status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command and return its exit status.

    Args:
        arguments: without the program's name.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 is no reason to fail
    try:
        app(arguments, prog_name="race")
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 1 if e.code else 0
    except RaceError as e:
        tell(str(e))
        return status_of(e)
    except (InterruptedRunError, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough; Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
