"""Attempts to get out of a sandbox of this machine: each is denied, and each was seen to work without its defence.

Those of `attacks` are made from inside, as root and as an ordinary user. The others are traps for the host's side.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from race.errors import SandboxError
from race.sandbox import SandboxSpec
from race.sandboxes.local import reading, syscalls, unpacking
from race.sandboxes.local.layers import Layers
from race.sandboxes.local.removal import remove_tree
from race.sandboxes.local.tar_reading import BadArchiveError
from tests.sandboxes import archives
from tests.sandboxes.ordinary import USER, run_as_ordinary_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from race.sandbox import Sandbox
    from race.sandboxes.local import LocalProvider

WORKS_WITHOUT = {
    "more_user_namespaces": "filter and capabilities",
    "mount": "filter and capabilities",
    "new_mount_calls": "filter and capabilities",
    "copy_of_a_mount": "filter and capabilities",
    "unmount": "filter and capabilities",
    "control_groups": "filter and capabilities",
    "user_namespace": "limit on user namespaces",
    "mount_namespace": "filter and capabilities",
    "network_namespace": "filter and capabilities",
    "join_a_namespace": "filter and capabilities",
    "pivot_root": "filter and capabilities",
    "host_name": "filter and capabilities",
    "reboot": "filter and capabilities",
    "trace_pid_1": "filter and hidden PID 1",
    "memory_of_pid_1": "filter and hidden PID 1",
    "read_pid_1": "filter and hidden PID 1",
    "files_of_pid_1": "filter and hidden PID 1",
    "root_of_pid_1": "filter and hidden PID 1",
    "program_of_pid_1": "filter and hidden PID 1",
    "a_file_of_pid_1": "filter and hidden PID 1",
    "keyring": "filter",
    "keyring_of_the_user": "filter",
    "profile": "filter",
    "page_faults": "filter",
    "io_uring": "filter",
    "vsock": "filter",
    "packets": "filter",
    "become_root_by_a_set_uid_program": "no new privileges",
    "abstract_socket_of_the_host": "scope of abstract sockets",
    "loopback_of_the_host": "network",
    "address_of_the_host": "network",
    "metadata": "network",
    "passwords_of_the_host": "mask",
}
"""Which defence stops an attempt: without it, it works."""

KERNELS_OWN = {
    "core_pattern": "the file belongs to the machine's root, whom no id of a sandbox stands for",
    "modprobe_path": "likewise, or there are no modules",
    "sysrq": "likewise; it shows in the first namespace only",
    "sysrq_setting": "likewise",
    "memory_of_the_kernel": "likewise",
    "kernel_log": "it is for capabilities over the whole machine",
    "processors_off": "what is shown of the hardware is read-only, and belongs to the machine's root",
    "control_groups_shown": "nothing of them is mounted",
    "signal_to_the_host": "processes outside of the PID namespace have no number in it",
    "process_of_the_host": "likewise",
    "handle_of_the_host": "likewise",
    "process_of_a_sibling": "likewise",
    "trace_a_sibling": "likewise",
    "bpf": "it is for capabilities over the whole machine",
    "file_by_handle": "likewise",
    "load_a_module": "likewise, or there are none",
    "another_kernel": "likewise, or there is no such call",
    "the_clock": "likewise",
    "swap": "likewise",
    "accounting": "likewise",
    "kept_from_memory_shortage": "likewise",
    "first_in_line": "likewise",
    "real_time": "likewise",
    "more_processes": "likewise",
    "block_device": "a user namespace makes no devices",
    "memory_device": "likewise",
    "device_in_the_image": "what is mounted in a user namespace has no devices",
    "whiteout": "overlay makes none for programs",
    "overlay_mark": "trusted attributes are for the machine's root",
    "home_of_the_host": "nothing of it is mounted",
    "calls_of_another_abi": "the kernel has none",
    "kernel_cryptography": "the kernel has none",
    "type_into_a_terminal": "there is no terminal but those that a sandbox makes for itself",
}
"""What stops an attempt even without the filter and with all capabilities: a second defence, the kernel's own."""

_MAYBE_NOT_HERE = {
    "vsock",
    "profile",
    "io_uring",
    "control_groups",
    "calls_of_another_abi",
    "kernel_cryptography",
}
"""What other kernels than the newest have not, or have: without the defence either is right."""
_NOT_AS_USER = {"become_root_by_a_set_uid_program", "passwords_of_the_host"}
"""An ordinary user's sandbox has one user, and that user may not read the host's secrets either."""


@pytest.fixture(scope="module")
def local_home() -> Iterator[Path]:
    """On the disk: in memory the kernel heeds no set-uid bit anyway."""
    folder = Path(tempfile.mkdtemp(prefix="race-tests-"))
    home = folder / "local"
    home.mkdir(mode=0o700)
    yield home
    remove_tree(home)
    folder.rmdir()


@pytest.fixture(scope="session")
def python_image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A root filesystem with a Python that needs nothing more, and the path of that inside."""
    top = tmp_path_factory.mktemp("python")
    top.chmod(0o755)
    for name in ("dev", "etc", "proc", "root", "sys", "tmp", "opt"):
        (top / name).mkdir()
    (top / "tmp").chmod(0o1777)
    (top / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    library = Path(sysconfig.get_path("stdlib"))
    left_out = shutil.ignore_patterns(
        "__pycache__", "test", "site-packages", "idlelib", "tkinter", "ensurepip", "lib2to3", "config-*"
    )
    shutil.copytree(library, top / str(library).lstrip("/"), ignore=left_out)
    program = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    _copied(program, top)
    for each in (program, *library.glob("lib-dynload/_[cjs]*.so")):
        done = subprocess.run(["ldd", each], capture_output=True, check=False, text=True)
        for needed in re.findall(r"(/\S+) \(0x", done.stdout):
            _copied(Path(needed), top)
    return top, str(program)


def _copied(file: Path, top: Path) -> None:
    place = top / str(file).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        shutil.copy(file, place)


def _judge(results: dict[str, dict[str, str]], *, root: bool) -> None:
    attempts = set(WORKS_WITHOUT) | set(KERNELS_OWN)
    assert set(results["nothing"]) == attempts
    assert {name: each for name, each in results["nothing"].items() if each in ("worked", "died")} == {}
    for name, defence in WORKS_WITHOUT.items():
        if defence in results and name not in _MAYBE_NOT_HERE and (root or name not in _NOT_AS_USER):
            assert results[defence][name] == "worked", (name, defence)
    for name, reason in KERNELS_OWN.items():
        if name not in _MAYBE_NOT_HERE:
            assert results["filter and capabilities"][name] != "worked", (name, reason)


def test_there_are_many_attempts() -> None:
    assert len(WORKS_WITHOUT) >= 30
    assert len(WORKS_WITHOUT) + len(KERNELS_OWN) >= 60
    assert not set(WORKS_WITHOUT) & set(KERNELS_OWN)


def test_nobody_gets_out_of_roots_sandboxes(tmp_path: Path, python_image: tuple[Path, str]) -> None:
    """Takes seconds: ten sandboxes, and all attempts in each."""
    if os.geteuid() != 0:
        pytest.skip("the other test is about ordinary users")
    image, python = python_image
    command = [sys.executable, "-m", "tests.sandboxes.escaping", str(tmp_path / "local"), str(image), python]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    _judge(json.loads(done.stdout), root=True)


def test_nobody_gets_out_of_an_ordinary_users_sandboxes(
    tmp_path: Path, python_image: tuple[Path, str]
) -> None:
    """Takes seconds: nine sandboxes, and all attempts in each."""
    image, python = python_image
    module = ["-m", "tests.sandboxes.escaping"]
    if os.geteuid() == 0:
        home = tmp_path / "user"
        for folder, _, files in os.walk(image):  # what is root's nobody could write to inside
            for each in (Path(folder), *(Path(folder, file) for file in files)):
                os.chown(each, USER, USER, follow_symlinks=False)
        told = run_as_ordinary_user([*module, str(home / "local"), str(image), python], home, image)
    else:
        command = [sys.executable, *module, str(tmp_path / "local"), str(image), python]
        told = subprocess.run(command, capture_output=True, check=True).stdout
    _judge(json.loads(told), root=False)


# Traps for the host's side


def test_a_link_in_the_place_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that becomes a link while the host looks is not followed out of its layer."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("host")
    layer = tmp_path / "layer"
    (layer / "app").mkdir(parents=True)
    (layer / "app" / "way").symlink_to(tmp_path / "outside")

    def read() -> bytes | None:
        with Layers([layer]) as layers:
            opened = layers.open(0, b"app/way/secret", os.O_RDONLY)
            if opened is None:
                return None
            try:
                return os.read(opened, 100)
            finally:
                os.close(opened)

    assert read() is None
    monkeypatch.setattr(syscalls, "_RESOLVE_NO_SYMLINKS", 0)
    monkeypatch.setattr(syscalls, "_RESOLVE_NO_MAGICLINKS", 0)
    with pytest.raises(OSError, match="cross-device"):  # the second defence: it leads out
        read()
    monkeypatch.setattr(syscalls, "_RESOLVE_BENEATH", 0)
    assert read() == b"host"


def test_a_link_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside").mkdir()
    content = archives.whole(
        archives.link("way", str(tmp_path / "outside")), archives.entry("way/planted", content=b"x")
    )

    def unpack(name: str) -> None:
        (tmp_path / name).mkdir()
        held = tmp_path / f"{name}.tar"
        held.write_bytes(content)
        with held.open("rb") as stream:
            place = tmp_path / name
            unpacking.unpack(
                stream, lambda path: (place, path), unpacking.free_budget(tmp_path), lambda: None
            )

    with pytest.raises(BadArchiveError, match="'way'"):
        unpack("first")
    assert list((tmp_path / "outside").iterdir()) == []
    for resolve in ("_RESOLVE_NO_SYMLINKS", "_RESOLVE_NO_MAGICLINKS"):
        monkeypatch.setattr(syscalls, resolve, 0)
    with pytest.raises(BadArchiveError, match="'way'"):  # the second defence: it leads out
        unpack("second")
    assert list((tmp_path / "outside").iterdir()) == []
    monkeypatch.setattr(syscalls, "_RESOLVE_BENEATH", 0)
    unpack("third")
    assert (tmp_path / "outside" / "planted").read_bytes() == b"x"


@pytest.mark.anyio
async def test_a_fifo_that_nobody_writes_to(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    await sandbox.exec("mkdir /app; mkfifo /app/pipe")
    with anyio.fail_after(5), pytest.raises(SandboxError, match="not a regular file"):
        await sandbox.read("/app/pipe")
    monkeypatch.setattr(reading.stat, "S_ISREG", lambda _: True)
    with anyio.fail_after(5):  # the second defence: nothing waits for a writer
        assert await sandbox.read("/app/pipe") == b""


@pytest.mark.anyio
async def test_set_uid_programs_are_out_of_the_hosts_reach(
    provider: LocalProvider, sandbox: Sandbox, small_image: Path
) -> None:
    """A program that a sandbox made set-uid would be one of the host's root, could anybody get at it."""
    if os.geteuid() != 0:
        pytest.skip("only root's sandboxes have files of root")
    await sandbox.exec("cp /bin/cat /cat; chmod 6755 /cat")
    made = next((provider.home / "sandboxes" / sandbox.name / "upper").glob("*/cat"))
    assert stat.S_IMODE(made.stat().st_mode) == 0o6755
    for each in (provider.home.parent, *provider.home.parent.parents):
        if each.is_relative_to("/tmp/"):
            each.chmod(each.stat().st_mode | 0o711)

    def status() -> int:
        secret = small_image.parent / "of-root"
        secret.write_text("host")
        secret.chmod(0o600)
        return subprocess.run(
            [made, secret], user=65534, group=65534, check=False, capture_output=True
        ).returncode

    with pytest.raises(PermissionError):
        status()
    closed = [
        provider.home,
        provider.home / "sandboxes",
        provider.home / "sandboxes" / sandbox.name,
        *made.parents,
    ]
    modes = {each: each.stat().st_mode for each in closed if each.is_relative_to(provider.home)}
    try:
        for each in modes:
            each.chmod(0o755)
        small_image.parent.chmod(small_image.parent.stat().st_mode | 0o711)
        assert status() == 0
    finally:
        for each, mode in modes.items():
            each.chmod(mode)


@pytest.mark.anyio
async def test_what_runs_inside_cannot_outlive_its_sandbox(
    provider: LocalProvider, new_name: Callable[[], str], small_image: Path
) -> None:
    """Not even what ignores every signal and has left every session and group."""
    made = await provider.create(SandboxSpec(new_name(), image=str(small_image)))
    await made.exec("(trap '' HUP INT TERM QUIT; while :; do sleep 1000; done) >/dev/null 2>&1 & echo")
    record = provider._workshop.records.load(made.name)
    assert record.init is not None
    namespace = Path(f"/proc/{record.init.pid}/ns/pid").readlink()

    def inside() -> list[int]:
        found: list[int] = []
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                try:
                    if (each / "ns" / "pid").readlink() == namespace:
                        found.append(int(each.name))
                except OSError:
                    continue
        return found

    assert len(inside()) >= 2
    await made.delete()
    assert inside() == []
    with pytest.raises(ProcessLookupError):
        os.kill(record.init.pid, signal.SIGCONT)
