"""Checks of terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from race.testing.conformance.bench import (
    TICKING,
    WORK,
    Bench,
    Check,
    expect,
    grows,
    refused,
    same,
    size,
    until,
)

if TYPE_CHECKING:
    from race.sandbox import Terminal

_WITHIN = 10.0


async def _until_seen(terminal: Terminal, wanted: bytes) -> bytes:
    """What a terminal wrote, up to the first place where it wrote something."""
    seen = b""
    with anyio.move_on_after(_WITHIN):
        while wanted not in seen:
            data = await terminal.receive()
            if not data:
                break
            seen += data
    expect(wanted in seen, f"the terminal did not write {wanted!r} but {seen[-200:]!r}")
    return seen


async def terminal_is_one(bench: Bench) -> None:
    """A command on a terminal has one, of the size that was asked for, in its directory and environment."""
    sandbox = await bench.new()
    command = ["sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size; echo $WORD $PWD"]
    terminal = await sandbox.terminal(command, cwd=WORK, env={"WORD": "here"}, rows=33, columns=77)
    try:
        seen = await _until_seen(terminal, b"here ")
        expect(b"33 77" in seen, f"the size is not 33 by 77: {seen!r}")
        same(await terminal.wait(), 0, "the status")
    finally:
        await terminal.aclose()


async def terminal_takes_what_is_typed(bench: Bench) -> None:
    """What is typed arrives, a shell is the default, and its end and status are told."""
    sandbox = await bench.new()
    terminal = await sandbox.terminal()
    try:
        await terminal.send(b"echo $((6 * 7))6\n")
        await _until_seen(terminal, b"426")
        await terminal.send(b"exit 5\n")
        with anyio.move_on_after(_WITHIN) as scope:
            while await terminal.receive():
                pass
            same(await terminal.wait(), 5, "the status")
        expect(not scope.cancelled_caught, "the end of the shell was not told")
    finally:
        await terminal.aclose()


async def terminal_resizes(bench: Bench) -> None:
    """The window gets another size, and who runs in it is told."""
    sandbox = await bench.new()
    loop = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
    terminal = await sandbox.terminal(["sh", "-c", loop], rows=20, columns=40)
    try:
        await _until_seen(terminal, b"ready")
        await terminal.resize(44, 111)
        await _until_seen(terminal, b"44 111")
    finally:
        await terminal.aclose()


async def terminal_close_ends_all(bench: Bench) -> None:
    """Closing a terminal ends its command with all it started, and is safe to repeat."""
    sandbox = await bench.new()
    loops = [TICKING.format(file=f) for f in ("front", "back")]
    command = f"trap '' HUP TERM; ({loops[1]}) & {loops[0]}"
    terminal = await sandbox.terminal(["sh", "-c", command], cwd=WORK)

    async def begun() -> bool:
        return await size(sandbox, "front") > 0 and await size(sandbox, "back") > 0

    await until(begun, "the command on the terminal did not start")
    await terminal.aclose()
    await terminal.aclose()
    for file in ("front", "back"):
        expect(not await grows(sandbox, file), f"a process of the terminal still writes to {file!r}")


async def terminal_needs_a_running_one(bench: Bench) -> None:
    """A stopped sandbox has no terminal."""
    sandbox = await bench.new()
    await sandbox.stop()
    with refused("a terminal in a stopped sandbox"):
        await (await sandbox.terminal()).aclose()


CHECKS = (
    Check(terminal_is_one, feature="terminal"),
    Check(terminal_takes_what_is_typed, feature="terminal"),
    Check(terminal_resizes, feature="terminal"),
    Check(terminal_close_ends_all, feature="terminal"),
    Check(terminal_needs_a_running_one, feature="terminal"),
)
