"""Makes and finds the sandboxes of this machine."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import anyio.to_thread

from race.errors import MachineError
from race.sandbox import Capabilities, SandboxInfo, SandboxSpec
from race.sandboxes.local import liveness, teleport
from race.sandboxes.local.client import LocalSandbox, info_of
from race.sandboxes.local.doctor import examine
from race.sandboxes.local.leftovers import collect, sweep_layers
from race.sandboxes.local.network import check_network
from race.sandboxes.local.record import Record, check_lifetimes, check_name
from race.sandboxes.local.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from race.sandbox import Finding
    from race.sandboxes.local.images import Image


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
            limits=frozenset({"cores", "disk", "memory", "processes", *self._workshop.cgroups.hierarchies}),
            images=frozenset({"host", "directory", "tar", "oci"}),
            features=frozenset(
                {
                    "changes",
                    "connect",
                    "export",
                    "freeze",
                    "lifetimes",
                    "listen",
                    "live_fork",
                    "processes",
                    "set_network",
                    "terminal",
                }
            ),
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
        check_lifetimes(spec)
        cgroups = self._workshop.cgroups.plan(spec.name, spec.limits)
        self._make_home()
        async with self._layers_swept_on_failure(), self._workshop.layers.held():
            image = await anyio.to_thread.run_sync(
                self._workshop.images.get, spec.image, anyio.from_thread.check_cancelled
            )
            return await self._bring_up(self._record(spec, image, cgroups))

    @contextlib.asynccontextmanager
    async def _layers_swept_on_failure(self) -> AsyncGenerator[None]:
        """Leave no layer of what could not be made from it."""
        try:
            yield
        except BaseException:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(sweep_layers, self._workshop)
            raise

    def _record(self, spec: SandboxSpec, image: Image, cgroups: tuple[str, ...]) -> Record:
        workdir = {"workdir": image.workdir} if image.workdir else {}
        return Record(
            name=spec.name,
            image=spec.image,
            mounts=image.mounts,
            image_env=image.env,
            env=_environment(spec, image.env),
            limits=spec.limits,
            network=spec.network,
            labels={**workdir, **spec.labels},
            created=time.time(),
            cgroups=cgroups,
            lifetime=spec.lifetime,
            idle_lifetime=spec.idle_lifetime,
            image_folder=image.folder,
        )

    async def _bring_up(self, record: Record) -> LocalSandbox:
        async with self._workshop.records.new(record), self._workshop.removed_on_failure(record):
            return LocalSandbox(self._workshop, await self._workshop.bring_up(record), is_locked=True)

    def _make_home(self) -> None:
        """Only its owner may enter: files in it may belong to root and be set-uid."""
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.home.chmod(0o700)
        except OSError as error:
            raise MachineError(
                f"the folder of the sandboxes cannot be made: {error}. Set RACE_HOME to one that you can write to"
            ) from error

    async def load(
        self, archive: Path, name: str | None = None, *, other_system: bool = False
    ) -> LocalSandbox:
        """A stopped sandbox from what `Sandbox.export` wrote, under its old name or another.

        Args:
            archive: the file.
            name: of the new sandbox; default: the one that it had.
            other_system: take a sandbox on the image ``host`` although this machine's system, which is not in the
                file, is another than the one it was made on.
        """
        self._make_home()
        work = partial(
            teleport.load,
            self._workshop,
            archive.absolute(),
            name,
            other_system=other_system,
            pulse=anyio.from_thread.check_cancelled,
        )
        async with self._layers_swept_on_failure(), self._workshop.layers.held():
            record = await anyio.to_thread.run_sync(work)
            async with self._workshop.records.new(record):
                self._workshop.records.save_complete(record.name)
        return LocalSandbox(self._workshop, record.model_copy(update={"complete": True}))

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
