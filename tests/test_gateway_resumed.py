"""What a race spent before it was killed counts after it is gone on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from race.agent import Recorder, TokenUsage
from race.errors import LimitReached
from race.gateway import Budget, Gateway, Record
from race.gateway.exchanges import Exchange
from race.journal import Journal, Kept

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

USED = TokenUsage(60, 40)


def exchange(number: int, attempt: str = "one") -> Exchange:
    return Exchange(number, attempt, "chat", "/chat/completions", "m", b"{}", 200, usage=USED)


async def test_the_record_says_what_was_spent(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.append(exchange(1))
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"number": 2, "atte')  # the process was killed here
    record.append(exchange(3))
    async with Gateway(Budget(tokens=250), record=record) as gateway:
        first = gateway.account("one", Recorder(5), budget=Budget(requests=2)).state
        second = gateway.account("two", Recorder(5)).state
        assert (first.purse.requests, second.purse.requests) == (2, 0)
        assert gateway.purse.usage == TokenUsage(120, 80)
        assert first.number() == 4
        assert "has had its 2 requests" in first.admit(counts=True, steps=False)
        assert second.admit(counts=True, steps=False) == ""
        second.settle(exchange(1, "two"), counts=True)
        assert "the race has spent its budget of 250 tokens" in second.admit(counts=True, steps=False)


async def test_an_answer_of_the_journal_is_booked_with_what_it_used() -> None:
    recorder = Recorder(5)
    journal = Journal(Kept(["said"], asked=1, usages=[USED]), on_recall=recorder.spent)

    async def call() -> str:
        raise AssertionError("it was made already")

    assert await journal.once(call, str) == "said"
    assert recorder.usage == USED


async def test_a_limit_of_whoever_watches_ends_the_account_and_not_the_gateway() -> None:
    def watch(recorder: Recorder) -> None:
        if recorder.usage.output_tokens:
            raise LimitReached("budget", "ended because its fleet has spent what it may")

    async with Gateway() as gateway:
        account = gateway.account("one", Recorder(5, watch)).state
        account.settle(exchange(1), counts=True)
        assert account.admit(counts=True, steps=False) == "ended because its fleet has spent what it may"
        assert account.closed.is_set()
