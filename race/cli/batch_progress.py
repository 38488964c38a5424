"""Showing a batch while it runs: on a terminal a picture that changes, elsewhere a line for each task."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from race.cli import wording
from race.cli.batch_state import BatchState
from race.store import Event

_ROOM = 4
"""Lines of a terminal that are not for attempts."""


class BatchProgress:
    """Shows the events that it is called with. A context manager: a terminal shows the picture only inside of it.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.state = BatchState()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Begin to show."""
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(self, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        """Show an event."""
        self.state.apply(event)
        if self._live is None and (said := self._line(event)):
            elapsed = wording.clock(event.time - self.state.began)
            self.console.print(Text(f"{elapsed:>6}  {said}"), soft_wrap=True)

    def __rich__(self) -> RenderableType:
        """The picture of now."""
        state = self.state
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        for _ in range(3):
            grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(self.console.width // 4, 12))
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        rows = [(t, a) for t, r in state.races.items() for a in r.attempts.values() if a.phase != "waiting"]
        room = max(self.console.size.height - _ROOM, 1)
        for task, attempt in rows[:room]:
            grid.add_row(
                Text(wording.one_line(task)),
                Text(wording.one_line(attempt.name)),
                Text(attempt.state, style="cyan"),
                Text(wording.command(attempt.detail, 200)),
                Text(wording.tokens(attempt.input_tokens + attempt.output_tokens), style="dim"),
            )
        more = [Text(f"and {len(rows) - room} more", style="dim")] if len(rows) > room else []
        return Group(Text(f"{wording.one_line(state.batch)}: {self._counts()}", style="bold"), grid, *more)

    def _counts(self) -> str:
        state = self.state
        ended = list(state.ended.values())
        parts = [f"{len(ended)} of {wording.count(len(state.tasks), 'task')}"]
        parts += [
            f"{n} {word}"
            for status, word in (("won", "won"), ("no_winner", "without a winner"), ("failed", "failed"))
            if (n := ended.count(status))
        ]
        if state.tokens:
            cost = "cost not known" if state.cost is None else wording.dollars(state.cost)
            parts.append(f"{wording.tokens(state.tokens)} tokens, {cost}")
        if (left := state.left()) is not None:
            about, low, high = (wording.duration(s) for s in left)
            parts.append(f"about {about} left ({low} to {high})")
        return ", ".join(parts)

    def _line(self, event: Event) -> str:
        data = event.data
        task = wording.one_line(str(data.get("task", "")))
        match event.kind:
            case "batch.started":
                name = wording.one_line(str(data.get("key", "")))
                return f"batch {event.race} (key {name}): {wording.count(len(self.state.tasks), 'task')}"
            case "task.retry":
                return f"{task}: starts again: {wording.cut(str(data.get('reason', '')), 100)}"
            case "task.ended":
                unwon = "" if data.get("winner") else str(data.get("reason", ""))
                why = wording.cut(str(data.get("error") or unwon), 100)
                who = f" by {wording.one_line(str(data['winner']))}" if data.get("winner") else ""
                status = self.state.ended.get(str(data.get("task", "")), "").replace("_", " ")
                return f"{task}: {status}{who}{f': {why}' if why else ''}; {self._counts()}"
            case "batch.ended":
                return f"{data.get('status')}: {self._counts()}"
            case _:
                return ""
