"""Serve the built-in scripts: ``python -m race.testing --port 8080 [--log FILE]``."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path

from race.testing.model import ScriptedModel


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted or terminated."""
    parser = argparse.ArgumentParser(
        prog="python -m race.testing", description="Serve a scripted model on loopback."
    )
    parser.add_argument("--port", type=int, default=0, help="where to listen; the default takes a free port")
    parser.add_argument("--log", type=Path, help="append a line of JSON for every call to this file")
    parser.add_argument(
        "--lenient", action="store_true", help="do not refuse histories that are not well formed"
    )
    given = parser.parse_args(arguments)
    ends = {signal.SIGINT, signal.SIGTERM}
    # Blocked before there are threads, which inherit it: the signal waits until sigwait takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(given.log.open("a", encoding="utf-8")) if given.log else None
        server = stack.enter_context(ScriptedModel(port=given.port, strict=not given.lenient, log=log))
        sys.stdout.write(f"serving at {server.url}\nmodels: {', '.join(server.models)}\n")
        sys.stdout.flush()
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
