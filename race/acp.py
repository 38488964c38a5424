"""The Agent Client Protocol (version 1), from the client's side: JSON-RPC over the streams of a program in a fork.

Only what a client without a screen needs: a session, a prompt, the updates that come of it, and leave for all that the
agent asks for, since the fork is its sandbox. The client offers no files and no terminals; the agent has its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import anyio

from race.agent_events import table, tables
from race.errors import AgentError
from race.program import Program

Update = Callable[[dict[str, Any]], None]
"""Takes an update of a session."""

_NO_SUCH_METHOD = -32601


class Connection:
    """A conversation with an agent that speaks the protocol.

    Args:
        running: the agent.
        on_update: called with every update.
    """

    def __init__(self, running: Program, on_update: Update) -> None:
        self._running = running
        self._on_update = on_update
        self._waiting: dict[int, tuple[anyio.Event, list[dict[str, Any]]]] = {}
        self._number = 0
        self._over = False

    async def listen(self) -> None:
        """Take what the agent says until it ends."""
        while (line := await self._running.line()) is not None:
            try:
                said: Any = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(said, dict):
                await self._heard(cast("dict[str, Any]", said))
        self._over = True
        for event, _ in self._waiting.values():
            event.set()

    async def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Ask the agent for something, and wait for its answer.

        Raises:
            AgentError: it refuses, or it has ended.
        """
        self._number += 1
        event, answers = anyio.Event(), list[dict[str, Any]]()
        self._waiting[self._number] = (event, answers)
        await self._say({"id": self._number, "method": method, "params": parameters})
        if not self._over:
            await event.wait()
        if not answers:
            raise AgentError(f"it ended while it was asked for {method!r}")
        if "error" in answers[0]:
            error = table(answers[0]["error"])
            detail = json.dumps(error["data"]) if error.get("data") else ""
            raise AgentError(f"{method}: {error.get('message')} {detail}"[:500].strip())
        return table(answers[0].get("result"))

    async def _heard(self, said: dict[str, Any]) -> None:
        number, method = said.get("id"), said.get("method")
        parameters = table(said.get("params"))
        if method is None:
            if number in self._waiting:
                event, answers = self._waiting.pop(number)
                answers.append(said)
                event.set()
        elif method == "session/update":
            self._on_update(table(parameters.get("update")))
        elif method == "session/request_permission":
            await self._say({"id": number, "result": {"outcome": _allowed(parameters)}})
        elif number is not None:
            error = {"code": _NO_SUCH_METHOD, "message": f"this client has no {method}"}
            await self._say({"id": number, "error": error})

    async def _say(self, message: dict[str, Any]) -> None:
        await self._running.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def _allowed(parameters: dict[str, Any]) -> dict[str, Any]:
    options = tables(parameters.get("options"))
    for kind in ("allow_always", "allow_once"):
        for option in options:
            if option.get("kind") == kind:
                return {"outcome": "selected", "optionId": option.get("optionId")}
    return {"outcome": "cancelled"}
