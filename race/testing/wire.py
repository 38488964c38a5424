"""What a scripted model needs of a wire protocol, so that one server can speak several."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from race.agent import TokenUsage
from race.testing.script import Call, Fault, Turn

SHELLS = (
    "bash",
    "shell",
    "shell_command",
    "exec_command",
    "local_shell",
    "run_shell_command",
    "execute_bash",
    "terminal",
)
"""Names, in lower case, under which agents offer a shell."""

_SAMPLES: Mapping[str, object] = {"boolean": False, "integer": 60, "number": 60, "array": [], "object": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a request offers.

    Attributes:
        name: as the model has to call it.
        parameters: the JSON type of each.
        required: the parameters that cannot be left out.
    """

    name: str
    parameters: Mapping[str, str]
    required: tuple[str, ...] = ()

    def running(self, command: str) -> Call:
        """The call that runs a command in this shell, whatever its parameters are named."""
        name = next((n for n in ("command", "cmd", "script") if n in self.parameters), "command")
        as_list = self.parameters.get(name) == "array"
        arguments: dict[str, object] = {name: ["bash", "-c", command] if as_list else command}
        for other in self.required:
            arguments.setdefault(other, _SAMPLES.get(self.parameters.get(other, ""), "run a command"))
        return Call(self.name, json.dumps(arguments))


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request says.

    Attributes:
        model: its name.
        start: what it has in common with the earlier requests of its conversation.
        step: turns that the model has had in it.
        tools: those offered.
        stream: whether the answer is to be streamed.
        input_tokens: an estimate, four bytes each.
        cached_tokens: the part of them that an earlier request of the conversation has already had.
        problems: why a strict server would refuse it.
        only_count: whether only its tokens are to be counted.
    """

    model: str
    start: str
    step: int
    tools: Sequence[Tool]
    stream: bool
    input_tokens: int
    cached_tokens: int
    problems: tuple[str, ...] = ()
    only_count: bool = False

    def calls(self, turn: Turn) -> tuple[Call, ...]:
        """The calls of a turn, its commands put into the shell that the request offers.

        Without one there are none: a request that offers no shell, as for the title of a conversation, gets
        text.
        """
        shell = next((t for t in self.tools if t.name.lower() in SHELLS), None)
        asked = (c if isinstance(c, Call) else shell and shell.running(c) for c in turn.calls)
        return tuple(c for c in asked if c)


def decoded(arguments: str) -> object:
    """The arguments of a call for protocols that send them as a value: what is no JSON becomes a text."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {"invalid": arguments}


class Wire(Protocol):
    """A protocol between agents and models, over HTTP."""

    def matches(self, path: str) -> bool:
        """Whether requests to a path, without its query, speak it."""
        ...

    def read(self, path: str, body: bytes) -> Conversation:
        """What a request says.

        Raises:
            ValueError: it is no request.
        """
        ...

    def output_tokens(self, conversation: Conversation, turn: Turn) -> int:
        """An estimate of what a turn costs, four bytes each."""
        ...

    def answer(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> bytes:
        """A turn as a whole."""
        ...

    def events(self, conversation: Conversation, turn: Turn, usage: TokenUsage) -> Iterator[bytes]:
        """A turn as a stream of server-sent events."""
        ...

    def error(self, status: int, message: str) -> Fault:
        """An error in the protocol's form."""
        ...
