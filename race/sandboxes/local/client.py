"""A sandbox of this machine, as the framework uses it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import anyio.to_thread

from race.errors import SandboxError
from race.sandbox import DEFAULT_OUTPUT_LIMIT, SandboxInfo
from race.sandboxes.local import (
    changes,
    exceeded,
    exchange,
    frames,
    lifetimes,
    liveness,
    ports,
    process,
    talk,
    teleport,
)
from race.sandboxes.local.command import request as command_request
from race.sandboxes.local.command import run as run_command
from race.sandboxes.local.network import check_network, network_environment
from race.sandboxes.local.process import LocalProcess
from race.sandboxes.local.reading import read_file
from race.sandboxes.local.record import Record, check_name
from race.sandboxes.local.terminal import LocalTerminal, opened

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
    from pathlib import Path

    from race.background import ProcessInfo
    from race.sandbox import Change, Entry, ExecResult, Limits, Network, State
    from race.sandboxes.local.workshop import Workshop


def info_of(record: Record) -> SandboxInfo:
    """What a record says of a sandbox, and whether its PID 1 is alive."""
    return SandboxInfo(
        name=record.name,
        state=state_of(record),
        parent=record.parent,
        image=record.image,
        network=record.network,
        labels=dict(record.labels),
        created=record.created,
        ancestors=record.ancestors,
        ends=_ends(record),
    )


def _ends(record: Record) -> float | None:
    """When the lifetime of a running sandbox ends, on the clock as it is set now."""
    if record.lifetime is None or record.init is None or not liveness.alive(record.init):
        return None
    return round(time.time() + liveness.started(record.init) + record.lifetime - lifetimes.now(), 2)


def state_of(record: Record) -> State:
    """Whether it runs."""
    if not liveness.alive(record.init):
        return "stopped"
    return "frozen" if record.frozen else "running"


class LocalSandbox:
    """A sandbox that `LocalProvider` made or found; see `race.sandbox.Sandbox`.

    Args:
        workshop: what all sandboxes of the provider share.
        record: what is known of it now. If it is deleted and another one gets its name, this object stays
            with the deleted one.
        is_locked: whether the caller holds the sandbox's lock, so that the record cannot have changed since.
    """

    def __init__(self, workshop: Workshop, record: Record, *, is_locked: bool = False) -> None:
        self._workshop = workshop
        self._records = workshop.records
        self._name = record.name
        self._created = record.created
        self._folder = self._records.folder(record.name)
        self._latest = record
        self._version = self._records.version(record.name) if is_locked else (0, 0)

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def __repr__(self) -> str:
        return f"LocalSandbox({self._name!r})"

    def _mine(self, record: Record) -> Record:
        if record.created != self._created or not record.complete:
            raise SandboxError(f"there is no sandbox {self._name!r} any more; another one has its name")
        return record

    def _record(self) -> Record:
        return self._mine(self._records.load(self._name))

    @contextlib.asynccontextmanager
    async def _locked(self, *, shared: bool = False) -> AsyncGenerator[Record]:
        async with self._records.locked(self._name, shared=shared) as record:
            yield self._mine(record)

    async def _current(self) -> Record:
        """Its record as of now, whose network this process serves. Read again only when somebody changed it."""
        version = self._records.version(self._name)
        if version != self._version:
            self._latest = self._record()
            if liveness.alive(self._latest.init):
                await self._workshop.gatekeeper.serve(self._folder, self._latest)
            self._version = version
        return self._latest

    async def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        """What a command gets, with what the call adds."""
        record = await self._current()
        return {**record.image_env, **network_environment(record.network), **record.env, **(env or {})}

    async def info(self) -> SandboxInfo:
        """What is known of it."""
        return info_of(self._record())

    # Commands

    def place(self, path: str) -> str:
        """What commands inside call ``path``."""
        return path

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
        merge_stderr: bool = False,
    ) -> ExecResult:
        """Run a command and wait for it."""
        asked = command_request(
            command,
            cwd=cwd,
            env=await self._environment(env),
            timeout=timeout,
            merged=merge_stderr,
            has_input=stdin is not None,
        )
        began = time.monotonic()
        running = run_command(self._folder, self._name, asked, stdin, output_limit)
        return await exceeded.told(running, self._folder, self._latest, began, merged=merge_stderr)

    async def terminal(
        self,
        command: Sequence[str] | None = None,
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> LocalTerminal:
        """Run a command on a terminal; default: an interactive shell."""
        shell = "if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi"
        asked = command_request(
            shell if command is None else command,
            cwd=cwd,
            env=await self._environment(env),
            timeout=None,
            merged=True,
            has_input=False,
            terminal=[rows, columns],
        )
        return await opened(self._folder, self._name, asked)

    async def listen(self, port: int = 0) -> socket.socket:
        """A socket that listens on the sandbox's own loopback, to be accepted from by the caller, outside."""
        if self._record().network == "full":
            return ports.listening(port)
        return await ports.listening_inside(self._folder, self._name, port)

    async def connect(self, port: int) -> socket.socket:
        """A connection to a port of the sandbox's own loopback."""
        return await ports.connected(self._folder, self._name, port)

    async def set_network(self, network: Network) -> None:
        """Give it another network. To or from ``"full"``, a running one is stopped and started."""
        check_network(network)
        async with self._locked() as record:
            changed = record.model_copy(update={"network": network})
            alive = liveness.alive(record.init)
            if not alive or "full" not in {network, record.network} or network == record.network:
                self._records.save(changed)
                if alive:
                    await self._workshop.gatekeeper.change(self._folder, changed)
                return
            if record.frozen:
                raise SandboxError(
                    f"the sandbox {self._name!r} is frozen: thaw it, or stop it, before this change"
                )
            changed = await self._workshop.end(changed)
            self._records.save(changed)
            await self._workshop.bring_up(changed)

    # Named processes

    async def spawn(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
    ) -> LocalProcess:
        """Start a named process, which goes on when its client is gone."""
        environment = await self._environment(env)
        asked = command_request(
            command, cwd=cwd, env=environment, timeout=None, merged=True, has_input=True, named=True
        )
        return await process.spawned(self._folder, self._name, name, asked)

    async def process(self, name: str) -> LocalProcess:
        """Attach to a named process, whichever program started it, also when it has ended."""
        found = LocalProcess(self._folder, self._name, name)
        await found.info()
        return found

    async def processes(self) -> list[ProcessInfo]:
        """The named processes since the sandbox's last start, oldest first."""
        if state_of(self._record()) == "stopped":
            return []
        return await process.all_of(self._folder, self._name)

    # Files

    async def write(self, entries: Iterable[Entry]) -> None:
        """Write files, links and directories, and remove paths, in the order given, as the sandbox's root."""
        await exchange.put(self._folder, self._name, exchange.entries(entries))

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory tree into the sandbox. A stopped one is started for as long as it
        takes.
        """
        place = b"/" + changes.normal(target)
        stream = frames.tree(os.fsencode(source.resolve(strict=True)), place)
        was_stopped = state_of(self._record()) == "stopped"
        if was_stopped:
            await self.start()
        try:
            await exchange.put(self._folder, self._name, stream)
        finally:
            if was_stopped:
                with anyio.CancelScope(shield=True):
                    await self.stop()

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory tree out to ``target``, which must not exist."""
        await exchange.take(self._folder, self._name, "/" + os.fsdecode(changes.normal(source)), target)

    async def read(self, path: str | bytes, *, limit: int = 1 << 30) -> bytes:
        """The bytes of a regular file, read from outside."""
        wanted = changes.normal(path)
        async with self._locked(shared=True) as record:
            stacks = self._workshop.stacks(record)
            try:
                return await anyio.to_thread.run_sync(read_file, stacks, wanted, limit)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise SandboxError(f"a file of the sandbox {self._name!r} cannot be read: {error}") from error

    async def changes(self, under: str | bytes = "/", *, limit: int = 200_000) -> list[Change]:
        """What differs from the sandbox that this one was forked from, below ``under``, sorted by path."""
        wanted = changes.normal(under)
        async with self._locked(shared=True) as record:
            stacks = self._workshop.stacks(record)
            try:
                return await anyio.to_thread.run_sync(changes.changes, stacks, wanted, limit)
            except OSError as error:
                raise SandboxError(
                    f"the files of the sandbox {self._name!r} cannot be looked at: {error}"
                ) from error

    async def export(self, target: Path) -> None:
        """Write a stopped sandbox, with all that it was forked from, to one file."""
        async with self._locked() as record:
            await anyio.to_thread.run_sync(
                teleport.export, self._workshop, record, target.absolute(), anyio.from_thread.check_cancelled
            )

    # Life

    async def fork(
        self,
        name: str,
        *,
        network: Network | None = None,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> LocalSandbox:
        """A new running sandbox with this one's files as of one moment, and no process of it."""
        check_name(name)
        if network is not None:
            check_network(network)
        if limits is not None:
            self._workshop.cgroups.plan(name, limits)
        async with contextlib.AsyncExitStack() as claim:
            async with self._locked() as parent:
                running = liveness.alive(parent.init)
                if not running:
                    parent = self._workshop.seal(parent)  # noqa: PLW2901 - the same parent, as it is now
                parent = await self._workshop.flattened(parent)  # noqa: PLW2901 - likewise
                child = parent.model_copy(
                    update={
                        "name": name,
                        "network": parent.network if network is None else network,
                        "limits": parent.limits if limits is None else limits,
                        "labels": dict(labels or {}),
                        "created": time.time(),
                        "parent": parent.name,
                        "ancestors": (parent.name, *parent.ancestors),
                        "inherited": parent.lower,
                        "own": (),
                        "flat": None,
                        "covered": 0,
                        "sealed": 0,
                        "init": None,
                        "frozen": False,
                        "cgroups": self._workshop.cgroups.plan(
                            name, parent.limits if limits is None else limits
                        ),
                        "complete": False,
                    }
                )
                self._records.note_fork(parent.name, name)
                await claim.enter_async_context(self._records.new(child))
                await claim.enter_async_context(self._workshop.removed_on_failure(child))
                if running:
                    child = await self._workshop.copy_written(parent, child)
            return LocalSandbox(self._workshop, await self._workshop.bring_up(child), is_locked=True)

    async def stop(self) -> None:
        """End every process; the files stay."""
        async with self._locked() as record:
            await self._workshop.end(record)

    async def start(self) -> None:
        """Run a stopped sandbox again."""
        async with self._locked() as record:
            if not liveness.alive(record.init):
                await self._workshop.bring_up(record)

    async def freeze(self) -> None:
        """Hold every process where it is."""
        async with self._locked() as record:
            await self._set_frozen(record, frozen=True)

    async def thaw(self) -> None:
        """Let a frozen sandbox go on."""
        async with self._locked() as record:
            await self._set_frozen(record, frozen=False)

    async def _set_frozen(self, record: Record, *, frozen: bool) -> None:
        if not liveness.alive(record.init):
            raise SandboxError(f"the sandbox {self._name!r} is not running")
        await talk.control(self._folder, self._name, {"do": "freeze" if frozen else "thaw"})
        self._records.save_frozen(self._name, frozen=frozen)

    async def label(self, labels: Mapping[str, str]) -> None:
        """Set labels, on top of those it has."""
        async with self._locked() as record:
            self._records.save(record.model_copy(update={"labels": {**record.labels, **labels}}))

    async def delete(self) -> None:
        """End it and remove its files."""
        try:
            async with self._locked() as record:
                self._refuse_if_forked()
                await self._workshop.end(record)
                place = self._workshop.discard(self._name)
                self._records.forget_fork(record.parent, self._name)
        except SandboxError:
            if self._exists():
                raise
            return
        await self._workshop.remove(place)

    def _refuse_if_forked(self) -> None:
        forks = self._records.forks(self._name)
        if forks:
            named = ", ".join(repr(each) for each in forks)
            raise SandboxError(
                f"the sandbox {self._name!r} cannot be deleted, because others were forked from it: {named}"
            )

    def _exists(self) -> bool:
        try:
            self._record()
        except SandboxError:
            return False
        return True
