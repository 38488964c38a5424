"""Named processes of sandboxes of this machine, and connections to what they serve."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from race.errors import SandboxError
from race.sandbox import SandboxSpec
from race.sandboxes.local import LocalProvider
from race.sandboxes.local.named import KEPT, Ring
from tests.sandboxes.waiting import output, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from race.sandbox import Sandbox

pytestmark = pytest.mark.anyio


async def test_a_named_process_is_told_of_read_from_and_waited_for(sandbox: Sandbox) -> None:
    assert await sandbox.processes() == []
    made = await sandbox.spawn(
        "talk", "echo one; echo two >&2; pwd; echo $WORD; exit 7", cwd="/usr", env={"WORD": "w"}
    )
    assert made.name == "talk"
    assert await made.wait() == 7
    assert await made.read() == b"one\ntwo\n/usr\nw\n"
    assert await made.read(4, limit=3) == b"two"
    assert await made.read(100) == b""
    with pytest.raises(SandboxError, match="from byte 0 on"):
        await made.read(-1)
    info = await made.info()
    assert (info.name, info.state, info.exit_code, info.output_bytes) == ("talk", "ended", 7, 15)
    assert info.command[-1].startswith("echo one")
    assert (await sandbox.spawn("killed", ["sh", "-c", "kill -9 $$"])).name == "killed"
    assert await (await sandbox.process("killed")).wait() == -9
    assert [each.name for each in await sandbox.processes()] == ["talk", "killed"]


async def test_its_input_can_be_written_to_and_ended(sandbox: Sandbox) -> None:
    made = await sandbox.spawn("cat", ["cat"])
    await made.send(b"hello ")
    assert await output(made, b"hello ") == b"hello "
    assert await made.wait(0.05) is None
    other = await sandbox.process("cat")
    await other.send(b"again\n" * 50_000, end=True)  # more than a pipe holds
    assert await made.wait() == 0
    assert len(await made.read()) == 6 + 300_000
    with pytest.raises(SandboxError, match="has ended"):
        await made.send(b"x")
    await made.signal(signal.SIGTERM)  # does nothing
    deaf = await sandbox.spawn("deaf", "exec <&-; echo shut; sleep 100")
    await output(deaf, b"shut")
    with pytest.raises(SandboxError, match="closed its input"):
        await deaf.send(b"x")


async def test_a_signal_reaches_all_that_it_started_and_nothing_else(sandbox: Sandbox) -> None:
    await sandbox.exec("sleep 1111 &")
    made = await sandbox.spawn(
        "many", "sleep 2221 & setsid sleep 2222 & (setsid sleep 2223 &); echo up; sleep 2224"
    )
    await output(made, b"up")
    await made.signal(signal.SIGTERM)
    assert await made.wait() == -15
    assert (await sandbox.exec("pgrep -a sleep")).stdout.split()[1:] == [b"sleep", b"1111"]
    bomb = await sandbox.spawn(
        "stubborn", "trap '' TERM; sh -c 'trap \"\" TERM; echo up; sleep 3331; sleep 3332'"
    )
    await output(bomb, b"up")
    await bomb.signal(signal.SIGTERM)
    await bomb.signal(signal.SIGKILL)
    assert await bomb.wait() == -9
    assert (await sandbox.exec("pgrep -c sleep")).stdout == b"1\n"
    with pytest.raises(SandboxError, match="999"):
        await made.signal(999)


async def test_what_cannot_be_started_or_found_is_said(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="/missing"):
        await sandbox.spawn("lost", "true", cwd="/missing")
    with pytest.raises(SandboxError, match="'lost'; there are: none"):
        await sandbox.process("lost")
    assert await (await sandbox.spawn("none", ["no-such-program"])).wait() == 127
    with pytest.raises(SandboxError, match="process's name"):
        await sandbox.spawn("../etc", "true")
    made = await sandbox.spawn("same", "sleep 1000")
    with pytest.raises(SandboxError, match="'same' runs already"):
        await sandbox.spawn("same", "true")
    await made.signal(signal.SIGKILL)
    await made.wait()
    assert await (await sandbox.spawn("same", "exit 3")).wait() == 3
    await sandbox.freeze()
    with pytest.raises(SandboxError, match="frozen"):
        await sandbox.spawn("cold", "true")
    await sandbox.thaw()


async def test_a_frozen_process_is_woken_by_no_signal_but_can_be_killed(sandbox: Sandbox) -> None:
    made = await sandbox.spawn("tick", "while :; do echo tick; sleep 0.01; done")
    await output(made, b"tick")
    await sandbox.freeze()
    with pytest.raises(SandboxError, match="frozen"):
        await made.signal(signal.SIGCONT)
    written = (await made.info()).output_bytes
    await anyio.sleep(0.1)
    assert (await made.info()).output_bytes == written
    await made.signal(signal.SIGKILL)
    assert await made.wait() == -9
    await sandbox.thaw()


async def test_output_is_bounded_and_says_what_is_lost(sandbox: Sandbox) -> None:
    written = KEPT + 1_000_000
    made = await sandbox.spawn("flood", f"head -c {written - 5} /dev/zero; echo last")
    assert await made.wait() == 0
    info = await made.info()
    assert (info.output_bytes, info.lost_bytes) == (written, 1_000_000)
    assert (await made.read(written - 7))[-7:] == b"\0\0last\n"
    assert await made.read(1_000_000, limit=5) == bytes(5)
    with pytest.raises(SandboxError, match="from byte 1000000 on"):
        await made.read()


async def test_it_ends_with_its_sandbox_and_is_forgotten(
    sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    made = await sandbox.spawn("gone", "sleep 1000")
    fork = await sandbox.fork(new_name())
    assert await fork.processes() == []
    await sandbox.stop()
    assert await sandbox.processes() == []
    with pytest.raises(SandboxError):
        await made.info()
    await sandbox.start()
    assert await sandbox.processes() == []
    with pytest.raises(SandboxError):
        await made.info()


_CLIENT = """
import sys, anyio
from pathlib import Path
from race.sandboxes.local import LocalProvider

async def main():
    sandbox = await LocalProvider(Path(sys.argv[1])).get(sys.argv[2])
    await sandbox.spawn("left", "i=0; while read line; do i=$((i+1)); echo $i $line; done; exit 9")
    print("ready", flush=True)
    await anyio.sleep(1000)

anyio.run(main)
"""


async def test_it_goes_on_when_its_client_was_killed(sandbox: Sandbox, provider: LocalProvider) -> None:
    command = [sys.executable, "-c", _CLIENT, str(provider.home), sandbox.name]
    async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=None) as client:
        assert client.stdout is not None
        assert (await client.stdout.receive()).startswith(b"ready")
        client.kill()
    made = await sandbox.process("left")
    assert (await made.info()).state == "running"
    await made.send(b"a\nb\n", end=True)
    assert await made.wait() == 9
    assert await made.read() == b"1 a\n2 b\n"


async def test_pid_1_is_not_used_up_by_many(sandbox: Sandbox) -> None:
    descriptors = "ls /proc/1/fd 2>/dev/null | wc -l; ls /proc | grep -c '^[0-9]*$'"
    there = (await sandbox.exec(descriptors)).stdout

    async def one(number: int) -> None:
        made = await sandbox.spawn(f"n-{number}", f"read line; exit {number}")
        assert await made.wait(0.001) is None
        await made.send(b"", end=True)
        assert await made.wait() == number

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(one, number)
    assert len(await sandbox.processes()) == 40

    async def nothing_is_left() -> bool:  # the last shims are not quite gone
        return (await sandbox.exec(descriptors)).stdout == there

    await until(nothing_is_left)


def test_a_ring_keeps_the_last_bytes_whatever_the_pieces(tmp_path: Path) -> None:
    whole = bytes(range(251)) * 40
    for piece in (1, 7, 100, 101, 250, 4000):
        ring = Ring(os.open(tmp_path / "ring", os.O_RDWR | os.O_CREAT | os.O_TRUNC), 100)
        for start in range(0, len(whole), piece):
            ring.add(whole[start : start + piece])
            assert ring.read(ring.lost, 1000) == whole[ring.lost : ring.total]
        assert (ring.total, ring.lost) == (len(whole), len(whole) - 100)
        assert (tmp_path / "ring").stat().st_size == 100
        ring.close()


_SERVE = """
import socket
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    listener = socket.socket(family)
    listener.bind((address, 8000 + family))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    while data := (accepted := listener.accept()[0]).recv(100):
        accepted.sendall(data.upper())
        if data == b"end":
            break
"""


async def test_a_port_of_its_loopback_can_be_connected_to(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made = await provider.create(SandboxSpec(new_name()))
    server = await made.spawn("server", ["python3", "-c", _SERVE])
    for port in (8002, 8010):  # each version of the protocol
        await output(server, b"%d\n" % port)
        with await made.connect(port) as connection:
            connection.send(b"end")
            await anyio.wait_readable(connection)
            assert connection.recv(100) == b"END"
    with pytest.raises(SandboxError, match=r"port 9 .*refused"):
        await made.connect(9)
    with pytest.raises(SandboxError, match="port 70000"):
        await made.connect(70000)
    await made.stop()
    with pytest.raises(SandboxError, match="not running"):
        await made.connect(8002)
