"""One connection of an agent: its requests, one after the other, passed on and metered."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import h11

from race.agent import TokenUsage
from race.gateway.counting import Counted, StreamReader, counted
from race.gateway.exchanges import Exchange, ExchangeOutcome
from race.gateway.http1 import Accepted, Answer, Broken, Link
from race.gateway.pricing import Tokens, price
from race.gateway.protocols import Asked, Endpoint, asked, endpoint, error_body, fault, message_of
from race.replies import retry_after

if TYPE_CHECKING:
    from race.gateway.gateway import Line

_OK = 200
_ERROR = 400
_BUSY = 429
_BUSY_IF_SO_SAID = frozenset({503, 529})
_REFUSED = frozenset({401, 403})  # the key is wrong, which no other request mends
_NO_CREDIT = "insufficient_quota"
_LARGEST_ANSWER = 64 << 20
_QUOTED = 300
_JSON = [(b"content-type", b"application/json")]
_NOT_PASSED_ON = frozenset(
    {
        "authorization",
        "x-api-key",
        "x-goog-api-key",
        "host",
        "content-length",
        "connection",
        "accept-encoding",
    }
    | {
        "transfer-encoding",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "proxy-authorization",
        "expect",
        "cookie",
    }
)
_PASSED_BACK = (
    "content-type",
    "retry-after",
    "retry-after-ms",
    "request-id",
    "x-request-id",
    "x-should-retry",
)


@dataclass(slots=True)
class _Passing:
    """What is known of an exchange that is under way."""

    number: int
    where: Endpoint
    asked: Asked
    started: float
    began: float
    status: int = 0
    content_type: str = ""
    response: bytearray = field(default_factory=bytearray)
    outcome: ExchangeOutcome = "broken off"
    reason: str = ""
    counted: Counted | None = None
    tries: int = 0
    sent: float = 0.0
    first_byte: float = 0.0
    settled: bool = False

    def failed(self, reason: str) -> None:
        self.outcome = "failed"
        self.reason = reason


async def serve(connection: Accepted, line: Line) -> None:
    """Serve a connection until it ends. Never raises but for cancellation."""
    try:
        while (request := await connection.request()) is not None:
            if not await _respond(connection, line, *request):
                return
    except (Broken, h11.LocalProtocolError):
        return
    finally:
        connection.close()


async def _respond(connection: Accepted, line: Line, head: h11.Request, body: bytes) -> bool:
    """Answer one request. Returns whether the connection can take another."""
    target = head.target.decode("latin-1")
    where = endpoint(head.method.decode(), target)
    if where is None:
        text = error_body("chat", 404, "not_found_error", f"the gateway has nothing at {target[:200]}")
        return await connection.answer(404, text, _JSON)
    headers = {k.decode(): v.decode("latin-1") for k, v in head.headers}
    if not line.knows(headers, target):
        text = error_body(
            where.protocol, 401, "authentication_error", "this is not the token of this attempt"
        )
        return await connection.answer(401, text, _JSON)
    try:
        wanted = asked(where, body)
    except (ValueError, RecursionError) as e:
        text = error_body(where.protocol, 400, "invalid_request_error", f"the request cannot be read: {e}")
        return await connection.answer(400, text, _JSON)
    account = line.account
    passing = _Passing(account.number(), where, wanted, time.time(), time.monotonic())
    if why := account.admit(counts=where.counts, steps=line.counts_steps):
        passing.outcome, passing.reason, passing.status = "refused", why, 401
        _settle(line, passing)
        text = error_body(where.protocol, 401, "authentication_error", line.mask.text(why))
        return await connection.answer(401, text, _JSON)
    again = False

    async def watch() -> None:
        await connection.gone()
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            with anyio.move_on_after(line.gateway.timeouts.request) as timer:
                again = await _pass(connection, line, passing, headers)
            if timer.cancelled_caught:
                passing.failed(f"no whole answer within {line.gateway.timeouts.request:g} s")
                again = await _give_up(connection, line, passing, 504)
            group.cancel_scope.cancel()
    finally:
        _settle(line, passing)  # unless it was, before the last byte of the answer
    return again


async def _pass(connection: Accepted, line: Line, passing: _Passing, headers: dict[str, str]) -> bool:
    """Pass a request on, and what comes back."""
    if line.gateway.source is not None:
        return await _replay(connection, line, passing)
    server = urlsplit(line.upstream.base_url)
    sent = [
        (b"host", server.netloc.rpartition("@")[2].encode()),
        *((k.encode(), v.encode("latin-1")) for k, v in headers.items() if k not in _NOT_PASSED_ON),
        (b"accept-encoding", b"identity"),
        *line.upstream.key_header(line.key),
    ]
    while True:
        passing.tries += 1
        passing.sent = await line.limiter.start()
        link: Link | None = None
        try:
            link = await line.gateway.pool.get(server)
            with anyio.fail_after(line.gateway.timeouts.idle if passing.asked.stream else None):
                method = "GET" if passing.where.protocol == "models" else "POST"
                answer = await link.ask(
                    method, server.path.rstrip("/") + passing.where.path, sent, passing.asked.body
                )
            busy = answer.status == _BUSY or (
                answer.status in _BUSY_IF_SO_SAID and "retry-after" in answer.headers
            )
            if answer.status < _ERROR and _is_stream(answer):
                return await _stream(connection, line, passing, link, answer)
            content = await _whole(link)
            await line.gateway.pool.put(server, link)
            link = None
        except Broken as e:
            passing.failed(f"the connection failed: {e}")
            return await _give_up(connection, line, passing, 502)
        except TimeoutError:
            passing.failed(f"no answer within {line.gateway.timeouts.idle:g} s")
            return await _give_up(connection, line, passing, 504)
        finally:
            if link is not None:
                await link.aclose()
        if busy and _NO_CREDIT.encode() not in content and await _waited(line, passing, answer, content):
            continue
        return await _hand_back(connection, line, passing, answer, content)


async def _waited(line: Line, passing: _Passing, answer: Answer, content: bytes) -> bool:
    """Wait as a busy server asks; False if that would be too long."""
    asks = "retry-after" in answer.headers or "retry-after-ms" in answer.headers
    wait = line.limiter.turned_away(
        passing.sent, retry_after(answer.headers) if asks else None, passing.tries
    )
    left = min(line.account.left, line.gateway.timeouts.patience - (time.monotonic() - passing.began))
    if passing.tries > line.busy_retries or max(wait, line.limiter.wait) >= left:
        return False
    why = line.mask.text(_quoted(_decoded(content), content))
    line.account.recorder.say(
        f"[status {answer.status}: {why}; called again after {max(wait, line.limiter.wait):.1f} s]"
    )
    await anyio.sleep(wait)
    return True


async def _hand_back(
    connection: Accepted, line: Line, passing: _Passing, answer: Answer, content: bytes
) -> bool:
    """Hand back an answer that is there as a whole."""
    content = line.mask.whole(content)
    passing.first_byte = time.monotonic() - passing.began
    passing.response += content
    passing.status = answer.status
    passing.content_type = answer.headers.get("content-type", "")
    decoded = _decoded(content)
    passed_back = [
        (n.encode(), answer.headers[n].encode("latin-1")) for n in _PASSED_BACK if n in answer.headers
    ]
    if answer.status >= _ERROR:
        passing.failed(f"status {answer.status}: {_quoted(decoded, content)}")
        if answer.status == _BUSY:
            line.account.breaks(f"the model's server is busy or out of credit: {_quoted(decoded, content)}")
        elif answer.status in _REFUSED:
            line.account.breaks(line.mask.text(passing.reason))
        _settle(line, passing)
        return await connection.answer(answer.status, content, passed_back)
    line.limiter.served()
    passing.counted = counted(passing.where.protocol, decoded)
    wrong = fault(passing.where.protocol, decoded) if passing.where.counts else ""
    if wrong:
        passing.failed(wrong if decoded is not None else f"{wrong}: {_quoted(None, content)}")
        return await _give_up(connection, line, passing, 502)
    passing.outcome = "answered"
    _settle(line, passing)
    return await connection.answer(answer.status, content, passed_back)


async def _stream(connection: Accepted, line: Line, passing: _Passing, link: Link, answer: Answer) -> bool:
    """Pass a stream through, piece by piece, and read along. One that ends early is broken off, not ended."""
    reader, mask = StreamReader(passing.where.protocol), line.new_mask()
    passing.status = answer.status
    passing.content_type = answer.headers["content-type"]
    idle = line.gateway.timeouts.idle
    deadline = anyio.current_time() + idle
    begun = False
    while True:
        try:
            with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
                piece = await link.next()
        except (TimeoutError, Broken) as e:
            why = f"{e}" if isinstance(e, Broken) else f"nothing for {idle:g} s"
            passing.failed(f"the stream broke off: {why}")
            break
        if piece is None:
            break
        brought = reader.feed(piece)
        passing.counted = reader.counted
        if not begun and not brought:
            # Until there is content, a failure can still be told as one.
            passing.response += piece
            continue
        if brought:
            deadline = anyio.current_time() + idle
        if not begun:
            begun = True
            passing.first_byte = time.monotonic() - passing.began
            await connection.head(answer.status, [(b"content-type", passing.content_type.encode("latin-1"))])
            piece = bytes(passing.response) + piece
            passing.response.clear()
        safe = mask.feed(piece)
        passing.response += safe
        await connection.data(safe)
    if passing.outcome != "failed" and not reader.whole:
        passing.failed("the stream ended early" if begun else "the answer is an empty stream")
    if not begun:
        return await _give_up(connection, line, passing, 502)
    if passing.outcome == "failed":
        _settle(line, passing)
        connection.close(abruptly=True)
        return False
    line.limiter.served()
    passing.outcome = "answered"
    held = mask.end()
    passing.response += held
    _settle(line, passing)
    await connection.data(held)
    return await connection.end()


async def _give_up(connection: Accepted, line: Line, passing: _Passing, status: int) -> bool:
    """Tell the agent that the server failed, as it would tell it itself."""
    passing.status = status
    _settle(line, passing)
    kind = "timeout_error" if status == 504 else "api_error"  # noqa: PLR2004 - see RFC 9110
    text = error_body(passing.where.protocol, status, kind, line.mask.text(passing.reason))
    try:
        return await connection.answer(status, text, _JSON)
    except h11.LocalProtocolError:  # the answer has begun already
        connection.close(abruptly=True)
        return False


async def _replay(connection: Accepted, line: Line, passing: _Passing) -> bool:
    """Answer with what was recorded."""
    source = line.gateway.source
    found = source.find(line.account.name, passing.where, passing.asked) if source else None
    if found is None:
        why = f"the record of the race holds no answer to request {passing.number} of {line.account.name!r}"
        line.account.breaks(why)
        passing.failed(why)
        passing.status = 401
        text = error_body(passing.where.protocol, 401, "authentication_error", why)
        return await connection.answer(401, text, _JSON)
    passing.status, passing.content_type = found.status, found.content_type
    passing.outcome, passing.reason = found.outcome, found.reason
    passing.response += found.response
    if found.usage is not None:
        used = found.usage
        passing.counted = Counted(
            Tokens(used.input_tokens, used.output_tokens, used.cached_tokens), used.cost_usd
        )
    if found.outcome == "broken off":
        await anyio.sleep_forever()
    _settle(line, passing)
    return await connection.answer(
        found.status, found.response, [(b"content-type", (found.content_type or "application/json").encode())]
    )


def _settle(line: Line, passing: _Passing) -> None:
    """Count an exchange that has ended, and keep it. Before an agent has the last byte, its bill is right."""
    if passing.settled:
        return
    passing.settled = True
    where, wanted = passing.where, passing.asked
    usage: TokenUsage | None = None
    if where.counts and (passing.counted is not None or passing.outcome == "answered"):
        found = passing.counted or Counted(Tokens())
        tokens, cost = found.tokens, found.cost_usd
        if cost is None and passing.counted is not None and line.gateway.source is None:
            cost = price(wanted.model, tokens)
        usage = TokenUsage(tokens.read, tokens.written, tokens.cached, cost)
    mask = line.mask
    line.account.settle(
        Exchange(
            number=passing.number,
            attempt=line.account.name,
            protocol=where.protocol,
            path=where.path,
            model=mask.text(wanted.model),
            request=b"" if passing.outcome == "refused" else mask.whole(wanted.body),
            status=passing.status,
            content_type=passing.content_type,
            response=mask.whole(bytes(passing.response)),
            outcome=passing.outcome,
            reason=mask.text(passing.reason),
            usage=usage,
            tries=passing.tries,
            started=passing.started,
            first_byte=passing.first_byte,
            seconds=time.monotonic() - passing.began,
        ),
        counts=where.counts,
    )


async def _whole(link: Link) -> bytes:
    body = bytearray()
    while (piece := await link.next()) is not None:
        body += piece
        if len(body) > _LARGEST_ANSWER:
            raise Broken("the answer is too large")
    return bytes(body)


def _is_stream(answer: Answer) -> bool:
    return answer.headers.get("content-type", "").startswith("text/event-stream")


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _quoted(decoded: object, content: bytes) -> str:
    text = message_of(decoded) or content.decode("utf-8", "replace")
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return (text if len(text) <= _QUOTED else f"{text[:_QUOTED]}...") or "(an empty body)"
