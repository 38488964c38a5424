"""Fleets: named sandboxes that live across operations and processes.

A fleet's members are known by their ids in the store, so any process may command them, add to them, or delete them. A
prompt lets an agent work in members, each with its own; a command runs in them as it is.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, Field

from race.agent import AgentContext, Recorder, Trajectory
from race.bash import Bash
from race.errors import AgentError, LimitReached, RaceError, SandboxError, SpecError
from race.fleet_table import FleetTable, MemberRow
from race.gateway import Gateway
from race.home import home as default_home
from race.locking import locked
from race.plugins import agent as make_agent
from race.plugins import boundary
from race.plugins import provider as make_provider
from race.sandbox import ExecResult, Limits, Network, SandboxProvider, SandboxSpec
from race.spec import RaceSpec, Seconds, from_data
from race.store import Store
from race.task import Task

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class FleetPolicy(BaseModel):
    """What a fleet may be and use."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    max_members: int = Field(default=64, ge=1, le=900)
    """Most members at once."""
    creations: int = Field(default=4, ge=1)
    """Most members that are created at the same time."""
    lifetime: Seconds | None = None
    """Seconds after which a fleet does nothing more but be deleted, which ``race gc`` does then."""
    cost_usd: float | None = Field(default=None, gt=0)
    """What prompts may cost in all."""


class FleetSpec(BaseModel):
    """What a fleet's members are made from."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    sandbox: str = "local"
    """Sandbox provider."""
    source: str | None = None
    """The sandbox that members are forked from; None makes them from ``image``."""
    image: str = "host"
    network: str = "full"
    workdir: str = "/"
    """Where commands start and agents work."""
    policy: FleetPolicy = FleetPolicy()


@dataclass(frozen=True, slots=True)
class Member:
    """One sandbox of a fleet.

    Attributes:
        id: unique in the fleet.
        sandbox: its name with the provider.
        defaults: what a prompt to it says if the call does not: ``agent``, ``model``, ``hint`` and options of the
            agent.
    """

    id: str
    sandbox: str
    defaults: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What came of an operation on one member: a result, or an error.

    Attributes:
        member: its id.
        result: if it worked.
        error: why it did not.
        seconds: that it took.
    """

    member: str
    result: T | None
    error: str = ""
    seconds: float = 0.0


class Fleet:
    """A fleet, taken up by this process. Use `create` or `attach`; both are for ``async with``.

    Attributes:
        name: of the fleet.
        spec: what its members are made from.
    """

    def __init__(self, name: str, spec: FleetSpec, store: Store, provider: SandboxProvider) -> None:
        self.name = name
        self.spec = spec
        self._store = store
        self._table = FleetTable(store)
        self._provider = provider

    @classmethod
    @asynccontextmanager
    async def create(
        cls,
        name: str,
        count: int = 0,
        *,
        spec: FleetSpec | None = None,
        defaults: Sequence[Mapping[str, Any]] = (),
        home: Path | None = None,
    ) -> AsyncGenerator[Fleet, None]:
        """Make a fleet. It lives on when the block ends.

        Args:
            name: letters, digits, ``._-``, at most 40.
            count: how many members to begin with.
            spec: what they are made from, and the policy.
            defaults: of the members, taken in turn.
            home: the state folder, as for `race.run`.

        Raises:
            SpecError: there is a fleet of this name, or the policy does not allow so many.
            SandboxError: a member could not be made; then there is no fleet.
        """
        spec = spec or FleetSpec()
        if not _NAME.fullmatch(name):
            raise SpecError(
                f"a fleet cannot be called {name!r}: letters, digits, '.', '_' and '-', at most 40"
            )
        async with _opened(home, spec) as (store, provider):
            fleet = cls(name, spec, store, provider)
            FleetTable(store).begin(name, spec.model_dump_json())
            try:
                await fleet.scale(count, defaults=defaults)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await fleet.delete()
                raise
            yield fleet

    @classmethod
    @asynccontextmanager
    async def attach(cls, name: str, *, home: Path | None = None) -> AsyncGenerator[Fleet, None]:
        """Take up a fleet that any process has made.

        Raises:
            SpecError: there is none; the text lists those there are.
        """
        store = Store(home or default_home())
        try:
            spec = FleetSpec.model_validate_json(FleetTable(store).spec(name))
        finally:
            store.close()
        async with _opened(home, spec) as (opened, provider):
            yield cls(name, spec, opened, provider)

    @property
    def members(self) -> list[Member]:
        """Its members now, oldest first."""
        return [Member(r.id, r.sandbox, r.defaults) for r in self._table.members(self.name)]

    @property
    def spent_usd(self) -> float:
        """What its prompts have cost so far, as far as that is known."""
        return self._table.spent(self.name)

    async def scale(self, count: int, *, defaults: Sequence[Mapping[str, Any]] = ()) -> list[Member]:
        """Have so many members: make further ones, or delete the newest.

        Args:
            count: how many.
            defaults: of new members, taken in turn.

        Raises:
            SpecError: the policy does not allow so many, or the fleet's lifetime is over.
            SandboxError: a member could not be made or deleted; the others were.
        """
        self._check_alive()
        if not 0 <= count <= self.spec.policy.max_members:
            raise SpecError(
                f"the fleet {self.name!r} may have 0 to {self.spec.policy.max_members} members, not {count}"
            )
        async with locked(self._lock, lambda: None):
            rows = self._table.members(self.name)
            errors = await self._delete(rows[count:])
            first = int(rows[-1].id[1:4]) + 1 - len(rows) if rows else 0
            creations = anyio.CapacityLimiter(self.spec.policy.creations)

            async def make(number: int) -> None:
                async with creations:
                    try:
                        await self._make(
                            first + number, dict(defaults[number % len(defaults)]) if defaults else {}
                        )
                    except SandboxError as e:
                        errors.append(str(e))

            async with anyio.create_task_group() as group:
                for number in range(len(rows), count):
                    group.start_soon(make, number)
        if errors:
            raise SandboxError("\n".join(errors))
        return self.members

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        members: Sequence[str] | None = None,
        at_once: int = 8,
        timeout: float | None = None,
    ) -> list[Answer[ExecResult]]:
        """Run a command in members.

        Args:
            command: see `race.Sandbox.exec`.
            members: ids; None for all.
            at_once: in how many of them at the same time.
            timeout: seconds for each.

        Returns:
            An answer for each member, in order. A command that fails is a result.
        """

        async def run(member: Member) -> ExecResult:
            sandbox = await self._provider.get(member.sandbox)
            return await sandbox.exec(command, cwd=self.spec.workdir, timeout=timeout)

        return await self._each(members, at_once, run)

    async def prompt(
        self,
        prompt: str,
        *,
        members: Sequence[str] | None = None,
        at_once: int = 8,
        time_limit: float = 1800,
        **options: Any,
    ) -> list[Answer[Trajectory]]:
        """Let an agent work in each of some members.

        Args:
            prompt: what to do.
            members: ids; None for all.
            at_once: in how many of them at the same time.
            time_limit: seconds for each.
            options: keys of an entry, such as ``agent`` and ``model``; they win over the members' defaults.

        Returns:
            An answer for each member, in order. A limit that ended an agent is a result.

        Raises:
            SpecError: unknown options, or the spending limit of the policy has been reached.
        """
        self._check_spending()
        chosen = self._chosen(members)
        specs = {
            m.id: self._entry(m, prompt, {**m.defaults, **options, "time_limit": time_limit}) for m in chosen
        }
        agents = {name: make_agent(spec, 0) for name, spec in specs.items()}

        async def run(member: Member) -> Trajectory:
            spec = specs[member.id]
            entry = spec.entries[0]
            recorder = Recorder(entry.max_steps, _Spending(self._table, self.name, self.spec.policy.cost_usd))
            sandbox = await self._provider.get(member.sandbox)
            workdir = sandbox.place(self.spec.workdir)
            bash = Bash(sandbox, workdir=workdir, timeout=entry.command_timeout, recorder=recorder)
            task = Task(self.name, prompt, workdir)
            account = gateway.account(member.id, recorder, seed=1, deadline=anyio.current_time() + time_limit)
            context = AgentContext(
                member.id, entry.model, entry.hint, 1, time_limit, recorder, account=account
            )
            try:
                with anyio.move_on_after(time_limit), boundary(AgentError, f"agent {entry.agent!r}"):
                    self._check_spending()
                    return await agents[member.id].run(task, bash, context)
            except LimitReached as e:
                return recorder.trajectory(str(e), "steps" if e.limit == "steps" else "budget")
            except AgentError:
                if (ended := account.state.ended) is None:
                    raise
                return recorder.trajectory(str(ended), "steps" if ended.limit == "steps" else "budget")
            return recorder.trajectory(f"ended by its time limit of {time_limit:g} s", "time")

        async with Gateway() as gateway:
            return await self._each(members, at_once, run)

    async def delete(self) -> list[str]:
        """Delete all members, and the fleet if none is left.

        Returns:
            A line about each member that could not be deleted; those still belong to the fleet.
        """
        async with locked(self._lock, lambda: None):
            errors = await self._delete(self._table.members(self.name))
            if not errors:
                # A member whose process died while it was made is in the provider's list, but not in the store.
                for info in await self._provider.list():
                    if info.labels.get("fleet") == self.name:
                        await (await self._provider.get(info.name)).delete()
                self._table.end(self.name)
        if not errors:
            self._lock.unlink(missing_ok=True)
        return errors

    @property
    def _lock(self) -> Path:
        folder = self._store.home / "fleets"
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder / f"{self.name}.lock"

    def _check_alive(self) -> None:
        lifetime = self.spec.policy.lifetime
        if lifetime is not None and self._table.age(self.name) > lifetime:
            raise SpecError(
                f"the lifetime of the fleet {self.name!r} ({lifetime:g} s) is over; "
                f"'race fleet rm {self.name}' deletes it"
            )

    def _check_spending(self) -> None:
        self._check_alive()
        limit = self.spec.policy.cost_usd
        if limit is not None and self.spent_usd >= limit:
            raise SpecError(
                f"the fleet {self.name!r} has spent {self.spent_usd:.4g} of the {limit:g} USD that it may"
            )

    def _chosen(self, ids: Sequence[str] | None) -> list[Member]:
        members = {m.id: m for m in self.members}
        unknown = [i for i in ids or () if i not in members]
        if unknown:
            raise SpecError(
                f"the fleet {self.name!r} has no member {unknown[0]!r}; it has: {', '.join(members) or 'none'}"
            )
        return list(members.values()) if ids is None else [members[i] for i in ids]

    async def _each(
        self, ids: Sequence[str] | None, at_once: int, work: Callable[[Member], Awaitable[T]]
    ) -> list[Answer[T]]:
        self._check_alive()
        members = self._chosen(ids)
        answers: dict[str, Answer[T]] = {}
        limiter = anyio.CapacityLimiter(max(at_once, 1))

        async def do(member: Member) -> None:
            async with limiter:
                began = time.monotonic()
                try:
                    result = await work(member)
                except RaceError as e:
                    answers[member.id] = Answer(member.id, None, str(e), time.monotonic() - began)
                else:
                    answers[member.id] = Answer(member.id, result, "", time.monotonic() - began)

        async with anyio.create_task_group() as group:
            for member in members:
                group.start_soon(do, member)
        return [answers[m.id] for m in members]

    async def _make(self, number: int, defaults: dict[str, Any]) -> None:
        # In this order the store lists them; an id is never given twice, in case somebody still holds the first.
        member = f"m{number:03}-{secrets.token_hex(3)}"
        name = f"fleet-{self.name}-{member}"
        labels = {"fleet": self.name, "member": member, "role": "fleet", "workdir": self.spec.workdir}
        network: Network = "full" if self.spec.network == "full" else "none"
        if self.spec.source is not None:
            parent = await self._provider.get(self.spec.source)
            await parent.fork(name, network=network, labels=labels)
        else:
            await self._provider.create(
                SandboxSpec(name, image=self.spec.image, limits=Limits(), network=network, labels=labels)
            )
        self._table.add(self.name, MemberRow(member, name, defaults))

    async def _delete(self, rows: Sequence[MemberRow]) -> list[str]:
        errors: list[str] = []
        for row in rows:
            there = {i.name for i in await self._provider.list()}
            try:
                if row.sandbox in there:
                    await (await self._provider.get(row.sandbox)).delete()
            except SandboxError as e:
                errors.append(f"{row.id}: {e}")
            else:
                self._table.remove(self.name, row.id)
        return errors

    def _entry(self, member: Member, prompt: str, options: Mapping[str, Any]) -> RaceSpec:
        """The entry that a prompt amounts to, checked as that of a race file would be."""
        where = Path(f"fleet {self.name}, member {member.id}")
        data: dict[str, Any] = {
            "task": {"name": self.name, "prompt": prompt},
            "entries": [{"name": member.id, **options}],
        }
        return from_data(data, where)


@dataclass(slots=True)
class _Spending:
    """Books what one agent costs on its fleet, as it goes, and ends it when the fleet has spent what it may."""

    table: FleetTable
    fleet: str
    limit: float | None
    booked: float = field(default=0.0)

    def __call__(self, recorder: Recorder) -> None:
        usage = recorder.usage
        if usage.cost_usd is None:
            if self.limit is not None and (usage.input_tokens or usage.output_tokens):
                raise LimitReached(
                    "budget", "ended: what it costs is not known, and its fleet has a spending limit"
                )
            return
        if usage.cost_usd > self.booked:
            self.table.book(self.fleet, usage.cost_usd - self.booked)
            self.booked = usage.cost_usd
        if self.limit is not None and self.table.spent(self.fleet) >= self.limit:
            raise LimitReached("budget", "ended because its fleet has spent what it may")


def fleets(home: Path | None = None) -> list[tuple[str, FleetSpec, int]]:
    """All fleets: their names, specifications and numbers of members."""
    store = Store(home or default_home())
    try:
        table = FleetTable(store)
        return [
            (n, FleetSpec.model_validate_json(table.spec(n)), len(table.members(n))) for n in table.names()
        ]
    finally:
        store.close()


@asynccontextmanager
async def _opened(home: Path | None, spec: FleetSpec) -> AsyncGenerator[tuple[Store, SandboxProvider], None]:
    home = home or default_home()
    store = Store(home)
    provider = make_provider(spec.sandbox, home, "the fleet's sandbox")
    try:
        yield store, provider
    finally:
        with anyio.CancelScope(shield=True):
            await provider.aclose()
        store.close()
