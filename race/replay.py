"""Replays: fresh forks of the base with nothing but a submission in them. The only place where scores come from.

The submission is put in once, into a fork that is then stopped: an *image*. Each call of a scorer gets a fork of that
image, so what one call leaves behind is seen by no other.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from race.base import Base, printable_lines
from race.bash import shown
from race.errors import Rejected, SandboxError
from race.sandbox import Sandbox, SandboxProvider
from race.scoring import Replay
from race.spec import RaceSpec
from race.submission import Package, Submission
from race.task import Task

INSTALL_TIMEOUT = 900.0
"""Seconds that installing a submission's packages anew may take."""

SCORING_ENV: Mapping[str, str] = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
}
"""What every scored command finds in its environment, besides the base's own: a run differs by nothing but the code."""


class ReplayImage:
    """A stopped fork of the base with a submission in it.

    Args:
        sandbox: the fork.
        base: of the race.
        submission: what is in it.
        spec: of the race.
        labels: for the forks of it.
        is_base: whether this stands for the base itself.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        base: Base,
        submission: Submission,
        spec: RaceSpec,
        *,
        labels: Mapping[str, str],
        is_base: bool = False,
    ) -> None:
        self.sandbox = sandbox
        self.base = base
        self.submission = submission
        self._task = task_of(spec)
        self._network = spec.base.network.scoring
        self._env = {k: v for k, v in SCORING_ENV.items() if k not in spec.base.env}
        self._labels = labels
        self._is_base = is_base
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def replay(self) -> AsyncIterator[Replay]:
        """A fork for one call of a scorer; deleted when the block ends."""
        name = f"{self.sandbox.name}-{next(self._numbers)}"
        fork = await self.sandbox.fork(name, network=self._network, labels=self._labels)
        try:
            yield Replay(
                fork,
                self.submission,
                self._task,
                self._env,
                self._is_base,
                self.base.entries.keys(),
                self.base.original,
            )
        finally:
            with anyio.CancelScope(shield=True):
                await fork.delete()


async def build(
    provider: SandboxProvider,
    base: Base,
    submission: Submission,
    spec: RaceSpec,
    *,
    name: str,
    labels: Mapping[str, str],
    is_base: bool = False,
) -> ReplayImage:
    """Fork the base, install the submission's packages anew, write its files, and stop.

    Args:
        provider: of the base's sandbox.
        base: of the race.
        submission: what to put in.
        spec: of the race.
        name: of the image's sandbox.
        labels: for the image and its forks.
        is_base: whether this stands for the base itself.

    Raises:
        Rejected: a package cannot be installed again by its name and version.
        SandboxError: the sandbox broke.
    """
    parent = await provider.get(base.sandbox)
    install = submission.packages if spec.task.carry == "packages" else ()
    sandbox = await parent.fork(name, network=spec.base.network.agent if install else "none", labels=labels)
    try:
        for site in sorted({p.site for p in install}):
            await _install(sandbox, site, [p for p in install if p.site == site])
        root = base.workdir.encode() + b"/"
        await sandbox.write([replace(e, path=root + e.path) for e in submission.entries])
        await sandbox.stop()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await sandbox.delete()
        raise
    return ReplayImage(sandbox, base, submission, spec, labels=labels, is_base=is_base)


def task_of(spec: RaceSpec) -> Task:
    """What a race file asks of every agent."""
    task = spec.task
    return Task(task.name, task.prompt.strip(), spec.base.workdir, task.protected, task.editable)


async def _install(sandbox: Sandbox, site: str, packages: list[Package]) -> None:
    """Install packages by name and version with the interpreter that a site directory belongs to.

    The working directory is ``/`` and the submission's files are not there yet, so nothing that an agent wrote is
    imported.
    """
    wanted = [f"{p.name}=={p.version}" for p in packages]
    python, user = _interpreter(site)
    where = ["--user"] if user else []
    command = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-input",
        "--disable-pip-version-check",
        *where,
    ]
    env = {"PIP_RETRIES": "1", "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    try:
        done = await sandbox.exec(
            [*command, *wanted], cwd="/", env=env, timeout=INSTALL_TIMEOUT, merge_stderr=True
        )
    except SandboxError as e:
        raise Rejected(f"its packages ({', '.join(wanted)}) could not be installed again: {e}") from e
    if done.exit_code == 0:
        return
    output = printable_lines(shown(done.stdout, done.stdout_bytes, 1000)).strip()
    reason = output.splitlines()[-1] if output else "no output"
    if done.exit_code == 127:  # noqa: PLR2004 - how a shell says that there is no such program
        reason = f"the base has no interpreter {python}"
    raise Rejected(
        f"its packages ({', '.join(wanted)}) could not be installed again by name and version: {reason}"
    )


def _interpreter(site: str) -> tuple[str, bool]:
    """The interpreter of a site directory, and whether it is that of a user."""
    user = re.fullmatch(r".*/\.local/lib/(python[\d.]+)/site-packages", site)
    if user:
        return user[1], True
    match = re.fullmatch(r"(/.*?)/lib(?:64)?/(python[\d.]+)t?/(?:site|dist)-packages", site)
    if match is None:
        return "/usr/bin/python3", False  # Debian keeps those of its packages in lib/python3
    if match[1] == "/usr/local" and site.endswith("dist-packages"):
        return f"/usr/bin/{match[2]}", False  # Debian's own interpreter installs there
    return f"{match[1]}/bin/{match[2]}", False
