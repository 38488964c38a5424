"""What a child of PID 1 does for the orchestrator: run a command, or move files, and say how that went."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from typing import TYPE_CHECKING

from race.sandboxes.local import shim, transfer, wire

if TYPE_CHECKING:
    from typing import NoReturn

    from race.sandboxes.local.messages import WorkRequest

BROKEN = 70
"""How a child exits that could not do its work nor say so (EX_SOFTWARE of sysexits(3))."""
DISK_FULL = "the disk space that it may use is used up"


def get_ready() -> None:
    """What can be done before it is known what is to be done."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    shim.get_ready()


def work(asked: WorkRequest, descriptors: list[int]) -> NoReturn:
    """Do what was asked for, answer on the connection, and exit.

    Args:
        asked: by PID 1.
        descriptors: the connection, ``/dev/null``, and those that came with the request.
    """
    status = BROKEN
    number, null, *given = descriptors
    message = asked["request"]
    connection = socket.socket(fileno=number)
    try:
        if message["do"] == "exec":
            streams = [null] * 3
            if not message["terminal"]:
                outputs = 1 if message["merged"] else 2
                streams = [given[-1] if message["has_input"] else null, given[0], given[outputs - 1]]
            soft, hard = asked["files"]
            shim.run(
                message,
                streams,
                connection,
                shim.Bounds(asked["processes"], (soft, hard), asked["file_size"]),
            )
        elif message["do"] == "put" and asked["is_full"]:
            wire.send(connection, {"error": DISK_FULL})
        else:
            if asked["file_size"] is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (asked["file_size"], asked["file_size"]))
            act = transfer.put if message["do"] == "put" else transfer.take
            wire.send(connection, act(given[0], message["path"]))
        status = 0
    except BaseException as error:  # noqa: BLE001 - whoever asked has to be told, whatever it was
        with contextlib.suppress(OSError):
            wire.send(connection, {"error": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(status)
