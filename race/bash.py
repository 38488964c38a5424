"""The bash tool that every agent gets from the framework."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from race.errors import SandboxError

if TYPE_CHECKING:
    from race.agent import Recorder
    from race.journal import Journal
    from race.sandbox import ExecResult, Sandbox

RUN_AGAIN = "[the race was interrupted while this command ran; it was ended, and has been run again]"
"""What the output of such a command begins with."""

OUTPUT_CHARACTERS = 10_000
"""How much of a command's output an agent is shown; what is over is cut from the middle."""


@dataclass(frozen=True, slots=True)
class BashResult:
    """What came of one command.

    Attributes:
        command: as it was asked.
        exit_code: its status; minus the signal's number if a signal ended it; None if the time-out did.
        output: standard output and standard error in the order written, at most about 10,000 characters.
        timed_out: whether the time-out ended it.
        seconds: wall time.
        timeout: seconds that it had.
    """

    command: str
    exit_code: int | None
    output: str
    timed_out: bool
    seconds: float
    timeout: float

    @property
    def text(self) -> str:
        """What a model is shown: how it ended first, then what it printed."""
        if self.timed_out:
            head = f"timed out after {self.timeout:g} s; it and everything it had started were ended"
        elif self.exit_code is not None and self.exit_code < 0:
            head = f"exit status: {128 - self.exit_code} (ended by signal {-self.exit_code})"
        else:
            head = f"exit status: {self.exit_code}"
        return f"{head}\n{self.output}" if self.output else f"{head}\n(no output)"


class Bash:
    """Runs commands in one attempt's fork, each in a fresh shell that starts in the project's folder.

    Commands read an empty input, have no terminal, and get no environment of the host. Everything is
    recorded.

    Args:
        sandbox: the fork.
        workdir: where commands start.
        timeout: seconds a command may take.
        recorder: keeps what was run, and the limit on steps.
        env: on top of the sandbox's own environment.
        on_start: called with the command just before it runs.
        on_result: called with what came of it.
        journal: what has run already when an attempt is gone on with; that is neither run nor reported again.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        workdir: str,
        timeout: float,
        recorder: Recorder,
        env: Mapping[str, str] | None = None,
        on_start: Callable[[str], None] | None = None,
        on_result: Callable[[BashResult], None] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.workdir = workdir
        self.timeout = timeout
        self._recorder = recorder
        self._env = dict(env or {})
        self._on_start = on_start
        self._on_result = on_result
        self._journal = journal

    async def __call__(self, command: str, *, timeout: float | None = None) -> BashResult:
        """Run a command.

        Args:
            command: for ``bash``; any length.
            timeout: seconds, if less than the attempt's own limit for a command.

        Raises:
            LimitReached: the attempt has had all its steps.
            ValueError: the command cannot be given to a shell (it holds a NUL byte).
            SandboxError: the sandbox is lost.
        """
        if "\0" in command:
            raise ValueError("the command holds a NUL byte, which no shell can take")
        command = encodable(command)
        limit = self.timeout if timeout is None else min(timeout, self.timeout)
        self._recorder.before_command()
        if self._journal is not None and (known := self._journal.result_of(command)) is not None:
            self._recorder.ran(known)
            return known
        again = self._journal is not None and self._journal.is_run_again(command)
        if self._on_start is not None:
            self._on_start(command)
        done = await self._exec(command, limit)
        result = BashResult(
            command,
            done.exit_code,
            (f"{RUN_AGAIN}\n" if again else "") + shown(done.stdout, done.stdout_bytes),
            done.timed_out,
            done.seconds,
            limit,
        )
        self._recorder.ran(result)
        if self._on_result is not None:
            self._on_result(result)
        return result

    def observed(self, result: BashResult) -> None:
        """An agent with tools of its own says that it ran this."""
        self._recorder.ran(result)
        if self._on_start is not None:
            self._on_start(result.command)
        if self._on_result is not None:
            self._on_result(result)

    async def _exec(self, command: str, limit: float) -> ExecResult:
        try:
            return await self.sandbox.exec(
                command,
                cwd=self.workdir,
                env=self._env,
                timeout=limit,
                merge_stderr=True,
                output_limit=8 * OUTPUT_CHARACTERS,
            )
        except SandboxError:
            # The project's folder may be gone: the agent must be able to see that and to mend it.
            if (await self.sandbox.info()).state != "running":
                raise
            return await self.sandbox.exec(
                f"echo {shlex.quote(self.workdir)} is not there, running in / >&2\n{command}",
                cwd="/",
                env=self._env,
                timeout=limit,
                merge_stderr=True,
                output_limit=8 * OUTPUT_CHARACTERS,
            )


def encodable(text: str) -> str:
    r"""The text with a question mark for every lone surrogate.

    A model may write ``"\\ud835"``, half a character. It has no UTF-8, so it would raise wherever the text is stored,
    sent or run.
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def shown(output: bytes, total: int, limit: int = OUTPUT_CHARACTERS) -> str:
    """Command output as an agent is shown it: decoded, and cut in the middle.

    Args:
        output: the bytes that were kept.
        total: how many bytes were printed.
        limit: about how many characters to show.
    """
    text = output.decode("utf-8", "replace")
    if len(text) <= limit:
        return text
    half = limit // 2
    lost = max(total - len(text[:half].encode()) - len(text[-half:].encode()), 0)
    return f"{text[:half]}\n... [{lost:,} bytes left out; use head, tail or grep] ...\n{text[-half:]}"
