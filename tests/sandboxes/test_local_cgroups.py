"""Where control groups are made, with either version of them, both, and none. The kernel of a machine has one only."""

from __future__ import annotations

from pathlib import Path

import pytest

from race.sandbox import Limits
from race.sandboxes.local.cgroups import Cgroups, Hierarchy, candidates, out_of_memory_kills


def _first(top: Path) -> str:
    (top / "memory" / "job").mkdir(parents=True)
    (top / "cpu,cpuacct").mkdir()
    return (
        f"31 25 0:27 / {top}/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
        f"32 25 0:28 / {top}/cpu,cpuacct rw,relatime shared:10 - cgroup cgroup rw,cpu,cpuacct\n"
    )


def _second(top: Path, *controllers: str) -> str:
    (top / "unified" / "user" / "app.slice" / "run.scope").mkdir(parents=True)
    for folder in ("unified", "unified/user", "unified/user/app.slice", "unified/user/app.slice/run.scope"):
        (top / folder / "cgroup.subtree_control").write_text("")
    (top / "unified" / "user" / "app.slice" / "cgroup.subtree_control").write_text(
        f"{' '.join(controllers)}\n"
    )
    return f"40 25 0:29 / {top}/unified rw,nosuid shared:11 - cgroup2 cgroup2 rw,nsdelegate\n"


_DISK = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"


def test_the_first_version(tmp_path: Path) -> None:
    mounts = _DISK + _first(tmp_path)
    groups = "5:cpu,cpuacct:/\n4:memory:/job\n1:name=systemd:/\n"
    memory = [Hierarchy(tmp_path / "memory" / "job", 1), Hierarchy(tmp_path / "memory", 1)]
    assert candidates("memory", mounts, groups) == memory
    assert candidates("cpu", mounts, groups)[0] == Hierarchy(tmp_path / "cpu,cpuacct", 1)


def test_the_second_version(tmp_path: Path) -> None:
    mounts = _DISK + _second(tmp_path, "memory", "pids")
    groups = "0::/user/app.slice/run.scope\n"
    parent = Hierarchy(tmp_path / "unified" / "user" / "app.slice", 2)
    assert candidates("memory", mounts, groups) == [parent]
    assert candidates("cpu", mounts, groups) == []


def test_both_versions_at_once(tmp_path: Path) -> None:
    mounts = _DISK + _second(tmp_path) + _first(tmp_path)
    groups = "5:cpu,cpuacct:/\n4:memory:/\n0::/user/app.slice/run.scope\n"
    assert {each.version for each in candidates("memory", mounts, groups)} == {1}


def test_no_version(tmp_path: Path) -> None:
    assert candidates("memory", _DISK, "0::/\n") == []
    cgroups = Cgroups(tmp_path)
    cgroups.hierarchies = {}
    assert cgroups.plan("one", Limits(memory=1 << 30)) == ()
    assert cgroups.watched_memory(Limits(memory=1 << 30)) == 1 << 30


@pytest.mark.parametrize("version", [1, 2])
def test_limits_are_written_as_each_version_wants_them(tmp_path: Path, version: int) -> None:
    cgroups = Cgroups(tmp_path)
    where = Hierarchy(tmp_path, version)
    cgroups.hierarchies = {"memory": where, "cpus": where}
    limits = Limits(memory=1 << 30, cpus=1.5)
    (folder,) = cgroups.plan("one", limits)
    assert cgroups.make([folder], limits) == [f"{folder}/cgroup.procs"]
    written = {each.name: each.read_text() for each in Path(folder).iterdir()}
    if version == 1:
        assert written == {
            "memory.limit_in_bytes": str(1 << 30),
            "memory.memsw.limit_in_bytes": str(1 << 30),
            "cpu.cfs_period_us": "100000",
            "cpu.cfs_quota_us": "150000",
        }
        (Path(folder) / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    else:
        assert written == {"memory.max": str(1 << 30), "memory.swap.max": "0", "cpu.max": "150000 100000"}
        (Path(folder) / "memory.events").write_text("low 0\nmax 9\noom 3\noom_kill 3\n")
    assert out_of_memory_kills([folder]) == 3
