"""A shell in a sandbox on this terminal: bytes both ways, raw mode, and the window's size."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from typing import Final

import anyio
import anyio.to_thread

from race.errors import SpecError
from race.sandbox import Sandbox, Terminal

NO_TERMINAL: Final = "a shell needs a terminal; use 'race sandbox exec NAME COMMAND' in a pipe"


async def attach(sandbox: Sandbox, cwd: str, *, by_name: bool = False) -> int:
    """Open a shell in a sandbox and hand this terminal to it until it ends.

    Args:
        sandbox: where.
        cwd: its working directory.
        by_name: take the terminal as ``/dev/tty`` (see tty(4)), not as standard input and output, which then stay free.

    Returns:
        The shell's exit status.

    Raises:
        SpecError: there is no terminal.
    """
    if by_name:
        try:
            screen = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as e:
            raise SpecError(NO_TERMINAL) from e
        try:
            return await _converse(sandbox, cwd, screen, screen)
        finally:
            os.close(screen)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SpecError(NO_TERMINAL)
    return await _converse(sandbox, cwd, sys.stdin.fileno(), sys.stdout.fileno())


async def _converse(sandbox: Sandbox, cwd: str, keys: int, screen: int) -> int:
    size = os.get_terminal_size(screen)
    term = {"TERM": os.environ.get("TERM", "xterm")}
    terminal = await sandbox.terminal(cwd=cwd, env=term, rows=size.lines or 24, columns=size.columns or 80)
    before = termios.tcgetattr(keys)
    try:
        tty.setraw(keys, termios.TCSADRAIN)  # without losing what was typed already
        async with anyio.create_task_group() as group:
            group.start_soon(_type, terminal, keys)
            group.start_soon(_resize, terminal, screen)
            await _show(terminal, screen)
            group.cancel_scope.cancel()
        return await terminal.wait()
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
        with anyio.CancelScope(shield=True):
            await terminal.aclose()


async def _type(terminal: Terminal, keys: int) -> None:
    while True:
        await anyio.wait_readable(keys)
        data = os.read(keys, 4096)
        if not data:
            return
        await terminal.send(data)


async def _show(terminal: Terminal, screen: int) -> None:
    while data := await terminal.receive():
        # The terminal may be slow; a thread waits for it, so that typing goes on.
        await anyio.to_thread.run_sync(_write, screen, data)


def _write(screen: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(screen, rest) :]


async def _resize(terminal: Terminal, screen: int) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            size = os.get_terminal_size(screen)
            await terminal.resize(size.lines or 24, size.columns or 80)
