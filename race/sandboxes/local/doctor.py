"""Finds out by trying whether sandboxes work on this machine, and if not, why."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from typing import TYPE_CHECKING

import anyio

from race.errors import MachineError, RaceError
from race.sandbox import Finding, SandboxSpec
from race.sandboxes.local import syscalls
from race.sandboxes.local.guard import LOOK_EVERY
from race.sandboxes.local.zygote import is_host_root
from race.store import owner

if TYPE_CHECKING:
    from race.sandboxes.local.provider import LocalProvider
    from race.sandboxes.local.workshop import Workshop

_LANDLOCK_WITH_SCOPES = 6
_ENOUGH_ROOM = 2 << 30
_MACHINES = ("x86_64", "aarch64")
_EVERY = f"{1 / LOOK_EVERY:.0f} times a second"


async def examine(provider: LocalProvider, workshop: Workshop) -> list[Finding]:
    """Look at everything, cheap things first, and make and fork a real sandbox."""
    return [
        _machine(),
        _who(),
        _room(workshop),
        await _trial(provider),
        *_limits(workshop),
        _abstract_sockets(),
    ]


def _machine() -> Finding:
    system = os.uname()
    return Finding(
        "processor",
        system.sysname == "Linux" and system.machine in _MACHINES,
        f"{system.sysname} {system.release} on {system.machine}",
        f"use Linux on {' or '.join(_MACHINES)}",
    )


def _who() -> Finding:
    if os.geteuid() != 0:
        return Finding(
            "user", ok=True, detail=f"an ordinary user ({os.geteuid()}); sandboxes know one user id"
        )
    return Finding(
        "user",
        ok=is_host_root(),
        detail="root" if is_host_root() else "root, without the right to mount",
        remedy="run as an ordinary user, or in a container with --privileged",
    )


def _room(workshop: Workshop) -> Finding:
    home = workshop.home
    while not home.exists():
        home = home.parent
    free = shutil.disk_usage(home).free
    return Finding(
        "disk space",
        free >= _ENOUGH_ROOM,
        f"{free / (1 << 30):.1f} GiB free for {workshop.home}",
        "make room, or set RACE_HOME to a folder on a larger disk",
        required=False,
    )


async def _trial(provider: LocalProvider) -> Finding:
    name = f"trial-{secrets.token_hex(4)}"
    remedy = "see the detail"
    # Labelled, so that what a killed process leaves can be told from what is used.
    labels = {"role": "trial", "owner": owner()}
    try:
        made = await provider.create(SandboxSpec(name, labels=labels))
        try:
            started = time.monotonic()
            fork = await made.fork(f"{name}-fork", labels=labels)
            taken = (time.monotonic() - started) * 1000
            try:
                done = await fork.exec("id -u", timeout=30)
            finally:
                with anyio.CancelScope(shield=True):
                    await fork.delete()
        finally:
            with anyio.CancelScope(shield=True):
                await made.delete()
    except MachineError as error:
        what, _, advice = str(error).partition(". ")
        return Finding("sandbox", ok=False, detail=what, remedy=advice.rstrip(".") or remedy)
    except (RaceError, OSError) as error:
        return Finding("sandbox", ok=False, detail=str(error), remedy=remedy)
    if done.exit_code != 0 or done.stdout.strip() != b"0":
        detail = f"a command in a sandbox failed: {done.stderr.decode(errors='replace').strip() or done}"
        return Finding("sandbox", ok=False, detail=detail, remedy=remedy)
    return Finding(
        "sandbox", ok=True, detail=f"made one, forked it in {taken:.0f} ms, ran a command, deleted both"
    )


def _limits(workshop: Workshop) -> list[Finding]:
    """Which limits are hard, kept by the kernel, and which are watched by the PID 1 of each sandbox."""
    there = workshop.cgroups.hierarchies
    places = {
        limit: f"hard, by control groups of version {each.version} in {each.parent}"
        for limit, each in there.items()
    }
    without = "no control group that this process may make groups in"
    remedy = "run as root, or under `systemd-run --user --scope -p Delegate=yes`"
    return [
        Finding("limit on processes", ok=True, detail="hard, by the kernel's limit for each user inside"),
        Finding("limit on cores", ok=True, detail="hard, by an affinity that nothing inside can change"),
        Finding("limit on cpus", "cpus" in there, places.get("cpus", without), remedy, required=False),
        Finding(
            "limit on memory",
            ok=True,
            detail=places.get("memory", f"watched {_EVERY}, as there is {without}; {remedy} to have it hard"),
        ),
        Finding(
            "limit on disk",
            ok=True,
            detail=f"watched {_EVERY}; hard for the size of any one file",
        ),
    ]


def _abstract_sockets() -> Finding:
    version = syscalls.landlock_version()
    return Finding(
        "abstract sockets",
        version >= _LANDLOCK_WITH_SCOPES,
        f"Landlock version {version}",
        "use Linux 6.12 or newer with Landlock; until then sandboxes with the network 'full' can reach the host's "
        "abstract sockets, such as X11's",
        required=False,
    )
