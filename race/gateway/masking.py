"""Taking keys out of bytes that go to somebody who must not have them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from race.gateway.upstream import SHORTEST_SECRET

MASK = b"***"


class Mask:
    """Replaces secrets in a stream, also where one is cut between two pieces.

    Pieces go on unchanged and at once, but for an end that could begin a secret, which waits for the next.

    Args:
        secrets: what must not pass; those shorter than `SHORTEST_SECRET` are no secrets.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for s in secrets if len(s) >= SHORTEST_SECRET for form in _forms(s)}
        self._forms = sorted(forms, key=len, reverse=True)
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """What may go on after this piece."""
        if not self._forms:
            return piece
        data = self.whole(self._held + piece)
        keep = max((_overlap(data, form) for form in self._forms), default=0)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def end(self) -> bytes:
        """What was held back and is no secret after all."""
        held, self._held = self._held, b""
        return held

    def whole(self, data: bytes) -> bytes:
        """The same bytes without the secrets."""
        for form in self._forms:
            data = data.replace(form, MASK)
        return data

    def text(self, text: str) -> str:
        """The same text without the secrets."""
        return self.whole(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def _forms(secret: str) -> set[bytes]:
    """How a secret may be written: as it is, and in JSON with slashes escaped or not."""
    inside = json.dumps(secret)[1:-1]
    return {form.encode() for form in (secret, inside, inside.replace("/", "\\/"))}


def _overlap(data: bytes, form: bytes) -> int:
    """How many bytes at the end of ``data`` are the beginning of ``form``."""
    for length in range(min(len(data), len(form) - 1), 0, -1):
        if data.endswith(form[:length]):
            return length
    return 0
