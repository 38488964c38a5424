"""A sandbox of this machine from the outside: commands, files, forks, and its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from race.errors import SandboxError
from race.sandbox import Change, Directory, File, Link, Removed, SandboxProvider, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandbox import Sandbox
    from race.sandboxes.local import LocalProvider

pytestmark = pytest.mark.anyio


async def test_the_provider_has_the_shape_of_one(provider: LocalProvider) -> None:
    assert isinstance(provider, SandboxProvider)


async def test_a_command_gets_its_input_and_gives_its_output_and_status(sandbox: Sandbox) -> None:
    done = await sandbox.exec("cat; echo problem >&2; exit 3", stdin=b"hello")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"hello", b"problem\n")
    assert (done.stdout_bytes, done.stderr_bytes, done.timed_out) == (5, 8, False)
    assert done.usage.cpu_seconds > 0
    assert done.usage.max_rss_bytes > 0


async def test_a_sandbox_is_root_inside_and_never_the_hosts_root(sandbox: Sandbox) -> None:
    done = await sandbox.exec("id -u; cat /proc/self/uid_map")
    user, inside, outside, _ = done.stdout.split()
    assert (user, inside) == (b"0", b"0")
    assert int(outside) != 0


async def test_what_is_written_can_be_read_inside_and_outside(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\necho ran\n")
    await sandbox.write(
        [
            Directory(b"/app", 0o750),
            File(b"/app/a/deep/file", b"content"),
            File(b"/app/program", tmp_path / "program", 0o755),
            Link(b"/app/link", b"a/deep/file"),
            File(b"/app/\xff", b"not UTF-8"),
            File(b"/app/gone", b""),
            Removed(b"/app/gone"),
            Removed(b"/app/never/was"),
        ]
    )
    done = await sandbox.exec("stat -c %a . program a; cat link; ./program; ls", cwd="/app")
    assert done.stdout == b"750\n755\n755\ncontentran\na\nlink\nprogram\n\xff\n"
    assert await sandbox.read("/app/a/deep/file") == b"content"
    assert await sandbox.read(b"/app/\xff") == b"not UTF-8"
    with pytest.raises(FileNotFoundError):
        await sandbox.read("/app/gone")


async def test_what_is_in_the_way_is_replaced(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p /app/d/e; touch /app/d/e/f /app/file; ln -s /nowhere /app/dangling")
    await sandbox.write(
        [
            File(b"/app/d", b"1"),
            File(b"/app/file/below", b"2"),
            File(b"/app/dangling", b"3"),
            Directory(b"/app/d"),
        ]
    )
    done = await sandbox.exec(
        "find . -type f -printf '%P ' -o -type d -printf '%P/ ' | tr ' ' '\\n' | sort", cwd="/app"
    )
    assert done.stdout.split() == [b"/", b"d/", b"dangling", b"file/", b"file/below"]


async def test_trees_go_in_and_come_out_with_their_modes_and_links(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "folder" / "empty").mkdir(parents=True)
    (source / "folder" / "tool").write_bytes(os.urandom(700_000))
    (source / "folder" / "tool").chmod(0o755)
    (source / "secret").write_text("x")
    (source / "secret").chmod(0o600)
    (source / "link").symlink_to("/etc/passwd")
    await sandbox.upload(source, "/app/tree")
    done = await sandbox.exec(
        "stat -c '%n %a %U' secret folder/tool; readlink link; mkfifo pipe; chmod u+s secret", cwd="/app/tree"
    )
    assert done.stdout == b"secret 600 root\nfolder/tool 755 root\n/etc/passwd\n"
    out = tmp_path / "out"
    await sandbox.download("/app/tree", out)
    assert sorted(str(each.relative_to(out)) for each in out.rglob("*")) == [
        "folder",
        "folder/empty",
        "folder/tool",
        "link",
        "secret",
    ]
    assert (out / "folder" / "tool").read_bytes() == (source / "folder" / "tool").read_bytes()
    assert (out / "folder" / "tool").stat().st_mode & 0o7777 == 0o755
    assert (out / "secret").stat().st_mode & 0o7777 == 0o600
    assert (out / "link").readlink() == Path("/etc/passwd")
    with pytest.raises(FileExistsError):
        await sandbox.download("/app/tree", out)


async def test_a_fork_has_the_files_and_shares_nothing(sandbox: Sandbox, new_name: Callable[[], str]) -> None:
    await sandbox.exec("mkdir /app; echo one >/app/file; rm /etc/hosts")
    await sandbox.stop()
    first = await sandbox.fork(new_name())
    second = await sandbox.fork(new_name())
    await first.exec("echo two >/app/file; rm -r /etc/apt; touch /app/new")
    grandchild = await first.fork(new_name())
    assert (await second.exec("cat /app/file; ls /etc/hosts")).stdout == b"one\n"
    assert (await grandchild.exec("cat /app/file")).stdout == b"two\n"
    assert await second.changes() == []
    assert await first.changes() == [
        Change(b"/app/file", "file", 0o644, 4, existed=True),
        Change(b"/app/new", "file", 0o644, 0, existed=False),
        Change(b"/etc/apt", "removed", existed=True),
    ]
    assert await grandchild.changes() == []
    assert (await grandchild.info()).parent == first.name


async def test_what_forks_depend_on_is_not_deleted(
    provider: LocalProvider, sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    fork = await sandbox.fork(new_name())
    with pytest.raises(SandboxError, match=fork.name):
        await sandbox.delete()
    await fork.delete()
    await fork.delete()
    await sandbox.delete()
    assert sandbox.name not in {each.name for each in await provider.list()}
    with pytest.raises(SandboxError):
        await sandbox.info()


async def test_files_outlive_a_stop_and_processes_do_not(sandbox: Sandbox) -> None:
    await sandbox.exec("sleep 1000 & echo kept >/app")
    await sandbox.stop()
    await sandbox.stop()
    assert (await sandbox.info()).state == "stopped"
    with pytest.raises(SandboxError, match="not running"):
        await sandbox.exec("true")
    assert await sandbox.read("/app") == b"kept\n"
    await sandbox.start()
    assert (await sandbox.exec("cat /app; pgrep sleep")).stdout == b"kept\n"


async def test_names_are_checked_and_unique(
    provider: LocalProvider, sandbox: Sandbox, new_name: Callable[[], str]
) -> None:
    with pytest.raises(SandboxError, match="already"):
        await provider.create(SandboxSpec(sandbox.name))
    with pytest.raises(SandboxError, match="name"):
        await provider.create(SandboxSpec("../escape"))
    with pytest.raises(SandboxError, match=sandbox.name):
        await provider.get(new_name())
