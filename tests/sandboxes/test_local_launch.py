"""How commands are started in a sandbox, and what there is beside them: next to nothing."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from race.errors import SandboxError
from race.sandbox import File
from race.sandboxes.local import talk
from race.sandboxes.local.command import request as command_request
from tests.sandboxes.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from race.sandbox import Sandbox
    from race.sandboxes.local import LocalProvider

pytestmark = pytest.mark.anyio


def processes(pid1: int) -> list[int]:
    """The numbers, inside, of the processes below PID 1, which the host calls ``pid1``."""
    children = Path(f"/proc/{pid1}/task/{pid1}/children").read_text().split()
    return [int(re.findall(r"(\d+)$", line)[0]) for each in children for line in _numbers(each)]


def _numbers(pid: str) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    return [line for line in text.splitlines() if line.startswith("NSpid:")]


def pid1_of(provider: LocalProvider, name: str) -> int:
    init = provider._workshop.records.load(name).init
    assert init is not None
    return init.pid


async def left(pid1: int, count: int) -> None:
    """Wait until there are so many processes below PID 1."""

    async def are() -> bool:
        return len(processes(pid1)) == count

    await until(are)


def private(pid: int) -> int:
    """Kilobytes that only this process has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(map(int, re.findall(r"^Private_(?:Dirty|Clean):\s+(\d+)", text, re.MULTILINE)))


async def test_what_nobody_has_used_has_next_to_no_memory_of_its_own(
    provider: LocalProvider, sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    forks = [await sandbox.fork(new_name()) for _ in range(3)]
    for fork in forks:
        await left(pid1_of(provider, fork.name), 0)
        assert private(pid1_of(provider, fork.name)) <= 64
    assert (await forks[0].exec("echo used")).stdout == b"used\n"
    assert private(pid1_of(provider, forks[0].name)) > 256
    assert private(pid1_of(provider, forks[1].name)) <= 64


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
async def test_commands_go_on_when_somebody_inside_ends_or_stops_them(sandbox: Sandbox, signal: str) -> None:
    done = await sandbox.exec(f"trap '' TERM; kill -{signal} -1; echo said", timeout=10)
    assert not done.timed_out
    for number in range(5):
        done = await sandbox.exec(f"echo {number}", timeout=10)
        assert (done.exit_code, done.stdout) == (0, b"%d\n" % number)


async def test_many_commands_at_once_each_get_their_own_answer(sandbox: Sandbox) -> None:
    found: dict[int, bytes] = {}

    async def one(number: int) -> None:
        found[number] = (await sandbox.exec(f"echo {number}")).stdout

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(one, number)
    assert found == {number: b"%d\n" % number for number in range(40)}


async def test_nothing_is_left_beside_a_command(provider: LocalProvider, sandbox: Sandbox) -> None:
    pid1 = pid1_of(provider, sandbox.name)
    assert (await sandbox.exec("set -- /proc/[0-9]*; echo $#")).stdout == b"3\n"  # PID 1, the shim, the shell
    for command in ("true", "exit 3", ["no-such-program"]):
        await sandbox.exec(command)
    background = (await sandbox.exec("sleep 60 & echo $!")).stdout.decode()
    assert processes(pid1) == [int(background)]
    await sandbox.exec(f"kill {background}")
    await left(pid1, 0)


async def test_what_starts_a_command_cannot_be_looked_into(sandbox: Sandbox) -> None:
    for number in ("1", "$PPID"):
        looked = await sandbox.exec(
            f"cat /proc/{number}/mem /proc/{number}/environ; ls /proc/{number}/fd; echo x >/proc/{number}/mem"
        )
        assert looked.stdout == b""
        assert looked.exit_code != 0


async def test_pid_1_cannot_be_looked_into_while_commands_are_started(sandbox: Sandbox) -> None:
    look = """
import os, time
end = time.monotonic() + 1
opened = 0
while time.monotonic() < end:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/mem", "r+b", 0), open(f"/proc/{name}/cmdline", "rb") as file:
                    opened += b"boot.py" in file.read()  # and not yet the command's program
            except OSError:
                pass
print(opened)
"""
    found: list[bytes] = []

    async def watch() -> None:
        found.append((await sandbox.exec(["python3", "-c", look])).stdout)

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        while not found:
            await sandbox.exec("true")
    assert found == [b"0\n"]


async def test_commands_go_first_when_memory_is_short_and_pid_1_does_not(sandbox: Sandbox) -> None:
    score = "cat /proc/self/oom_score_adj"

    async def is_so() -> bool:
        done = await sandbox.exec(f"sleep 0.1; {score} /proc/1/oom_score_adj")
        return done.stdout == b"500\n0\n"

    await until(is_so)
    async with anyio.create_task_group() as group:  # many at once, too
        for _ in range(8):
            group.start_soon(is_so)
    assert (await sandbox.exec(f"({score}); sh -c '{score}'")).stdout == b"500\n500\n"


@pytest.mark.parametrize(
    ("prepare", "command", "status", "said"),
    [
        ("", ["nowhere"], 127, b"nowhere: not found\n"),
        ("", ["/nowhere"], 127, b"/nowhere: not found\n"),
        ("", ["/etc/passwd/x"], 127, b"/etc/passwd/x: not found\n"),
        ("", ["/etc"], 126, b"/etc: Permission denied\n"),
        ("echo '#!/nowhere' >/p/a; chmod +x /p/a", ["a"], 127, b"a: not found\n"),
        ("echo >/p/a", ["a"], 126, b"a: Permission denied\n"),
        ("ln -s a /p/a", ["/p/a"], 126, b"/p/a: Too many levels of symbolic links\n"),
        ("mkdir /p/a", ["a"], 127, b"a: not found\n"),
        ("mkdir /p/echo", ["echo", "x"], 0, b""),
        ("echo >/p/echo", ["echo", "x"], 0, b""),
        ("echo 'echo $0 $1' >/p/a; chmod +x /p/a", ["a", "x"], 0, b""),
        ("printf 'echo $0 $1' >/p/echo; chmod +x /p/echo", ["echo", "x"], 0, b""),
        ("printf '\\177ELF' >/p/a; chmod +x /p/a", ["/p/a"], 127, None),
    ],
)
async def test_a_program_is_found_as_shells_find_it(
    sandbox: Sandbox, prepare: str, command: list[str], status: int, said: bytes | None
) -> None:
    await sandbox.exec(f"mkdir /p; {prepare}")
    done = await sandbox.exec(command, env={"PATH": "/none:/p:/usr/bin:/bin"})
    assert done.exit_code == status, done
    if said is not None:
        assert done.stderr == said
    if status == 0:
        path = f"/p/{command[0]} " if "$0" in prepare else ""
        assert done.stdout == f"{path}x\n".encode()


async def test_a_shell_is_found_by_the_path_of_the_command(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("echo $0")).stdout == b"/usr/bin/bash\n"
    await sandbox.exec("mkdir /p; ln -s /bin/sh /p/sh")
    assert (await sandbox.exec("echo $0", env={"PATH": "/p"})).stdout == b"/p/sh\n"
    without = await sandbox.exec("echo $0", env={"PATH": "/none"})
    assert (without.exit_code, without.stderr) == (127, b"sh: not found\n")
    here = await sandbox.exec("echo $0", cwd="/p", env={"PATH": ""})
    assert here.stdout == b"./sh\n"


async def test_what_no_program_can_be_given_is_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="Argument list too long"):
        await sandbox.exec(["true", "x" * 200_000])
    with pytest.raises(SandboxError, match="Argument list too long"):
        await sandbox.exec(["true"], env={"X": "x" * 200_000})
    with pytest.raises(SandboxError, match="'/nowhere' cannot be used: No such file"):
        await sandbox.exec("true", cwd="/nowhere")
    assert (await sandbox.exec("exit 70")).exit_code == 70
    many = [f"{number:099}" for number in range(5000)]
    assert (await sandbox.exec(["sh", "-c", "echo $#", "sh", *many])).stdout == b"5000\n"


async def test_a_command_that_loses_what_started_it_is_reported_as_killed(sandbox: Sandbox) -> None:
    done = await sandbox.exec("kill -KILL $PPID; sleep 0.1; echo went on >/tmp/said")
    assert done.exit_code == -9
    for _ in range(20):
        assert (await sandbox.exec("echo fine")).stdout == b"fine\n"

    async def went_on() -> bool:
        return (await sandbox.exec("cat /tmp/said")).stdout == b"went on\n"

    await until(went_on)


async def test_what_a_command_leaves_dead_is_reaped_while_it_runs(sandbox: Sandbox) -> None:
    count = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '"
    done = await sandbox.exec(f"for i in 1 2 3 4 5; do (true &); done; sleep 0.2; {count}; exit 3")
    assert (done.exit_code, done.stdout) == (3, b"0\n")


async def test_signals_are_as_a_login_leaves_them(sandbox: Sandbox) -> None:
    # The shell itself handles some, so another program looks.
    done = await sandbox.exec(["cat", "/proc/self/status"])
    found = {key: int(value, 16) for key, value in re.findall(rb"Sig(Blk|Ign|Cgt):\s*(\w+)", done.stdout)}
    assert found == {b"Blk": 0, b"Ign": 0, b"Cgt": 0}


async def test_commands_run_where_no_program_may_make_code(tmp_path: Path) -> None:
    script = """
import ctypes, sys, anyio
from pathlib import Path
from race.sandbox import SandboxSpec
from race.sandboxes.local import LocalProvider

async def main():
    provider = LocalProvider(Path(sys.argv[1]))
    sandbox = await provider.create(SandboxSpec("plain"))
    try:
        for command in ("echo works", ["nowhere"], "sleep 0.1 & exit 3", "kill -9 $$"):
            done = await sandbox.exec(command)
            print(done.exit_code, done.stdout + done.stderr)
        print((await sandbox.exec("sleep 60", timeout=0.1)).timed_out)
    finally:
        await sandbox.delete()
        await provider.aclose()

if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, Linux 6.3
    sys.exit(77)
anyio.run(main)
"""
    done = await anyio.run_process([sys.executable, "-c", script, str(tmp_path)], check=False, stderr=None)
    if done.returncode == 77:
        pytest.skip("this kernel cannot forbid it")
    assert done.stdout.decode().splitlines() == [
        "0 b'works\\n'",
        "127 b'nowhere: not found\\n'",
        "3 b''",
        "-9 b''",
        "True",
    ]


@pytest.mark.parametrize("beside", ["nothing", "a command", "a named process", "what a command left"])
async def test_a_time_out_ends_what_belongs_to_its_command_and_nothing_else(
    sandbox: Sandbox, beside: str
) -> None:
    # Alone, a command is ended with all that runs in the sandbox.
    goes_on = "sleep 0.5; echo survived >>/tmp/left"
    async with anyio.create_task_group() as group:
        if beside == "a command":
            group.start_soon(sandbox.exec, goes_on)
        elif beside == "a named process":
            await sandbox.spawn("named", goes_on)
        elif beside == "what a command left":
            await sandbox.exec(f"({goes_on}) >/dev/null 2>&1 &")
        await anyio.sleep(0.1)
        assert (await sandbox.exec("setsid sh -c 'sleep 61 & sleep 61' & sleep 61", timeout=0.2)).timed_out
    running = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert b"sleep 61" not in running.stdout.replace(b"cat /proc/[0-9]*/cmdline", b"")

    async def is_left() -> bool:
        return (await sandbox.exec("cat /tmp/left")).stdout == b"survived\n"

    if beside != "nothing":
        await until(is_left)


_BECOME_MANY = """
import gc, os, time
gc.freeze()
for _ in range(600):
    os.fork() or time.sleep(61)
print("all", flush=True)
time.sleep(61)
"""
CROWD = ["python3", "-c", _BECOME_MANY]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # as it takes seconds: so many have to be started
@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_command_of_very_many_processes_is_ended_as_any_other(
    sandbox: Sandbox, is_alone: bool
) -> None:
    # So many that they are stopped, that is told, and then they are killed.
    stopped = 0
    if not is_alone:
        await sandbox.spawn("clock", "while sleep 0.05; do echo >>/tmp/ticks; done")
        stopped = int((await sandbox.exec("sleep 62 & kill -STOP $!; echo $!")).stdout)
    done = await sandbox.exec(CROWD, timeout=2)
    assert (done.timed_out, done.stdout) == (True, b"all\n")
    assert done.usage.cpu_seconds > 0
    assert done.usage.max_rss_bytes > 0
    left = await sandbox.exec("pgrep -fc 'os[.]fork'; wc -l </tmp/ticks")
    assert left.stdout.split()[0] == b"0"
    if not is_alone:
        state = await sandbox.exec(f"grep State /proc/{stopped}/status")
        assert b"(stopped)" in state.stdout
        assert (await sandbox.exec(CROWD, timeout=2)).timed_out
        await sandbox.freeze()  # while they are being ended
        await sandbox.thaw()
        before = int(left.stdout.split()[1])

        async def go_on() -> bool:
            return int((await sandbox.exec("wc -l </tmp/ticks")).stdout) > before

        await until(go_on)


@contextlib.asynccontextmanager
async def held(provider: LocalProvider, name: str) -> AsyncIterator[None]:
    """Have everything in a sandbox stand still, as while its files are copied."""
    async with talk.connected(provider._workshop.records.folder(name), name) as connection:
        talk.tell(connection, name, {"do": "hold"})
        await talk.answer(connection, name)
        yield


async def ask_and_go(provider: LocalProvider, name: str, script: str, after: float = 0.0) -> None:
    """Ask for a command as one does who is killed then."""
    asked = command_request(
        script, cwd="/", env={"PATH": "/usr/bin:/bin"}, timeout=None, merged=True, has_input=False
    )
    reader, writer = os.pipe()
    try:
        async with talk.connected(provider._workshop.records.folder(name), name) as connection:
            talk.tell(connection, name, asked, [writer, reader])
            await anyio.sleep(after)
    finally:
        os.close(reader)
        os.close(writer)


def taken(pid1: int) -> tuple[int, int]:
    """How many descriptors and how many pieces of memory a process has."""
    return len(list(Path(f"/proc/{pid1}/fd").iterdir())), Path(f"/proc/{pid1}/maps").read_text().count("\n")


async def in_use(provider: LocalProvider, sandbox: Sandbox) -> tuple[int, tuple[int, int]]:
    """The number of PID 1, after a first command, and what it has `taken`."""
    await sandbox.exec("true")
    pid1 = pid1_of(provider, sandbox.name)
    return pid1, taken(pid1)


async def takes_no_more(pid1: int, before: tuple[int, int]) -> None:
    """Wait until PID 1 has given back what it took, but for what it keeps for the next commands."""

    async def is_so() -> bool:
        now = taken(pid1)
        return now[0] <= before[0] and now[1] <= before[1] + 8

    await until(is_so)


async def test_what_nobody_waits_for_any_more_is_not_begun(provider: LocalProvider, sandbox: Sandbox) -> None:
    pid1, before = await in_use(provider, sandbox)
    async with held(provider, sandbox.name):
        for _ in range(20):
            await ask_and_go(provider, sandbox.name, "echo >/tmp/begun")
        for _ in range(2):  # PID 1 has heard of all of them, and then that they are gone
            await talk.control(provider._workshop.records.folder(sandbox.name), sandbox.name, {"do": "ended"})
    await takes_no_more(pid1, before)
    assert (await sandbox.exec("ls /tmp/begun")).exit_code != 0


async def test_what_a_killed_orchestrator_asked_for_is_ended_and_leaves_nothing(
    provider: LocalProvider, sandbox: Sandbox
) -> None:
    pid1, before = await in_use(provider, sandbox)
    for number in range(200):
        await ask_and_go(provider, sandbox.name, "sleep 61", number % 4 / 2000)
    await takes_no_more(pid1, before)
    await left(pid1, 0)

    async def is_in_its_place() -> bool:
        return Path(f"/proc/{pid1}/oom_score_adj").read_text() == "0\n"

    await until(is_in_its_place)


async def test_commands_that_are_ended_at_once_leave_nothing(
    provider: LocalProvider, sandbox: Sandbox
) -> None:
    pid1, before = await in_use(provider, sandbox)
    for number in range(200):
        assert (await sandbox.exec("sleep 61", timeout=number % 4 / 2000)).timed_out
        with anyio.move_on_after(number % 4 / 1000):
            await sandbox.exec(["nowhere"])
    await takes_no_more(pid1, before)


async def test_nothing_hangs_whatever_somebody_inside_kills_and_stops(
    provider: LocalProvider, sandbox: Sandbox
) -> None:
    attack = """
import os, random, signal, time
end = time.monotonic() + 1
while time.monotonic() < end:
    try:
        with open("/proc/1/task/1/children") as file:
            found = [int(each) for each in file.read().split()]
    except OSError:
        continue
    for pid in found:
        if pid != os.getppid() and pid != os.getpid():
            try:
                os.kill(pid, random.choice([signal.SIGKILL, signal.SIGSTOP]))
            except OSError:
                pass
"""
    over = anyio.Event()
    pid1, before = await in_use(provider, sandbox)

    async def attacked() -> None:
        await sandbox.exec(["python3", "-c", attack])
        over.set()

    async def again_and_again(work: Callable[[], Awaitable[object]]) -> None:
        while not over.is_set():
            with contextlib.suppress(SandboxError), anyio.fail_after(20):
                await work()

    async def hold() -> None:
        async with held(provider, sandbox.name):
            await anyio.sleep(0.005)
        await anyio.sleep(0.03)

    async with anyio.create_task_group() as group:
        group.start_soon(attacked)
        group.start_soon(again_and_again, lambda: sandbox.exec("true"))
        group.start_soon(again_and_again, lambda: sandbox.exec("true", cwd="/nowhere"))
        group.start_soon(again_and_again, lambda: sandbox.exec(["nowhere"]))
        group.start_soon(again_and_again, lambda: sandbox.write([File(b"/tmp/file", bytes(100_000))]))
        group.start_soon(again_and_again, hold)
    await takes_no_more(pid1, before)
    assert (await sandbox.exec("echo fine")).stdout == b"fine\n"


async def test_a_command_that_waits_is_told_when_the_sandbox_is_frozen(
    provider: LocalProvider, sandbox: Sandbox
) -> None:
    told: list[str] = []

    async def ask() -> None:
        with pytest.raises(SandboxError) as error:
            await sandbox.exec("true")
        told.append(str(error.value))

    async with held(provider, sandbox.name), anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(0.05)
        await sandbox.freeze()
    assert "frozen" in told[0]
    await sandbox.thaw()
    assert (await sandbox.exec("echo fine")).stdout == b"fine\n"


async def test_numbers_that_mean_nothing_are_refused(sandbox: Sandbox) -> None:
    for timeout in (float("inf"), float("nan")):
        with pytest.raises(SandboxError, match="time-out is a number of seconds"):
            await sandbox.exec("true", timeout=timeout)
    assert (await sandbox.exec("sleep 0.1; echo fine", timeout=1e10)).stdout == b"fine\n"
    for rows in (-1, 70_000):
        with pytest.raises(SandboxError, match="up to 65535 rows and columns"):
            await sandbox.terminal(rows=rows)
    assert (await sandbox.exec("echo fine")).stdout == b"fine\n"
