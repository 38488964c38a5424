"""A sandbox that is a folder, as the framework uses it."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from race.errors import SandboxError
from race.sandbox import DEFAULT_OUTPUT_LIMIT, Change, Entry, ExecResult, Limits, Network, SandboxInfo
from race.sandboxes.copy import descendants, manifest, running
from race.sandboxes.copy.cloning import clone
from race.sandboxes.copy.running import Command, Running
from race.sandboxes.copy.terminal import CopyTerminal
from race.sandboxes.copy.tree import Tree, tree_entries
from race.sandboxes.left_out import LeftOut
from race.sandboxes.local.command import request
from race.sandboxes.records import Record, Records

_SHELL = "if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi"


class CopySandbox(LeftOut):
    """A sandbox that `CopyProvider` made or found; see `race.sandbox.Sandbox`.

    Args:
        records: of all sandboxes of the provider.
        record: what is known of it now. If it is deleted and another one gets its name, this object stays with the
            deleted one.
    """

    provider = "copy"

    def __init__(self, records: Records, record: Record) -> None:
        self._records = records
        self._name = record.name
        self._created = record.created
        self._env = record.env
        self._folder = records.folder(record.name)
        self._tree = Tree(root_of(self._folder), record.name)

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def __repr__(self) -> str:
        return f"CopySandbox({self._name!r})"

    @contextlib.asynccontextmanager
    async def _locked(self, *, shared: bool = False) -> AsyncGenerator[Record]:
        async with self._records.locked(self._name, shared=shared) as record:
            yield self._mine(record)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        """Keep it as it is for a moment, while it runs.

        Raises:
            SandboxError: it does not.
        """
        async with self._locked(shared=True) as record:
            if record.state != "running":
                raise SandboxError(
                    f"the sandbox {self._name!r} is {'frozen' if record.state == 'frozen' else 'not running'}"
                )
            yield

    def _mine(self, record: Record) -> Record:
        if record.created != self._created:
            raise SandboxError(f"there is no sandbox {self._name!r} any more; another one has its name")
        return record

    async def info(self) -> SandboxInfo:
        """What is known of it."""
        return self._mine(self._records.load(self._name)).info()

    # Commands

    def place(self, path: str) -> str:
        """What commands inside call ``path``: it lies below the sandbox's folder."""
        return self._tree.real(path)

    def _asked(
        self,
        command: str | Sequence[str],
        cwd: str,
        env: Mapping[str, str] | None,
        timeout: float | None = None,
        *,
        drains: int,
    ) -> dict[str, object]:
        given = request(
            command,
            cwd=cwd,
            env={**self._env, **(env or {})},
            timeout=timeout,
            merged=False,
            has_input=False,
        )
        return {
            "script": given["script"],
            "argv": given["argv"],
            "env": given["env"],
            "timeout": timeout,
            "cwd": self._tree.real(cwd),
            "root": str(self._tree.root),
            "runners": str(runners_of(self._folder)),
            "terminal": drains == 0,
            "drains": drains,
        }

    async def _begin(self, runner: Running, asked: Mapping[str, object]) -> None:
        async with self._running():
            await runner.begin(asked)

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
        asked = self._asked(command, cwd, env, timeout, drains=1 if merge_stderr else 2)
        call = Command(merged=merge_stderr, stdin=stdin, limit=output_limit)
        try:
            await self._begin(call.running, asked)
            return await call.result()
        except BaseException:
            await call.running.end()
            raise
        finally:
            call.close()

    async def terminal(
        self,
        command: Sequence[str] | None = None,
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> CopyTerminal:
        """Run a command on a terminal; default: an interactive shell."""
        asked = self._asked(_SHELL if command is None else command, cwd, env, drains=0)
        made = CopyTerminal(rows, columns)
        try:
            await self._begin(made.running, asked)
        except BaseException:
            await made.aclose()
            raise
        return made

    async def listen(self, port: int = 0) -> socket.socket:
        """A socket on the machine's loopback, which is the sandbox's as well."""
        async with self._running():
            listener = socket.socket()
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
                listener.listen(128)
            except OSError as e:
                listener.close()
                raise SandboxError(f"port {port} of the loopback: {e.strerror}") from e
            listener.setblocking(False)  # noqa: FBT003 - the library's signature
            return listener

    async def connect(self, port: int) -> socket.socket:
        """A connection to a port of the machine's loopback, which is the sandbox's as well."""
        async with self._running():
            connection = socket.socket()
            try:
                connection.connect(("127.0.0.1", port))
            except OSError as e:
                connection.close()
                raise SandboxError(f"nothing listens on port {port} of the loopback: {e.strerror}") from e
            connection.setblocking(False)  # noqa: FBT003 - likewise
            return connection

    async def set_network(self, network: Network) -> None:
        """Not offered: it is always the machine's."""
        check_network(network)

    # Files

    async def write(self, entries: Iterable[Entry]) -> None:
        """Write files, links and directories, and remove paths, in the order given."""
        async with self._running():
            try:
                await anyio.to_thread.run_sync(self._tree.write, entries)
            except FileNotFoundError:
                raise
            except OSError as e:
                raise SandboxError(f"files could not be written to the sandbox {self._name!r}: {e}") from e

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory tree into the sandbox."""
        place = b"/" + self._tree.inside(target)
        await self.write(tree_entries(source.resolve(strict=True), place))

    async def read(self, path: str | bytes, *, limit: int = 1 << 30) -> bytes:
        """The bytes of a regular file, read from outside."""
        wanted = self._tree.inside(path)
        async with self._locked(shared=True):
            return await anyio.to_thread.run_sync(self._tree.read, wanted, limit)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory tree out to ``target``, which must not exist."""
        wanted = self._tree.inside(source)
        async with self._locked(shared=True):
            await anyio.to_thread.run_sync(self._tree.copy_out, wanted, target)

    async def changes(self, under: str | bytes = "/", *, limit: int = 200_000) -> list[Change]:
        """What differs from the sandbox that this one was forked from, below ``under``, sorted by path."""
        wanted = self._tree.inside(under)
        async with self._locked(shared=True):
            return await anyio.to_thread.run_sync(
                manifest.changes, self._tree.root, manifest_of(self._folder), wanted, limit
            )

    # Life

    async def fork(
        self,
        name: str,
        *,
        network: Network | None = None,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> CopySandbox:
        """A new running sandbox with this one's files as of one moment, and no process of it."""
        if network is not None:
            check_network(network)
        if limits is not None:
            check_limits(limits)
        async with contextlib.AsyncExitStack() as claim:
            async with self._locked() as parent:
                folder = self._records.folder(name)
                child = parent.model_copy(
                    update={
                        "name": name,
                        "env": _moved(parent.env, str(self._tree.root), str(root_of(folder))),
                        "labels": dict(labels or {}),
                        "created": time.time(),
                        "parent": parent.name,
                        "ancestors": (parent.name, *parent.ancestors),
                        "state": "running",
                    }
                )
                await claim.enter_async_context(self._records.new(child))
                async with self._held(parent):
                    try:
                        await anyio.to_thread.run_sync(clone, self._tree.root, root_of(folder))
                    except OSError as e:
                        raise SandboxError(f"the files of {self._name!r} could not be copied: {e}") from e
            await complete(folder)
        return CopySandbox(self._records, child)

    @contextlib.asynccontextmanager
    async def _held(self, record: Record) -> AsyncGenerator[None]:
        """Hold every process for as long as its files are copied."""
        if record.state != "running":
            yield
            return
        runners = runners_of(self._folder)
        before = await anyio.to_thread.run_sync(lambda: descendants.hold(running.living(runners)))
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(lambda: descendants.release(running.living(runners), before))

    async def stop(self) -> None:
        """End every process; the files stay."""
        async with self._locked() as record:
            self._records.save(record.model_copy(update={"state": "stopped"}))
            await running.stop(runners_of(self._folder))

    async def start(self) -> None:
        """Run a stopped sandbox again."""
        async with self._locked() as record:
            if record.state == "stopped":
                self._records.save(record.model_copy(update={"state": "running"}))

    async def freeze(self) -> None:
        """Hold every process where it is."""
        async with self._locked() as record:
            if record.state == "stopped":
                raise SandboxError(f"the sandbox {self._name!r} is not running")
            runners = runners_of(self._folder)
            await anyio.to_thread.run_sync(lambda: descendants.hold(running.living(runners)))
            self._records.save(record.model_copy(update={"state": "frozen"}))

    async def thaw(self) -> None:
        """Let a frozen sandbox go on."""
        async with self._locked() as record:
            if record.state == "stopped":
                raise SandboxError(f"the sandbox {self._name!r} is not running")
            runners = runners_of(self._folder)
            await anyio.to_thread.run_sync(lambda: descendants.release(running.living(runners), ()))
            self._records.save(record.model_copy(update={"state": "running"}))

    async def label(self, labels: Mapping[str, str]) -> None:
        """Set labels, on top of those it has."""
        async with self._locked() as record:
            self._records.save(record.model_copy(update={"labels": {**record.labels, **labels}}))

    async def delete(self) -> None:
        """End it and remove its files."""
        try:
            async with self._locked():
                self._records.refuse_if_forked(self._name)
                await running.stop(runners_of(self._folder))
                await self._records.remove(self._name)
        except SandboxError:
            if await self._exists():
                raise

    async def _exists(self) -> bool:
        try:
            await self.info()
        except SandboxError:
            return False
        return True


def root_of(folder: Path) -> Path:
    """Where the files of a sandbox are."""
    return folder / "root"


def runners_of(folder: Path) -> Path:
    """Where its runners leave their marks."""
    return folder / "runners"


def manifest_of(folder: Path) -> Path:
    """What it held when it was made."""
    return folder / "manifest.json"


async def complete(folder: Path) -> None:
    """Make what a sandbox needs besides its files, when these are there."""

    def make() -> None:
        runners_of(folder).mkdir(mode=0o700)
        manifest.note(root_of(folder), manifest_of(folder))

    await anyio.to_thread.run_sync(make)
    await anyio.sleep(manifest.TICK)


def _moved(env: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    return {k: v.replace(old, new) for k, v in env.items()}


def check_network(network: Network) -> None:
    """Refuse any network but that of the machine."""
    if network != "full":
        raise SandboxError(f"the sandbox provider 'copy' has the network 'full' only, not {network!r}")


def check_limits(limits: Limits) -> None:
    """Refuse limits that would not hold. The number of processes is left alone: there is one by default."""
    for name in ("cpus", "memory", "disk", "cores"):
        if getattr(limits, name) is not None:
            raise SandboxError(f"the sandbox provider 'copy' cannot limit {name}")
