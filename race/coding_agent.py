"""Coding agents that people have, inside the fork: npm packages that report what they do as lines of JSON.

What differs from one to the next is a `Profile`: a name, a package, how it is started, how its events are read.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from race.agent_events import Read
from race.agent_inside import (
    InsideOptions,
    Launch,
    Server,
    briefing,
    check,
    first_that_runs,
    home,
    thread,
    upstream,
    work,
)
from race.sandbox import Directory, Entry
from race.tools import PLACE, Tool

if TYPE_CHECKING:
    from race.agent import AgentContext, Trajectory
    from race.bash import Bash
    from race.gateway import Line
    from race.task import Task


@dataclass(frozen=True, slots=True)
class Setting:
    """What an agent is started for.

    Attributes:
        model: its name.
        line: the way to it.
        workdir: the project's folder.
        home: the agent's own folder.
        keeps: whether it is to keep the conversation, so that it can go on with it.
        thread: the conversation that it goes on with; nothing if it begins one.
    """

    model: str
    line: Line
    workdir: str
    home: str
    keeps: bool = False
    thread: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """How an agent is started.

    Attributes:
        arguments: of the program, before those of the entry.
        env: its environment, besides ``HOME``.
        files: written before.
        last: arguments after those of the entry.
    """

    arguments: Sequence[str]
    env: Mapping[str, str]
    files: Sequence[Entry] = ()
    last: Sequence[str] = ()


Reader: TypeAlias = "Callable[[Bash, AgentContext], Read]"
"""Makes what reads the events of one run."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What makes an agent the one that it is.

    Attributes:
        name: of the agent, and of its tool's folder inside.
        package: of npm.
        version: of the package, as tried.
        program: where it is below the tool's folder; of several that a pattern finds, the first that runs is taken.
        server: of its models.
        start: how it is started.
        reader: what reads its events.
    """

    name: str
    package: str
    version: str
    program: str
    server: Server
    start: Callable[[Setting], Start]
    reader: Reader


class CodingAgent:
    """An agent of a profile, with its own tools; the fork is its sandbox. Whoever derives from it sets ``profile``."""

    Options = InsideOptions
    profile: ClassVar[Profile]

    def __init__(self, options: InsideOptions) -> None:
        self.options = options

    def tools(self) -> tuple[Tool, ...]:
        """The npm package, unless the base has the program."""
        if self.options.program:
            return ()
        return (
            Tool(
                self.profile.name, (f"{self.profile.package}@{self.options.version or self.profile.version}",)
            ),
        )

    def check(self, model: str | None) -> None:
        """See that there is a model, a server and a key."""
        check(self.profile.name, model, upstream(self.options, self.profile.server))

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Let it work until it ends, or a limit is reached."""
        return await self._work(briefing(task, context), "", bash, context)

    async def converse(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Go on with the conversation that it keeps in its own folder."""
        going_on = await thread(bash, context)
        return await self._work(task.prompt if going_on else briefing(task, context), going_on, bash, context)

    async def _work(self, prompt: str, going_on: str, bash: Bash, context: AgentContext) -> Trajectory:
        own, options = self.profile, self.options
        server = upstream(options, own.server)
        async with context.models.line(server, inside=bash.sandbox, counts_steps=True) as line:
            place = home(context)
            keeps = context.memory is not None
            start = own.start(Setting(context.model or "", line, bash.workdir, place, keeps, going_on))
            program = shlex.quote(options.program) if options.program else f"{PLACE}/{own.name}/{own.program}"
            launch = Launch(
                argv=[
                    "bash",
                    "-c",
                    first_that_runs(program),
                    own.name,
                    *start.arguments,
                    *options.args,
                    *start.last,
                ],
                env={"HOME": place, **start.env, **options.env},
                files=[Directory(place.encode()), *start.files],
                stdin=prompt,
            )
            return await work(own.name, launch, own.reader(bash, context), bash, context)
