"""Makes, commits and removes the containers and images of sandboxes."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from pathlib import Path
from typing import Any

from race.errors import SandboxError
from race.sandbox import Limits, Network
from race.sandboxes import scripts
from race.sandboxes.docker import execution
from race.sandboxes.docker.engine import Engine, failures, is_missing
from race.sandboxes.records import Record

HOME, NAME, PARENT = "race.home", "race.sandbox", "race.parent"
"""Labels of what belongs to a provider's home, in the engine."""
COMMITTED = "committed"
"""The file, beside a record, with the image that was made of a stopped sandbox."""

_NETWORKS = {"full": "host", "none": "none"}
_LEAST = {"nofile": (1024, 4096), "nproc": (4096, 4096)}


def home_key(home: Path) -> str:
    """What tells the containers of one home from those of another."""
    return hashlib.sha256(str(home).encode()).hexdigest()[:16]


def check(engine: Engine, network: Network, limits: Limits) -> None:
    """Refuse what cannot be had.

    Raises:
        SandboxError: with what can.
    """
    if network not in _NETWORKS:
        raise SandboxError(
            f"the sandbox provider 'docker' has the networks 'full' and 'none', not {network!r}"
        )
    can = engine.limits()
    for name in ("cpus", "memory", "disk", "cores"):
        if getattr(limits, name) is not None and name not in can:
            raise SandboxError(
                f"this container engine cannot limit {name}; it can limit: {', '.join(sorted(can))}"
            )


def run(engine: Engine, home: Path, record: Record, image: str) -> str:
    """Make a container of an image and start it. Returns its id; nothing is left if that fails."""
    options = _options(engine, home, record)
    try:
        return _started(engine, image, options)
    except SandboxError as e:
        if "RLIMIT" not in str(e):
            raise
    # Engines that may not raise limits fail with their own defaults; these are below anybody's.
    types: Any = importlib.import_module("docker.types")
    ulimits = [types.Ulimit(name=n, soft=s, hard=h) for n, (s, h) in _LEAST.items()]
    return _started(engine, image, {**options, "ulimits": ulimits})


def _started(engine: Engine, image: str, options: dict[str, Any]) -> str:
    with failures():
        container = engine.client.containers.create(image, **options)
        try:
            container.start()
            _make_folder(engine, container.id)
        except BaseException:
            with contextlib.suppress(Exception):
                container.remove(force=True)
            raise
        return str(container.id)


def _make_folder(engine: Engine, handle: str) -> None:
    engine.put(handle, execution.packed([(f"{scripts.OWN}/.keep".encode(), b"", 0o600)]))


def _options(engine: Engine, home: Path, record: Record) -> dict[str, Any]:
    limits, can = record.limits, engine.limits()
    options: dict[str, Any] = {
        "entrypoint": ["/bin/sh", "-c", scripts.HOLD],
        "command": [],
        "name": f"race-{home_key(home)[:8]}-{record.name}",
        "hostname": record.name[:63] if record.network == "none" else None,
        "user": "0",
        "working_dir": "/",
        "environment": record.env,
        "network_mode": _NETWORKS[str(record.network)],
        "labels": {HOME: home_key(home), NAME: record.name, PARENT: record.parent or ""},
    }
    if limits.processes is not None and "processes" in can:
        options["pids_limit"] = limits.processes
    if limits.memory is not None:
        options["mem_limit"] = options["memswap_limit"] = limits.memory
    if limits.cpus is not None:
        options["cpu_period"], options["cpu_quota"] = 100_000, int(limits.cpus * 100_000)
    if limits.cores is not None:
        options["cpuset_cpus"] = ",".join(map(str, limits.cores))
    return options


def stop(engine: Engine, handle: str) -> None:
    """End all processes of a container."""
    container = engine.container(handle)
    if container.status == "paused":
        container.unpause()
    if container.status in ("running", "paused"):
        with contextlib.suppress(Exception):
            container.kill()
        container.wait()


def commit(engine: Engine, handle: str, home: Path, name: str) -> str:
    """An image of a container as it is at one moment. Returns its id."""
    api = engine.client.api
    frozen = engine.container(handle).status == "paused"
    made = api.commit(
        handle,
        changes=[f"LABEL {HOME}={home_key(home)}", f"LABEL {PARENT}={name}"],
        # A container that is running is held while it is read; one that is held already must stay so.
        **({"pause": False} if frozen else {}),
    )
    return f"sha256:{str(made['Id']).removeprefix('sha256:')}"


def remove(engine: Engine, handle: str) -> str:
    """Remove a container. Returns the image that it was made of, or nothing if it is gone."""
    try:
        container = engine.container(handle)
    except Exception as e:
        if is_missing(e):
            return ""
        raise
    image = str(container.attrs["Image"])
    container.remove(force=True)
    return image


def has_image(engine: Engine, image: str) -> bool:
    """Whether an image is there."""
    try:
        engine.client.images.get(image)
    except Exception as e:
        if is_missing(e):
            return False
        raise
    return True


def discard(engine: Engine, image: str) -> None:
    """Remove an image, if it is one of ours and nobody uses it."""
    with contextlib.suppress(Exception):  # others were made from it, or it is gone
        found = engine.client.images.get(image)
        if HOME in (found.labels or {}):
            engine.client.images.remove(image)
