"""What a child of PID 1 does that moves files for the orchestrator, and says how that went."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from typing import TYPE_CHECKING

from race.sandboxes.local import syscalls, transfer, wire
from race.sandboxes.local.launch import BROKEN

if TYPE_CHECKING:
    import socket
    from typing import NoReturn

    from race.sandboxes.local.messages import TransferRequest

DISK_FULL = "the disk space that it may use is used up"


def work(request: TransferRequest, pipe: int, connection: socket.socket, file_size: int | None) -> NoReturn:
    """Move files, answer on the connection, and exit.

    Args:
        request: what to move.
        pipe: the descriptor that came with it.
        connection: where it was asked for.
        file_size: bytes of any one file that may be made larger; None if that is not limited.
    """
    status = BROKEN
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
        act = transfer.put if request["do"] == "put" else transfer.take
        wire.send(connection, act(pipe, request["path"]))
        status = 0
    except BaseException as error:  # noqa: BLE001 - whoever asked has to be told, whatever it was
        with contextlib.suppress(OSError):
            wire.send(connection, {"error": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(status)
