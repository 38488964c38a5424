"""What every agent is asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """What every agent of a race is asked, with its rules.

    Attributes:
        name: of the task.
        prompt: what to do, as the race file says it, without any entry's hint.
        workdir: absolute path of the project inside the sandbox.
        protected: patterns of paths, relative to ``workdir``, that must stay byte-identical.
        editable: patterns of the only paths that may change; empty means any that is not protected.
        binaries: ``"allow"`` if compiled programs and the like may be handed in, else ``"refuse"``.
    """

    name: str
    prompt: str
    workdir: str
    protected: tuple[str, ...] = ()
    editable: tuple[str, ...] = ()
    binaries: str = "refuse"

    @property
    def rules(self) -> list[str]:
        """What an agent is told of the files that it may not change, line by line."""
        lines: list[str] = []
        if self.protected:
            lines += ["These files must stay as they are, byte for byte, or your work does not count:"]
            lines += [f"- {pattern}" for pattern in self.protected]
        if self.editable:
            lines += ["Of the project, you may change, add and remove only:"]
            lines += [f"- {pattern}" for pattern in self.editable]
        return lines
