"""What a scripted model says: scripts as data, and which one a model's name stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from race.testing.http_server import How

_JSON: Mapping[str, str] = MappingProxyType({"Content-Type": "application/json"})


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, written out.

    Attributes:
        name: of the tool.
        arguments: the text that stands for them on the wire, right or wrong.
    """

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the model.

    Attributes:
        text: what it says.
        calls: the tools that it calls; a text is a command for the shell tool that the request offers.
        finish: the reason for its end; None for the one that goes with the calls.
        refusal: why it declines.
        output_tokens: how many it claims to have written; None for an estimate.
    """

    text: str | None = None
    calls: tuple[str | Call, ...] = ()
    finish: str | None = None
    refusal: str | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """An answer that is no turn.

    Attributes:
        status: of the answer.
        body: its content.
        headers: its headers, on top of the usual ones.
        how: see `race.testing.http_server.Response`.
    """

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: dict(_JSON))
    how: How = "answer"


Item: TypeAlias = str | Turn | Fault
"""One entry of a script; a text is a shell command."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a model says in a conversation, turn by turn.

    Attributes:
        commands: in order. A `Fault` is repeated for as long as the conversation does not grow.
        final: what it says then: a text, or any other turn or fault.
        repeat: begin again instead of coming to the final turn.
        delay: seconds before every answer.
    """

    commands: tuple[Item, ...] = ()
    final: Item = "Done."
    repeat: bool = False
    delay: float = 0.0

    def at(self, step: int) -> Turn | Fault:
        """The turn after ``step`` others."""
        if self.repeat and self.commands:
            step %= len(self.commands)
        if step >= len(self.commands):
            return Turn(text=self.final) if isinstance(self.final, str) else self.final
        item = self.commands[step]
        return Turn(calls=(item,)) if isinstance(item, str) else item


def error(status: int, message: str, kind: str, code: str | None = None, **headers: str) -> Fault:
    """An error as a server reports it.

    Args:
        status: of the answer.
        message: for people.
        kind: the error's ``type``.
        code: the error's ``code``.
        headers: more headers; an underscore stands for a hyphen.
    """
    body = json.dumps({"error": {"message": message, "type": kind, "code": code, "param": None}})
    more = {k.replace("_", "-"): v for k, v in headers.items()}
    return Fault(status, body, {"Content-Type": "application/json", **more})


_SIEVE = """cat > primes.py <<'END'
def count_primes(n):
    \"\"\"How many primes are less than n.\"\"\"
    if n < 3:
        return 0
    # Entry i stands for the odd number 2 * i + 1, and entry 0, in place of 1, for the prime 2.
    odd = bytearray(b"\\x01") * (n // 2)
    for i in range(1, int((n - 1) ** 0.5) // 2 + 1):
        if odd[i]:
            step = 2 * i + 1
            start = 2 * i * (i + 1)
            odd[start::step] = bytes(len(range(start, len(odd), step)))
    return odd.count(1)
END"""

_RECOVERED = "The call went wrong, so I did it another way."

SCRIPTS: Mapping[str, Script] = MappingProxyType(
    {
        "sieve": Script(
            ("cat primes.py", _SIEVE, "python3 -c 'import primes; print(primes.count_primes(100))'"),
            "I replaced the trial division by a sieve over the odd numbers.",
        ),
        "noop": Script((), "There is nothing to do."),
        "touch": Script(("echo hello > hello.txt", "cat hello.txt"), "I wrote hello.txt."),
        "slow": Script(("echo one", "echo two"), "I took my time.", delay=1.0),
        "err-badargs": Script((Turn(calls=(Call("bash", '{"command": "ls'),)), "echo again"), _RECOVERED),
        "err-args-not-object": Script(
            (
                Turn(calls=tuple(Call("bash", a) for a in ("null", "[]", '"ls"', '{"command": 5}'))),
                "echo again",
            ),
            _RECOVERED,
        ),
        "err-notool": Script((Turn(calls=(Call("no_such_tool", '{"x": 1}'),)), "echo again"), _RECOVERED),
        "err-nul": Script(
            (Turn(calls=(Call("bash", '{"command": "echo a\\u0000b"}'),)), "echo again"), _RECOVERED
        ),
        "err-surrogate": Script(
            (Turn("half a \ud83d smile", ("echo '\ud83d'; touch $'a\\xff.txt'; ls",)),),
            "the other \ude00 half",
        ),
        "err-truncated": Script((Turn(calls=("touch truncated.txt",), finish="length"),), repeat=True),
        "err-relabelled": Script((Turn(calls=("touch cut.txt",), output_tokens=1 << 20),), repeat=True),
        "err-loop": Script(("echo once more",), repeat=True),
        "err-refusal": Script(final=Turn(refusal="I cannot help with that.")),
        "err-filter": Script(final=Turn(finish="content_filter")),
        "err-nocall": Script((Turn(finish="tool_calls"),), repeat=True),
        "err-empty-turn": Script((Turn(),), repeat=True),
        "err-nofinish": Script((Turn(calls=("touch unfinished.txt",), finish=""),), repeat=True),
    }
)
"""Scripts that every scripted model knows: some that work, and turns that are not as they should be."""

FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "err-429": error(429, "slow down", "rate_limit_error", "rate_limit_exceeded", Retry_After="0"),
        "err-quota": error(429, "you have no credit", "insufficient_quota", "insufficient_quota"),
        "err-500": error(500, "something broke", "server_error"),
        "err-400": error(400, "the request is wrong", "invalid_request_error"),
        "err-context": error(400, "too many tokens", "invalid_request_error", "context_length_exceeded"),
        "err-401": error(401, "wrong API key", "authentication_error", "invalid_api_key"),
        "err-hang": Fault(how="hang"),
        "err-stall": Fault(how="stall"),
        "err-reset": Fault(how="reset"),
        "err-notjson": Fault(body="<html>gateway error</html>", headers={"Content-Type": "text/html"}),
        "err-empty": Fault(),
        "err-choices-null": Fault(
            body='{"choices": null, "error": {"message": "quota of the gateway is used up"}}'
        ),
        "err-error-in-200": Fault(
            body='{"error": {"message": "the model behind the gateway is down", "code": 502}}'
        ),
        "err-message-null": Fault(body='{"choices": [{"message": null, "finish_reason": "stop"}]}'),
    }
)
"""Answers that are no turns, by the name of the model that gives them at every call."""


class Repertoire:
    """All that a scripted model can play.

    A name with slashes, ``provider/name``, stands for what follows the last one. Besides the names of scripts
    and faults, ``flaky:N:NAME`` turns away the first N calls of a conversation with status 429 and then plays
    NAME, and ``slow:SECONDS:NAME`` plays NAME with a wait before every answer.

    Args:
        scripts: on top of the built-in ones.
        retry_after: seconds that a call which is turned away is told to wait.
    """

    def __init__(self, scripts: Mapping[str, Script] | None = None, retry_after: float = 0.0) -> None:
        turned_away = FAULTS["err-429"]
        headers = {**turned_away.headers, "Retry-After": f"{retry_after:g}"}
        self._turned_away = replace(turned_away, headers=headers)
        faults = {**FAULTS, "err-429": self._turned_away}
        self._scripts = {**{n: Script(final=f) for n, f in faults.items()}, **SCRIPTS, **(scripts or {})}

    @property
    def names(self) -> list[str]:
        """The names without parameters, sorted."""
        return sorted(self._scripts)

    def play(self, model: str, step: int, calls: int) -> tuple[Turn | Fault, float]:
        """What the model answers, and how many seconds later.

        Args:
            model: its name.
            step: turns that it has had in the conversation.
            calls: calls that the conversation has seen, this one included.
        """
        name = model if model in self._scripts else model.rpartition("/")[2]
        kind, *rest = name.split(":", 2)
        if len(rest) == 2 and _is_number(rest[0]):  # noqa: PLR2004 - a number and a name
            if kind == "flaky" and calls <= float(rest[0]):
                return self._turned_away, 0.0
            if kind == "flaky":
                return self.play(rest[1], step, calls)
            if kind == "slow":
                return self.play(rest[1], step, calls)[0], float(rest[0])
        script = self._scripts.get(name)
        if script is None:
            known = ", ".join(self.names)
            text = f"there is no model {model!r}; there are {known}, flaky:N:NAME and slow:SECONDS:NAME"
            return error(404, text, "invalid_request_error", "model_not_found"), 0.0
        return script.at(step), script.delay


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
