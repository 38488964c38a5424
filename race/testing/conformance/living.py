"""Checks of named processes and lifetimes."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import anyio

from race.sandbox import Sandbox
from race.testing.conformance.bench import (
    TICKING,
    WORK,
    Bench,
    Check,
    expect,
    grows,
    output,
    refused,
    same,
    size,
    until,
)

if TYPE_CHECKING:
    from race.background import Process

_LIFETIME = 1.0
_WITHIN = 10.0


async def _printed(process: Process, wanted: bytes) -> None:
    """Wait until a process has written something."""

    async def has() -> bool:
        return wanted in await process.read()

    await until(has, f"the process did not write {wanted!r}", seconds=_WITHIN)


async def process_starts(bench: Bench) -> None:
    """A named process runs in its directory and environment, and goes on after the call."""
    sandbox = await bench.new()
    command = f"echo $WORD; {TICKING.format(file='ticks')}"
    process = await sandbox.spawn("one", command, cwd=WORK, env={"WORD": "begun"})
    await _printed(process, b"begun\n")
    info = await process.info()
    same((info.name, info.state, info.exit_code), ("one", "running", None), "name, state and status")
    expect(abs(time.time() - info.started) < 60, f"it is said to have started at {info.started}")  # noqa: PLR2004
    expect(await grows(sandbox, "ticks"), "it does not go on")


async def process_output_by_position(bench: Bench) -> None:
    """The output of a named process, both streams in the order written, is read from any byte position on."""
    sandbox = await bench.new()
    process = await sandbox.spawn("one", "printf abc; printf def >&2; printf ghi")
    same(await process.wait(_WITHIN), 0, "the status")
    same(await process.read(), b"abcdefghi", "the output")
    same(await process.read(4), b"efghi", "the output from byte 4")
    same(await process.read(4, limit=2), b"ef", "two bytes of the output from byte 4")
    same(await process.read(9), b"", "the output from its end")
    same((await process.info()).output_bytes, 9, "how many bytes it wrote")


async def process_statuses(bench: Bench) -> None:
    """The end of a named process is told with its status, minus the signal's number if one ended it."""
    sandbox = await bench.new()
    same(await (await sandbox.spawn("three", "exit 3")).wait(_WITHIN), 3, "the status")
    killed = await sandbox.spawn("killed", "kill -TERM $$")
    same(await killed.wait(_WITHIN), -15, "the status after SIGTERM")
    info = await killed.info()
    same((info.state, info.exit_code), ("ended", -15), "what is known of it")
    running = await sandbox.spawn("running", "sleep 100")
    same(await running.wait(0.1), None, "the status of what still runs")


async def process_input(bench: Bench) -> None:
    """A named process gets what is sent to it, until its input is closed; then sending is refused."""
    sandbox = await bench.new()
    process = await sandbox.spawn("one", ["cat"])
    await process.send(b"first ")
    await _printed(process, b"first ")
    await process.send(b"second", end=True)
    same(await process.wait(_WITHIN), 0, "the status of what read to the end of its input")
    same(await process.read(), b"first second", "what it read")
    with refused("sending to what has ended"):
        await process.send(b"more")


async def process_signals(bench: Bench) -> None:
    """A signal reaches a named process and all that it started."""
    sandbox = await bench.new()
    inner = TICKING.format(file="inner")
    process = await sandbox.spawn("one", f"({inner}) & {TICKING.format(file='outer')}", cwd=WORK)

    async def begun() -> bool:
        return await size(sandbox, "inner") > 0

    await until(begun, "the process did not start")
    await process.signal(signal.SIGTERM)
    same(await process.wait(_WITHIN), -15, "the status")
    for file in ("inner", "outer"):
        expect(not await grows(sandbox, file), f"what writes to {file!r} was not ended")
    await process.signal(signal.SIGTERM)


async def process_names(bench: Bench) -> None:
    """The name of a process that runs is refused to another; a name that none has is refused with those there are."""
    sandbox = await bench.new()
    await sandbox.spawn("taken", "sleep 100")
    with refused("a name that is taken", naming=["taken"]):
        await sandbox.spawn("taken", "true")
    with refused("a name that cannot be one"):
        await sandbox.spawn("../up", "true")
    with refused("a name that no process has", naming=["taken"]):
        await sandbox.process("other")


async def process_list(bench: Bench) -> None:
    """Named processes are listed, oldest first, also those that have ended."""
    sandbox = await bench.new()
    await (await sandbox.spawn("first", "true")).wait(_WITHIN)
    await sandbox.spawn("second", ["sleep", "100"])
    infos = await sandbox.processes()
    same([(i.name, i.state) for i in infos], [("first", "ended"), ("second", "running")], "the processes")
    same(tuple(infos[1].command), ("sleep", "100"), "a command")


async def process_attach(bench: Bench) -> None:
    """Another instance of the provider attaches to a named process, reads all its output and ends it."""
    sandbox = await bench.new()
    first = await sandbox.spawn("one", "echo begun; cat")
    await _printed(first, b"begun\n")
    async with bench.again() as other:
        process = await (await other.get(sandbox.name)).process("one")
        await _printed(process, b"begun\n")
        await process.send(b"more", end=True)
        same(await process.wait(_WITHIN), 0, "the status")
    same(await first.read(), b"begun\nmore", "what it wrote")


async def process_outlives_its_client(bench: Bench) -> None:
    """A named process goes on when the instance that started it is closed."""
    sandbox = await bench.new()
    async with bench.again() as other:
        await (await other.get(sandbox.name)).spawn("one", TICKING.format(file="ticks"), cwd=WORK)

    async def begun() -> bool:
        return await size(sandbox, "ticks") > 0

    await until(begun, "the process did not start")
    expect(await grows(sandbox, "ticks"), "it was ended")


async def process_ends_with_its_sandbox(bench: Bench) -> None:
    """Named processes end with their sandbox, and are forgotten at its next start."""
    sandbox = await bench.new()
    await sandbox.spawn("one", "sleep 100")
    await sandbox.stop()
    await sandbox.start()
    same([i.name for i in await sandbox.processes()], [], "the processes since the last start")


async def lifetime_stops(bench: Bench) -> None:
    """A sandbox is stopped at the end of its lifetime, never deleted, and starting it begins another."""
    sandbox = await bench.new(lifetime=_LIFETIME)
    await output(sandbox, "echo kept >file")
    ends = (await sandbox.info()).ends
    expect(
        ends is not None and abs(ends - time.time()) < _LIFETIME + 1, f"its lifetime is said to end at {ends}"
    )
    await _stopped(bench, sandbox)
    same(await sandbox.read(f"{WORK}/file"), b"kept\n", "a file after its lifetime")
    await sandbox.start()
    same((await sandbox.info()).state, "running", "the state after it was started again")
    await _stopped(bench, sandbox)


async def idle_lifetime_stops(bench: Bench) -> None:
    """A sandbox that nobody uses is stopped, and one that is used is not."""
    sandbox = await bench.new(idle_lifetime=_LIFETIME)
    with anyio.move_on_after(2 * _LIFETIME):
        while True:
            await output(sandbox, "true")
            await anyio.sleep(0.2)
    same((await sandbox.info()).state, "running", "the state of one that was in use all the time")
    await _stopped(bench, sandbox)


async def _stopped(bench: Bench, sandbox: Sandbox) -> None:
    async def is_stopped() -> bool:
        return next(i.state for i in await bench.provider.list() if i.name == sandbox.name) == "stopped"

    await until(is_stopped, "it was not stopped at the end of its lifetime", seconds=_WITHIN)


CHECKS = (
    Check(process_starts, feature="processes"),
    Check(process_output_by_position, feature="processes"),
    Check(process_statuses, feature="processes"),
    Check(process_input, feature="processes"),
    Check(process_signals, feature="processes"),
    Check(process_names, feature="processes"),
    Check(process_list, feature="processes"),
    Check(process_attach, feature="processes", again=True),
    Check(process_outlives_its_client, feature="processes", again=True),
    Check(process_ends_with_its_sandbox, feature="processes"),
    Check(lifetime_stops, feature="lifetimes"),
    Check(idle_lifetime_stops, feature="lifetimes"),
)
