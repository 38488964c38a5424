"""A sandbox of this machine, as the framework uses it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from race.errors import SandboxError
from race.sandbox import DEFAULT_OUTPUT_LIMIT, SandboxInfo
from race.sandboxes.local import changes, exchange, frames, liveness, talk
from race.sandboxes.local.cgroups import out_of_memory_kills
from race.sandboxes.local.command import request as command_request
from race.sandboxes.local.command import run as run_command
from race.sandboxes.local.network import check_network, network_environment
from race.sandboxes.local.reading import read_file
from race.sandboxes.local.record import Record, check_name
from race.sandboxes.local.terminal import LocalTerminal, opened

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
    from pathlib import Path

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
    )


def _listening(port: int) -> socket.socket:
    """A socket on the host's loopback, for a sandbox that shares the host's network."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        listener.setblocking(False)  # noqa: FBT003 - the library's signature
    except OSError as error:
        listener.close()
        raise SandboxError(f"port {port} of the loopback: {error.strerror}") from error
    return listener


def state_of(record: Record) -> State:
    """Whether it runs."""
    if not liveness.alive(record.init):
        return "stopped"
    return "frozen" if record.frozen else "running"


_MEMORY_NOTE = b"\n[a process was ended because the memory of the sandbox was used up]\n"


def _told_of_memory(done: ExecResult, *, merged: bool) -> ExecResult:
    if merged:
        return replace(
            done, stdout=done.stdout + _MEMORY_NOTE, stdout_bytes=done.stdout_bytes + len(_MEMORY_NOTE)
        )
    return replace(
        done, stderr=done.stderr + _MEMORY_NOTE, stderr_bytes=done.stderr_bytes + len(_MEMORY_NOTE)
    )


class LocalSandbox:
    """A sandbox that `LocalProvider` made or found; see `race.sandbox.Sandbox`.

    Args:
        workshop: what all sandboxes of the provider share.
        record: what is known of it now. If it is deleted and another one gets its name, this object stays
            with the deleted one.
    """

    def __init__(self, workshop: Workshop, record: Record) -> None:
        self._workshop = workshop
        self._records = workshop.records
        self._name = record.name
        self._created = record.created
        self._env = {**record.image_env, **network_environment(record.network), **record.env}
        self._memory_limited = record.limits.memory is not None
        self._folder = self._records.folder(record.name)

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

    async def info(self) -> SandboxInfo:
        """What is known of it."""
        return info_of(self._record())

    # Commands and files

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
            env={**self._env, **(env or {})},
            timeout=timeout,
            merged=merge_stderr,
            has_input=stdin is not None,
        )
        if not self._memory_limited:
            return await run_command(self._folder, self._name, asked, stdin, output_limit)
        groups = self._record().cgroups
        before = out_of_memory_kills(groups)
        done = await run_command(self._folder, self._name, asked, stdin, output_limit)
        return done if out_of_memory_kills(groups) == before else _told_of_memory(done, merged=merge_stderr)

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
            env={**self._env, **(env or {})},
            timeout=None,
            merged=True,
            has_input=False,
            terminal=[rows, columns],
        )
        return await opened(self._folder, self._name, asked)

    async def listen(self, port: int = 0) -> socket.socket:
        """A socket that listens on the sandbox's own loopback, to be accepted from by the caller, outside."""
        if self._record().network == "full":
            return _listening(port)
        async with talk.connected(self._folder, self._name) as connection:
            talk.tell(connection, self._name, {"do": "listen", "port": port})
            _, (descriptor,) = await talk.answer(connection, self._name)
        listener = socket.socket(fileno=descriptor)
        listener.setblocking(False)  # noqa: FBT003 - the library's signature
        return listener

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
                child = parent.model_copy(
                    update={
                        "name": name,
                        "network": parent.network if network is None else network,
                        "limits": parent.limits if limits is None else limits,
                        "labels": dict(labels or {}),
                        "created": time.time(),
                        "parent": parent.name,
                        "inherited": (*parent.own, *parent.inherited),
                        "own": (),
                        "sealed": 0,
                        "init": None,
                        "frozen": False,
                        "cgroups": self._workshop.cgroups.plan(
                            name, parent.limits if limits is None else limits
                        ),
                        "complete": False,
                    }
                )
                await claim.enter_async_context(self._records.new(child))
                await claim.enter_async_context(self._workshop.removed_on_failure(child))
                if running:
                    child = await self._workshop.copy_written(parent, child)
            return LocalSandbox(self._workshop, await self._workshop.bring_up(child))

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
