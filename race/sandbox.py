"""The contract of a sandbox provider: what every provider offers, whatever makes its sandboxes.

A sandbox is a whole machine: a root filesystem, processes, a network. Paths inside it are absolute, in bytes or
text; names inside it need not be UTF-8. Nothing that the host reads from a sandbox is ever followed through
a link, executed, or interpreted.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from race.background import Process, ProcessInfo

Network: TypeAlias = Literal["full", "none"] | tuple[str, ...]
"""``"full"`` shares the host's network, ``"none"`` has a loopback of its own, a tuple lists the hosts allowed."""

State: TypeAlias = Literal["running", "frozen", "stopped"]

DEFAULT_OUTPUT_LIMIT = 1 << 20
"""Bytes of each output stream that `Sandbox.exec` keeps, half from its head and half from its tail."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use. None means no limit of its own.

    Attributes:
        cpus: processors, as a number that may be fractional.
        memory: bytes of memory of all its processes together.
        disk: bytes that it may write.
        processes: how many processes and threads may exist at once.
        cores: the processors, by number, that its processes may run on.
    """

    cpus: float | None = None
    memory: int | None = None
    disk: int | None = None
    processes: int | None = 4096
    cores: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to create.

    Attributes:
        name: unique among the provider's sandboxes: letters, digits, ``._-``, at most 100 characters.
        image: ``"host"`` (the machine's own system, without its secrets and home folders) or the path of a
            directory that holds a root filesystem, of a tar file of one, or of an OCI layout or archive.
        env: the environment of its commands, on top of what the image itself brings (PATH, HOME, LANG). A ``$PATH``
            in the value of PATH stands for the image's own.
        limits: see `Limits`.
        network: see `Network`.
        labels: kept with the sandbox and shown by `SandboxProvider.list`; the framework uses ``race``, ``role``,
            ``attempt`` and ``keep``.
        lifetime: seconds after which it is stopped, counted from its last start.
        idle_lifetime: seconds without a command, a terminal, a named process or a transfer after which it is stopped.
            Nothing is deleted at the end of a lifetime, and `Sandbox.start` begins both anew.
    """

    name: str
    image: str = "host"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Limits = Limits()
    network: Network = "none"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    lifetime: float | None = None
    idle_lifetime: float | None = None


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What is known of a sandbox without talking to it."""

    name: str
    state: State
    parent: str | None
    image: str
    network: Network
    labels: Mapping[str, str]
    created: float
    """Seconds since the epoch."""
    ancestors: tuple[str, ...] = ()
    """What it descends from, the nearest first, also those that are deleted by now."""
    ends: float | None = None
    """When its lifetime ends, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a command used, as the kernel accounted it.

    If it was ended together with hundreds of processes that it had started, this is the least that it may have been.

    Attributes:
        cpu_seconds: user and system time of the command and all its reaped descendants.
        wait_seconds: time that the command's main thread was runnable but had no processor.
        max_rss_bytes: the largest resident size of any one of its processes.
    """

    cpu_seconds: float = 0.0
    wait_seconds: float = 0.0
    max_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. A non-zero status is a result, not an error.

    Attributes:
        exit_code: the status; minus the signal's number if a signal ended it; None when it timed out.
        stdout: what it printed, bounded: when it printed more than the limit, the head and the tail with a line
            between them that says how many bytes were cut.
        stderr: likewise; empty when the streams were merged.
        stdout_bytes: how many bytes it really printed.
        stderr_bytes: likewise.
        timed_out: whether the time-out ended it, and with it everything that it had started.
        seconds: wall time.
        usage: see `Usage`.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    timed_out: bool
    seconds: float
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class File:
    """A regular file to write: content in memory, or a file of the host to copy from."""

    path: bytes
    content: bytes | Path
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link to write."""

    path: bytes
    target: bytes


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory to make, if it is not there, and to give this mode."""

    path: bytes
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Removed:
    """A path to remove, with everything below it; no error if it is not there."""

    path: bytes


Entry: TypeAlias = File | Link | Directory | Removed
"""One thing to write into a sandbox. Missing parent directories are made; what is in the way is replaced."""

ChangeKind: TypeAlias = Literal["file", "link", "directory", "special", "removed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One path that a sandbox added, replaced, or removed since it was forked.

    Attributes:
        path: absolute path inside the sandbox.
        kind: what is there now; ``"special"`` is a FIFO, socket or device.
        mode: permission bits (with setuid, setgid and sticky), 0 for ``"removed"``.
        size: apparent size in bytes of a file, else 0.
        target: where a link points, else empty.
        existed: whether the parent had something at this path.
    """

    path: bytes
    kind: ChangeKind
    mode: int = 0
    size: int = 0
    target: bytes = b""
    existed: bool = False


class Terminal(Protocol):
    """A command on a terminal of its own inside a sandbox. Ended, with all it started, by `aclose`."""

    async def receive(self) -> bytes:
        """What it wrote since the last call, at least one byte; nothing at its end."""
        ...

    async def send(self, data: bytes) -> None:
        """Type something."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """The window has another size."""
        ...

    async def wait(self) -> int:
        """The exit status, as in `ExecResult`, once it has ended."""
        ...

    async def aclose(self) -> None:
        """End it. Safe to repeat."""
        ...


class Sandbox(Protocol):
    """One sandbox. All methods also work on one that is stopped, but for `exec`, `terminal`, `listen`, `connect`,
    `spawn`, `process`, `freeze`, `thaw`, `write`, `upload` and `download`.
    """

    @property
    def name(self) -> str:
        """Its name, unique among the provider's sandboxes."""
        ...

    async def info(self) -> SandboxInfo:
        """What is known of it.

        Raises:
            SandboxError: it does not exist any more.
        """
        ...

    def place(self, path: str) -> str:
        """What commands inside call ``path``. It is the same, but for a provider that does not isolate, whose sandboxes
        have no root filesystem of their own. All methods take either.
        """
        ...

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
        """Run a command and wait for it.

        Args:
            command: text is run by ``bash`` (``sh`` where there is none) without login or start-up files; a
                sequence is run as it is.
            cwd: working directory.
            env: added to the sandbox's environment.
            stdin: what the command reads; None is an empty input. There is never a terminal.
            timeout: seconds after which the command and everything it started are ended.
            output_limit: bytes kept of each stream.
            merge_stderr: send standard error into standard output, in the order written.

        The call returns when the command itself has ended. Background processes that it left go on, and may keep
        its output open without holding up the caller. Cancelling the call ends the command and all it started.

        Raises:
            SandboxError: the sandbox is gone or not running, the command or ``cwd`` cannot be used (a NUL byte,
                a directory that is missing). A program that cannot be found is exit status 127.
        """
        ...

    async def terminal(
        self,
        command: Sequence[str] | None = None,
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> Terminal:
        """Run a command on a terminal; default: an interactive shell.

        Raises:
            SandboxError: as `exec`.
        """
        ...

    async def listen(self, port: int = 0) -> socket.socket:
        """A socket that listens on the sandbox's own loopback, to be accepted from by the caller, outside.

        It does not block, and is the caller's to close. Where the sandbox shares the host's network it is a port of
        the host's loopback, which others on the host can reach too: whoever connects has to prove who they are.

        Args:
            port: to listen on; 0 takes a free one, which ``getsockname`` tells.

        Raises:
            SandboxError: the sandbox is not running, or the port is taken.
        """
        ...

    async def connect(self, port: int) -> socket.socket:
        """A connection to a port of the sandbox's own loopback. It does not block, and is the caller's to close.

        Raises:
            SandboxError: the sandbox is not running, or nothing listens there.
        """
        ...

    async def spawn(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a named process, which goes on when its client is gone. Arguments are those of `exec`.

        Raises:
            SandboxError: as `exec`; a process of this name runs; the name is none that `SandboxSpec.name` could be.
        """
        ...

    async def process(self, name: str) -> Process:
        """Attach to a named process, whichever program started it, also when it has ended.

        Raises:
            SandboxError: there is none of this name; the text lists those there are.
        """
        ...

    async def processes(self) -> list[ProcessInfo]:
        """The named processes since the sandbox's last start, oldest first."""
        ...

    async def set_network(self, network: Network) -> None:
        """Give a living sandbox, or a stopped one, another network. Commands that run keep the connections that they
        have, unless the new network is ``"none"``.

        What runs cannot be moved to the host's network or away from it: a change to or from ``"full"`` ends every
        process of a living sandbox, as `stop` and `start` would. Its files stay.

        Raises:
            SandboxError: the provider cannot, and says why.
        """
        ...

    async def export(self, target: Path) -> None:
        """Write a stopped sandbox, with all that it was forked from, to one file that `SandboxProvider.load` reads on
        this machine or another. ``target`` must not exist, and is there only when it is whole.
        """
        ...

    async def write(self, entries: Iterable[Entry]) -> None:
        """Write files, links and directories, and remove paths, in the order given, as the sandbox's root.

        Links of the sandbox are followed inside it, for parent directories only.
        """
        ...

    async def read(self, path: str | bytes, *, limit: int = 1 << 30) -> bytes:
        """The bytes of a regular file, read from outside: no link is followed, nothing of the sandbox runs.

        Raises:
            FileNotFoundError: nothing is there.
            SandboxError: it is not a regular file, is larger than ``limit`` bytes, or is below a link.
        """
        ...

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory tree into the sandbox; modes and links are kept, owners become root."""
        ...

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or directory tree out to ``target``, which must not exist. Links are copied as links;
        special files, and setuid bits, are left out.
        """
        ...

    async def changes(self, under: str | bytes = "/", *, limit: int = 200_000) -> list[Change]:
        """What differs from the sandbox that this one was forked from, below ``under``, sorted by path.

        Known from outside, without running anything: exact when the sandbox is stopped or frozen. A file may be
        listed although its bytes are the same (it was only touched). A directory that was removed is one change;
        one that was replaced lists what is gone below it.

        Raises:
            SandboxError: there are more than ``limit`` changes.
        """
        ...

    async def fork(
        self,
        name: str,
        *,
        network: Network | None = None,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Sandbox:
        """A new running sandbox with this one's files as of one moment, and no process of it.

        Network and limits are taken over unless given, lifetimes always, and begin anew; labels are not taken over.
        """
        ...

    async def stop(self) -> None:
        """End every process; the files stay. Does nothing on a stopped one."""
        ...

    async def start(self) -> None:
        """Run a stopped sandbox again. Does nothing on a running one."""
        ...

    async def freeze(self) -> None:
        """Hold every process where it is."""
        ...

    async def thaw(self) -> None:
        """Let a frozen sandbox go on."""
        ...

    async def label(self, labels: Mapping[str, str]) -> None:
        """Set labels, on top of those it has."""
        ...

    async def delete(self) -> None:
        """End it and remove its files. Safe to repeat.

        Raises:
            SandboxError: other sandboxes were forked from it; the text names them.
        """
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `SandboxProvider.check` looked at.

    Attributes:
        name: what was looked at, in two or three words.
        ok: whether it is as it should be.
        detail: what was seen.
        remedy: what to do about it, when it is not ok.
        required: whether sandboxes cannot work without it.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True


FEATURES = frozenset(
    {
        "terminal",
        "listen",
        "connect",
        "processes",
        "freeze",
        "set_network",
        "export",
        "changes",
        "lifetimes",
        "live_fork",
    }
)
"""What a provider may leave out. ``"changes"`` is about the whole machine (without it, `Sandbox.changes` knows the
project's folder only), ``"live_fork"`` about forking a running sandbox as of one moment. The others are methods of
`Sandbox`, which raise `SandboxError` where they are left out."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The one place where a provider says what it can do.

    Attributes:
        isolated: a sandbox cannot reach the host's files and processes.
        networks: the kinds of `Network` it offers: ``"full"``, ``"none"``, ``"hosts"``.
        limits: the fields of `Limits` that it enforces.
        images: what `SandboxSpec.image` may be: ``"host"``, ``"directory"``, ``"tar"``, ``"oci"``, or ``"name"``
            for a name that the provider's own engine knows.
        features: which methods of `Sandbox` it offers besides those that all have; see `FEATURES`.
        warning: what a verdict says of results from such sandboxes, if anything.
    """

    isolated: bool
    networks: frozenset[str]
    limits: frozenset[str]
    images: frozenset[str]
    features: frozenset[str] = frozenset()
    warning: str = ""


@runtime_checkable
class SandboxProvider(Protocol):
    """Makes and finds sandboxes. Constructed as ``Provider(home)``, ``home`` being a folder of its own below
    ``$RACE_HOME``; entry point group ``race.sandboxes``. Several processes may use one home at once.
    """

    @property
    def capabilities(self) -> Capabilities:
        """See `Capabilities`."""
        ...

    async def check(self) -> list[Finding]:
        """Find out by trying whether sandboxes work here."""
        ...

    async def image_id(self, image: str) -> str:
        """A name that changes when the content that ``image`` stands for changes; part of a base's cache key."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A new running sandbox.

        Raises:
            MachineError: this machine cannot; the text says what is missing and how to get it.
            SandboxError: the name is taken, or the image cannot be used.
        """
        ...

    async def load(self, archive: Path, name: str | None = None) -> Sandbox:
        """A stopped sandbox from what `Sandbox.export` wrote, under its old name or another.

        The archive is not trusted: a path or link that leads out of the tree, a device, a size that is not the
        content's, or anything cut off is refused, and an interrupted import leaves nothing.

        Raises:
            SandboxError: the archive is damaged or hostile, or the name is taken.
        """
        ...

    async def get(self, name: str) -> Sandbox:
        """Take over a sandbox, whichever process made it.

        Raises:
            SandboxError: there is none of this name; the text lists those there are.
        """
        ...

    async def list(self) -> list[SandboxInfo]:
        """All sandboxes, oldest first."""
        ...

    async def collect(self) -> Sequence[str]:
        """Remove what killed processes left half made or half deleted, but nothing that is complete or in use.
        Returns a line about each thing removed.
        """
        ...

    async def aclose(self) -> None:
        """End this process's own helpers. Sandboxes go on."""
        ...
