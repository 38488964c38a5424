"""The output of a command with a shell around it that says at its end how it ended: see `race.sandboxes.scripts`."""

from __future__ import annotations

from race.errors import SandboxError
from race.sandbox import ExecResult, Usage
from race.sandboxes.local.output import Output

_SIGNALLED = 128


class Marked:
    """Takes in the streams of a command, and finds the words of the shell around it at their ends.

    Args:
        mark: what these begin with, after a NUL byte.
        outputs: of standard output and, unless it goes there as well, of standard error.
    """

    def __init__(self, mark: str, outputs: list[Output]) -> None:
        self._mark = b"\0" + mark.encode()
        self._outputs = outputs
        self._tails = [b""] * len(outputs)
        self.said: list[bytes | None] = [None] * len(outputs)
        """What was said at the end of each stream."""

    @property
    def complete(self) -> bool:
        """Whether all streams have come to the command's end."""
        return all(s is not None for s in self.said)

    def take(self, number: int, piece: bytes) -> None:
        """The next bytes of a stream: 0 is standard output, 1 is standard error."""
        if number >= len(self._outputs) or self.said[number] is not None:
            return  # of background processes
        held = self._tails[number] + piece
        found = held.find(self._mark)
        if found >= 0:
            line, end, _ = held[found + 1 :].partition(b"\n")
            if not end:
                self._tails[number] = held
                return
            self._outputs[number].add(held[:found])
            self.said[number] = line
            self._tails[number] = b""
            return
        # The words may be cut in two.
        keep = len(self._mark) - 1
        self._outputs[number].add(held[:-keep] if len(held) > keep else b"")
        self._tails[number] = held[-keep:]

    def result(self, seconds: float, cwd: str, *, timed_out: bool, status: int | None = None) -> ExecResult:
        """What came of the command.

        Args:
            seconds: that it took.
            cwd: where it was to run.
            timed_out: whether it was ended by its time-out.
            status: of the shell around it, in case that was ended too and said nothing.

        Raises:
            SandboxError: it could not be run, or nobody knows how it ended.
        """
        for number, tail in enumerate(self._tails):
            if self.said[number] is None:
                self._outputs[number].add(tail)
        code, cpu = (None, 0.0) if timed_out else self._ended(cwd, status)
        stdout, stderr = (*self._outputs, Output(0))[:2]
        return ExecResult(
            exit_code=code,
            stdout=stdout.kept(),
            stderr=stderr.kept(),
            stdout_bytes=stdout.total,
            stderr_bytes=stderr.total,
            timed_out=timed_out,
            seconds=seconds,
            usage=Usage(cpu_seconds=cpu),
        )

    def _ended(self, cwd: str, status: int | None) -> tuple[int, float]:
        match (self.said[0] or b"").decode("ascii", "replace").split()[1:]:
            case ["cwd"]:
                raise SandboxError(f"the working directory {cwd!r} cannot be used")
            case [by, code, *used]:
                number = int(code)
                return (_SIGNALLED - number if by == "signal" else number), sum(map(_seconds, used))
            case _:
                pass
        if status is None:
            raise SandboxError("the command was lost: its sandbox was stopped, or the connection to it broke")
        return (_SIGNALLED - status if status > _SIGNALLED else status), 0.0


def _seconds(word: str) -> float:
    minutes, _, seconds = word.rstrip("s").partition("m")
    try:
        return 60 * float(minutes) + float(seconds)
    except ValueError:
        return 0.0
