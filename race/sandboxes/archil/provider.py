"""Makes and finds sandboxes of Archil."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from race.errors import MachineError, SandboxError
from race.sandbox import Capabilities, Finding, SandboxInfo, SandboxSpec, State
from race.sandboxes.archil.client import ArchilSandbox, check_limits, deleted, noted
from race.sandboxes.archil.service import Service, state_of
from race.sandboxes.records import Record, Records

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WARNING = (
    'the sandboxes can only be looked into by running something in them (sandbox = "archil"): '
    "what an attempt changed is what its own machine says"
)


class ArchilProvider:
    """Sandboxes that are microVMs of Archil's service; see `race.sandboxes.archil`.

    Args:
        home: a folder of its own, for what is known of the sandboxes.
    """

    def __init__(self, home: Path) -> None:
        self.home = Path(os.path.realpath(home))
        self._records = Records(self.home)
        self._service = Service()

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(
            isolated=True,
            networks=frozenset({"full", "none", "hosts"}),
            limits=frozenset(),
            images=frozenset({"name"}),
            features=frozenset({"terminal", "freeze", "live_fork", "set_network"}),
            warning=_WARNING,
        )

    async def check(self) -> list[Finding]:
        """Find out whether the service answers."""
        try:
            known = await self._service.call(self._sandboxes)
        except (MachineError, SandboxError) as e:
            return [Finding("service", ok=False, detail="no answer", remedy=str(e))]
        return [Finding("service", ok=True, detail=f"answers; {len(known)} sandboxes")]

    def _sandboxes(self) -> list[Any]:
        found: list[Any] = self._service.client.sandboxes.list()
        return found

    async def image_id(self, image: str) -> str:
        """The image's name: the service does not tell what it stands for."""
        return f"archil-{image}"

    async def create(self, spec: SandboxSpec) -> ArchilSandbox:
        """A new running sandbox."""
        if spec.lifetime is not None or spec.idle_lifetime is not None:
            raise ArchilSandbox.cannot("lifetimes")
        if spec.image == "host":
            raise SandboxError(
                "the sandbox provider 'archil' has no image 'host'; name one that the service knows"
            )
        check_limits(spec.limits)
        record = Record(
            name=spec.name,
            image=spec.image,
            env=_environment(spec),
            network=spec.network,
            limits=spec.limits,
            labels=dict(spec.labels),
            created=time.time(),
        )

        def made() -> str:
            client = self._service.client
            network = self._service.network(spec.network)
            return str(client.sandboxes.create(name=spec.name, base_image=spec.image, network=network).id)

        async with self._records.new(record) as folder:
            handle = await self._service.call(made)
            complete = await noted(self._service, self._records, record, handle, folder)
        return ArchilSandbox(self._service, self._records, complete)

    async def load(self, archive: Path, name: str | None = None) -> ArchilSandbox:
        """Not offered."""
        raise ArchilSandbox.cannot(f"import of {archive} as {name!r}")

    async def get(self, name: str) -> ArchilSandbox:
        """Take over a sandbox, whichever process made it."""
        return ArchilSandbox(self._service, self._records, self._records.load(name))

    async def list(self) -> list[SandboxInfo]:
        """All sandboxes that were made here, oldest first."""
        records = self._records.all()
        if not records:
            return []
        there = await self._service.call(self._sandboxes)
        states: dict[str, State] = {str(s.id): state_of(s) for s in there}
        return [r.info(states.get(r.handle, "stopped")) for r in records]

    async def collect(self) -> Sequence[str]:
        """Remove what killed processes left half made or half deleted."""
        lines: list[str] = []
        for record in self._records.abandoned():
            await self._service.call(partial(self._forget, record))
            await self._records.remove(record.name)
            lines.append(f"removed the sandbox {record.name!r}, which was never finished")
        return [*lines, *await self._records.empty_trash()]

    def _forget(self, record: Record) -> None:
        """Delete what the service has of a sandbox whose maker was killed, perhaps before it noted the id."""
        for sandbox in self._service.client.sandboxes.list():
            if sandbox.id == record.handle or (not record.handle and sandbox.name == record.name):
                deleted(self._service, str(sandbox.id))

    async def aclose(self) -> None:
        """Close the connections to the service. Sandboxes go on."""
        await self._service.call(self._service.close)


def _environment(spec: SandboxSpec) -> dict[str, str]:
    given = dict(spec.env)
    if "PATH" in given:
        given["PATH"] = given["PATH"].replace("$PATH", _PATH)
    return {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", **given}
