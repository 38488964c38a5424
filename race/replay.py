"""Replays: fresh forks of the base with nothing but a submission in them. The only place where scores come from.

The submission is put in once, into a fork that is then stopped: an *image*. Each call of a scorer gets a fork of that
image, so what one call leaves behind is seen by no other.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from race.base import Base, limits
from race.bash import shown
from race.errors import Rejected, SandboxError
from race.machine import is_scratch, may_be_carried
from race.project import matching
from race.sandbox import Change, ChangeKind, Entry, Link, Network, Sandbox, SandboxProvider
from race.scoring import Replay, must_have_worked
from race.spec import RaceSpec
from race.submission import Package, Submission, printable, printable_lines
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
        self._network: Network = spec.base.network.scoring
        self._env = {k: v for k, v in SCORING_ENV.items() if k not in spec.base.env}
        self._labels = labels
        self._is_base = is_base
        self._numbers = itertools.count(1)
        self._measuring = limits(spec, measuring=True) if spec.finals.cores else None

    @asynccontextmanager
    async def replay(self, *, measuring: bool = False) -> AsyncGenerator[Replay]:
        """A fork for one call of a scorer, deleted when the block ends; to measure in, on the processors for that."""
        name = f"{self.sandbox.name}-{next(self._numbers)}"
        pinned = self._measuring if measuring else None
        fork = await self.sandbox.fork(name, network=self._network, limits=pinned, labels=self._labels)
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
        Rejected: a package cannot be installed again by its name and version, or the build failed.
        SandboxError: the sandbox broke.
    """
    parent = await provider.get(base.sandbox)
    install = submission.packages if spec.task.carry == "packages" else ()
    sandbox = await parent.fork(
        name, network=spec.base.network.agent if install else spec.base.network.scoring, labels=labels
    )
    try:
        for site in sorted({p.site for p in install}):
            await _install(sandbox, site, [p for p in install if p.site == site])
        root = base.workdir.encode() + b"/"
        if submission.additions:
            await sandbox.write(await _not_hiding(sandbox, submission.additions))
        await sandbox.write([replace(e, path=root + e.path) for e in submission.entries])
        if spec.task.build:
            await _build(sandbox, base, spec)
        await sandbox.stop()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await sandbox.delete()
        raise
    return ReplayImage(sandbox, base, submission, spec, labels=labels, is_base=is_base)


async def _build(sandbox: Sandbox, base: Base, spec: RaceSpec) -> None:
    """Run the build that the race file declares. It is the submission's code that runs, so what it wrote outside of the
    project's folder, and into protected files, would count for the scorers as well: then there is no replay.
    """
    command = spec.task.build
    before = {(c.path, c.size, c.mode) for c in await sandbox.changes("/", limit=1_000_000)}
    done = await sandbox.exec(
        command, cwd=base.workdir, env=SCORING_ENV, timeout=spec.task.build_timeout, merge_stderr=True
    )
    must_have_worked(done, command, spec.task.build_timeout)
    root = base.workdir.encode()
    protected = matching(spec.task.protected, base.entries)
    for change in await sandbox.changes("/", limit=1_000_000):
        if (change.path, change.size, change.mode) in before or change.kind == "directory":
            continue
        inside = change.path.startswith(root + b"/")
        if inside and change.path.removeprefix(root + b"/") not in protected:
            continue
        if not inside and is_scratch(change.path):
            continue
        raise Rejected(f"the build {command!r} wrote to {printable(change.path)}, which it may not")


async def _not_hiding(sandbox: Sandbox, additions: Sequence[Entry]) -> list[Entry]:
    """Of what an attempt added to its machine, what hides nothing of the base's."""
    programs = await sandbox.exec('IFS=:; for d in $PATH; do ls -a "$d" 2>/dev/null; done; true', timeout=60)
    modules = await sandbox.exec(
        [
            "python3",
            "-I",
            "-c",
            "import os,sys;[print(n) for d in sys.path if os.path.isdir(d) for n in os.listdir(d)]",
        ],
        timeout=60,
    )
    names = frozenset(programs.stdout.decode("utf-8", "replace").splitlines())
    stems = frozenset(n.partition(".")[0] for n in modules.stdout.decode("utf-8", "replace").splitlines())
    out: list[Entry] = []
    for entry in additions:
        kind: ChangeKind = "link" if isinstance(entry, Link) else "file"
        if may_be_carried(Change(entry.path, kind), names, stems | sys.stdlib_module_names):
            out.append(entry)
    return out


def task_of(spec: RaceSpec) -> Task:
    """What a race file asks of every agent."""
    task = spec.task
    return Task(
        task.name, task.prompt.strip(), spec.base.workdir, task.protected, task.editable, task.binaries
    )


async def _install(sandbox: Sandbox, site: str, packages: list[Package]) -> None:
    """Install packages by name and version with the interpreter that a site directory belongs to.

    The working directory is ``/`` and the submission's files are not there yet, so nothing that an agent wrote is
    imported.
    """
    wanted = [f"{p.name}=={p.version}" for p in packages]
    python, user = _interpreter(site)
    if python.startswith("/"):
        python = sandbox.place(python)
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
