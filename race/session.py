"""Sessions: conversations with an agent in a sandbox, prompted again and again, by one process or by several.

Several sessions may be at work in one sandbox at once; of one session, one prompt is answered at a time. Everything
that happens is an event with a number in the store, so what came of any prompt can be fetched later, from anywhere.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from pydantic import JsonValue

from race.agent import Agent, ChecksFirst, Converses, Recorder, TokenUsage, Trajectory, add_usage
from race.bash import BashResult
from race.errors import RaceError, SandboxError, SpecError
from race.fleet import FleetSpec, Spending
from race.fleet_table import FleetTable
from race.gateway import Gateway, Record
from race.home import home as default_home
from race.memory import Memory
from race.plugins import agent as make_agent
from race.plugins import find, names
from race.plugins import provider as make_provider
from race.prompting import Prompt, Watch, answer, entry_of
from race.runner import open_store
from race.sandbox import Sandbox
from race.session_table import SessionRow, SessionStatus, SessionTable
from race.spec import EntrySpec
from race.store import Event, Store, StoreError
from race.tools import bring
from race.turns import Turn, as_data, lost, turns_of


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session without what happened in it.

    Attributes:
        id: of the session.
        sandbox: where it works.
        agent: the plugin.
        model: its model, or None.
        status: see `race.session_table.SessionStatus`.
        prompts: how many it has had.
        created: seconds since the epoch.
    """

    id: str
    sandbox: str
    agent: str
    model: str | None
    status: SessionStatus
    prompts: int
    created: float


class Session:
    """A session, taken up by this process. Use `open` or `attach`; both are for ``async with``.

    Attributes:
        id: of the session.
        sandbox: name of the sandbox that it works in.
        entry: agent, model and limits, as in a race file.
    """

    def __init__(self, row: SessionRow, entry: EntrySpec, agent: Agent, store: Store) -> None:
        self.id = row.id
        self.sandbox = row.sandbox
        self.entry = entry
        self._row = row
        self._agent = agent
        self._store = store
        self._table = SessionTable(store)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        sandbox: str,
        *,
        provider: str = "local",
        workdir: str | None = None,
        home: Path | None = None,
        **options: Any,
    ) -> AsyncGenerator[Session, None]:
        """Begin a session. It stays when the block ends.

        Args:
            sandbox: name of a sandbox that runs.
            provider: of the sandbox.
            workdir: where commands start; default: the project's folder in a sandbox that a race or fleet made.
            home: the state folder, as for `race.run`.
            options: keys of an entry, such as ``agent``, ``model``, ``max_steps`` (of each answer) and ``budget`` (of
                the whole session).

        Raises:
            SpecError: unknown options, or an agent that starts anew with every prompt.
            MachineError: the agent lacks what it needs of this machine, such as a key.
            SandboxError: there is no such sandbox.
        """
        home = home or default_home()
        name = f"s-{secrets.token_hex(4)}"
        entry, agent = _made(name, options)
        if isinstance(agent, ChecksFirst):
            agent.check(entry.model)
        async with _sandbox(provider, sandbox, home) as place:
            info = await place.info()
            folder = workdir or info.labels.get("workdir", "/")
            row = SessionRow(name, provider, sandbox, info.created, folder, options, time.time(), "idle", 0)
        with open_store(home) as store:
            SessionTable(store).begin(row)
            yield cls(row, entry, agent, store)

    @classmethod
    @asynccontextmanager
    async def attach(cls, name: str, *, home: Path | None = None) -> AsyncGenerator[Session, None]:
        """Take up a session that any process has begun.

        Args:
            name: its id, the beginning of one, or ``"last"``.
            home: the state folder.

        Raises:
            SpecError: there is none; the text lists those there are.
        """
        with open_store(home or default_home()) as store:
            row = SessionTable(store).get(name)
            entry, agent = _made(row.id, row.options)
            yield cls(row, entry, agent, store)

    @property
    def turns(self) -> list[Turn]:
        """All prompts so far, with what came of them."""
        return turns_of(self.events())

    def turn(self, number: int) -> Turn:
        """What came of a prompt.

        Raises:
            SpecError: there was none of this number.
        """
        turns = self.turns
        if not 1 <= number <= len(turns):
            raise SpecError(
                f"the session {self.id} has had {len(turns)} prompts; there is no prompt {number}"
            )
        return turns[number - 1]

    def events(self, after: int = 0) -> list[Event]:
        """What happened, in order; only events with numbers above ``after``."""
        return self._store.events(self.id, after)

    @property
    def usage(self) -> TokenUsage:
        """What all its model calls have used, those of interrupted answers too."""
        return add_usage(*(e.usage for e in self._record.read(self.id) if e.usage is not None))

    async def prompt(self, text: str, *, time_limit: float | None = None) -> Turn:
        """Let the agent answer, going on with the conversation.

        An answer that was interrupted stays in the conversation as far as it came; what was lost of it is said in its
        turn. Nothing that a model has answered is asked, or paid for, again.

        Args:
            text: what to do.
            time_limit: seconds, in place of the session's own.

        Returns:
            The turn. A limit that ended the agent is an answer.

        Raises:
            SpecError: another prompt of this session is being answered.
            AttemptError: the agent, its model or the sandbox failed; the turn says so as well.
        """
        if not text.strip():
            raise SpecError("the prompt is empty")
        if time_limit is not None and time_limit <= 0:
            raise SpecError(f"a time limit is a number of seconds above 0, not {time_limit:g}")
        entry = self.entry if time_limit is None else self.entry.model_copy(update={"time_limit": time_limit})
        fence = self._table.claim(self.id)
        answering = _Answering(self._table, self.id, fence, self.events())
        answering.begin(text)
        try:
            done = await self._answer(text, entry, answering)
        except StoreError:
            raise
        except Exception as e:
            reason = str(e) if isinstance(e, RaceError) else f"the framework broke: {type(e).__name__}: {e}"
            answering.settle("session.failed", answering.trajectory, reason=reason)
            raise
        except BaseException:
            reason = lost(self.events(answering.first))
            answering.settle("session.interrupted", answering.trajectory, reason=reason)
            raise
        answering.settle("session.answered", done)
        return self.turn(answering.number)

    async def delete(self) -> None:
        """Forget the session, with its events; its sandbox stays as it is.

        Raises:
            SpecError: a prompt of it is being answered.
        """
        self._table.remove(self.id)
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(self._folder, ignore_errors=True))

    @property
    def _folder(self) -> Path:
        return self._store.home / "sessions" / self.id

    @property
    def _record(self) -> Record:
        return Record(self._folder)

    async def _answer(self, text: str, entry: EntrySpec, answering: _Answering) -> Trajectory:
        row = self._row
        async with (
            _sandbox(row.provider, row.sandbox, self._store.home) as place,
            Gateway(record=self._record) as gateway,
        ):
            info = await place.info()
            if info.created != row.made:
                raise SandboxError(
                    f"the sandbox {row.sandbox} was made anew since; open another session in it"
                )
            await bring(place, [self._agent], self._store.home)
            recorder = Recorder(entry.max_steps, self._spending(info.labels.get("fleet", "")))
            answering.recorder = recorder
            prompt = Prompt(text, entry, self._agent, self.id, "the session", row.workdir, answering.memory)
            return await answer(prompt, place, gateway, recorder, answering.watch(recorder))

    def _spending(self, fleet: str) -> Spending | None:
        """A session in a member of a fleet spends what the fleet may."""
        table = FleetTable(self._store)
        if fleet not in table.names():
            return None
        policy = FleetSpec.model_validate_json(table.spec(fleet)).policy
        return Spending(table, fleet, policy.cost_usd)


@dataclass(slots=True)
class _Answering:
    """The answer to one prompt, as it is written down."""

    table: SessionTable
    session: str
    fence: int
    past: list[Event]
    number: int = 0
    first: int = 0
    recorder: Recorder | None = None
    began: float = field(default_factory=time.monotonic)

    def begin(self, text: str) -> None:
        turns = turns_of(self.past)
        if turns and turns[-1].state == "running":  # whoever answered it was killed
            was = turns[-1]
            reason = lost(e for e in self.past if e.number > was.first)
            self.append("session.interrupted", turn=was.number, seconds=0.0, reason=reason)
        self.number = len(turns) + 1
        self.first = self.append("session.prompted", turn=self.number, prompt=text).number

    def append(self, kind: str, **data: Any) -> Event:
        return self.table.append(self.session, self.fence, kind, **data)

    @property
    def trajectory(self) -> Trajectory:
        """What the agent has done so far."""
        return self.recorder.trajectory() if self.recorder is not None else Trajectory()

    def settle(self, kind: str, done: Trajectory, **data: Any) -> None:
        seconds = round(time.monotonic() - self.began, 3)
        made = as_data(done)
        self.table.settle(
            self.session, self.fence, kind, turn=self.number, seconds=seconds, trajectory=made, **data
        )

    @property
    def memory(self) -> Memory:
        entries: list[JsonValue] = [e.data["entry"] for e in self.past if e.kind == "session.kept"]

        def keep(entry: JsonValue) -> None:
            self.append("session.kept", turn=self.number, entry=entry)

        return Memory(self.session, entries, keep)

    def watch(self, recorder: Recorder) -> Watch:
        def asks(call: int) -> None:
            self.append("session.asking", turn=self.number, call=call)

        def starts(command: str) -> None:
            self.append("session.command", turn=self.number, step=recorder.step, command=command[:500])

        def ended(result: BashResult) -> None:
            self.append("session.result", turn=self.number, step=recorder.step, **asdict(result))

        return Watch(asks, starts, ended)


def sessions(home: Path | None = None) -> list[SessionInfo]:
    """All sessions, oldest first."""
    store = Store(home or default_home())
    try:
        table = SessionTable(store)
        return [_info(row, table.prompts(row.id)) for row in table.all()]
    finally:
        store.close()


def _info(row: SessionRow, prompts: int) -> SessionInfo:
    agent, model = str(row.options.get("agent", "openai")), row.options.get("model")
    return SessionInfo(row.id, row.sandbox, agent, model, row.status, prompts, row.created)


def _made(name: str, options: Any) -> tuple[EntrySpec, Agent]:
    spec = entry_of(name, "prompt", options, f"session {name}")
    entry = spec.entries[0]
    agent = make_agent(spec, 0)
    if not isinstance(agent, Converses):
        can = [n for n in names("agents") if hasattr(find("agents", n, "agents"), "converse")]
        raise SpecError(
            f"the agent {entry.agent!r} starts anew with every prompt, so it has no sessions; agents that go on with a "
            f"conversation: {', '.join(can)}"
        )
    return entry, agent


@asynccontextmanager
async def _sandbox(provider: str, name: str, home: Path) -> AsyncGenerator[Sandbox, None]:
    made = make_provider(provider, home, "the session's sandbox")
    try:
        yield await made.get(name)
    finally:
        with anyio.CancelScope(shield=True):
            await made.aclose()
