"""Model servers as the gateway reaches them: where they are, and how they want their key."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from race.errors import MachineError, SpecError

KeyStyle: TypeAlias = Literal["bearer", "x-api-key", "x-goog-api-key"]
"""The header that carries the key."""

SHORTEST_SECRET = 8
"""What is shorter ("none", "EMPTY") is no secret, and masking it would mangle ordinary words."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A model server.

    Attributes:
        base_url: with the version: ``https://api.openai.com/v1``.
        key_env: the environment variable that holds the key; empty for a server that needs none.
        style: how the key is sent.
    """

    base_url: str
    key_env: str = ""
    style: KeyStyle = "bearer"

    def check(self) -> None:
        """See that it is an address, and that the key is there.

        Raises:
            SpecError: ``base_url`` is no address.
            MachineError: the environment lacks the key.
        """
        try:
            server = urlsplit(self.base_url)
            known = server.scheme in {"http", "https"} and server.hostname and server.port != 0
        except ValueError:  # brackets that are not closed, a port that is no number
            known = False
        if not known:
            raise SpecError(f"base_url {self.base_url!r} is no http(s) address")
        self.key()

    def key(self) -> str:
        """The key itself; nothing if the server needs none.

        Raises:
            MachineError: the environment lacks it.
        """
        if not self.key_env:
            return ""
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise MachineError(
                f"the API key is taken from the environment variable {self.key_env}, which is not set; "
                'set it, name another with api_key_env, or say api_key_env = "" if the server needs no key'
            )
        if not (key.isascii() and key.isprintable()):
            raise MachineError(
                f"the environment variable {self.key_env} holds characters that no API key has"
            )
        return key

    def key_header(self, key: str) -> list[tuple[bytes, bytes]]:
        """The header that carries a key."""
        if not key:
            return []
        if self.style == "bearer":
            return [(b"authorization", f"Bearer {key}".encode())]
        return [(self.style.encode(), key.encode())]
