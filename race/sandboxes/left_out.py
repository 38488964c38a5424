"""What a provider leaves out: the methods of a sandbox that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from race.errors import SandboxError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from race.background import Process, ProcessInfo


class LeftOut:
    """For the sandboxes of a provider to inherit, which override what they do offer."""

    provider: ClassVar[str]
    """Its name, for messages."""

    @classmethod
    def cannot(cls, what: str) -> SandboxError:
        """What is not offered, as an error."""
        return SandboxError(f"the sandbox provider {cls.provider!r} has no {what}; it declares what it has")

    async def listen(self, port: int = 0) -> socket.socket:
        """Not offered: what runs the sandbox may be on another machine."""
        raise self.cannot(f"way from a port of a sandbox to this machine ({port})")

    async def connect(self, port: int) -> socket.socket:
        """Not offered: what runs the sandbox may be on another machine."""
        raise self.cannot(f"way from this machine to a port of a sandbox ({port})")

    async def spawn(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Not offered."""
        del name, command, cwd, env
        raise self.cannot("named processes")

    async def process(self, name: str) -> Process:
        """Not offered."""
        raise self.cannot(f"named processes such as {name!r}")

    async def processes(self) -> list[ProcessInfo]:
        """Not offered."""
        raise self.cannot("named processes")

    async def export(self, target: Path) -> None:
        """Not offered."""
        raise self.cannot(f"export to {target}")
