"""Sub-commands about what runs in a sandbox: ``race sandbox exec shell spawn ps attach kill``."""

from __future__ import annotations

import secrets
import signal
import sys
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from race.background import ProcessInfo
from race.cli import wording
from race.cli.attachment import follow
from race.cli.running import exiting
from race.cli.sandbox_calls import Json, Name, Provider, age, on, pairs, workdir, write_json
from race.cli.terminal import attach as attach_terminal
from race.errors import SandboxError, SpecError
from race.sandbox import ExecResult, Sandbox

Command = Annotated[
    list[str],
    typer.Argument(help="The command and its arguments; one word is a shell command.", show_default=False),
]
ProcessName = Annotated[str, typer.Argument(help="Name of the process.", show_default=False)]
Cwd = Annotated[
    str, typer.Option("--cwd", help="Working directory; default: the project's folder, if there is one.")
]
Env = Annotated[list[str] | None, typer.Option("--env", help="KEY=VALUE; may be given again.")]

_OUTPUT_LIMIT = 64 << 20
_COMMAND_WIDTH = 60


def register(app: typer.Typer) -> None:
    """Add these sub-commands."""
    words = {"allow_interspersed_args": False}
    app.command("exec", context_settings=words)(exiting(exec_))
    app.command()(exiting(shell))
    app.command(context_settings=words)(spawn)
    app.command()(ps)
    app.command()(exiting(attach))
    app.command()(kill)


def process_data(info: ProcessInfo) -> dict[str, Any]:
    """What is known of a named process, for JSON."""
    return asdict(info)


def exec_(  # noqa: PLR0913, PLR0917 - one for each option
    name: Name,
    command: Command,
    cwd: Cwd = "",
    env: Env = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Let it go on as a named process, and print its name.")
    ] = False,
    process: Annotated[
        str | None, typer.Option("--name", help="With --detach: the name; default: one is made up.")
    ] = None,
    provider: Provider = "local",
    as_json: Json = False,
) -> int:
    """Run a command in a sandbox. Its exit status is the command's."""
    if process is not None and not detach:
        raise SpecError("--name names a process that goes on: give --detach too")
    if detach:
        if timeout is not None:
            raise SpecError("--timeout is not for a process that goes on: leave out --detach or --timeout")
        _spawned(
            provider, name, process or f"exec-{secrets.token_hex(4)}", command, cwd, env, as_json=as_json
        )
        return 0
    stdin = None if sys.stdin.isatty() else sys.stdin.buffer.read()

    async def run(sandbox: Sandbox) -> ExecResult:
        return await sandbox.exec(
            _command(command),
            cwd=cwd or await workdir(sandbox),
            env=pairs(env, "--env"),
            stdin=stdin,
            timeout=timeout,
            output_limit=_OUTPUT_LIMIT,
        )

    done = on(provider, name, run, interrupted="interrupted: ending the command ...")
    if as_json:
        texts = {each: getattr(done, each).decode(errors="replace") for each in ("stdout", "stderr")}
        write_json({**asdict(done), **texts})
    else:
        sys.stdout.buffer.write(done.stdout)
        sys.stdout.flush()
        sys.stderr.buffer.write(done.stderr)
        sys.stderr.flush()
    if done.timed_out:
        raise SandboxError(f"timed out after {timeout:g} s")
    return _status(done.exit_code)


def _command(words: list[str]) -> str | list[str]:
    return words[0] if len(words) == 1 else words


def _status(code: int | None) -> int:
    """As a shell has it: 128 and the signal's number."""
    code = code or 0
    return code if code >= 0 else 128 - code


def shell(name: Name, provider: Provider = "local", as_json: Json = False) -> int:
    """Open a shell in a sandbox, on this terminal. Its exit status is the shell's.

    With --json the terminal is /dev/tty, and stdout is for what came of it.
    """
    began = time.monotonic()

    async def run(sandbox: Sandbox) -> int:
        return await attach_terminal(sandbox, await workdir(sandbox), by_name=as_json)

    status = on(provider, name, run)
    if as_json:
        write_json({"sandbox": name, "exit_code": status, "seconds": round(time.monotonic() - began, 3)})
    return _status(status)


def spawn(
    name: Name,
    process: ProcessName,
    command: Command,
    cwd: Cwd = "",
    env: Env = None,
    provider: Provider = "local",
    as_json: Json = False,
) -> None:
    """Start a named process in a sandbox, which goes on by itself."""
    _spawned(provider, name, process, command, cwd, env, as_json=as_json)


def _spawned(
    provider: str,
    name: str,
    process: str,
    command: list[str],
    cwd: str,
    env: list[str] | None,
    *,
    as_json: bool,
) -> None:
    async def run(sandbox: Sandbox) -> ProcessInfo:
        made = await sandbox.spawn(
            process, _command(command), cwd=cwd or await workdir(sandbox), env=pairs(env, "--env")
        )
        return await made.info()

    info = on(provider, name, run)
    if as_json:
        write_json(process_data(info))
    else:
        typer.echo(info.name)


def ps(name: Name, provider: Provider = "local", as_json: Json = False) -> None:
    """List the named processes of a sandbox since its last start."""
    infos = on(provider, name, lambda s: s.processes())
    if as_json:
        write_json([process_data(each) for each in infos])
        return
    if not infos:
        typer.echo("there is no named process")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "state", "exit", "output", "age", "command"):
        table.add_column(heading, overflow="fold")
    for each in infos:
        exit_code = "" if each.exit_code is None else str(each.exit_code)
        written = wording.count(each.output_bytes, "byte")
        command = wording.command(" ".join(each.command), _COMMAND_WIDTH)
        cells = (each.name, each.state, exit_code, written, age(each.started), command)
        table.add_row(*(Text(c) for c in cells))
    Console().print(table)


def attach(
    name: Name,
    process: ProcessName,
    position: Annotated[
        int | None,
        typer.Option("--from", min=0, help="From which byte of its output; default: all that is kept."),
    ] = None,
    no_input: Annotated[
        bool, typer.Option("--no-input", help="Send it nothing of the standard input.")
    ] = False,
    provider: Provider = "local",
    as_json: Json = False,
) -> int:
    """Show what a named process writes, and send it what is typed, until it ends. An interrupt only detaches.

    The exit status is the process's.
    """

    async def run(sandbox: Sandbox) -> tuple[ProcessInfo, bytes]:
        held = bytearray()
        show = held.extend if as_json else sys.stdout.buffer.write
        info = await follow(await sandbox.process(process), position, show=show, typed=not no_input)
        return info, bytes(held)

    info, output = on(provider, name, run, interrupted=f"detached: {process} goes on")
    if as_json:
        write_json({**process_data(info), "output": output.decode(errors="replace")})
    return _status(info.exit_code)


def kill(
    name: Name,
    process: ProcessName,
    number: Annotated[str, typer.Option("--signal", help="A name or a number.")] = "TERM",
    provider: Provider = "local",
    as_json: Json = False,
) -> None:
    """Send a signal to a named process and all it started."""
    known = signal_of(number)

    async def run(sandbox: Sandbox) -> ProcessInfo:
        found = await sandbox.process(process)
        await found.signal(known)
        return await found.info()

    info = on(provider, name, run)
    if as_json:
        write_json(process_data(info))


def signal_of(text: str) -> signal.Signals:
    """``TERM``, ``sigterm`` and ``15`` as a signal."""
    word = text.upper()
    try:
        return (
            signal.Signals(int(word))
            if word.isdecimal()
            else signal.Signals[f"SIG{word.removeprefix('SIG')}"]
        )
    except (ValueError, KeyError):
        raise SpecError(f"{text!r} is no signal; write such as TERM, INT, KILL, HUP or USR1") from None
