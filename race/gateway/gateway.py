"""The metering gateway of a race: the only way from its agents to models.

It runs outside of the sandboxes and holds the keys. Each attempt has an account and reaches the gateway by a socket of
its own, with a token of its own, so what runs inside a fork can spend only on its own account.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from race.agent import Recorder
from race.gateway.account import Account, Budget, Purse
from race.gateway.exchanges import Record
from race.gateway.http1 import Accepted, Pool
from race.gateway.limiter import Limiter
from race.gateway.masking import Mask
from race.gateway.passing import serve
from race.gateway.replaying import Source
from race.gateway.upstream import Upstream
from race.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the gateway waits; all in seconds.

    Attributes:
        request: for one request in all, from its arrival to the last byte of its answer.
        idle: for the next event of a stream; comments and pings are none.
        patience: for a server that is busy (status 429), until the agent is told so.
    """

    request: float = 600.0
    idle: float = 180.0
    patience: float = 300.0


class Gateway:
    """``async with Gateway() as gateway:``, then an `account` for each attempt, and a `line` for its agent.

    Args:
        budget: of the whole race.
        timeouts: see `Timeouts`.
        record: keeps every exchange.
        source: answers from a record, in place of any server.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        timeouts: Timeouts | None = None,
        record: Record | None = None,
        source: Source | None = None,
    ) -> None:
        self.purse = Purse("the race", budget or Budget())
        self.timeouts = timeouts or Timeouts()
        self.source = source
        self.pool = Pool()
        self._record = record
        self._limiters: dict[str, Limiter] = {}
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        """Begin, with what the record says was spent already: the race may have been killed and gone on with."""
        if self._record is not None:
            for exchange in self._record.read_all():
                if exchange.usage is not None:
                    self.purse.add(exchange.usage, exchange.model)
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Break off what is under way."""
        group, self._group = self._group, None
        if group is not None:
            group.cancel_scope.shield = True
            group.cancel_scope.cancel()
            # What ended the race is no error of these tasks, and must not come out wrapped with them.
            await group.__aexit__(None, None, None)
        await self.pool.aclose()

    def account(
        self,
        name: str,
        recorder: Recorder,
        *,
        whose: str = "the attempt",
        budget: Budget | None = None,
        seed: int = 0,
        deadline: float = float("inf"),
    ) -> GatewayAccount:
        """An attempt's account.

        Args:
            name: of the attempt.
            recorder: where its usage goes.
            whose: the attempt, as it stands in a sentence.
            budget: of the attempt.
            seed: spreads its waits.
            deadline: when it ends, a time of ``anyio.current_time``.
        """
        purse = Purse(whose, budget or Budget())
        account = Account(name, purse, self.purse, recorder, seed, deadline)
        if self._record is not None:
            account.recall(self._record.read(name))
            account.on_exchange = self._record.append
        return GatewayAccount(self, account)

    def begin_anew(self, name: str) -> None:
        """An attempt is started anew, with another conversation."""
        if self._record is not None:
            self._record.begin_anew(name)

    def limiter(self, upstream: Upstream) -> Limiter:
        """The one limiter of all requests to a server."""
        return self._limiters.setdefault(upstream.base_url, Limiter(random.Random(0)))  # noqa: S311 - spreads waits

    def start(self, line: Line, listener: socket.socket) -> None:
        """Accept connections of a line until its scope is cancelled."""
        if self._group is None:
            raise RuntimeError("a Gateway is used inside 'async with'")
        self._group.start_soon(self._listen, line, listener)

    async def _listen(self, line: Line, listener: socket.socket) -> None:
        try:
            with line.scope:
                async with anyio.create_task_group() as group:
                    while True:
                        await anyio.wait_readable(listener)
                        with contextlib.suppress(BlockingIOError, ConnectionError):
                            connection, _ = listener.accept()
                            group.start_soon(serve, Accepted(connection), line)
        finally:
            listener.close()
            line.closed.set()


class Line:
    """A way from one agent to one upstream, through the gateway.

    Attributes:
        url: where it listens, without a version.
        token: stands in for the key; of use on this line only.
        account: what it is charged to.
    """

    def __init__(
        self,
        gateway: Gateway,
        account: Account,
        upstream: Upstream,
        port: int,
        *,
        counts_steps: bool,
        busy_retries: int,
    ) -> None:
        self.gateway = gateway
        self.account = account
        self.upstream = upstream
        self.url = f"http://127.0.0.1:{port}"
        self.token = f"race-{secrets.token_hex(20)}"
        self.key = "" if gateway.source is not None else upstream.key()
        self.counts_steps = counts_steps
        self.busy_retries = busy_retries
        self.limiter = gateway.limiter(upstream)
        self.mask = self.new_mask()
        self.scope = anyio.CancelScope()
        self.closed = anyio.Event()

    @property
    def base_url(self) -> str:
        """Where it listens, with the version: for clients that want it."""
        return f"{self.url}/v1"

    def new_mask(self) -> Mask:
        """Hides what nobody may see: the key, and the token."""
        return Mask([self.key, self.token])

    def knows(self, headers: dict[str, str], target: str) -> bool:
        """Whether a request holds the token, wherever its protocol puts it."""
        query = target.partition("?")[2]
        given = [
            headers.get("authorization", "").removeprefix("Bearer "),
            headers.get("x-api-key", ""),
            headers.get("x-goog-api-key", ""),
            *(part[4:] for part in query.split("&") if part.startswith("key=")),
        ]
        return any(secrets.compare_digest(g.encode(), self.token.encode()) for g in given)


class GatewayAccount:
    """What an agent has of the gateway: ``context.account``.

    Args:
        gateway: of the race.
        account: of the attempt.
    """

    def __init__(self, gateway: Gateway, account: Account) -> None:
        self._gateway = gateway
        self.state = account

    @property
    def replaying(self) -> bool:
        """Whether answers come from a record, so that no key is needed."""
        return self._gateway.source is not None

    @asynccontextmanager
    async def line(
        self,
        upstream: Upstream,
        *,
        inside: Sandbox | None = None,
        counts_steps: bool = False,
        busy_retries: int = 1000,
    ) -> AsyncGenerator[Line]:
        """A way to a model server, open until the end of the block.

        Args:
            upstream: the server.
            inside: the sandbox whose loopback it listens on; None for this process.
            counts_steps: whether each request begins a step of the recorder, for agents that do not say so.
            busy_retries: how often a request that a busy server turned away is sent again, within the patience of
                the gateway.

        Raises:
            MachineError: the environment lacks the server's key.
            SandboxError: the sandbox is lost.
        """
        listener = await inside.listen(0) if inside is not None else _listener()
        try:
            line = Line(
                self._gateway,
                self.state,
                upstream,
                listener.getsockname()[1],
                counts_steps=counts_steps,
                busy_retries=busy_retries,
            )
            self._gateway.start(line, listener)
        except BaseException:
            listener.close()
            raise
        try:
            yield line
        finally:
            line.scope.cancel()
            with anyio.CancelScope(shield=True):
                await line.closed.wait()


def _listener() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    listener.setblocking(False)  # noqa: FBT003 - the library's signature
    return listener
