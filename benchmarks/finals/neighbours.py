"""Busy programs beside what is measured."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def neighbours(count: int, *, frozen: bool = False) -> Iterator[None]:
    """That many endless loops; frozen ones are there and do nothing, as agents when the finals begin."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        for process in busy if frozen else ():
            process.send_signal(signal.SIGSTOP)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
