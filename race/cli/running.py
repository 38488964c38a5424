"""Running a command's asynchronous part, so that an interrupt ends it cleanly and a second one changes nothing."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar, cast

import anyio
import typer

from race.errors import AttemptError, MachineError, PluginError, RaceError, SpecError

T = TypeVar("T")
P = ParamSpec("P")

NO_WINNER = 1
WRONG_CALL = 2
CANNOT = 3
INTERRUPTED = 130


class InterruptedRunError(Exception):
    """An interrupt ended the command; its clean-up is done."""


def run_async(
    work: Callable[[], Awaitable[T]],
    *,
    interrupted: str = "interrupted: ending agents and deleting sandboxes ...",
) -> T:
    """Run something in an event loop until it ends or an interrupt (SIGINT, SIGTERM, SIGHUP) cancels it.

    The first interrupt is answered at once with a line and cancels; further ones while the clean-up goes on are
    answered with a line and change nothing.

    Args:
        work: what to run.
        interrupted: the line for the first interrupt.

    Raises:
        InterruptedRunError: an interrupt ended it.
    """
    return anyio.run(_run, work, interrupted)


async def _run(work: Callable[[], Awaitable[T]], told: str) -> T:
    result: list[T] = []
    interrupted = False

    async def watch(scope: anyio.CancelScope) -> None:
        nonlocal interrupted
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            watching.set()
            async for _ in signals:
                again = interrupted
                interrupted = True
                tell("still cleaning up ..." if again else told)
                scope.cancel()

    async def do(scope: anyio.CancelScope) -> None:
        with scope:
            result.append(await work())
        outer.cancel_scope.cancel()

    watching = anyio.Event()
    try:
        async with anyio.create_task_group() as outer:
            scope = anyio.CancelScope()
            outer.start_soon(watch, scope)
            await watching.wait()
            outer.start_soon(do, scope)
    except BaseExceptionGroup as group:
        raise _only(group) from None
    if not result:
        raise InterruptedRunError
    return result[0]


def exiting(command: Callable[P, int | None]) -> Callable[P, None]:
    """A command whose result is its exit status, as typer wants it."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        status = command(*args, **kwargs)
        if status:
            raise typer.Exit(status)

    return run


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error in nested groups of one; a task group wraps what a single task raised."""
    while len(group.exceptions) == 1:
        error = group.exceptions[0]
        if not isinstance(error, BaseExceptionGroup):
            return error
        group = cast("BaseExceptionGroup[BaseException]", error)
    return group


def tell(text: str) -> None:
    """Say something to people, on standard error."""
    print(f"race: {text}", file=sys.stderr, flush=True)  # noqa: T201


def status_of(error: RaceError) -> int:
    """The exit status that stands for an error."""
    if isinstance(error, SpecError | PluginError):
        return WRONG_CALL
    if isinstance(error, MachineError):
        return CANNOT
    return NO_WINNER if isinstance(error, AttemptError) else WRONG_CALL
