"""A container engine for tests: Podman's service, on a socket and with images of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_SETTINGS = """
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
exit_command_delay = 1
"""
# crun refuses control groups of both versions at once; the second is hidden in a mount namespace of the service's own.
_START = """
mountpoint -q /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified
exec podman --root "$0/root" --runroot "$0/run" --tmpdir "$0/tmp" system service -t 0 "unix://$0/socket"
"""


def missing() -> str:
    """What is not there that the service needs, or nothing."""
    wanted = [p for p in ("podman", "crun", "busybox", "unshare") if shutil.which(p) is None]
    if wanted:
        return f"no container engine to try it with: {', '.join(wanted)} not found"
    return (
        ""
        if os.geteuid() == 0
        else "no container engine to try it with: Podman's service is started as root here"
    )


@contextmanager
def service(folder: Path) -> Generator[str]:
    """Run the service; gives the address of its socket.

    Args:
        folder: short enough for a socket in it.

    Raises:
        RuntimeError: it does not start; the text has what it printed.
    """
    (folder / "containers.conf").write_text(_SETTINGS)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", _START, str(folder)],
            env={**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")},
            cwd=folder,  # where some of its helpers leave files
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        for _ in range(200):
            if (folder / "socket").exists():
                break
            if process.poll() is not None:
                break
            time.sleep(0.05)
        if not (folder / "socket").exists():
            raise RuntimeError(log.read_text(errors="replace")[-500:])
        yield f"unix://{folder}/socket"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        _remove_groups()


def _remove_groups() -> None:
    """Remove the control groups that Podman leaves empty, and makes again when it needs them."""
    for _ in range(
        60
    ):  # its helpers end a second after their commands; other workers' may be in use for longer
        groups = [g for top in Path("/sys/fs/cgroup").glob("**/libpod_parent") for g in top.glob("**/")]
        if not groups:
            return
        for group in sorted(groups, reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()
        time.sleep(0.05)


def image(path: Path) -> None:
    """Write a root filesystem that is busybox and nothing else, as a tar file."""
    program = shutil.which("busybox")
    assert program is not None
    applets = subprocess.run([program, "--list"], capture_output=True, check=True, text=True).stdout.split()
    with tarfile.open(path, "w") as archive:
        for name in ("bin", "etc", "root", "tmp", "proc", "dev", "sys"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        archive.add(program, "bin/busybox", recursive=False)
        for applet in applets:
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
