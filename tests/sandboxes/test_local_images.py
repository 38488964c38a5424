"""What sandboxes of this machine can be made of, as root and as an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from race.errors import MachineError, SandboxError
from race.sandbox import File, SandboxSpec
from race.sandboxes.local import LocalProvider, diagnosis, spawner
from tests.sandboxes.escaping import write_boot
from tests.sandboxes.ordinary import run_as_ordinary_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandbox import Sandbox


@pytest.mark.anyio
async def test_a_directory_is_an_image(
    provider: LocalProvider, small_image: Path, new_name: Callable[[], str]
) -> None:
    made = await provider.create(SandboxSpec(new_name(), image=str(small_image)))
    done = await made.exec("echo $0; id -u; ls /; cat /etc/passwd; ls /bin/bash")
    assert done.stdout.split()[:2] == [b"/bin/sh", b"0"]
    assert b"root:x:0:0" in done.stdout
    assert await made.changes() == []
    await made.write([File(b"/etc/passwd", b"mine")])
    assert (small_image / "etc" / "passwd").read_text().startswith("root:")
    long = await made.exec("x=" + "a" * 200_000 + "; echo ${#x}")
    assert long.stdout == b"200000\n"


@pytest.mark.anyio
async def test_the_identity_of_an_image_follows_its_content(provider: LocalProvider, tmp_path: Path) -> None:
    top = tmp_path / "image"
    top.mkdir()
    (top / "file").write_text("one")
    first = await provider.image_id(str(top))
    assert await provider.image_id(str(top)) == first
    (top / "file").write_text("three")
    assert await provider.image_id(str(top)) != first
    started = time.monotonic()
    host = await provider.image_id("host")
    assert time.monotonic() - started < 0.5
    assert host == await provider.image_id("host")
    assert host != first


@pytest.mark.anyio
async def test_what_cannot_be_an_image_is_refused(
    provider: LocalProvider, new_name: Callable[[], str], tmp_path: Path
) -> None:
    for image, words in (
        (str(tmp_path / "missing"), "directory"),
        ("debian:12", "'host'"),
        ("/", "contains"),
    ):
        with pytest.raises(SandboxError, match=words):
            await provider.create(SandboxSpec(new_name(), image=image))
    name = new_name()
    with pytest.raises(SandboxError):
        await provider.create(SandboxSpec(name, network=("not a host",)))
    assert name not in {each.name for each in await provider.list()}


@pytest.mark.anyio
async def test_the_hosts_tools_work_inside(sandbox: Sandbox) -> None:
    done = await sandbox.exec(
        """
        set -e
        python3 -c 'import json, ssl, sqlite3; print("modules")'
        python -m pip --version | cut -c1-3
        python3 -m venv --without-pip /opt/venv; /opt/venv/bin/python -c 'import sys; print(sys.prefix)'
        mkdir /app; cd /app; git init -q; echo x >x; git add x
        git -c user.name=a -c user.email=a@b commit -qm first; git log --format=%s
        useradd -m somebody 2>/dev/null && ls -d /home/somebody
        echo done
        """
    )
    assert done.stdout.decode().split() == [
        "modules",
        "pip",
        "/opt/venv",
        "first",
        "/home/somebody",
        "done",
    ], done


@pytest.mark.anyio
async def test_other_users_exist_inside(sandbox: Sandbox) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandbox has one user id")
    done = await sandbox.exec(
        "useradd -m somebody; su somebody -c 'id -un; touch /etc/x; echo shown >/dev/stdout';"
        "install -o nobody /dev/null /x; stat -c %U /x"
    )
    assert done.stdout.split() == [b"somebody", b"shown", b"nobody"]
    assert b"Permission denied" in done.stderr


@pytest.mark.anyio
async def test_the_check_finds_nothing_wrong_here(provider: LocalProvider) -> None:
    findings = await provider.check()
    assert [each for each in findings if each.required and not each.ok] == []
    assert {"sandbox", "user", "limit on memory"} <= {each.name for each in findings}
    assert await provider.list() == []


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_kernels_that_take_layers_as_one_text_do_as_well(
    local_home: Path,
    small_image: Path,
    new_name: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how = "case $(cat /proc/mounts) in *lowerdir+=*) echo one by one;; *) echo as one text;; esac"
    boot = tmp_path / "boot.py"
    write_boot(boot, "file_tree.LAYERS_ONE_BY_ONE = False")
    monkeypatch.setattr(spawner, "_BOOT", boot)
    provider = LocalProvider(local_home)
    made: list[Sandbox] = []
    try:
        for image in ("host", str(small_image)):
            made.append(await provider.create(SandboxSpec(new_name(), image=image)))
            assert (await made[-1].exec(f"echo one >/etc/file; {how}")).stdout == b"as one text\n"

        async def fork_again_and_again() -> None:
            for _ in range(40):
                await made[-1].exec("echo more >>/etc/file")
                await made[-1].stop()
                made.append(await made[-1].fork(f"{new_name()}-".ljust(100, "x")))

        # Long names make the text longer than the page that such a kernel takes.
        with pytest.raises(MachineError, match=r"a page of layers; \d+ are too many.*Linux 6.8"):
            await fork_again_and_again()
        assert sorted(each.name for each in await provider.list()) == sorted(each.name for each in made)
    finally:
        for info in reversed(await provider.list()):
            await (await provider.get(info.name)).delete()
        await provider.aclose()


def test_failures_come_with_a_remedy() -> None:
    home = Path("/x/home")
    told = diagnosis.explain(
        "Invalid argument; overlay: upper fs not supported as upperdir", "overlay at root", home
    )
    assert "RACE_HOME" in told
    assert str(home) in told
    for call in ("fsopen overlay", "overlay at root"):
        assert "modprobe overlay" in diagnosis.explain("No such device", call, home)
    assert "--privileged" in diagnosis.explain("Operation not permitted", "fsopen overlay", home)
    assert "apparmor_restrict" in diagnosis.explain("Operation not permitted", "unshare", home)
    assert "/data" in diagnosis.explain("Invalid argument", "mount_setattr of /data", home)
    assert "/proc" in diagnosis.explain("Operation not permitted", "mount proc", home)


_ON_AN_OVERLAY = """
import sys
import anyio
from pathlib import Path
from race.errors import MachineError
from race.sandbox import SandboxSpec
from race.sandboxes.local import LocalProvider, file_tree, syscalls

top, image = Path(sys.argv[1]), sys.argv[2]
folders = [top / name for name in ("low:er", "low,er", "up\\\\per", "work", "merged")]
for each in folders:
    each.mkdir()
(folders[1] / "file").write_text("shown")
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount(None, "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
first, second, upper, work, merged = map(str, folders)
syscalls.mount("overlay", merged, "overlay", data=file_tree.overlay_options([first, second], upper, work))
assert (top / "merged" / "file").read_text() == "shown"

async def main():
    provider = LocalProvider(top / "merged" / "home")
    try:
        await provider.create(SandboxSpec("one", image=image))
    except MachineError as error:
        print(error)
    print([each.remedy for each in await provider.check() if each.required and not each.ok])
    print(await provider.list(), await provider.collect())
    await provider.aclose()

anyio.run(main)
"""


def test_a_store_that_overlay_cannot_write_to_is_named_with_the_remedy(
    small_image: Path, tmp_path: Path
) -> None:
    """In an interpreter of its own, which goes into a mount namespace of its own.

    The overlay is mounted the way that older kernels want it.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can mount the overlay to try it on")
    done = subprocess.run(
        [sys.executable, "-c", _ON_AN_OVERLAY, str(tmp_path), str(small_image)],
        capture_output=True,
        check=False,
        text=True,
    )
    error, remedies, left = done.stdout.splitlines()
    assert "RACE_HOME" in error, done.stderr
    assert str(tmp_path) in error
    assert "RACE_HOME" in remedies
    assert left == "[] []"


def test_a_home_that_cannot_be_made_is_an_error_of_the_machine(small_image: Path) -> None:
    provider = LocalProvider(Path("/proc/self/race"))
    with pytest.raises(MachineError, match="RACE_HOME"):
        anyio.run(provider.create, SandboxSpec("one", image=str(small_image)))


_AS_ORDINARY_USER = """
import os, sys
import anyio
from pathlib import Path
from race.sandbox import Change, Directory, File, SandboxSpec
from race.sandboxes.local import LocalProvider

async def main():
    provider = LocalProvider(Path(sys.argv[1]))
    base = await provider.create(SandboxSpec("base", image=sys.argv[2]))
    done = await base.exec("id -u; cat /proc/self/uid_map; mkdir /app; echo x >/app/x; chmod 000 /app/x /app")
    user, inside, outside, count = done.stdout.split()
    assert (user, inside, int(outside), count) == (b"0", b"0", os.getuid(), b"1"), done
    assert [each.path for each in await base.changes()] == [b"/app", b"/app/x"]
    assert await base.read("/app/x") == b"x\\n"
    running = await base.fork("running")
    assert (await running.exec("cat /app/x; stat -c %a /app /app/x; chown 5 /app/x")).stdout == b"x\\n0\\n0\\n"
    await base.stop()
    stopped = await base.fork("stopped")
    await stopped.write([Directory(b"/app/d", 0), File(b"/app/d/y", b"y", 0)])
    assert [(each.path, each.mode) for each in await stopped.changes()] == [(b"/app/d", 0), (b"/app/d/y", 0)]
    await stopped.download("/app/d", Path(sys.argv[1]) / "out")
    assert (await stopped.exec("echo x >/proc/sys/kernel/core_pattern")).exit_code != 0
    await stopped.stop()
    await stopped.export(Path(sys.argv[1]) / "file")
    moved = await provider.load(Path(sys.argv[1]) / "file", "moved")
    assert await moved.changes() == await stopped.changes()
    await moved.start()
    assert (await moved.exec("cat /app/x /app/d/y; stat -c '%a %u' /app /app/d/y")).stdout == b"x\\ny0 0\\n0 0\\n"
    for each in (moved, stopped, running, base):
        await each.delete()
    assert await provider.list() == []
    await provider.aclose()
    print("all good")

anyio.run(main)
"""


def test_an_ordinary_user_has_the_same_sandboxes(small_image: Path, tmp_path: Path) -> None:
    """Takes two interpreters' starts."""
    home = tmp_path / "user"
    arguments = ["-c", _AS_ORDINARY_USER, str(home / "local"), str(small_image)]
    assert run_as_ordinary_user(arguments, home, small_image) == b"all good\n"
