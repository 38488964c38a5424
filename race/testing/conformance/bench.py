"""What every check works with: sandboxes that are deleted after it, and ways to say what was not as promised."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from race.errors import SandboxError
from race.sandbox import Capabilities, Directory, Network, Sandbox, SandboxProvider, SandboxSpec

WORK = "/race-check"
"""The folder inside that checks work in. Commands name their files relative to it."""
INSIDE = WORK.encode()
"""The same, for what is written and read."""

TICKING = "while :; do echo x >>{file}; sleep 0.02; done"
"""A shell loop whose file grows for as long as it runs."""

_NAMES = itertools.count(1)
_TICK = 0.25
"""Seconds in which what ticks has ticked."""


class Broken(Exception):  # noqa: N818 - a finding about the provider, not an error of the suite
    """A provider does not keep a promise; the text says what was seen."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the contract, and how to find out whether it is kept.

    Attributes:
        run: raises `Broken`, or whatever the provider raises, if it is not. Its name is the check's, the first line of
            its docstring the promise.
        feature: of `race.sandbox.FEATURES`, without which it is left out.
        network: a kind of network, likewise.
        limit: a field of `Limits`, likewise.
        isolated: whether it is about what a sandbox cannot reach of its host.
        again: whether it needs a second instance of the provider.
    """

    run: Callable[[Bench], Awaitable[None]]
    feature: str = ""
    network: str = ""
    limit: str = ""
    isolated: bool = False
    again: bool = False

    @property
    def name(self) -> str:
        """Of the check, unique."""
        return getattr(self.run, "__name__", "")

    @property
    def promise(self) -> str:
        """What is promised, in a sentence."""
        return " ".join((self.run.__doc__ or "").split())

    def left_out(self, can: Capabilities, *, again: bool) -> str:
        """Why it cannot be asked of a provider, or nothing."""
        if self.feature and self.feature not in can.features:
            return f"the provider does not declare the feature {self.feature!r}"
        if self.network and self.network not in can.networks:
            return f"the provider does not declare the network {self.network!r}"
        if self.limit and self.limit not in can.limits:
            return f"the provider does not declare the limit {self.limit!r}"
        if self.isolated and not can.isolated:
            return "the provider declares that it does not isolate"
        if self.again and not again:
            return "no way was given to make a second instance of the provider"
        return ""


class Bench:
    """What a check is given.

    Args:
        provider: to look at.
        image: what its sandboxes are made from.
        again: makes a second instance of the provider, over the same sandboxes.
        folder: an empty folder of the host, for this check alone.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        image: str,
        again: Callable[[], SandboxProvider] | None,
        folder: Path,
    ) -> None:
        self.provider = provider
        self.can = provider.capabilities
        self.folder = folder
        self._image = image
        self._again = again
        self._made: list[str] = []

    def name(self) -> str:
        """A name that no other sandbox has; what is made under it is deleted after the check."""
        name = f"check-{os.getpid()}-{next(_NAMES)}-{secrets.token_hex(2)}"
        self._made.append(name)
        return name

    def spec(self, **given: Any) -> SandboxSpec:
        """What to create: a new name, and a network that the provider has."""
        network: Network = "none" if "none" in self.can.networks else "full"
        made = SandboxSpec(self.name(), image=self._image, network=network)
        return replace(made, **given)

    async def new(self, **given: Any) -> Sandbox:
        """A running sandbox with the folder `WORK` in it."""
        sandbox = await self.provider.create(self.spec(**given))
        await sandbox.write([Directory(INSIDE)])
        return sandbox

    async def fork(self, sandbox: Sandbox, **given: Any) -> Sandbox:
        """A fork under a new name."""
        return await sandbox.fork(self.name(), **given)

    @asynccontextmanager
    async def again(self) -> AsyncGenerator[SandboxProvider]:
        """A second instance of the provider, such as another process would have."""
        if self._again is None:
            raise Broken("no way was given to make a second instance of the provider")
        other = self._again()
        try:
            yield other
        finally:
            with anyio.CancelScope(shield=True):
                await other.aclose()

    async def clean_up(self) -> str:
        """Delete what was made, children first. Returns what went wrong, or nothing."""
        there = {i.name for i in await self.provider.list()}
        problem = ""
        for name in reversed(self._made):
            if name not in there:
                continue
            try:
                await (await self.provider.get(name)).delete()
            except SandboxError as e:
                problem = problem or f"the sandbox {name!r} could not be deleted: {e}"
        return problem


def expect(ok: object, what: str) -> None:
    """Say what was not as promised.

    Raises:
        Broken: it was not.
    """
    if not ok:
        raise Broken(what)


def same(seen: object, wanted: object, what: str) -> None:
    """Say what was another than promised.

    Raises:
        Broken: it was.
    """
    if seen != wanted:
        raise Broken(f"{what}: {_short(seen)} instead of {_short(wanted)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:150]} … {text[-100:]}"  # noqa: PLR2004 - for people


@contextmanager
def refused(what: str, *, naming: Sequence[str] = ()) -> Generator[None]:
    """What the block does has to be refused with a `SandboxError` that names what it should.

    Raises:
        Broken: it is not.
    """
    try:
        yield
    except SandboxError as e:
        for name in naming:
            expect(name in str(e), f"{what} was refused without naming {name!r}: {e}")
        return
    raise Broken(f"{what} was not refused with a SandboxError")


async def output(
    sandbox: Sandbox,
    command: str | Sequence[str],
    *,
    cwd: str = WORK,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
) -> bytes:
    """What a command that has to work prints, run in `WORK` unless told otherwise.

    Raises:
        Broken: it does not work.
    """
    done = await sandbox.exec(command, cwd=cwd, env=env, stdin=stdin, timeout=timeout)
    said = _short((done.stdout + done.stderr)[-300:])
    same(done.exit_code, 0, f"the exit status of {_short(command)}, which printed {said}")
    return done.stdout


async def size(sandbox: Sandbox, file: str) -> int:
    """Bytes of a file in `WORK`, 0 if it is not there."""
    return int(await output(sandbox, f"if [ -f {file} ]; then wc -c <{file}; else echo 0; fi"))


async def grows(sandbox: Sandbox, file: str) -> bool:
    """Whether what ticks into a file of `WORK` still does."""
    before = await size(sandbox, file)
    await anyio.sleep(_TICK)
    return await size(sandbox, file) > before


async def tick(sandbox: Sandbox, file: str) -> None:
    """Start a background process that ticks into a file of `WORK`, and wait for its first tick."""
    await sandbox.exec(f"{TICKING.format(file=file)} &", cwd=WORK)

    async def begun() -> bool:
        return await size(sandbox, file) > 0

    await until(begun, "a background process did not write anything")


async def until(holds: Callable[[], Awaitable[bool]], what: str, *, seconds: float = 10.0) -> None:
    """Wait for something that has to come true.

    Raises:
        Broken: it does not in time.
    """
    with anyio.move_on_after(seconds):
        while not await holds():  # noqa: ASYNC110 - nobody tells when
            await anyio.sleep(0.02)
        return
    raise Broken(f"{what} within {seconds:g} s")
