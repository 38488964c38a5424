"""A sandbox of Archil, as the framework uses it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path

import anyio

from race.errors import SandboxError
from race.sandbox import DEFAULT_OUTPUT_LIMIT, Change, Entry, ExecResult, Limits, Network, SandboxInfo, State
from race.sandboxes.archil import execution, files
from race.sandboxes.archil.service import Service, is_missing, state_of
from race.sandboxes.archil.terminal import ArchilTerminal
from race.sandboxes.copy.tree import tree_entries
from race.sandboxes.left_out import LeftOut
from race.sandboxes.local.changes import normal
from race.sandboxes.local.command import request
from race.sandboxes.records import Record, Records

LISTING = "listing"
"""The file, beside a record, with what there was on the machine when it was made."""


class ArchilSandbox(LeftOut):
    """A sandbox that `ArchilProvider` made or found; see `race.sandbox.Sandbox`.

    Args:
        service: of the sandbox.
        records: of all sandboxes of the provider.
        record: what is known of it now.
    """

    provider = "archil"

    def __init__(self, service: Service, records: Records, record: Record) -> None:
        self._service = service
        self._records = records
        self._name = record.name
        self._created = record.created
        self._handle = record.handle
        self._env = record.env

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def __repr__(self) -> str:
        return f"ArchilSandbox({self._name!r})"

    @contextlib.asynccontextmanager
    async def _locked(self, *, shared: bool = False) -> AsyncGenerator[Record]:
        async with self._records.locked(self._name, shared=shared) as record:
            yield self._mine(record)

    def _mine(self, record: Record) -> Record:
        if record.created != self._created:
            raise SandboxError(f"there is no sandbox {self._name!r} any more; another one has its name")
        return record

    async def _state(self) -> State:
        return await self._service.call(lambda: state_of(self._service.sandbox(self._handle)))

    async def info(self) -> SandboxInfo:
        """What is known of it."""
        record = self._mine(self._records.load(self._name))
        try:
            return record.info(await self._state())
        except SandboxError as e:
            if is_missing(e):
                raise SandboxError(f"the sandbox {self._name!r} is gone from the service") from e
            raise

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        self._mine(self._records.load(self._name))
        state = await self._state()
        if state != "running":
            raise SandboxError(
                f"the sandbox {self._name!r} is {'frozen' if state == 'frozen' else 'not running'}"
            )
        yield

    @contextlib.asynccontextmanager
    async def _awake(self) -> AsyncGenerator[str]:
        """What to run something in, to look into it: itself, started for as long as it takes, or a fork if it is
        frozen. Gives the service's id of that.
        """
        async with self._locked() as record:
            state = await self._state()
            if state == "running":
                yield self._handle
            elif state == "stopped":
                await self._service.call(lambda: self._service.sandbox(self._handle).start())
                try:
                    yield self._handle
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._service.call(lambda: self._service.sandbox(self._handle).stop())
            else:
                name = f"{self._name[:80]}-look"
                fork = await self._service.call(lambda: self._forked(name, record.network, record.network))
                try:
                    yield fork
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._service.call(lambda: deleted(self._service, fork))

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
        asked = request(
            command,
            cwd=cwd,
            env={**self._env, **(env or {})},
            timeout=timeout,
            merged=merge_stderr,
            has_input=stdin is not None,
        )
        async with self._running():
            return await execution.run(self._service, self._handle, asked, stdin, output_limit)

    async def terminal(
        self,
        command: Sequence[str] | None = None,
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> ArchilTerminal:
        """Run a command on a terminal; default: an interactive shell."""
        asked = request(
            command or ["sh", "-c", "if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi"],
            cwd=cwd,
            env={**self._env, **(env or {})},
            timeout=None,
            merged=True,
            has_input=False,
        )
        async with self._running():
            made = ArchilTerminal(self._service, self._handle)
            await made.start(asked, rows, columns)
            return made

    async def set_network(self, network: Network) -> None:
        """Give it another network; what is connected stays connected."""
        async with self._locked() as record:
            await self._service.call(
                lambda: self._service.sandbox(self._handle).update_network(self._service.network(network))
            )
            self._records.save(record.model_copy(update={"network": network}))

    # Files

    async def write(self, entries: Iterable[Entry]) -> None:
        """Write files, links and directories, and remove paths, in the order given."""
        async with self._running():
            await files.write(self._service, self._handle, entries)

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory tree into the sandbox; owners become root."""
        place = b"/" + normal(target)
        await self.write(tree_entries(source.resolve(strict=True), place))

    async def read(self, path: str | bytes, *, limit: int = 1 << 30) -> bytes:
        """The bytes of a regular file, as a program of the sandbox reads it."""
        wanted = normal(path)
        async with self._awake() as handle:
            return await files.read(self._service, handle, wanted, limit)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory tree out to ``target``, which must not exist."""
        wanted = normal(source)
        async with self._awake() as handle:
            await files.download(self._service, handle, wanted, target)

    async def changes(self, under: str | bytes = "/", *, limit: int = 200_000) -> list[Change]:
        """What differs from the sandbox that this one was forked from, below ``under``, sorted by path."""
        wanted = normal(under)
        before = self._records.folder(self._name) / LISTING
        async with self._awake() as handle:
            return await files.changes(self._service, handle, before.read_bytes(), wanted, limit)

    # Life

    async def fork(
        self,
        name: str,
        *,
        network: Network | None = None,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> ArchilSandbox:
        """A new running sandbox with this one's files as of one moment, and no process of it.

        The service's own fork of a running sandbox has its processes too, so it is started anew.
        """
        if limits is not None:
            check_limits(limits)
        async with contextlib.AsyncExitStack() as claim:
            async with self._locked() as parent:
                child = parent.model_copy(
                    update={
                        "name": name,
                        "network": parent.network if network is None else network,
                        "labels": dict(labels or {}),
                        "created": time.time(),
                        "parent": parent.name,
                        "ancestors": (parent.name, *parent.ancestors),
                        "handle": "",
                    }
                )
                folder = await claim.enter_async_context(self._records.new(child))
                made = await self._service.call(lambda: self._forked(name, child.network, parent.network))
            child = await noted(self._service, self._records, child, made, folder)
        return ArchilSandbox(self._service, self._records, child)

    def _forked(self, name: str, network: Network, before: Network) -> str:
        source = self._service.sandbox(self._handle)
        live = state_of(source) != "stopped"
        made = source.fork(name=name)
        try:
            if network != before:
                made.update_network(self._service.network(network))
            if live or state_of(made) != "running":
                made.stop()
                made.start()
        except BaseException:
            made.delete()
            raise
        return str(made.id)

    async def stop(self) -> None:
        """End every process; the files stay."""
        async with self._locked():
            if await self._state() != "stopped":
                await self._service.call(lambda: self._service.sandbox(self._handle).stop())

    async def start(self) -> None:
        """Run a stopped sandbox again."""
        async with self._locked():
            if await self._state() == "stopped":
                await self._service.call(lambda: self._service.sandbox(self._handle).start())

    async def freeze(self) -> None:
        """Hold every process where it is."""
        async with self._locked():
            await self._service.call(lambda: self._service.sandbox(self._handle).pause())

    async def thaw(self) -> None:
        """Let a frozen sandbox go on."""
        async with self._locked():
            if await self._state() == "frozen":
                await self._service.call(lambda: self._service.sandbox(self._handle).resume())

    async def label(self, labels: Mapping[str, str]) -> None:
        """Set labels, on top of those it has."""
        async with self._locked() as record:
            self._records.save(record.model_copy(update={"labels": {**record.labels, **labels}}))

    async def delete(self) -> None:
        """End it and remove its files."""
        try:
            async with self._locked():
                self._records.refuse_if_forked(self._name)
                with anyio.CancelScope(shield=True):
                    await self._service.call(lambda: deleted(self._service, self._handle))
                    await self._records.remove(self._name)
        except SandboxError:
            if self._exists():
                raise

    def _exists(self) -> bool:
        try:
            self._mine(self._records.load(self._name))
        except SandboxError:
            return False
        return True


async def noted(service: Service, records: Records, record: Record, handle: str, folder: Path) -> Record:
    """Write down which sandbox of the service a new one is, and what there is on its machine."""
    complete = record.model_copy(update={"handle": handle})
    records.save(complete)
    try:
        (folder / LISTING).write_bytes(await files.listing(service, handle))
    except BaseException:
        with anyio.CancelScope(shield=True):
            await service.call(lambda: deleted(service, handle))
        raise
    return complete


def deleted(service: Service, handle: str) -> None:
    """Delete a sandbox of the service, stopping it first; nothing if it is gone.

    Raises:
        SandboxError: others were forked from it, by somebody else than this provider.
    """
    try:
        sandbox = service.sandbox(handle)
        if state_of(sandbox) != "stopped":
            sandbox.stop()
        sandbox.delete()
    except Exception as e:
        if is_missing(e):
            return
        if "dependent forks" in str(e):
            raise SandboxError(
                f"the sandbox {handle!r} cannot be deleted, because others were forked from it: the service says: {e}"
            ) from e
        raise


def check_limits(limits: Limits) -> None:
    """Refuse limits that cannot be had. The number of processes is left alone: there is one by default."""
    for name in ("cpus", "memory", "disk", "cores"):
        if getattr(limits, name) is not None:
            raise SandboxError(f"the sandbox provider 'archil' cannot limit {name} of a fork")
