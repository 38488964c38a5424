"""What an agent keeps of its work, so that another process can go on from there and nothing is paid for twice.

An agent that can be gone on with is run again from its beginning: what it asked of a model, and every command that it
ran, is answered from the journal for as far as that reaches. So it finds itself where it was, in the fork that it had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pydantic import JsonValue, TypeAdapter

from race.bash import BashResult
from race.errors import AttemptError

if TYPE_CHECKING:
    from race.agent import TokenUsage

T = TypeVar("T")


class DivergedError(AttemptError):
    """An agent did something else than what its journal says that it did."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What an attempt's journal holds when it is gone on with.

    Attributes:
        answers: of its calls, in order.
        results: of its commands, in order.
        asked: how many calls were begun; one more than there are answers if the last was under way.
        interrupted: the command that was under way, if one was.
        usages: what each of the answers had used, in the same order.
    """

    answers: Sequence[JsonValue] = ()
    results: Sequence[BashResult] = ()
    asked: int = 0
    interrupted: str | None = None
    usages: Sequence[TokenUsage] = ()


class Journal:
    """The journal of one attempt. Agents reach it as ``context.journal``.

    Args:
        kept: what an earlier process wrote.
        on_ask: called with a call's number, from 1, before it is made.
        on_answer: called with its number and its answer, which is on disk when this returns.
        on_repeat: called with the number of a call that is made again, because its answer never reached the disk.
        on_recall: called with what a call had used, when its answer is taken from the journal.
    """

    def __init__(
        self,
        kept: Kept | None = None,
        *,
        on_ask: Callable[[int], None] | None = None,
        on_answer: Callable[[int, JsonValue], None] | None = None,
        on_repeat: Callable[[int], None] | None = None,
        on_recall: Callable[[TokenUsage], None] | None = None,
    ) -> None:
        kept = kept or Kept()
        self._answers = deque(kept.answers)
        self._results = deque(kept.results)
        self._asked = kept.asked
        self._interrupted = kept.interrupted
        self._on_ask = on_ask
        self._on_answer = on_answer
        self._on_repeat = on_repeat
        self._on_recall = on_recall
        self._usages = deque(kept.usages)
        self._calls = 0

    async def once(self, call: Callable[[], Awaitable[T]], kind: type[T]) -> T:
        """The answer of a call that must not be made, and paid for, twice.

        Args:
            call: makes it; not called if its answer is in the journal already.
            kind: of the answer: anything that pydantic can turn into JSON and back.

        Raises:
            DivergedError: the journal has something else at this place.
        """
        adapter = TypeAdapter[T](kind)
        self._calls += 1
        number = self._calls
        if self._answers:
            if self._usages and self._on_recall is not None:
                self._on_recall(self._usages.popleft())
            try:
                return adapter.validate_python(self._answers.popleft())
            except ValueError as e:
                raise DivergedError(
                    f"the answer of call {number} in its journal is no {kind.__name__}"
                ) from e
        if number <= self._asked and self._on_repeat is not None:
            self._on_repeat(number)
        if self._on_ask is not None:
            self._on_ask(number)
        answer = await call()
        if self._on_answer is not None:
            self._on_answer(number, adapter.dump_python(answer, mode="json"))
        return answer

    def result_of(self, command: str) -> BashResult | None:
        """What came of a command that has run already, or None if it is to be run.

        Raises:
            DivergedError: another command ran at this place.
        """
        if not self._results:
            return None
        result = self._results.popleft()
        if result.command != command:
            raise DivergedError(
                f"its journal says that it ran {result.command[:200]!r}, not {command[:200]!r}"
            )
        return result

    def is_run_again(self, command: str) -> bool:
        """Whether a command that is about to run was under way when the race was interrupted."""
        was, self._interrupted = self._interrupted, None
        return was is not None and was == command[: len(was)]
