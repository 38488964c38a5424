"""A conversation with a model: it grows turn by turn, a session keeps it, and it is cut when the window is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from race.chat import ConversationTooLong, Message
from race.memory import Memory

KEPT = 4
"""Messages at the end of a conversation that are never cut."""

FEWEST_TURNS = 4
"""A conversation with fewer turns is not cut any more."""

LEFT_OUT = "(left out to make room; run the command again if you need it)"

INTERRUPTED = "(interrupted: this may not have run, or only in part; look at what is there before you go on)"
"""What stands for the result of a command that is not known."""

_CUT = "were left out to make room. What you changed is still there."


@dataclass(frozen=True, slots=True)
class _Kept:
    """An entry of its memory.

    Attributes:
        messages: that were said.
        anew: whether they stand in place of all before them.
    """

    messages: list[Message]
    anew: bool = False


_KEPT = TypeAdapter(_Kept)


class Conversation:
    """A conversation, kept in the memory of its session if it has one.

    Attributes:
        messages: so far.
    """

    def __init__(self, memory: Memory | None, messages: Sequence[Message] = ()) -> None:
        self.messages = list(messages)
        self._memory = memory
        for entry in memory.entries if memory is not None else ():
            kept = _KEPT.validate_python(entry)
            self.messages = kept.messages if kept.anew else [*self.messages, *kept.messages]

    def add(self, *messages: Message) -> None:
        """More was said."""
        self.messages += messages
        self._keep(messages)

    def cut(self, why: str) -> str:
        """Make it shorter, because the server said that it is too long. Returns what was done, as a sentence.

        Raises:
            ConversationTooLong: nothing is left to cut.
        """
        shorter, note = shortened(self.messages)
        if shorter is None:
            raise ConversationTooLong("budget", why)
        self.messages = shorter
        self._keep(shorter, anew=True)
        return note

    def mend(self) -> None:
        """Give every call without a result one that says so; servers refuse a conversation with a call left open."""
        answered = {m.answers for m in self.messages if m.role == "tool"}
        last = next((m for m in reversed(self.messages) if m.role == "assistant"), None)
        open_calls = [c for c in last.calls if c.id not in answered] if last is not None else []
        self.add(*(Message("tool", INTERRUPTED, answers=c.id) for c in open_calls))

    def _keep(self, messages: Sequence[Message], *, anew: bool = False) -> None:
        if self._memory is not None and messages:
            self._memory.keep(_KEPT.dump_python(_Kept(list(messages), anew), mode="json"))


def shortened(messages: Sequence[Message]) -> tuple[list[Message] | None, str]:
    """A conversation that takes less of the model's window and that the model still understands.

    First the longer half of the older results of commands goes, each with a word in its place; when there is none left,
    the older half of the turns, with a word to the model. What is asked of it stays, and so do the last turns.

    Returns:
        The conversation, or None if nothing is left to cut; and what was done, as a sentence.
    """
    old = [i for i, m in enumerate(messages[:-KEPT]) if m.role == "tool" and len(m.text) > len(LEFT_OUT)]
    if old:
        longest = sorted(old, key=lambda i: len(messages[i].text), reverse=True)[: (len(old) + 1) // 2]
        made = [replace(m, text=LEFT_OUT) if i in longest else m for i, m in enumerate(messages)]
        return (
            made,
            f"the conversation outgrew the model; {len(longest)} outputs of earlier commands were left out",
        )
    turns = [i for i, m in enumerate(messages) if m.role == "assistant"]
    if len(turns) < FEWEST_TURNS:
        return None, ""
    begin = turns[len(turns) // 2]
    note = f"{len(turns) // 2} earlier turns of yours {_CUT}"
    first = turns[0]
    asked = [m for m in messages[first:begin] if m.role == "user" and not m.text.endswith(_CUT)]
    kept = [*messages[:first], *asked, Message("user", note), *messages[begin:]]
    return kept, f"the conversation outgrew the model; {note}"
