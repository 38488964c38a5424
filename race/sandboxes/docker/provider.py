"""Makes and finds sandboxes that are containers."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from race.errors import MachineError, SandboxError
from race.sandbox import Capabilities, Finding, SandboxInfo, SandboxSpec
from race.sandboxes.docker import containers
from race.sandboxes.docker.client import DockerSandbox, run, state_of
from race.sandboxes.docker.engine import Engine, is_missing
from race.sandboxes.records import Record, Records

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerProvider:
    """Sandboxes that are containers of an engine with Docker's API; see `race.sandboxes.docker`.

    Which engine: that of ``DOCKER_HOST``, else Docker's or Podman's own socket.

    Args:
        home: a folder of its own, for what is known of the sandboxes.
    """

    def __init__(self, home: Path) -> None:
        self.home = Path(os.path.realpath(home))
        self._records = Records(self.home)
        self._engine = Engine()

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; the engine is asked which limits hold."""
        return Capabilities(
            isolated=True,
            networks=frozenset({"full", "none"}),
            limits=self._engine.limits(),
            images=frozenset({"name", "tar"}),
            features=frozenset({"terminal", "freeze", "changes", "live_fork"}),
        )

    async def check(self) -> list[Finding]:
        """Find out whether the engine can be reached. Whether containers run is known once there is an image."""
        try:
            info = await self._engine.call(self._engine.info)
        except MachineError as e:
            return [Finding("container engine", ok=False, detail="none", remedy=str(e))]
        detail = f"{info.get('ServerVersion', '?')} on {info.get('OperatingSystem', '?')}"
        limits = ", ".join(sorted(self._engine.limits()))
        return [
            Finding("container engine", ok=True, detail=detail),
            Finding(
                "limits", bool(limits), limits or "none", "the engine has no control groups", required=False
            ),
        ]

    async def image_id(self, image: str) -> str:
        """The engine's own name of an image, which changes with its content."""
        return str(await self._engine.call(lambda: self._image(image).id))

    def _image(self, image: str) -> Any:
        """An image by its name, or from a tar file of a root filesystem, which is brought in once.

        Raises:
            SandboxError: there is none.
        """
        if image == "host":
            raise SandboxError(
                "the sandbox provider 'docker' has no image 'host'; name an image that the engine has, or a tar file "
                "of a root filesystem"
            )
        path = Path(image)
        if path.is_file():
            with path.open("rb") as file:
                image = f"race-image-{hashlib.file_digest(file, 'sha256').hexdigest()[:24]}"
        try:
            return self._engine.client.images.get(image)
        except Exception as e:
            if not is_missing(e):
                raise
            if not path.is_file():
                raise SandboxError(
                    f"the container engine has no image {image!r}; pull or build it first"
                ) from e
        self._engine.client.api.import_image(src=str(path), repository=image)
        return self._engine.client.images.get(image)

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """A new running sandbox."""
        if spec.lifetime is not None or spec.idle_lifetime is not None:
            raise DockerSandbox.cannot("lifetimes")
        await self._engine.call(self._engine.info)
        containers.check(self._engine, spec.network, spec.limits)
        image = await self._engine.call(lambda: self._image(spec.image))
        record = Record(
            name=spec.name,
            image=spec.image,
            env=_environment(spec, image.attrs.get("Config") or {}),
            network=spec.network,
            limits=spec.limits,
            labels=dict(spec.labels),
            created=time.time(),
        )
        async with self._records.new(record):
            complete = await run(self._engine, self._records, record, image.id)
        return DockerSandbox(self._engine, self._records, complete)

    async def load(self, archive: Path, name: str | None = None) -> DockerSandbox:
        """Not offered."""
        raise DockerSandbox.cannot(f"import of {archive} as {name!r}")

    async def get(self, name: str) -> DockerSandbox:
        """Take over a sandbox, whichever process made it."""
        return DockerSandbox(self._engine, self._records, self._records.load(name))

    async def list(self) -> list[SandboxInfo]:
        """All sandboxes, oldest first."""

        def told() -> list[SandboxInfo]:
            infos: list[SandboxInfo] = []
            for record in self._records.all():
                try:
                    infos.append(record.info(state_of(self._engine, record.handle)))
                except SandboxError:  # somebody removed its container
                    infos.append(record.info("stopped"))
            return infos

        return await self._engine.call(told) if self._records.all() else []

    async def collect(self) -> Sequence[str]:
        """Remove what killed processes left half made or half deleted, in the engine too."""
        lines: list[str] = []
        for record in self._records.abandoned():
            await self._records.remove(record.name)
            lines.append(f"removed the sandbox {record.name!r}, which was never finished")
        lines += await self._records.empty_trash()
        return [*lines, *await self._engine.call(self._orphans)] if self.home.exists() else lines

    def _orphans(self) -> Sequence[str]:
        """Containers and images of this home that no sandbox is made of."""
        lines: list[str] = []
        known = {r.name for r in self._records.all(unborn=True)}
        ours = {"label": f"{containers.HOME}={containers.home_key(self.home)}"}
        for container in self._engine.client.containers.list(all=True, filters=ours, ignore_removed=True):
            name = container.labels.get(containers.NAME)
            if name is not None and name not in known:
                containers.discard(self._engine, containers.remove(self._engine, container.id))
                lines.append(f"removed a container of the sandbox {name!r}, which is gone")
        for image in self._engine.client.images.list(filters=ours):
            labels: dict[str, str] = image.labels or {}
            parent = labels.get(containers.PARENT)
            if parent not in known:
                containers.discard(self._engine, image.id)
        return lines

    async def aclose(self) -> None:
        """Close the connections to the engine. Sandboxes go on."""
        self._engine.close()


def _environment(spec: SandboxSpec, config: dict[str, Any]) -> dict[str, str]:
    """That of the image, and on top of it the specification's, whose PATH may extend that of the image."""
    image = dict(e.split("=", 1) for e in config.get("Env") or () if "=" in e)
    own = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", **image}
    given = dict(spec.env)
    if "PATH" in given:
        given["PATH"] = given["PATH"].replace("$PATH", own["PATH"])
    return {**own, **given}
