"""The contract of named background processes: what `Sandbox.spawn` starts, and another program can attach to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

ProcessState: TypeAlias = Literal["running", "ended"]


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """What is known of a named process.

    Attributes:
        name: unique among the named processes of its sandbox.
        command: its argument vector.
        state: whether it still runs.
        exit_code: how it ended: its status, minus the signal's number if a signal ended it; None while it runs, and
            when it ended with its sandbox.
        started: seconds since the epoch.
        output_bytes: how many bytes it has written so far, both streams together, in the order written.
        lost_bytes: how many of the first bytes are kept no more, because the output is bounded.
    """

    name: str
    command: tuple[str, ...]
    state: ProcessState
    exit_code: int | None
    started: float
    output_bytes: int
    lost_bytes: int = 0


class Process(Protocol):
    """A named process in a sandbox. It goes on when its client is gone, and ends with its sandbox."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    async def info(self) -> ProcessInfo:
        """What is known of it now.

        Raises:
            SandboxError: the sandbox or the process is not there any more.
        """
        ...

    async def read(self, position: int = 0, *, limit: int = 1 << 20) -> bytes:
        """Output from a byte position on, at most ``limit`` bytes; nothing if it has not written so far yet.

        Raises:
            SandboxError: the bytes at ``position`` are kept no more; the text names the first that are.
        """
        ...

    async def send(self, data: bytes, *, end: bool = False) -> None:
        """Write to its standard input; with ``end``, close the input after that.

        Raises:
            SandboxError: it has ended, or its input is closed.
        """
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to it and all it started. Does nothing if it has ended."""
        ...

    async def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end. Returns the exit status as in `ProcessInfo`, or None if it still runs after ``timeout``
        seconds.
        """
        ...
