"""Other ways to get many copies of a machine, measured where they are installed."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from race.sandboxes.local import syscalls

PATIENCE = 120


class MissingError(Exception):
    """It is not here, or does not work here; the text says why."""


def leave_hybrid_cgroups() -> None:
    """Hide the second hierarchy from this process and what it starts: crun and podman take a mixed layout for one that
    they do not know. Nothing changes outside.
    """
    if os.geteuid() == 0 and os.path.ismount("/sys/fs/cgroup/unified"):
        with contextlib.suppress(OSError):
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount(None, "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
            syscalls.detach("/sys/fs/cgroup/unified")


def _timed(command: list[str]) -> float:
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:  # not a pipe, which what goes on in the background would keep open
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
            )
        except FileNotFoundError:
            raise MissingError(f"{command[0]} is not installed") from None
        # To wait with a time limit, Python looks at longer and longer intervals, which would be measured too.
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        status = process.wait()
        seconds = time.perf_counter() - began
        late.cancel()
        if status != 0:
            said.seek(0)
            text = said.read().decode(errors="replace").strip().splitlines()
            raise MissingError(f"{command[0]} does not work here: {text[-1] if text else status}")
    return seconds


def copying(tree: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """A round: copy a tree, remove the copy."""
    while True:
        yield "fork", _timed(["cp", "-a", str(tree), str(folder / "copy")])
        yield "delete", _timed(["rm", "-rf", str(folder / "copy")])


def worktrees(tree: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """A round: a worktree of a repository with the tree's files, and its removal. Takes a commit of all first."""
    repository = folder / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x@y", "-c", "gc.auto=0"]
    _timed(["git", "init", "-q", str(repository)])
    _timed(
        ["cp", "-a", *(str(each) for each in tree.iterdir() if each.name in ("bin", "data")), str(repository)]
    )
    for large in repository.glob("data/large*"):  # git reads holes too
        large.unlink()
    _timed([*git, "add", "-A"])
    _timed([*git, "commit", "-q", "-m", "all"])
    while True:
        yield "fork", _timed([*git, "worktree", "add", "-q", "--detach", str(folder / "worktree")])
        yield "delete", _timed([*git, "worktree", "remove", "--force", str(folder / "worktree")])


def bubblewrap(tree: Path, _folder: Path) -> Iterator[tuple[str, float]]:
    """A round: a sandbox for one command, whose root cannot be written to. Fork, command and end are one."""
    own = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    own += [] if os.geteuid() == 0 else ["--unshare-user"]
    command = ["bwrap", *own, "--ro-bind", str(tree), "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"]
    while True:
        yield "fork and true", _timed(command)


def crun(tree: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """A round: a container over the tree, which cannot be written to."""
    if shutil.which("crun") is None:
        raise MissingError("crun is not installed")
    bundle = folder / "bundle"
    bundle.mkdir()
    subprocess.run(["crun", "spec"], cwd=bundle, check=True, capture_output=True, timeout=PATIENCE)
    spec = json.loads((bundle / "config.json").read_text())
    spec["root"] = {"path": str(tree), "readonly": True}
    spec["process"] |= {"args": ["/bin/sleep", "1000"], "terminal": False, "rlimits": []}
    (bundle / "config.json").write_text(json.dumps(spec))
    base = ["crun", "--cgroup-manager=cgroupfs", f"--root={folder}/state"]
    name = f"race-speed-{os.getpid()}"
    made = False
    try:
        while True:
            seconds = _timed([*base, "run", "--detach", f"--bundle={bundle}", name])
            made = True
            yield "fork", seconds
            yield "true", _timed([*base, "exec", name, "/bin/true"])
            yield "bash", _timed([*base, "exec", name, "/bin/bash", "-c", "true"])
            seconds = _timed([*base, "delete", "--force", name])
            made = False
            yield "delete", seconds
    finally:
        if made:
            subprocess.run([*base, "delete", "--force", name], check=False, capture_output=True)


def podman(tree: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """A round: a container whose root is an overlay of the tree."""
    base = ["podman", f"--root={folder}/podman", f"--runroot={folder}/run", "--cgroup-manager=cgroupfs"]
    base += ["--events-backend=none", "--storage-driver=vfs"]
    name = f"race-speed-{os.getpid()}"
    limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--network=none"]
    run = [*base, "run", "--detach", f"--name={name}", *limits, "--rootfs", f"{tree}:O", "/bin/sleep", "1000"]
    made = False
    try:
        while True:
            made = True
            yield "fork", _timed(run)
            yield "true", _timed([*base, "exec", name, "/bin/true"])
            yield "bash", _timed([*base, "exec", name, "/bin/bash", "-c", "true"])
            seconds = _timed([*base, "rm", "--force", "--time=0", name])
            made = False
            yield "delete", seconds
    finally:
        if made:
            subprocess.run([*base, "rm", "--force", "--time=0", name], check=False, capture_output=True)


RIVALS = {
    "cp -a": copying,
    "git worktree": worktrees,
    "bubblewrap": bubblewrap,
    "crun": crun,
    "podman": podman,
}
STEPS = {"cp -a": 2, "git worktree": 2, "bubblewrap": 1, "crun": 4, "podman": 4}
"""How many figures a round of each gives."""
SLOW = {("cp -a", "big"), ("git worktree", "big")}
"""Those that copy tens of thousands of files each time."""
