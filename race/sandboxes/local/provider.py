"""Makes and finds the sandboxes of this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio.to_thread

from race.errors import MachineError
from race.sandbox import Capabilities, SandboxInfo, SandboxSpec
from race.sandboxes.local import liveness
from race.sandboxes.local.client import LocalSandbox, info_of
from race.sandboxes.local.doctor import examine
from race.sandboxes.local.leftovers import collect
from race.sandboxes.local.network import check_network
from race.sandboxes.local.record import Record, check_name
from race.sandboxes.local.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from race.sandbox import Finding


class LocalProvider:
    """Sandboxes made of the kernel's own means: namespaces, overlay file systems, seccomp.

    It needs no daemon, no set-uid program and nothing installed, and works alike as root and as an ordinary
    user. See `race.sandbox.SandboxProvider`.

    Args:
        home: a folder of its own, which will hold everything; made when it is first needed. Its file system
            must be one that overlay can write to, which overlay itself is not.
    """

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self._workshop = Workshop(self.home)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do on this machine."""
        return Capabilities(
            isolated=True,
            networks=frozenset({"full", "none", "hosts"}),
            limits=frozenset({"processes", *self._workshop.cgroups.hierarchies}),
            images=frozenset({"host", "directory"}),
            features=frozenset({"terminal", "listen", "freeze", "changes", "live_fork"}),
        )

    async def check(self) -> list[Finding]:
        """Find out by trying whether sandboxes work here."""
        self._make_home()
        return await examine(self, self._workshop)

    async def image_id(self, image: str) -> str:
        """A name that changes when the content that ``image`` stands for changes."""
        return await anyio.to_thread.run_sync(self._workshop.images.identity, image)

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        """A new running sandbox."""
        check_name(spec.name)
        check_network(spec.network)
        cgroups = self._workshop.cgroups.plan(spec.name, spec.limits)
        self._make_home()
        image = await anyio.to_thread.run_sync(self._workshop.images.get, spec.image)
        record = Record(
            name=spec.name,
            image=spec.image,
            mounts=image.mounts,
            image_env=image.env,
            env=_environment(spec, image.env),
            limits=spec.limits,
            network=spec.network,
            labels=dict(spec.labels),
            created=time.time(),
            cgroups=cgroups,
            image_folder=image.folder,
        )
        async with self._workshop.records.new(record), self._workshop.removed_on_failure(record):
            return LocalSandbox(self._workshop, await self._workshop.bring_up(record))

    def _make_home(self) -> None:
        """Only its owner may enter: files in it may belong to root and be set-uid."""
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.home.chmod(0o700)
        except OSError as error:
            raise MachineError(
                f"the folder of the sandboxes cannot be made: {error}. Set RACE_HOME to one that you can write to"
            ) from error

    async def get(self, name: str) -> LocalSandbox:
        """Take over a sandbox, whichever process made it."""
        record = self._workshop.records.load(name)
        if not record.complete:
            raise self._workshop.records.unknown(name)
        if liveness.alive(record.init):
            await self._workshop.gatekeeper.serve(self._workshop.records.folder(name), record)
        return LocalSandbox(self._workshop, record)

    async def list(self) -> list[SandboxInfo]:
        """All sandboxes, oldest first."""
        return [info_of(each) for each in self._workshop.records.all()]

    async def collect(self) -> Sequence[str]:
        """Remove what killed processes left half made or half deleted."""
        return await collect(self._workshop)

    async def aclose(self) -> None:
        """End this process's own helpers. Sandboxes go on."""
        self._workshop.close()


def _environment(spec: SandboxSpec, image: Mapping[str, str]) -> dict[str, str]:
    """What the specification adds to the environment; its PATH may extend that of the image."""
    path = spec.env.get("PATH")
    if path is None:
        return dict(spec.env)
    return {**spec.env, "PATH": path.replace("$PATH", image.get("PATH", ""))}
