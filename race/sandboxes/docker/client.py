"""A sandbox that is a container, as the framework uses it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from pathlib import Path

import anyio

from race.errors import SandboxError
from race.sandbox import DEFAULT_OUTPUT_LIMIT, Change, Entry, ExecResult, Limits, Network, SandboxInfo, State
from race.sandboxes.copy.tree import tree_entries
from race.sandboxes.docker import containers, execution, files
from race.sandboxes.docker.differences import Differences
from race.sandboxes.docker.engine import Engine, is_missing
from race.sandboxes.docker.terminal import DockerTerminal
from race.sandboxes.left_out import LeftOut
from race.sandboxes.local.changes import normal
from race.sandboxes.local.command import request
from race.sandboxes.records import Record, Records

_STATES: dict[str, State] = {"running": "running", "paused": "frozen"}


class DockerSandbox(LeftOut):
    """A sandbox that `DockerProvider` made or found; see `race.sandbox.Sandbox`.

    Args:
        engine: of the container.
        records: of all sandboxes of the provider.
        record: what is known of it now.
    """

    provider = "docker"

    def __init__(self, engine: Engine, records: Records, record: Record) -> None:
        self._engine = engine
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
        return f"DockerSandbox({self._name!r})"

    @contextlib.asynccontextmanager
    async def _locked(self, *, shared: bool = False) -> AsyncGenerator[Record]:
        async with self._records.locked(self._name, shared=shared) as record:
            yield self._mine(record)

    def _mine(self, record: Record) -> Record:
        if record.created != self._created:
            raise SandboxError(f"there is no sandbox {self._name!r} any more; another one has its name")
        return record

    async def _state(self) -> State:
        return await self._engine.call(lambda: state_of(self._engine, self._handle))

    async def info(self) -> SandboxInfo:
        """What is known of it."""
        return self._mine(self._records.load(self._name)).info(await self._state())

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        self._mine(self._records.load(self._name))
        state = await self._state()
        if state != "running":
            raise SandboxError(
                f"the sandbox {self._name!r} is {'frozen' if state == 'frozen' else 'not running'}"
            )
        yield

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
            return await execution.run(self._engine, self._handle, asked, stdin, output_limit)

    async def terminal(
        self,
        command: Sequence[str] | None = None,
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> DockerTerminal:
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
            made = DockerTerminal(self._engine, self._handle, asked, rows, columns)
            await made.start()
            return made

    async def set_network(self, network: Network) -> None:
        """Not offered."""
        raise self.cannot(f"way to give a sandbox another network ({network!r}) than it was made with")

    # Files

    async def write(self, entries: Iterable[Entry]) -> None:
        """Write files, links and directories, and remove paths, in the order given."""
        async with self._running():
            await self._engine.call(lambda: files.write(self._engine, self._handle, entries))

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory tree into the sandbox; owners become root."""
        place = b"/" + normal(target)
        await self.write(tree_entries(source.resolve(strict=True), place))

    async def read(self, path: str | bytes, *, limit: int = 1 << 30) -> bytes:
        """The bytes of a regular file, read from outside."""
        wanted = normal(path)
        self._mine(self._records.load(self._name))
        return await self._engine.call(lambda: files.read(self._engine, self._handle, wanted, limit))

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory tree out to ``target``, which must not exist."""
        wanted = normal(source)
        self._mine(self._records.load(self._name))
        await self._engine.call(lambda: files.download(self._engine, self._handle, wanted, target))

    async def changes(self, under: str | bytes = "/", *, limit: int = 200_000) -> list[Change]:
        """What differs from the sandbox that this one was forked from, below ``under``, sorted by path."""
        wanted = normal(under)
        self._mine(self._records.load(self._name))
        differences = Differences(self._engine, self._handle, self._before, wanted)
        return await self._engine.call(lambda: differences.found(limit))

    @contextlib.contextmanager
    def _before(self) -> Generator[str]:
        """A container of the same image that nothing was ever run in."""
        image = self._engine.container(self._handle).attrs["Image"]
        made = self._engine.client.api.create_container(
            image, entrypoint=["sh"], labels={containers.HOME: containers.home_key(self._records.home)}
        )
        try:
            yield made["Id"]
        finally:
            self._engine.client.api.remove_container(made["Id"], force=True)

    # Life

    async def fork(
        self,
        name: str,
        *,
        network: Network | None = None,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> DockerSandbox:
        """A new running sandbox with this one's files as of one moment, and no process of it."""
        containers.check(self._engine, network or "none", limits or Limits())
        async with contextlib.AsyncExitStack() as claim:
            async with self._locked() as parent:
                child = parent.model_copy(
                    update={
                        "name": name,
                        "network": parent.network if network is None else network,
                        "limits": parent.limits if limits is None else limits,
                        "labels": dict(labels or {}),
                        "created": time.time(),
                        "parent": parent.name,
                        "ancestors": (parent.name, *parent.ancestors),
                        "handle": "",
                    }
                )
                await claim.enter_async_context(self._records.new(child))
                image = await self._engine.call(lambda: self._image(parent))
            child = await run(self._engine, self._records, child, image)
        return DockerSandbox(self._engine, self._records, child)

    def _image(self, record: Record) -> str:
        """A commit of it. While it is stopped, one is enough for all its forks."""
        stopped = state_of(self._engine, self._handle) == "stopped"
        kept = self._records.folder(record.name) / containers.COMMITTED
        if stopped and kept.exists() and containers.has_image(self._engine, kept.read_text()):
            return kept.read_text()
        image = containers.commit(self._engine, self._handle, self._records.home, record.name)
        if stopped:
            kept.write_text(image)
        return image

    async def stop(self) -> None:
        """End every process; the files stay."""
        async with self._locked():
            await self._engine.call(lambda: containers.stop(self._engine, self._handle))

    async def start(self) -> None:
        """Run a stopped sandbox again."""
        async with self._locked():
            if await self._state() == "stopped":
                await self._engine.call(self._start)

    def _start(self) -> None:
        self._forget_image()
        self._engine.container(self._handle).start()

    def _forget_image(self) -> None:
        """What was committed while it was stopped is of no use to later forks."""
        kept = self._records.folder(self._name) / containers.COMMITTED
        if kept.exists():
            image = kept.read_text()
            kept.unlink()
            containers.discard(self._engine, image)

    async def freeze(self) -> None:
        """Hold every process where it is."""
        async with self._locked():
            if await self._state() != "frozen":
                await self._engine.call(lambda: self._engine.container(self._handle).pause())

    async def thaw(self) -> None:
        """Let a frozen sandbox go on."""
        async with self._locked():
            if await self._state() == "frozen":
                await self._engine.call(lambda: self._engine.container(self._handle).unpause())

    async def label(self, labels: Mapping[str, str]) -> None:
        """Set labels, on top of those it has."""
        async with self._locked() as record:
            self._records.save(record.model_copy(update={"labels": {**record.labels, **labels}}))

    async def delete(self) -> None:
        """End it and remove its files."""
        try:
            async with self._locked() as record:
                self._records.refuse_if_forked(self._name)
                with anyio.CancelScope(shield=True):
                    await self._engine.call(lambda: self._remove(record))
                    await self._records.remove(self._name)
        except SandboxError:
            if self._exists():
                raise

    def _remove(self, record: Record) -> None:
        self._forget_image()
        image = containers.remove(self._engine, self._handle)
        of_parent = self._records.folder(record.parent or "") / containers.COMMITTED
        if not (
            of_parent.is_file() and of_parent.read_text() == image
        ):  # else its siblings are made of it as well
            containers.discard(self._engine, image)

    def _exists(self) -> bool:
        try:
            self._mine(self._records.load(self._name))
        except SandboxError:
            return False
        return True


async def run(engine: Engine, records: Records, record: Record, image: str) -> Record:
    """Make the container of a new sandbox, whose record is held, and write down which it is."""

    def made() -> Record:
        complete = record.model_copy(update={"handle": containers.run(engine, records.home, record, image)})
        records.save(complete)
        return complete

    return await engine.call(made)


def state_of(engine: Engine, handle: str) -> State:
    """Whether a container runs."""
    try:
        container = engine.container(handle)
    except Exception as e:
        if is_missing(e):
            raise SandboxError("its container is gone: somebody removed it from the engine") from e
        raise
    return _STATES.get(container.status, "stopped")
