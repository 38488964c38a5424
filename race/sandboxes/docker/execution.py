"""Runs a command in a container: through the API's exec, with a shell around it that tells how it ended."""

from __future__ import annotations

import contextlib
import io
import secrets
import struct
import tarfile
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import anyio

from race.errors import SandboxError
from race.sandbox import ExecResult
from race.sandboxes import scripts
from race.sandboxes.docker.engine import Engine, failures
from race.sandboxes.local.output import Output
from race.sandboxes.marked import Marked

if TYPE_CHECKING:
    from race.sandboxes.local.messages import ExecRequest

_PIECE = 1 << 16
_INLINE = 60_000
_HEADER = 8
_STDERR = 2
_ENDING = 20.0
_ALONE = 0.15
"""Seconds after which the end of the streams is not to be expected, because something still holds them."""


def packed(files: Iterable[tuple[bytes, bytes, int]]) -> bytes:
    """A tar file of names, contents and modes."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as archive:
        for name, content, mode in files:
            member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return held.getvalue()


class Stream:
    """The streams of a process that the API started.

    Args:
        engine: of the container.
        handle: of the container.
        argv: what to run.
        environment: of it.
        tty: whether it has a terminal, and an input.
    """

    def __init__(
        self, engine: Engine, handle: str, argv: list[str], environment: dict[str, str], *, tty: bool = False
    ) -> None:
        self._engine = engine
        self._handle = handle
        self._argv = argv
        self._environment = environment
        self._tty = tty
        self._answer: Any = None
        self._id = ""

    def start(self) -> None:
        """Start it."""
        api = self._engine.client.api
        made = api.exec_create(
            self._handle,
            self._argv,
            environment=self._environment,
            tty=self._tty,
            stdin=self._tty,
            user="0",
        )
        self._id = made["Id"]
        # As the SDK's exec_start(socket=True), which loses what came together with the headers.
        self._answer = api._post_json(  # noqa: SLF001 - likewise
            api._url("/exec/{0}/start", self._id),  # noqa: SLF001 - likewise
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            data={"Tty": self._tty, "Detach": False},
            stream=True,
        )
        self._answer.raise_for_status()

    def read(self) -> bytes:
        """What comes next; nothing at its end. Waits for it."""
        try:
            data: bytes = self._answer.raw._fp.fp.read1(_PIECE)  # noqa: SLF001 - the hijacked connection
        except (OSError, ValueError):
            return b""
        return data

    def write(self, data: bytes) -> None:
        """Send to its input."""
        self._answer.raw._fp.fp.raw._sock.sendall(data)  # noqa: SLF001 - likewise

    def resize(self, rows: int, columns: int) -> None:
        """Its terminal has another size."""
        self._engine.client.api.exec_resize(self._id, rows, columns)

    def status(self) -> int | None:
        """Its exit status, once it has ended."""
        told = self._engine.client.api.exec_inspect(self._id)
        return None if told.get("Running") else told.get("ExitCode")

    def close(self) -> None:
        """Let go of its streams."""
        if self._answer is not None:
            with contextlib.suppress(OSError, AttributeError):
                self._answer.raw._fp.fp.raw._sock.shutdown(2)  # noqa: SLF001 - likewise
            with contextlib.suppress(OSError):
                self._answer.close()


class Frames:
    """Takes the multiplexed stream of the API apart.

    Args:
        marked: what takes the streams in.
    """

    def __init__(self, marked: Marked) -> None:
        self._marked = marked
        self._held = b""

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the connection."""
        self._held += data
        while len(self._held) >= _HEADER:
            kind, length = struct.unpack(">BxxxL", self._held[:_HEADER])
            if len(self._held) < _HEADER + length:
                return
            piece = self._held[_HEADER : _HEADER + length]
            self._held = self._held[_HEADER + length :]
            self._marked.take(1 if kind == _STDERR else 0, piece)


async def run(
    engine: Engine,
    handle: str,
    asked: ExecRequest,
    stdin: bytes | None,
    output_limit: int,
) -> ExecResult:
    """Run a command to its end.

    Args:
        engine: of the container.
        handle: of the container.
        asked: from `race.sandboxes.local.command.request`.
        stdin: what the command reads.
        output_limit: bytes kept of each stream.

    Raises:
        SandboxError: the container does not run, or the command cannot be started.
    """
    mark = secrets.token_hex(8)
    merged = bool(asked["merged"])
    marked = Marked(mark, [Output(output_limit) for _ in range(1 if merged else 2)])
    frames = Frames(marked)
    began = time.monotonic()
    put: list[tuple[bytes, bytes, int]] = []
    script, source = "-", "-"
    if asked["script"] is not None:
        script = f"{scripts.OWN}/{mark}.script"
        put.append((script.encode(), asked["script"].encode("utf-8", "surrogateescape"), 0o600))
    if stdin is not None:
        source = f"{scripts.OWN}/{mark}.in"
        put.append((source.encode(), stdin, 0o600))
    if put:
        await engine.call(lambda: engine.put(handle, packed(put)))
    argv = ["sh", "-c", scripts.AROUND, "sh", mark, asked["cwd"], script, source, str(int(merged))]
    stream = Stream(engine, handle, [*argv, *(asked["argv"] or [])], asked["env"])
    timed_out = False
    try:
        await engine.call(stream.start)
        began = time.monotonic()
        with anyio.move_on_after(asked["timeout"]) as timer:
            while not marked.complete and (data := await engine.call(stream.read, abandon=True)):
                frames.feed(data)
        timed_out = timer.cancelled_caught and not marked.complete
        if marked.complete:
            await _let_go(engine, handle, stream, mark)
        if timed_out:
            await end(engine, handle, mark)
        status = None if timed_out or marked.said[0] else await engine.call(stream.status)
    except BaseException:
        with anyio.move_on_after(_ENDING, shield=True):
            await end(engine, handle, mark)
        raise
    finally:
        stream.close()
    return marked.result(time.monotonic() - began, asked["cwd"], timed_out=timed_out, status=status)


async def _let_go(engine: Engine, handle: str, stream: Stream, mark: str) -> None:
    """Let the shell around a command end. It does so by itself when nothing is left that may print."""
    with anyio.move_on_after(_ALONE):
        while await engine.call(stream.read, abandon=True):
            pass
        return
    await engine.call(
        lambda: engine.put(handle, packed([(f"{scripts.OWN}/{mark}.done".encode(), b"", 0o600)]))
    )


async def end(engine: Engine, handle: str, mark: str) -> None:
    """End a command and all that it started."""

    def kill() -> None:
        with contextlib.suppress(SandboxError):  # it is not running any more
            plain(engine, handle, ["sh", "-c", scripts.END, "sh", mark])

    await engine.call(kill)


def plain(engine: Engine, handle: str, argv: list[str]) -> tuple[int, bytes]:
    """Run something of ours; its status and what it printed."""
    with failures():
        api = engine.client.api
        made = api.exec_create(handle, argv, user="0", environment={"LC_ALL": "C"})
        said = api.exec_start(made["Id"])
        return int(api.exec_inspect(made["Id"]).get("ExitCode") or 0), said
