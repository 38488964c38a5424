"""An agent that lets a model use bash, over the chat.completions protocol of any server that speaks it."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import anyio
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from race.chat import PUBLIC_URL, Chat, ConversationTooLong, Message
from race.conversation import Conversation
from race.errors import SpecError
from race.gateway import Upstream
from race.replies import Reply

if TYPE_CHECKING:
    from race.agent import AgentContext, Trajectory
    from race.bash import Bash
    from race.gateway import Line
    from race.replies import ToolCall
    from race.task import Task

IDLE_TURNS = 3
"""How many turns in a row may bring nothing that can be run or believed, until the attempt is ended."""

QUOTED = 300
"""Characters of a call that is not right which are quoted to the model."""

PREAMBLE = (
    "You work on a software project in a Linux sandbox of your own. Nobody is there to answer questions."
)
"""How the system prompt begins in a race, unless the entry says it otherwise."""

PREAMBLE_OF_SESSIONS = (
    "You work on a software project in a Linux sandbox; whoever asks may ask for more after your answer."
)
"""How it begins in a session."""

BASH_TOOL: JsonValue = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": (
            "Run a command in bash and get its exit status and output (standard output and standard error). "
            "Every command gets a fresh shell that starts in the project's folder; files stay, variables and "
            "`cd` do not. There is no terminal, and standard input is empty."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command; it may have many lines."}
            },
            "required": ["command"],
        },
    },
}
"""The only tool: `race.bash.Bash`."""


class OpenAIOptions(BaseModel):
    """What an entry with ``agent = "openai"`` may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str | None = None
    """The server, with the version. Default: the environment variable ``OPENAI_BASE_URL``, then OpenAI
    itself."""

    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the API key; empty for a server that needs none."""

    protocol: Literal["chat.completions", "responses"] = "chat.completions"
    """Nearly every server speaks the first; OpenAI's reasoning models think better over the second."""

    system_prompt: str | None = None
    """Stands in for the first lines of the system prompt. The rules of the task follow it in any case."""

    temperature: float | None = Field(default=None, ge=0)
    """Of the sampling. None leaves it to the server, as it does for the fields below."""

    reasoning_effort: str | None = None
    """How much a reasoning model thinks: ``"low"``, ``"medium"``, ``"high"``, or what else its server
    knows."""

    extra_body: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """More fields of every request. They win over the ones made from other options."""

    seed: int | Literal["attempt"] | None = None
    """Of the sampling; ``"attempt"`` gives each attempt its own, the same whenever the race is run again."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens that one turn of the model may have. Nothing of a turn that was cut there is run."""

    request_timeout: float = Field(default=600.0, gt=0)
    """Seconds that one call of the model may take in all."""

    max_retries: int = Field(default=8, ge=0)
    """How many failed calls in a row are repeated; the default is enough for three minutes of trouble."""

    retry_wait: float = Field(default=1.0, ge=0)
    """Seconds before the first repeat, doubled up to a minute, unless the server asks for more."""


class OpenAI:
    """A model in a loop with a bash tool.

    A turn that calls bash is run and answered; a turn that does not is the final answer. A turn that was cut
    at its limit of tokens, that is empty, or that announces a call without making one is neither: nothing of
    it is run, the model is told, and after `IDLE_TURNS` of them in a row the attempt ends and its fork is
    scored as it stands.
    """

    Options = OpenAIOptions

    def __init__(self, options: OpenAIOptions) -> None:
        self.options = options

    def check(self, model: str | None) -> None:
        """See that there is a model, a server and a key.

        Raises:
            SpecError: the entry names no model, or a server that is none.
            MachineError: the environment lacks the key.
        """
        if not (model or "").strip():
            raise SpecError("an entry with agent 'openai' needs a model, such as model = \"gpt-5.5-mini\"")
        self._upstream().check()

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Let the model work until it has said its last word, or a limit is reached.

        Raises:
            ModelError: the model cannot be reached, or does not answer.
            LimitReached: the attempt has had all its steps.
        """
        return await self._work(self._opening(task, bash, context), bash, context)

    async def converse(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Go on with the conversation that its memory holds.

        A turn that was interrupted stays in it, and its calls without a result say so; nothing of it is asked again.
        """
        talk = Conversation(context.memory)
        if talk.messages:
            talk.mend()
            talk.add(Message("user", task.prompt))
        else:
            talk.add(*self._opening(task, bash, context).messages)
        return await self._work(talk, bash, context)

    def _opening(self, task: Task, bash: Bash, context: AgentContext) -> Conversation:
        rules = Message("system", self._rules(task, bash, context))
        return Conversation(None, [rules, Message("user", _request(task, context))])

    async def _work(self, talk: Conversation, bash: Bash, context: AgentContext) -> Trajectory:
        record = context.recorder
        deadline = anyio.current_time() + context.time_limit
        idle = 0
        async with (
            context.models.line(self._upstream(), busy_retries=self.options.max_retries) as line,
            self._chat(context, line) as chat,
        ):
            chat.recall(c for m in talk.messages for c in m.calls)

            async def ask() -> _Turn:
                try:
                    return _Turn(
                        await chat.ask(talk.messages, extra=self._fields(context), deadline=deadline)
                    )
                except ConversationTooLong as e:
                    return _Turn(None, str(e))

            while True:
                record.begin_step()
                turn = await context.journal.once(ask, _Turn)
                reply = turn.reply
                if reply is None:
                    record.say(f"[{talk.cut(turn.too_long)}]")
                    continue
                chat.recall(reply.calls)
                if reply.text:
                    record.say(reply.text)
                if reply.finish == "refused":
                    talk.add(Message("assistant", reply.text))
                    return record.trajectory(reply.text, "refused")
                if problem := self._problem(reply):
                    record.say(f"[{problem}]")
                    talk.add(Message("assistant", reply.text), Message("user", problem))
                    idle += 1
                    if idle == IDLE_TURNS:
                        last_words = f"ended after {idle} turns in a row with nothing to run: {problem}"
                        return record.trajectory(last_words, "budget" if self._cut(reply) else "done")
                    continue
                if not reply.calls:
                    talk.add(Message("assistant", reply.text, carried=reply.carried))
                    return record.trajectory(reply.text)
                idle = 0
                orders = [_understood(call) for call in reply.calls]
                talk.add(Message("assistant", reply.text, [o.call for o in orders], carried=reply.carried))
                for order in orders:
                    if order.problem:
                        record.say(f"[{order.problem}]")
                    answer = order.problem or (await bash(order.command)).text
                    talk.add(Message("tool", answer, answers=order.call.id))

    async def resume(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:
        """Go on with the conversation; the model is asked nothing that it has answered already."""
        return await self.run(task, bash, context)

    def _chat(self, context: AgentContext, line: Line) -> Chat:
        return Chat(
            model=context.model or "",
            base_url=line.base_url,
            api_key=line.token,
            secrets=[line.key],
            responses=self.options.protocol == "responses",
            request_timeout=self.options.request_timeout,
            max_retries=self.options.max_retries,
            retry_wait=self.options.retry_wait,
            rng=random.Random(context.seed),  # noqa: S311 - it spreads waits and guards nothing
            on_retry=lambda why: context.recorder.say(f"[{why}]"),
        )

    def _fields(self, context: AgentContext) -> dict[str, JsonValue]:
        o = self.options
        # OpenAI itself refuses the older name for its newer models; most other servers know only that one.
        at_openai = urlsplit(self._base_url()).hostname == "api.openai.com"
        limit = "max_completion_tokens" if at_openai else "max_tokens"
        # Servers differ in the integers they take for a seed; 31 bits suit all.
        seed = context.seed % 2**31 if o.seed == "attempt" else o.seed
        wanted: dict[str, JsonValue] = {
            "temperature": o.temperature,
            "reasoning_effort": o.reasoning_effort,
            "seed": seed,
            limit: o.max_tokens,
        }
        return {"tools": [BASH_TOOL], **{k: v for k, v in wanted.items() if v is not None}, **o.extra_body}

    def _base_url(self) -> str:
        return self.options.base_url or os.environ.get("OPENAI_BASE_URL", "").strip() or PUBLIC_URL

    def _upstream(self) -> Upstream:
        return Upstream(self._base_url(), self.options.api_key_env)

    def _rules(self, task: Task, bash: Bash, context: AgentContext) -> str:
        given, racing = self.options.system_prompt, context.memory is None
        preamble = PREAMBLE if racing else PREAMBLE_OF_SESSIONS
        judged = " You are judged by what is changed there when you end." if racing else ""
        lines = [preamble if given is None else given, "", f"The project is in {task.workdir}.{judged}"]
        lines += task.rules
        turns = context.recorder.max_steps
        lines += [
            "",
            f"Your tool is bash; a command may take {bash.timeout:g} seconds.",
            f"You have {turns} turns and {context.time_limit:g} seconds{'; what is changed by then counts' * racing}.",
            "A turn without a call of bash ends your work. Take it when you are done, and say what you did.",
        ]
        return "\n".join(lines)

    def _cut(self, reply: Reply) -> bool:
        # Some servers say "tool_calls" of a turn that their limit of tokens has cut.
        limit = self.options.max_tokens
        return reply.finish == "length" or bool(reply.calls and limit and reply.usage.output_tokens >= limit)

    def _problem(self, reply: Reply) -> str:
        """Why a turn is neither to be run nor to be believed; nothing if it is."""
        if self._cut(reply):
            return (
                "Your turn was cut at its limit of tokens, and nothing of it was run. Take smaller steps; "
                "write a long file in several parts."
            )
        if reply.finish == "tool_calls" and not reply.calls:
            return "Your turn announced a call of a tool, but held none. Call bash, or say that you are done."
        if not (reply.calls or reply.text):
            return "Your turn was empty. Call bash, or say that you are done."
        return ""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What came of asking for a turn, as the journal keeps it.

    Attributes:
        reply: None if the conversation has outgrown the model.
        too_long: how the server said so.
    """

    reply: Reply | None
    too_long: str = ""


@dataclass(frozen=True, slots=True)
class _Order:
    """A tool call as it was understood.

    Attributes:
        call: as it stays in the conversation: without its arguments if they are not right.
        command: for bash.
        problem: why there is no command.
    """

    call: ToolCall
    command: str = ""
    problem: str = ""


def _understood(call: ToolCall) -> _Order:
    quoted = call.raw if len(call.raw) <= QUOTED else f"{call.raw[:QUOTED]}... ({len(call.raw):,} characters)"
    command = (call.arguments or {}).get("command")
    if call.name != "bash":
        problem = f"there is no tool {call.name[:QUOTED]!r}; the only one is 'bash'"
    elif call.arguments is None:
        problem = f"the arguments are not a JSON object: {quoted}"
    elif not isinstance(command, str):
        problem = f"the argument 'command' must be a string: {quoted}"
    elif "\0" in command:
        problem = f"the command holds a NUL byte, which no shell can take: {quoted}"
    elif not command.strip():
        problem = f"the command is empty: {quoted}"
    else:
        return _Order(replace(call, arguments={"command": command}), command)
    # A bad call that stays in the conversation would be refused by some servers again and again.
    example = json.dumps({"command": "ls -la"})
    return _Order(
        replace(call, arguments=None), problem=f"Not run: {problem}\nCall bash with arguments like {example}"
    )


def _request(task: Task, context: AgentContext) -> str:
    return f"{task.prompt}\n\nHint: {context.hint}" if context.hint else task.prompt
