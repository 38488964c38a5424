"""Attacks on the limits of sandboxes of this machine, after which all are well."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from race.errors import SandboxError
from race.sandbox import File, Limits, SandboxSpec
from race.sandboxes.local import LocalProvider
from race.sandboxes.local.guard import DiskGuard, TooDeep, used_by
from tests.sandboxes.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from race.sandbox import Sandbox

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """On the disk, which has other rules than memory."""
    return on_disk


@pytest.fixture
async def watched(local_home: Path, anyio_backend: str) -> AsyncIterator[LocalProvider]:  # noqa: ARG001 - both event loops
    """A provider on a machine where no control group can be made."""
    made = LocalProvider(local_home)
    made._workshop.cgroups.hierarchies = {}
    yield made
    for each in reversed(await made.list()):
        await (await made.get(each.name)).delete()
    await made.aclose()


async def _pair(provider: LocalProvider, name: str, limits: Limits) -> tuple[Sandbox, Sandbox]:
    """A sandbox with limits, and a sibling with something running in it."""
    made = await provider.create(SandboxSpec(name, limits=limits))
    sibling = await made.fork(f"{name}-sibling")
    await sibling.spawn("quiet", "sleep 1000")
    return made, sibling


async def _are_well(made: Sandbox, sibling: Sandbox) -> None:
    assert (await made.exec("echo fine")).stdout == b"fine\n"
    assert (await sibling.exec("echo fine >/file; cat /file")).stdout == b"fine\n"
    assert [each.state for each in await sibling.processes()] == ["running"]


_FILL = "mkdir -p /fill; i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero >/fill/$i || exit 7; done"


async def test_a_disk_filler_is_ended_and_can_tidy_up(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made, sibling = await _pair(provider, new_name(), Limits(disk=64 * MIB))
    daemon = await made.spawn("daemon", "sleep 1000")
    done = await made.exec(_FILL, timeout=60)
    assert done.exit_code == -9
    assert b"disk space of the sandbox was used up" in done.stderr
    assert await daemon.wait() == -9
    done = await made.exec("echo more >/more")
    assert done.exit_code != 0
    with pytest.raises(SandboxError, match="used up"):
        await made.write([File(b"/more", b"x")])
    used = int((await made.exec("du -sm /fill | cut -f1")).stdout)
    assert 60 <= used < 1000
    assert (await made.exec("rm -r /fill")).exit_code == 0

    async def can_write_again() -> bool:
        return (await made.exec("echo more >/more")).exit_code == 0

    await until(can_write_again)
    await _are_well(made, sibling)


async def test_one_large_file_is_cut_at_the_limit(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made, sibling = await _pair(provider, new_name(), Limits(disk=32 * MIB))
    done = await made.exec("head -c 1000M /dev/zero >/large; stat -c %s /large", timeout=60)
    size = int((await made.exec("stat -c %s /large")).stdout)
    assert size <= 32 * MIB
    assert done.exit_code is not None
    await made.exec("rm /large")
    await _are_well(made, sibling)


_HOLD = """
held = []
while True:
    held.append(open("/held", "wb"))
    __import__("os").unlink("/held")
    held[-1].write(bytes(4 << 20))
"""


async def test_files_that_are_removed_but_held_open_count(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made, sibling = await _pair(provider, new_name(), Limits(disk=64 * MIB))
    done = await made.exec(["python3", "-c", _HOLD], timeout=60)
    assert b"disk space of the sandbox was used up" in done.stderr
    await _are_well(made, sibling)


async def test_what_was_written_before_a_stop_counts(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made = await provider.create(SandboxSpec(new_name(), limits=Limits(disk=16 * MIB)))
    await made.exec("head -c 12M /dev/urandom >/first")
    await made.stop()
    fork = await made.fork(new_name())  # seals it
    await made.start()
    done = await made.exec("head -c 12M /dev/urandom >/second; sleep 10")
    assert b"disk space" in done.stderr
    assert (
        await fork.exec("head -c 12M /dev/urandom >/second; sleep 0.2")
    ).stderr == b""  # what it inherits does not


async def test_a_transfer_that_is_too_large_leaves_no_half_of_a_file(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made, sibling = await _pair(provider, new_name(), Limits(disk=16 * MIB))
    await made.exec("mkdir /app")
    with pytest.raises(SandboxError, match="File too large"):
        await made.write([File(b"/app/large", bytes(20 * MIB))])
    assert (await made.exec("ls -A /app")).stdout == b""
    await made.write([File(b"/app/small", bytes(MIB))])
    await _are_well(made, sibling)


_FORKING = f"""
import os, time
held = bytearray(os.urandom(1)) * {60 * MIB}
for _ in range(6):
    if os.fork() == 0:
        time.sleep(0.5)
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
print("all ended")
"""


async def test_memory_that_forked_processes_share_counts_once(
    watched: LocalProvider, new_name: Callable[[], str]
) -> None:
    made = await watched.create(SandboxSpec(new_name(), limits=Limits(memory=128 * MIB)))
    assert (await made.exec(["python3", "-c", _FORKING])).stdout == b"all ended\n"


_HOG = "held = []\nwhile True: held.append(bytearray(5 << 20))"


async def test_a_memory_hog_is_ended_by_the_kernel(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    if "memory" not in provider._workshop.cgroups.hierarchies:
        pytest.skip("no control group with the memory controller can be made here")
    await _hog(provider, new_name())


async def test_a_memory_hog_is_ended_where_there_are_no_control_groups(
    watched: LocalProvider, new_name: Callable[[], str]
) -> None:
    assert "memory" in watched.capabilities.limits
    await _hog(watched, new_name())
    with pytest.raises(SandboxError, match="cpus"):
        await watched.create(SandboxSpec(new_name(), limits=Limits(cpus=1.0)))


async def _hog(provider: LocalProvider, name: str) -> None:
    made, sibling = await _pair(provider, name, Limits(memory=96 * MIB))
    small = await made.spawn("small", "sleep 1000")
    done = await made.exec(["python3", "-c", _HOG], timeout=60)
    assert done.exit_code == -9
    assert b"memory of the sandbox was used up" in done.stderr
    assert done.usage.max_rss_bytes < 2000 * MIB
    assert (await small.info()).state == "running"
    crowd = f"for i in 1 2 3 4 5 6; do python3 -c 'x = bytearray({30 * MIB}); import time; time.sleep(2)' & done; wait"
    assert b"memory of the sandbox" in (await made.exec(crowd, timeout=60)).stderr
    shared = await made.exec("head -c 500M /dev/zero >/dev/shm/file", timeout=60)
    assert shared.exit_code != 0
    await made.exec("rm -f /dev/shm/file")
    await _are_well(made, sibling)


async def test_a_fork_bomb_is_ended_in_time(provider: LocalProvider, new_name: Callable[[], str]) -> None:
    made, sibling = await _pair(provider, new_name(), Limits(processes=200))
    began = time.monotonic()
    done = await made.exec("b() { b | b & }; b; while :; do b; done", timeout=0.4)
    assert done.timed_out
    assert time.monotonic() - began < 2  # the machine may be busy
    await _are_well(made, sibling)


async def test_a_flood_of_output_by_a_named_process_leaves_others_their_turn(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made, sibling = await _pair(provider, new_name(), Limits())
    flood = await made.spawn("flood", "yes")
    for _ in range(5):
        assert (await made.exec("echo fine", timeout=20)).stdout == b"fine\n"
    info = await flood.info()
    assert info.output_bytes - info.lost_bytes <= 8 * MIB
    await flood.signal(9)
    await _are_well(made, sibling)


async def test_it_runs_on_its_cores_only(provider: LocalProvider, new_name: Callable[[], str]) -> None:
    core = max(os.sched_getaffinity(0))
    made = await provider.create(SandboxSpec(new_name(), limits=Limits(cores=(core,))))
    show = "import os; print(sorted(os.sched_getaffinity(0)))"
    assert (await made.exec(["python3", "-c", show])).stdout.decode() == f"[{core}]\n"
    widen = "import os; os.sched_setaffinity(0, range(64))"
    done = await made.exec(["python3", "-c", widen])
    assert b"PermissionError" in done.stderr
    fork = await made.fork(new_name(), limits=Limits())
    assert (await fork.exec(["python3", "-c", widen])).exit_code == 0
    for cores in ((), (999,)):
        with pytest.raises(SandboxError, match="processors"):
            await made.fork(new_name(), limits=Limits(cores=cores))


# What counts


def _used(*folders: Path) -> int:
    opened = [os.open(each, os.O_PATH) for each in folders]
    count = used_by(opened)
    try:
        while True:
            next(count)
    except StopIteration as ended:
        return ended.value
    finally:
        for each in opened:
            os.close(each)


def test_files_are_counted_once_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "large").write_bytes(bytes(10 * MIB))
    empty = _used(tmp_path / "a")
    (tmp_path / "a" / "b" / "file").write_bytes(bytes(MIB))
    (tmp_path / "a" / "again").hardlink_to(tmp_path / "a" / "b" / "file")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "away")
    os.mkfifo(tmp_path / "a" / "pipe")
    with (tmp_path / "a" / "hole").open("wb") as file:
        file.truncate(100 * MIB)
    assert MIB <= _used(tmp_path / "a") - empty < MIB + 65536
    assert _used(tmp_path / "a", tmp_path / "away") > 11 * MIB


def test_a_tree_that_is_too_deep_to_count_exceeds_the_limit(tmp_path: Path) -> None:
    top = inner = os.open(tmp_path, os.O_RDONLY)
    opened = [top]
    for _ in range(1100):
        os.mkdir("x", dir_fd=inner)
        inner = os.open("x", os.O_RDONLY, dir_fd=inner)
        opened.append(inner)
    with pytest.raises(TooDeep):
        _used(tmp_path)
    guard = DiskGuard(1 << 30, [top])
    looked = [guard.look()]
    while guard.is_counting:
        looked.append(guard.look())
    assert looked[-1]
    assert guard.file_size == 0
    for each in reversed(opened[:-1]):
        os.rmdir("x", dir_fd=each)
    for each in opened:
        os.close(each)


async def test_the_doctor_says_which_limits_are_hard_and_which_are_watched(
    provider: LocalProvider, watched: LocalProvider
) -> None:
    there = {each.name: each for each in await provider.check()}
    without = {each.name: each for each in await watched.check()}
    for each in (there, without):
        assert each["limit on processes"].detail.startswith("hard")
        assert each["limit on cores"].detail.startswith("hard")
        assert each["limit on disk"].detail.startswith("watched 20 times a second")
    assert without["limit on memory"].detail.startswith("watched")
    assert not without["limit on cpus"].ok
    for limit, where in provider._workshop.cgroups.hierarchies.items():
        assert (
            there[f"limit on {limit}"].detail
            == f"hard, by control groups of version {where.version} in {where.parent}"
        )
