"""Showing a race while it runs: on a terminal a picture that changes, elsewhere a line for what matters."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Self, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from race.cli import wording
from race.cli.event_lines import line, standing
from race.cli.race_state import AttemptProgress, RaceState
from race.store import Event

_STYLES = {"working": "cyan", "judging": "blue", "measuring": "magenta", "eligible": "green", "out": "red"}
_WIDE = 100
"""Columns from which on tokens are shown as those read and those written."""
_ROOM = 5
"""Lines of a terminal that are not for attempts."""


class _EnduringFile(io.TextIOBase):
    """A file whose reader may go away. rich would end the whole process then.

    Args:
        file: the real one.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the base class
        return getattr(self._file, "encoding", "utf-8") or "utf-8"

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError, ValueError):
            try:
                self._file.write(text)
            except UnicodeEncodeError:
                self._file.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()

    def isatty(self) -> bool:
        return self._file.isatty()

    def fileno(self) -> int:
        return self._file.fileno()


class Progress:
    """Shows the events that it is called with.

    A context manager: a terminal shows the picture only inside of it. Whoever watches may go away; the race
    goes on.

    Args:
        console: where to; default: standard error.
        now: seconds since the epoch.
    """

    def __init__(self, console: Console | None = None, *, now: Callable[[], float] = time.time) -> None:
        self.console = Console(stderr=True) if console is None else console
        self.console.file = cast("IO[str]", _EnduringFile(self.console.file))
        self.state = RaceState()
        self._now = now
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._is_live = self.console.is_terminal and not self.console.is_dumb_terminal

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._is_live:
            # Nothing is redirected: what others print to standard output must get there and nowhere else.
            self._live = Live(
                self,
                console=self.console,
                refresh_per_second=5,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it. The picture stays only if an error ended the block; else a report follows and says more."""
        if self._live is not None:
            self._live.transient = error is None
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        """Show an event."""
        with self._lock:
            round_before = (self.state.round, standing(self.state))
            self.state.apply(event)
            said = None if self._is_live else line(event, self.state, round_before)
            elapsed = max(event.time - self.state.began, 0)
        if said is not None:
            self.console.print(Text(f"{wording.clock(elapsed):>6}  {said}"), soft_wrap=True)

    def __rich__(self) -> RenderableType:
        """The picture of now."""
        with self._lock:
            parts: list[RenderableType] = [self._head()]
            if self.state.attempts:
                parts.append(self._attempts())
            if foot := self._foot():
                parts.append(foot)
            return Group(*parts)

    def _head(self) -> Table:
        state = self.state
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        base = f"base: {wording.cut(state.base, 200)}" if state.base else ""
        elapsed = wording.clock(self._now() - state.began) if state.began else ""
        grid.add_row(
            Text(wording.one_line(state.race) or "race", style="bold"),
            Text(base, style="dim" if base.startswith("base: ready") else ""),
            Text(elapsed),
        )
        return grid

    def _attempts(self) -> RenderableType:
        attempts = list(self.state.attempts.values())
        room = max(self.console.size.height - _ROOM, 1)
        shown = attempts
        if len(attempts) > room:
            # Those that still change are the ones to see.
            urgent = sorted(attempts, key=lambda a: a.phase in ("waiting", "eligible", "out"))[: room - 1]
            shown = [a for a in attempts if a in urgent]
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(self.console.width // 4, 12))
        grid.add_column(no_wrap=True, min_width=10)
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for _ in range(3):
            grid.add_column(no_wrap=True, justify="right")
        for attempt in shown:
            grid.add_row(*self._row(attempt))
        if len(shown) == len(attempts):
            return grid
        hidden = [a for a in attempts if a not in shown]
        phases = {
            p: sum(a.phase == p for a in hidden)
            for p in ("waiting", "working", "judging", "measuring", "eligible", "out")
        }
        counts = ", ".join(f"{n} {p}" for p, n in phases.items() if n)
        return Group(grid, Text(f"and {len(hidden)} more: {counts}", style="dim"))

    def _row(self, attempt: AttemptProgress) -> list[Text]:
        detail = Text(wording.command(attempt.detail, 200), style="red" if attempt.phase == "out" else "")
        if attempt.phase == "working" and attempt.step:
            detail = Text.assemble("$ ", detail, style="dim" if attempt.ran is not None else "")
            if attempt.ran:
                detail.append(f"  {attempt.ran}", "yellow")
        elif attempt.phase == "eligible":
            detail.stylize("dim")
        used = ""
        if attempt.input_tokens or attempt.output_tokens:
            parts = (attempt.input_tokens, attempt.output_tokens)
            used = (
                "/".join(map(wording.tokens, parts))
                if self.console.width >= _WIDE
                else wording.tokens(sum(parts))
            )
        end = attempt.ended if attempt.ended is not None else self._now()
        return [
            Text(wording.one_line(attempt.name)),
            Text(wording.cut(attempt.state, 12), style=_STYLES.get(attempt.phase, "dim")),
            detail,
            Text(used, style="dim"),
            Text(wording.dollars(attempt.cost) if used or attempt.cost else "", style="dim"),
            Text(wording.clock(end - attempt.began) if attempt.began is not None else ""),
        ]

    def _foot(self) -> Text | None:
        state = self.state
        if state.phase:
            said, style = wording.sentence(state.phase), "yellow"
        elif state.scorer and not state.ended:
            said, style = f"finals ({wording.one_line(state.scorer)}): {standing(state)}", "magenta"
        else:
            return None
        return Text(said, style=style, no_wrap=True, overflow="ellipsis")
