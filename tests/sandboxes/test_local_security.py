"""What the root of a sandbox of this machine cannot do, beside what `test_escapes` tries."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from race.errors import SandboxError
from race.sandbox import File, SandboxSpec
from race.sandboxes.local import LocalProvider, confine, sequence, syscalls
from race.sandboxes.local.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandbox import Sandbox

_SYSTEM_CALLS = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(each) for each in arguments))
    return result, errno.errorcode.get(ctypes.get_errno(), "none")
for name, number in sorted(eval(sys.argv[1]).items()):
    if name not in ("reboot",):
        print(name, *call(number, 0, 0, 0, 0, 0))
"""


@pytest.mark.anyio
async def test_denied_system_calls_are_denied(sandbox: Sandbox) -> None:
    column = ["x86_64", "aarch64"].index(os.uname().machine)
    numbers = {name: each[column] for name, each in confine.DENIED.items()}
    done = await sandbox.exec(["python3", "-c", _SYSTEM_CALLS, repr(numbers)])
    answers = {line.split()[0]: line.split()[1:] for line in done.stdout.decode().splitlines()}
    assert set(answers) == set(numbers) - {"reboot"}
    assert set(map(tuple, answers.values())) == {("-1", "EPERM")}


def _verdict(program: bytes, architecture: int, number: int, first_argument: int = 0) -> int | str:
    """Run a filter as the kernel would (BPF of seccomp(2)): "allow", or the error number it answers."""
    instructions = list(struct.iter_unpack("HBBI", program))
    data = struct.pack("=iIQ6Q", number, architecture, 0, first_argument, 0, 0, 0, 0, 0)
    accumulator, place = 0, 0
    while True:
        code, when_true, when_false, value = instructions[place]
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x15:
            place += when_true if accumulator == value else when_false
        elif code == 0x35:
            place += when_true if accumulator >= value else when_false
        else:
            assert code == 0x06
            return "allow" if value == 0x7FFF0000 else value - 0x00050000


@pytest.mark.parametrize(
    ("machine", "architecture", "column", "socket_call", "read"),
    [("x86_64", 0xC000003E, 0, 41, 0), ("aarch64", 0xC00000B7, 1, 198, 63)],
)
@pytest.mark.parametrize("pretend", [False, True])
def test_filters_answer_as_their_tables_say(
    machine: str, architecture: int, column: int, socket_call: int, read: int, *, pretend: bool
) -> None:
    program = confine.system_call_filter(machine, pretend_owners=pretend)
    for each in confine.DENIED.values():
        assert _verdict(program, architecture, each[column]) == errno.EPERM
    for pretended in confine.PRETENDED.values():
        number = pretended[column]
        if number is not None:
            assert _verdict(program, architecture, number) == (0 if pretend else "allow")
    assert _verdict(program, architecture, read) == "allow"
    for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
        assert _verdict(program, architecture, socket_call, family) == "allow"
    for family in (socket.AF_VSOCK, socket.AF_PACKET, 38):
        assert _verdict(program, architecture, socket_call, family) == errno.EAFNOSUPPORT
    assert _verdict(program, 0x40000003, read) == errno.ENOSYS  # 32-bit programs
    x32 = _verdict(program, architecture, 0x40000000 + read)
    assert x32 == (errno.ENOSYS if machine == "x86_64" else "allow")


_HEADERS = {"x86_64": "/usr/include/*/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_system_calls_have_the_kernels_numbers(machine: str) -> None:
    """All tables, against the kernel's own headers, which aarch64 shares with all newer processors."""
    header = next(Path("/").glob(_HEADERS[machine].lstrip("/")), None)
    if header is None:
        pytest.skip("the kernel's headers are not installed")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", header.read_text(), re.MULTILINE)
    numbers = {name: int(number) for name, number in found}
    column = ["x86_64", "aarch64"].index(machine)
    tables = {**confine.DENIED, **confine.PRETENDED, **confine.PINNED, **sequence.NUMBERS}
    for name, pair in tables.items():
        assert pair[column] == numbers.get(name), name
    assert confine._SOCKET[machine] == numbers["socket"]
    for name in (
        "open_tree",
        "move_mount",
        "close_range",
        "openat2",
        "mount_setattr",
        "landlock_create_ruleset",
        "landlock_add_rule",
        "landlock_restrict_self",
    ):
        assert getattr(syscalls, f"_{name.upper()}") == numbers[name], name


def test_a_filter_fits_into_the_kernel_and_jumps_nowhere_else() -> None:
    """The kernel takes 4,096 instructions at most, and none that leads out of the program."""
    for machine in ("x86_64", "aarch64"):
        program = confine.system_call_filter(machine, pretend_owners=True)
        instructions = list(struct.iter_unpack("HBBI", program))
        assert len(instructions) < 4096
        for place, (code, when_true, when_false, _) in enumerate(instructions):
            if code in (0x15, 0x35):
                assert place + 1 + max(when_true, when_false) < len(instructions)
        assert instructions[-1][0] == 0x06


def test_there_is_no_filter_for_other_processors() -> None:
    with pytest.raises(OSError, match="riscv64"):
        confine.system_call_filter("riscv64", pretend_owners=False)


@pytest.mark.anyio
async def test_pid_1_cannot_be_killed_or_stopped_from_inside(sandbox: Sandbox) -> None:
    await sandbox.exec("kill -KILL 1; kill -STOP 1; kill -TERM 1; kill -INT 1; kill -KILL -1")
    assert (await sandbox.exec("echo alive")).stdout == b"alive\n"


@pytest.mark.anyio
async def test_a_process_inside_cannot_hold_up_or_fake_a_transfer(sandbox: Sandbox, tmp_path: Path) -> None:
    attack = """
import os, signal, sys, time
end = time.monotonic() + 20
while time.monotonic() < end:
    for name in os.listdir("/proc"):
        if name.isdigit() and name not in ("1", str(os.getpid())):
            try:
                os.kill(int(name), getattr(signal, sys.argv[1]))
            except OSError:
                pass
"""
    await sandbox.write([File(b"/attack.py", attack.encode())])
    await sandbox.exec("python3 /attack.py SIGSTOP >/dev/null 2>&1 &")
    with anyio.fail_after(5):
        await sandbox.write([File(b"/app/%d" % number, bytes(300_000)) for number in range(5)])
        await sandbox.download("/app", tmp_path / "out")
    assert sorted(each.stat().st_size for each in (tmp_path / "out").iterdir()) == [300_000] * 5
    await sandbox.stop()
    await sandbox.start()
    await sandbox.exec("python3 /attack.py SIGKILL >/dev/null 2>&1 &")
    with anyio.fail_after(5), pytest.raises(SandboxError):
        await sandbox.write([File(b"/app/x", bytes(1_000_000))] * 500)
    with anyio.fail_after(5):
        assert (await sandbox.exec("sleep 10")).exit_code == -9


@pytest.mark.anyio
async def test_daemons_that_keep_their_output_open_do_not_use_pid_1_up(sandbox: Sandbox) -> None:
    for _ in range(60):
        await sandbox.exec("for i in 1 2 3; do sleep 1000 & done")
    assert (await sandbox.exec("pgrep -c sleep")).stdout == b"180\n"
    assert (await sandbox.exec("ulimit -n")).stdout.split() != [b"unlimited"]


@pytest.mark.anyio
async def test_the_hosts_secrets_and_the_sandboxes_are_hidden(
    provider: LocalProvider, sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("host")
    seen = await sandbox.exec(
        "cat /etc/shadow; ls -A /root /home /tmp /mnt /srv /run; cat /etc/ssh/*key /etc/sudoers; ls -d $0 $1",
        env={},
    )
    assert seen.stdout.decode().startswith("root:*:")
    text = seen.stdout.decode()
    assert "$6$" not in text
    assert "$y$" not in text
    for path in (provider.home, provider.home.parent, tmp_path, Path(__file__).parent):
        done = await sandbox.exec(["ls", "-d", str(path)])
        assert done.exit_code != 0, path
    mounts = (await sandbox.exec("cat /proc/self/mountinfo")).stdout.decode()
    assert [
        line for line in mounts.splitlines() if " ext4 " in line or " xfs " in line or " btrfs " in line
    ] == []


@pytest.mark.anyio
async def test_a_home_below_a_shown_directory_is_hidden_too(
    new_name: Callable[[], str], anyio_backend: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make folders there")
    shown = Path("/usr/local/share")
    top = shown / f"race-test-{os.getpid()}-{anyio_backend}"
    (top / "state" / "local").mkdir(parents=True)
    try:
        provider = LocalProvider(top / "state" / "local")
        (top / "beside").write_text("shown\n")
        made = await provider.create(SandboxSpec(new_name()))
        done = await made.exec(
            f"cat {top}/beside; ls -A {top}/state; ls {shown}; touch {shown}/new && echo written"
        )
        assert done.stdout.decode().split()[0] == "shown"
        assert "local" not in done.stdout.decode().split()
        assert {each.name for each in shown.iterdir()} <= set(done.stdout.decode().split())
        assert b"written" in done.stdout
        fork = await made.fork(new_name())
        assert (await fork.exec("ls /usr/local/share/new")).exit_code == 0
        assert not (shown / "new").exists()
        await fork.delete()
        await made.delete()
        await provider.aclose()
    finally:
        remove_tree(top)


@pytest.mark.anyio
async def test_nothing_of_the_host_is_written(sandbox: Sandbox) -> None:
    host = Path("/etc/passwd").stat()
    done = await sandbox.exec(
        "echo x >>/etc/passwd; rm -rf /usr/bin/env /etc/apt; chmod 777 /etc; chown 5 /etc/hostname;"
        "touch /bin/x; mkdir /x"
    )
    assert done.exit_code == 0
    after = Path("/etc/passwd").stat()
    assert (host.st_mtime_ns, host.st_size) == (after.st_mtime_ns, after.st_size)
    assert Path("/etc").stat().st_mode & 0o777 != 0o777
    assert not Path("/x").exists()
    assert not Path("/usr/bin/x").exists()


@pytest.mark.anyio
async def test_links_are_never_followed_from_outside(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("host")
    await sandbox.exec(
        f"mkdir /app; cd /app; ln -s {tmp_path} folder; ln -s {tmp_path}/secret file;"
        "mkfifo pipe; ln -s / root; echo x >ok"
    )
    for path in ("/app/folder/secret", "/app/root/etc/hostname"):
        with pytest.raises(SandboxError, match="below a link"):
            await sandbox.read(path)
    for path in ("/app/file", "/app/pipe", "/app", "relative", "/app/../etc/passwd", "/app\0"):
        with pytest.raises(SandboxError):
            await sandbox.read(path)
    with pytest.raises(SandboxError, match="larger"):
        await sandbox.read("/app/ok", limit=1)
    await sandbox.exec("truncate -s 1T /app/huge")
    with pytest.raises(SandboxError, match="larger"):
        await sandbox.read("/app/huge")
    await sandbox.exec("rm /app/huge")
    out = tmp_path / "out"
    await sandbox.download("/app", out)
    assert (out / "file").is_symlink()
    assert sorted(each.name for each in out.iterdir()) == ["file", "folder", "ok", "root"]
    changes = {each.path: each.kind for each in await sandbox.changes("/app")}
    assert changes[b"/app/pipe"] == "special"
    assert changes[b"/app/folder"] == "link"


@pytest.mark.anyio
async def test_abstract_sockets_of_the_host_are_out_of_reach(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made = await provider.create(SandboxSpec(new_name(), network="full"))
    name = f"\0race-{new_name()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        done = await made.exec(["python3", "-c", script])
    findings = {each.name: each for each in await provider.check()}
    assert (done.exit_code != 0) == findings["abstract sockets"].ok


@pytest.mark.anyio
async def test_a_sandbox_without_a_network_has_only_its_own_loopback(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    alone, shared = [
        await provider.create(SandboxSpec(new_name(), network=network)) for network in ("none", "full")
    ]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        script = f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 2)"
        assert (await alone.exec(["python3", "-c", script])).exit_code != 0
        assert (await shared.exec(["python3", "-c", script])).exit_code == 0
    own = """
import socket
with socket.create_server(("127.0.0.1", 8000)), socket.create_connection(("127.0.0.1", 8000)):
    print("ok")
"""
    assert (await alone.exec(["python3", "-c", own])).stdout == b"ok\n"
    assert (await alone.exec("ls /sys/class/net /proc/net/dev; cat /proc/net/route | wc -l")).stdout.split()[
        -1
    ] == b"1"
