"""A model that says what its script says, over real HTTP on loopback."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import IO, Any, Self, cast

import anyio
import anyio.to_thread

from race.agent import TokenUsage, add_usage
from race.testing.chat_completions import ChatCompletions
from race.testing.gemini import Gemini
from race.testing.http_server import HTTPServer, Response
from race.testing.messages import Messages
from race.testing.responses import Responses
from race.testing.script import Fault, Repertoire, Script, Turn, error
from race.testing.wire import Conversation, Wire

WIRES: tuple[Wire, ...] = (ChatCompletions(), Responses(), Messages(), Gemini())
"""The protocols spoken."""

_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Request:
    """A call that a scripted model got.

    Attributes:
        path: of the URL.
        headers: by name in lower case.
        body: as it came.
        model: the one asked for; empty if the body could not be read.
        status: of the answer; 0 if none is sent.
        problems: what a strict server refuses in it.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    model: str
    status: int
    problems: tuple[str, ...] = ()

    @property
    def json(self) -> dict[str, Any]:
        """The body, decoded."""
        return cast("dict[str, Any]", json.loads(self.body))


class ScriptedModel:
    """A model server for tests: ``async with ScriptedModel() as server: ... server.url``, or plain ``with``.

    The model's name in a request says what is played: see `race.testing.script.Repertoire`. Which turn of it
    follows from the request alone, so any number of conversations may go on at once. It listens on loopback
    only, and runs in threads, so that it serves asyncio, trio and other processes alike.

    Args:
        scripts: by the name of the model, on top of `race.testing.script.SCRIPTS`.
        port: to listen on; 0 takes a free one.
        strict: refuse with status 400 what a strict server refuses: see
            `race.testing.chat_completions.problems`.
        price: USD for a token read and for a token written, reported as ``usage.cost``; None reports no cost.
        retry_after: seconds that a call which is turned away is told to wait.
        log: gets a line of JSON for every call, without its headers.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script] | None = None,
        *,
        port: int = 0,
        strict: bool = True,
        price: tuple[float, float] | None = None,
        retry_after: float = 0.0,
        log: IO[str] | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self._repertoire = Repertoire(scripts, retry_after)
        self._port = port
        self._strict = strict
        self._price = price
        self._log = log
        self._usage: dict[str, TokenUsage] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._server: HTTPServer | None = None

    @property
    def url(self) -> str:
        """The base URL, with the version."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def models(self) -> list[str]:
        """The names it answers to, without those that have parameters."""
        return self._repertoire.names

    @property
    def usage(self) -> dict[str, TokenUsage]:
        """What all turns served have used, by model."""
        with self._lock:
            return dict(self._usage)

    def count(self, model: str) -> int:
        """How many calls asked for a model."""
        with self._lock:
            return sum(r.model == model for r in self.requests)

    def __enter__(self) -> Self:
        """Begin to serve."""
        self._server = HTTPServer(self._port, self._respond)
        self._port = self._server.port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Break off what is under way."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def __aenter__(self) -> Self:
        """Begin to serve."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Break off what is under way."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.__exit__, kind, error, trace)

    def _respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        if method == "GET" and path.endswith("/models"):
            listed = [{"id": m, "object": "model", "created": 0, "owned_by": "script"} for m in self.models]
            return Response(body=json.dumps({"object": "list", "data": listed}).encode(), headers=_JSON)
        request = Request(path, headers, body, model="", status=0)
        wire = next((w for w in WIRES if method == "POST" and w.matches(path.partition("?")[0])), None)
        if wire is None:
            return self._failed(
                request, error(404, f"there is nothing at {method} {path}", "not_found_error")
            )
        return self._call(wire, request)

    def _call(self, wire: Wire, request: Request) -> Response:
        try:
            conversation = wire.read(request.path.partition("?")[0], request.body)
        except ValueError as wrong:
            return self._failed(request, wire.error(400, f"this is no request: {wrong}"))
        request = replace(request, model=conversation.model, problems=conversation.problems)
        if self._strict and conversation.problems:
            return self._failed(request, wire.error(400, "; ".join(conversation.problems)))
        if conversation.only_count:
            self._take_down(replace(request, status=200))
            return Response(body=wire.answer(conversation, Turn(), TokenUsage()), headers=_JSON)
        said, delay = self._play(conversation)
        if isinstance(said, Fault):
            return self._failed(request, said, delay)
        self._take_down(replace(request, status=200))
        usage = self._used(wire, conversation, said)
        if conversation.stream:
            events = wire.events(conversation, said, usage)
            return Response(body=events, headers={"Content-Type": "text/event-stream"}, delay=delay)
        return Response(body=wire.answer(conversation, said, usage), headers=_JSON, delay=delay)

    def _failed(self, request: Request, fault: Fault, delay: float = 0.0) -> Response:
        self._take_down(replace(request, status=fault.status if fault.how == "answer" else 0))
        # A lone surrogate in a fault's text goes out as the bytes that a careless server makes of it.
        body = fault.body.encode("utf-8", "surrogatepass")
        return Response(fault.status, body, fault.headers, fault.how, delay)

    def _play(self, conversation: Conversation) -> tuple[Turn | Fault, float]:
        key = (conversation.model, conversation.start)
        with self._lock:
            self._calls[key] += 1
            calls = self._calls[key]
        return self._repertoire.play(conversation.model, conversation.step, calls)

    def _used(self, wire: Wire, conversation: Conversation, turn: Turn) -> TokenUsage:
        read, written = conversation.input_tokens, turn.output_tokens
        if written is None:
            written = wire.output_tokens(conversation, turn)
        cost = None if self._price is None else read * self._price[0] + written * self._price[1]
        usage = TokenUsage(read, written, conversation.cached_tokens, cost)
        with self._lock:
            before = self._usage.get(conversation.model)
            self._usage[conversation.model] = add_usage(before, usage) if before else usage
        return usage

    def _take_down(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            if self._log is not None:
                line = {
                    "path": request.path,
                    "model": request.model,
                    "status": request.status,
                    "problems": request.problems,
                    "body": request.body.decode("utf-8", "replace"),
                }
                self._log.write(json.dumps(line) + "\n")
                self._log.flush()
