"""What the processes of the provider say to each other, as the JSON objects that `wire` carries.

The orchestrator asks the *zygote* for new namespaces, and each sandbox's *PID 1* for everything else, one
connection a request. Text may hold lone surrogates, which stand for bytes that are not UTF-8.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class MountPlan(TypedDict):
    """One overlay of a sandbox's file tree.

    A path that begins with ``/`` is the host's; any other is relative to the provider's home.
    """

    at: str
    """Where it is mounted inside."""
    lower: list[str]
    """Read-only layers, the top one first."""
    upper: str
    work: str


class SpawnRequest(TypedDict):
    """Orchestrator to zygote, with one descriptor: the socket that the answers go to.

    The zygote's side answers `Spawned` or `Failure`; the new PID 1 then waits on the same socket for one
    packet and ends if the socket closes first, so that a killed orchestrator leaves no sandbox that nobody
    knows.
    """

    folder: str
    """The sandbox's own folder, relative to home; its socket is bound there."""
    mounts: list[MountPlan]
    hostname: str
    share_network: bool
    processes: int | None
    """The limit on processes and threads."""
    cgroups: list[str]
    """``cgroup.procs`` files to join."""
    lifetime: float | None
    """Seconds after which it ends itself."""
    idle_lifetime: float | None
    """Seconds without use after which it does."""
    cores: list[int] | None
    """The processors that it may use."""
    memory: int | None
    """Bytes of memory that it may use, if its PID 1 has to watch that."""
    shared_memory: int | None
    """Bytes that files in its ``/dev/shm`` may take up; None leaves that to the kernel."""
    disk: int | None
    """Bytes that it may write."""
    written: list[str]
    """The directories, relative to home, that count for ``disk``."""


class Spawned(TypedDict):
    """The sandbox is there."""

    pid: int
    """Of its PID 1, as the host sees it."""


class Failure(TypedDict):
    """What was asked could not be done."""

    error: str
    """A sentence for people."""
    call: NotRequired[str]
    """The system call that failed, and on what, while a sandbox was made."""


class ExecRequest(TypedDict):
    """Orchestrator to PID 1, with the descriptors ``[output, error, output reader, error reader]``.

    ``error`` and its reader are left out when the streams are merged; the standard input comes last, when
    there is one. The readers are duplicates: when the orchestrator has gone, PID 1 keeps emptying them, so
    that what still writes there neither blocks nor dies. Answered by `Ended` or `Failure`.
    """

    do: Literal["exec"]
    argv: list[str] | None
    script: str | None
    """Text for a shell, in place of ``argv``."""
    cwd: str
    env: dict[str, str]
    timeout: float | None
    merged: bool
    has_input: bool
    terminal: list[int] | None
    """Rows and columns: the command gets a terminal of its own, whose other side is sent as a descriptor
    before `Ended`; the request then comes without descriptors."""
    named: bool
    """It is a named process, asked for by PID 1 itself: there are no readers, and `Done` says that it has started."""


class NamedRequest(TypedDict):
    """Orchestrator to PID 1, with a descriptor of a file without a name, for what the process writes.

    Answered, once it has started, by ``{"process": ProcessState}`` or `Failure`.
    """

    do: Literal["spawn"]
    name: str
    command: list[str]
    """To be shown."""
    exec: ExecRequest


class ProcessRequest(TypedDict):
    """Orchestrator to PID 1, about a named process; answered by ``{"process": ProcessState}`` or `Failure`.

    ``output`` is answered with a descriptor of a file that holds the bytes asked for, ``input`` with one to write to
    (none, if it asks for the input's ``end``), and ``wait`` when the process has ended. ``processes`` has no name, and
    is answered by ``{"processes": [ProcessState, ...]}``.
    """

    do: Literal["process", "processes", "output", "input", "wait", "signal"]
    name: NotRequired[str]
    position: NotRequired[int]
    limit: NotRequired[int]
    end: NotRequired[bool]
    number: NotRequired[int]


class ProcessState(TypedDict):
    """What is known of a named process."""

    name: str
    command: list[str]
    running: bool
    status: int | None
    """As ``wait`` gives it."""
    started: float
    output_bytes: int
    lost_bytes: int


class Ended(TypedDict):
    """How a command ended."""

    status: int
    """As ``wait`` gives it."""
    timed_out: bool
    cpu: float
    """Seconds of user and system time."""
    wait: float
    """Seconds that the main thread was runnable without running."""
    max_rss: int
    """Bytes."""


class TransferRequest(TypedDict):
    """Orchestrator to PID 1, with one pipe end: to read frames from (``put``) or to write them to (``take``).

    Answered by `Done` or `Failure`.
    """

    do: Literal["put", "take"]
    path: str
    """What to take; empty for ``put``."""


class ControlRequest(TypedDict):
    """Orchestrator to PID 1; answered by `Done` or `Failure`.

    ``hold`` is a freeze that ends with the connection. ``done`` says that the orchestrator has all it wanted
    of a command, whose background processes may go on; ``end`` asks for it and all it started to be ended.
    ``listen`` is answered with a descriptor of a socket that listens inside the sandbox's network, ``connect`` with one
    that is being connected to its loopback. ``unlisten`` shuts the proxy's port,
    and is answered with how many ``connections`` to it there still are.
    ``ended`` is answered with when processes were last ended for the sake of each limit that PID 1 watches.
    """

    do: Literal["freeze", "hold", "thaw", "done", "end", "ended", "listen", "unlisten", "connect"]
    port: NotRequired[int]
    """Where to listen: 0 takes a free port; default: the proxy's. What to connect to."""
    family: NotRequired[int]


class Done(TypedDict):
    """It was done."""

    done: Literal[True]
