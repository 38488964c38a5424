"""Model calls over the chat.completions protocol, or that of responses, for agents and judges: values in, values out.

Nearly every gateway speaks this protocol, and each speaks it a little differently. So that one server's
habits are not sent to the next, messages are values of this module, and what goes over the wire is made from
them: plain fields, content that is neither null nor empty, arguments that are valid JSON.

Of the ``openai`` package (3.57) only the transport is used. Its parsing hands back a plain string for an
answer that is not JSON, and lets a ``JSONDecodeError`` through for an empty one; `race.replies` reads the
bytes. Its time-out is per read, so a server that trickles keeps it waiting for ever; a deadline around the
whole call does not. Its retries are off, as they would multiply with those made here.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self, cast

import anyio
from pydantic import JsonValue

from race.bash import encodable
from race.errors import LimitReached, ModelError
from race.gateway.masking import Mask
from race.replies import TOO_LONG, CallFailed, Reply, ToolCall, read_failure, read_reply
from race.responses import fields, items, read_response

if TYPE_CHECKING:
    from types import TracebackType

    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionMessageParam

PUBLIC_URL = "https://api.openai.com/v1"
"""Where a call goes if neither the race file nor the environment says so."""

LONGEST_WAIT = 60.0
"""Seconds that the wait before a repeated call grows to, unless the server asks for more."""

_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: who says it.
        text: what is said. Where that is nothing, a word stands in, because some servers refuse empty
            content.
        calls: of the assistant: the tools to be called.
        answers: of a tool: the `ToolCall.id` whose result this is.
        carried: of the assistant: `Reply.carried`.
    """

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: Sequence[ToolCall] = ()
    answers: str = ""
    carried: Sequence[JsonValue] = ()

    def wire(self) -> dict[str, JsonValue]:
        """The message as it is sent, with nothing in it that the protocol does not name."""
        # A command may print NUL bytes, which some servers refuse in a text.
        text = self.text.replace("\0", "\N{REPLACEMENT CHARACTER}")
        sent: dict[str, JsonValue] = {"role": self.role, "content": text if text.strip() else "(empty)"}
        if self.calls:
            sent["tool_calls"] = [_wire_call(c) for c in self.calls]
        if self.answers:
            sent["tool_call_id"] = self.answers
        return sent


class ConversationTooLong(LimitReached):
    """The conversation has outgrown the model's window. One that is cut may go on."""


class Chat:
    """A way to one model: ``async with Chat(...) as chat: reply = await chat.ask(messages)``.

    Args:
        model: its name, as the server knows it.
        base_url: of the server, with the version: ``https://api.openai.com/v1``.
        api_key: sent as a bearer token, and masked in all that goes in and comes out; empty if none is
            needed.
        secrets: more that is masked.
        request_timeout: seconds for one call, from connecting to the last byte of the answer.
        max_retries: how many failed calls in a row are repeated.
        retry_wait: seconds before the first repeat; doubled from one to the next, up to `LONGEST_WAIT`.
        rng: spreads the waits, so that attempts which were turned away together do not come back together.
        on_retry: called with a sentence before every repeat.
        responses: speak the responses protocol instead.
    """

    def __init__(  # noqa: PLR0913 - each is one thing to be told
        self,
        *,
        model: str,
        base_url: str,
        api_key: str,
        request_timeout: float = 600.0,
        secrets: Sequence[str] = (),
        max_retries: int = 10,
        retry_wait: float = 1.0,
        rng: random.Random | None = None,
        on_retry: Callable[[str], None] | None = None,
        responses: bool = False,
    ) -> None:
        self._model = model
        self._base_url = base_url
        self._key = api_key
        self._mask = Mask([api_key, *secrets])
        self._timeout = request_timeout
        self._max_retries = max_retries
        self._retry_wait = retry_wait
        self._rng = rng or random.Random()  # noqa: S311 - it spreads waits
        self._on_retry = on_retry
        self._responses = responses
        self._client: AsyncOpenAI | None = None
        self._ids: set[str] = set()

    async def __aenter__(self) -> Self:
        """Make the client; nothing is sent yet."""
        # Importing the package takes most of a second, for which `race --help` is not to wait.
        from openai import AsyncOpenAI  # noqa: PLC0415 - it takes half a second, and most commands need none

        self._client = AsyncOpenAI(
            api_key=self._key or "none", base_url=self._base_url, timeout=self._timeout, max_retries=0
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection, also while being cancelled."""
        if self._client is not None:
            with anyio.CancelScope(shield=True):
                await self._client.close()

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        extra: Mapping[str, JsonValue] | None = None,
        deadline: float = float("inf"),
    ) -> Reply:
        """The model's next turn.

        A call that failed for a reason which may pass is repeated: a status of 408, 409, 425, 429 or 5xx, a
        broken connection, a time-out, an answer that cannot be read. ``Retry-After`` is honoured.

        Args:
            messages: the whole conversation.
            extra: more fields of the request, such as ``tools``.
            deadline: a time of ``anyio.current_time``; nothing is repeated that could only begin after it.

        Raises:
            ModelError: the call failed for good, or too often; the text is the server's.
            ConversationTooLong: the conversation has outgrown the model.
        """
        for failures in range(self._max_retries + 1):
            try:
                reply = await self._once(messages, extra or {})
            except CallFailed as failed:
                why = self._masked(f"model {self._model!r}: {failed}")
                if failed.code == TOO_LONG:
                    raise ConversationTooLong("budget", f"the conversation is too long: {why}") from None
                if not failed.again or failures == self._max_retries:
                    raise ModelError(f"{why} (after {failures + 1} calls)" if failures else why) from None
                wait = max(failed.wait, min(self._retry_wait * 2.0**failures, LONGEST_WAIT))
            else:
                return replace(reply, calls=tuple(self._identified(c) for c in reply.calls))
            wait *= 1 + self._rng.random() / 4
            left = max(deadline - anyio.current_time(), 0.0)
            if wait >= left:
                raise ModelError(
                    f"{why}; the next call would be in {wait:.0f} s, but only {left:.0f} s are left"
                )
            if self._on_retry is not None:
                self._on_retry(f"{why}; called again after {wait:.1f} s")
            await anyio.sleep(wait)
        raise AssertionError("the last round returns or raises")

    def recall(self, calls: Iterable[ToolCall]) -> None:
        """Take note of earlier calls of this conversation, so that none of their ids is given out again."""
        self._ids.update(call.id for call in calls)

    async def _once(self, messages: Sequence[Message], extra: Mapping[str, JsonValue]) -> Reply:
        import openai  # noqa: PLC0415 - likewise

        if self._client is None:
            raise RuntimeError("a Chat is used inside 'async with'")
        # Through JSON and back, because a text that is no UTF-8 and the key may hide anywhere in it.
        said = items(messages) if self._responses else [m.wire() for m in messages]
        sent = json.loads(self._masked(encodable(json.dumps(said, ensure_ascii=False))))
        try:
            with anyio.fail_after(self._timeout):
                if self._responses:
                    response = await self._client.responses.with_raw_response.create(
                        model=self._model, input=sent, store=False, extra_body=fields(extra)
                    )
                    return read_response(self._masked_bytes(response.content))
                answer = await self._client.chat.completions.with_raw_response.create(
                    model=self._model,
                    messages=cast("list[ChatCompletionMessageParam]", sent),
                    extra_body=extra,
                )
        except (TimeoutError, openai.APITimeoutError):
            raise CallFailed(f"no answer within {self._timeout:g} s") from None
        except openai.APIStatusError as error:
            body = self._masked_bytes(error.response.content)  # masked while whole: quoting cuts it
            raise read_failure(error.status_code, error.response.headers, body) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise CallFailed(f"the connection failed: {str(cause) or type(cause).__name__}") from None
        except openai.OpenAIError as error:
            raise CallFailed(f"{type(error).__name__}: {error}", again=False) from None
        return read_reply(self._masked_bytes(answer.content))

    def _identified(self, call: ToolCall) -> ToolCall:
        """The call with an id of its own, which servers leave out or repeat. Each call needs one answer."""
        identity = call.id
        while not _IDENTIFIER.fullmatch(identity) or identity in self._ids:
            identity = f"call{len(self._ids):05d}{self._rng.getrandbits(16):04x}"
        self._ids.add(identity)
        return replace(call, id=identity)

    def _masked_bytes(self, content: bytes) -> bytes:
        return self._masked(content.decode("utf-8", "replace")).encode()

    def _masked(self, text: str) -> str:
        return self._mask.text(text)


def _wire_call(call: ToolCall) -> JsonValue:
    name = call.name if _IDENTIFIER.fullmatch(call.name) else "unknown"
    arguments = json.dumps(call.arguments if call.arguments is not None else {})
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}
