"""The conformance suite: a real provider passes it, and each check notices the provider that breaks its promise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from race.errors import SpecError
from race.sandboxes.local import LocalProvider
from race.testing import CHECKS, Check, check_provider
from tests.sandboxes.mutants import MUTANTS, Provider

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

EVENT_LOOP_ALONE = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
@EVENT_LOOP_ALONE
async def test_local_keeps_every_promise(check: Check, provider: LocalProvider, local_home: Path) -> None:
    (result,) = await check_provider(provider, again=lambda: LocalProvider(local_home), only=[check.name])
    if result.outcome == "left out":
        pytest.skip(result.reason)
    assert result.outcome == "passed", result.reason


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(MUTANTS))
@EVENT_LOOP_ALONE
async def test_a_broken_promise_is_noticed(name: str, provider: LocalProvider, local_home: Path) -> None:
    mutant = MUTANTS[name]
    (result,) = await check_provider(
        mutant(provider), again=lambda: mutant(LocalProvider(local_home)), only=[name]
    )
    if result.outcome == "left out":
        pytest.skip(result.reason)
    assert result.outcome == "failed"
    # What is noticed is the promise, and not a mistake of the one who broke it.
    assert not re.match(r"(?:Type|Attribute|Name|Assertion|Key)Error", result.reason), result.reason


async def test_the_suite_runs_under_both_event_loops(provider: LocalProvider) -> None:
    names = ["exec_status_and_streams", "exec_cancelling_ends", "others_take_over", "process_starts"]
    results = {r.name: r for r in await check_provider(provider, only=names)}
    assert results["exec_status_and_streams"].outcome == "passed"
    assert results["exec_cancelling_ends"].outcome == "passed"
    assert results["others_take_over"].outcome == "left out"
    assert "second instance" in results["others_take_over"].reason


async def test_an_unwrapped_wrapper_breaks_nothing(provider: LocalProvider) -> None:
    names = ["fork_shares_nothing", "delete_refuses_what_was_forked", "write_files"]
    results = await check_provider(Provider(provider), only=names)  # type: ignore[arg-type] - it passes all on
    assert [r.outcome for r in results] == ["passed"] * 3


async def test_unknown_names_are_refused(provider: LocalProvider) -> None:
    with pytest.raises(SpecError, match="exec_signal"):
        await check_provider(provider, only=["exec_signals"])


def test_every_check_has_a_name_a_promise_and_a_mutant() -> None:
    names = [c.name for c in CHECKS]
    assert len(set(names)) == len(names)
    assert all(c.promise.endswith(".") for c in CHECKS)
    assert set(names) == set(MUTANTS)
