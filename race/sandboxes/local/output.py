"""What is kept of a command's output when it prints more than anybody wants to hold."""

from __future__ import annotations


class Output:
    """The head and the tail of a stream of bytes, in memory proportional to the limit.

    Args:
        limit: bytes to keep, half of them from the head.
    """

    def __init__(self, limit: int) -> None:
        self._room = max(limit, 0) - max(limit, 0) // 2
        self._keep = max(limit, 0) // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """How many bytes there were."""

    def add(self, data: bytes) -> None:
        """Take in the next bytes."""
        self.total += len(data)
        room = self._room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail += data
        if len(self._tail) > 2 * self._keep + (1 << 16):
            del self._tail[: len(self._tail) - self._keep]

    def kept(self) -> bytes:
        """All of it, or the head and the tail with a line between them that says how much was cut."""
        cut = self.total - len(self._head) - min(len(self._tail), self._keep)
        if cut <= 0:
            return bytes(self._head + self._tail)
        tail = self._tail[len(self._tail) - self._keep :]
        return bytes(self._head) + b"\n... [%d bytes cut] ...\n" % cut + bytes(tail)
