"""What an agent keeps of a conversation from one prompt to the next.

An agent in a session is started anew for every prompt, perhaps by another process. What it needs to go on is a list of
entries that only grows: each is on disk when `Memory.keep` returns, so an agent that is killed in the middle of its
work loses at most what was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import JsonValue


class Memory:
    """The memory of one session. Agents reach it as ``context.memory``; it is None outside of sessions.

    Args:
        session: id of the session.
        entries: what was kept so far, in order.
        on_keep: called with each new entry, which is on disk when this returns.

    Attributes:
        session: see above.
    """

    def __init__(
        self,
        session: str,
        entries: Sequence[JsonValue] = (),
        on_keep: Callable[[JsonValue], None] | None = None,
    ) -> None:
        self.session = session
        self._entries = list(entries)
        self._on_keep = on_keep

    @property
    def entries(self) -> tuple[JsonValue, ...]:
        """What was kept, oldest first."""
        return tuple(self._entries)

    def keep(self, entry: JsonValue) -> None:
        """Keep one more entry; what it says is the agent's own business."""
        if self._on_keep is not None:
            self._on_keep(entry)
        self._entries.append(entry)
