"""Makes and finds sandboxes that are folders."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from race.errors import SandboxError
from race.sandbox import Capabilities, Finding, SandboxInfo, SandboxSpec
from race.sandboxes.copy import landlock, running
from race.sandboxes.copy.client import (
    CopySandbox,
    check_limits,
    check_network,
    complete,
    root_of,
    runners_of,
)
from race.sandboxes.records import Record, Records

_WARNING = (
    'the sandboxes were folders of this machine without any isolation (sandbox = "copy"): what an attempt did outside '
    "of its folder is neither prevented nor known, and results may depend on it"
)
_OWN_FOLDERS = {"HOME": "root", "TMPDIR": "tmp"}


class CopyProvider:
    """Sandboxes that are folders, without isolation; see `race.sandboxes.copy`.

    Args:
        home: a folder of its own, which will hold everything; made when it is first needed.
    """

    def __init__(self, home: Path) -> None:
        self.home = Path(os.path.realpath(home))
        self._records = Records(self.home)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do: it does not isolate, and limits nothing."""
        return Capabilities(
            isolated=False,
            networks=frozenset({"full"}),
            limits=frozenset(),
            images=frozenset({"host"}),
            features=frozenset({"terminal", "listen", "connect", "freeze", "live_fork"}),
            warning=_WARNING,
        )

    async def check(self) -> list[Finding]:
        """Find out by trying whether sandboxes work here."""
        known = landlock.version()
        detail = f"Landlock {known}: commands write below their own folder only" if known else "none"
        remedy = "a Linux kernel with Landlock (5.13 or newer) keeps commands from writing elsewhere"
        return [
            await self._trial(),
            Finding("confinement", bool(known), detail, "" if known else remedy, required=False),
            Finding(
                "isolation",
                ok=False,
                detail="none",
                remedy="use another provider where you can",
                required=False,
            ),
        ]

    async def _trial(self) -> Finding:
        name = f"trial-{os.getpid()}-{time.monotonic_ns()}"
        try:
            sandbox = await self.create(SandboxSpec(name, network="full", labels={"role": "trial"}))
            try:
                done = await sandbox.exec("echo fine", timeout=20)
            finally:
                await sandbox.delete()
        except (SandboxError, OSError) as e:
            return Finding(
                "a trial", ok=False, detail=str(e), remedy=f"see that {self.home} can be written to"
            )
        fine = done.stdout == b"fine\n"
        return Finding("a trial", fine, "a command ran" if fine else done.stderr.decode(errors="replace"))

    async def image_id(self, image: str) -> str:
        """A name for this machine's system as it is: it is not copied, so it is not looked at."""
        _check_image(image)
        return f"copy-{sys.platform}-{os.uname().machine}"

    async def create(self, spec: SandboxSpec) -> CopySandbox:
        """A new running sandbox: an empty folder."""
        _check_image(spec.image)
        check_network(spec.network)
        check_limits(spec.limits)
        if spec.lifetime is not None or spec.idle_lifetime is not None:
            raise CopySandbox.cannot("lifetimes")
        root = root_of(self._records.folder(spec.name))
        record = Record(
            name=spec.name,
            image=spec.image,
            env=_environment(spec, root),
            network=spec.network,
            limits=spec.limits,
            labels=dict(spec.labels),
            created=time.time(),
        )
        async with self._records.new(record) as folder:
            for name in ("", *_OWN_FOLDERS.values()):
                (root / name).mkdir(mode=0o755)
            await complete(folder)
        return CopySandbox(self._records, record)

    async def load(self, archive: Path, name: str | None = None) -> CopySandbox:
        """Not offered."""
        del archive, name
        raise CopySandbox.cannot("import")

    async def get(self, name: str) -> CopySandbox:
        """Take over a sandbox, whichever process made it."""
        return CopySandbox(self._records, self._records.load(name))

    async def list(self) -> list[SandboxInfo]:
        """All sandboxes, oldest first."""
        return [r.info() for r in self._records.all()]

    async def collect(self) -> Sequence[str]:
        """Remove what killed processes left half made or half deleted."""
        lines: list[str] = []
        for record in self._records.abandoned():
            await running.stop(runners_of(self._records.folder(record.name)))
            await self._records.remove(record.name)
            lines.append(f"removed the sandbox {record.name!r}, which was never finished")
        return [*lines, *await self._records.empty_trash()]

    async def aclose(self) -> None:
        """Nothing is to be ended."""


def _check_image(image: str) -> None:
    if image != "host":
        raise SandboxError(f"the sandbox provider 'copy' takes the image 'host' only, not {image!r}")


def _environment(spec: SandboxSpec, root: Path) -> dict[str, str]:
    """What commands find: nothing of this process's environment but where programs are."""
    path = os.environ.get("PATH", os.defpath)
    own = {
        "PATH": path,
        "LANG": "C.UTF-8",
        "RACE_ROOT": str(root),
        "GIT_CEILING_DIRECTORIES": str(root),
        **{k: str(root / v) for k, v in _OWN_FOLDERS.items()},
    }
    given = {k: v.replace("$RACE_ROOT", str(root)) for k, v in spec.env.items()}
    if "PATH" in given:
        given["PATH"] = given["PATH"].replace("$PATH", path)
    return {**own, **given}
