"""A shell in a sandbox on this terminal: bytes both ways, raw mode, and the window's size."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import termios
import tty

import anyio
import anyio.to_thread

from race.errors import SpecError
from race.sandbox import Sandbox, Terminal


async def attach(sandbox: Sandbox, cwd: str) -> int:
    """Open a shell in a sandbox and hand this terminal to it until it ends.

    Returns:
        The shell's exit status.

    Raises:
        SpecError: standard input or output is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SpecError("a shell needs a terminal; use 'race sandbox exec NAME COMMAND' in a pipe")
    size = shutil.get_terminal_size()
    term = {"TERM": os.environ.get("TERM", "xterm")}
    terminal = await sandbox.terminal(cwd=cwd, env=term, rows=size.lines, columns=size.columns)
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin, termios.TCSADRAIN)  # without losing what was typed already
        async with anyio.create_task_group() as group:
            group.start_soon(_type, terminal)
            group.start_soon(_resize, terminal)
            await _show(terminal)
            group.cancel_scope.cancel()
        return await terminal.wait()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        with anyio.CancelScope(shield=True):
            await terminal.aclose()


async def _type(terminal: Terminal) -> None:
    while True:
        await anyio.wait_readable(sys.stdin)
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            return
        await terminal.send(data)


async def _show(terminal: Terminal) -> None:
    while data := await terminal.receive():
        # Standard output may be a slow terminal; a thread waits for it, so that typing goes on.
        await anyio.to_thread.run_sync(_write, data)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _resize(terminal: Terminal) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            size = shutil.get_terminal_size()
            await terminal.resize(size.lines, size.columns)
