"""Runs one command of a sandbox: the process between the orchestrator and the command, which outlives either.

It is the reaper of all that the command starts, and so can end it: when its time is up, when the orchestrator is gone
or says so, or when the sandbox is stopped. What the command leaves running goes on below it, and what that prints is
read and thrown away. It ends when nothing is left. Whoever looks for it finds its process number in a file below the
sandbox's folder, and a lock on that file for as long as it lives.

The orchestrator's request is a line of JSON on a socket; the answer is another.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from typing import Any

from race.sandboxes.copy import descendants, landlock
from race.sandboxes.local import syscalls

_LONGEST_ARGUMENT = 120_000
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_STREAMS, _DRAINS = (0, 1, 2), (4, 5)
_PIECE = 1 << 16
_REAPING = 2.0
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def main(control: int) -> None:
    """Run the command that is asked for on ``control``, and stay for what it leaves. Streams are 0, 1 and 2; 4 and 5
    are the other ends of what it prints to.
    """
    if os.fork():  # whoever started this waits for no more than that
        os._exit(0)
    os.setsid()
    connection = socket.socket(fileno=control)
    asked = _line(connection)
    drains = _DRAINS[: asked["drains"]]
    for descriptor in (control, *drains):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the library's signature
    _Runner(connection, asked, drains).run()


def _line(connection: socket.socket) -> Any:
    received = b""
    while not received.endswith(b"\n"):
        piece = connection.recv(_PIECE)
        if not piece:
            os._exit(1)  # the orchestrator is gone before it asked
        received += piece
    return json.loads(received)


def _wake_up(_number: int, _frame: object) -> None:
    """Let the signal interrupt the wait; without a handler it would be ignored."""


class _Runner:
    def __init__(self, connection: socket.socket, asked: Any, drains: tuple[int, ...]) -> None:
        self._connection: socket.socket | None = connection
        self._asked = asked
        self._command = 0
        self._reported = False
        self._to_drain = drains
        self._drains: set[int] = set()
        self._cpu, self._rss, self._delay = 0.0, 0, 0.0
        self._deadline: float | None = None

    def run(self) -> None:
        if sys.platform == "linux":
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._wake, writer = os.pipe()
        for end in (self._wake, writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        mark = self._marked()
        try:
            self._start()
            self._serve()
        finally:
            os.unlink(mark)

    def _marked(self) -> str:
        """Make the file by which the sandbox finds this process, and say that it is there."""
        path = os.path.join(self._asked["runners"], str(os.getpid()))
        fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
        self._say({"started": True})
        return path

    def _say(self, message: dict[str, object]) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.sendall(json.dumps(message).encode() + b"\n")

    # The command

    def _start(self) -> None:
        timeout = self._asked["timeout"]
        try:
            self._command = self._spawned()
        except FileNotFoundError as e:
            if e.filename == self._asked["cwd"]:
                self._refuse(e)
            else:
                self._failed(f"{e.filename}: not found", _NOT_FOUND)
        except OSError as e:
            if e.errno in (errno.E2BIG, errno.ENOTDIR) or e.filename == self._asked["cwd"]:
                self._refuse(e)
            else:
                self._failed(f"{e.filename}: {e.strerror}", _NOT_EXECUTABLE)
        except subprocess.SubprocessError as e:
            self._say({"error": f"the command cannot be confined: {e}"})
            self._reported = True
        if timeout is not None:
            self._deadline = time.monotonic() + timeout
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in _STREAMS:
            os.dup2(nothing, stream)
        os.close(nothing)

    def _refuse(self, error: OSError) -> None:
        self._say({"error": f"the command cannot be started: {error.strerror}: {error.filename!r}"})
        self._reported = True

    def _failed(self, text: str, status: int) -> None:
        os.write(2, f"{text}\n".encode("utf-8", "surrogateescape"))
        self._report(status << 8)

    def _spawned(self) -> int:
        asked, env = self._asked, self._asked["env"]
        argv: list[str] = asked["argv"] or []
        held = -1
        if asked["script"] is not None:
            shell = shutil.which("bash", path=env.get("PATH"))
            options = ["--noprofile", "--norc"] if shell else []
            argv = [shell or "/bin/sh", *options, "-c", asked["script"]]
            encoded = os.fsencode(asked["script"])
            if len(encoded) > _LONGEST_ARGUMENT:
                with tempfile.TemporaryFile(dir=env["TMPDIR"]) as file:
                    file.write(encoded)
                    file.flush()
                    held = os.dup(file.fileno())
                os.lseek(held, 0, os.SEEK_SET)
                argv[-1] = f". /dev/fd/{held}"
        if not os.path.isdir(asked["cwd"]):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), asked["cwd"])
        try:
            return self._opened(argv, env, held)
        except OSError as e:
            found = shutil.which(argv[0], path=env.get("PATH"))
            if e.errno != errno.ENOEXEC or found is None:
                raise
            # A script without a first line that names its interpreter, which shells run themselves.
            return self._opened(["/bin/sh", found, *argv[1:]], env, held)
        finally:
            if held >= 0:
                os.close(held)

    def _opened(self, argv: list[str], env: dict[str, str], held: int) -> int:
        process = subprocess.Popen(  # noqa: S603 - it is what was asked for
            argv,
            cwd=self._asked["cwd"],
            env=env,
            pass_fds=[held] if held >= 0 else [],
            start_new_session=True,
            preexec_fn=self._confine,  # noqa: PLW1509 - this process has one thread
        )
        process.returncode = 0  # it is waited for elsewhere
        return process.pid

    def _confine(self) -> None:
        """In the child, before the command: it has the terminal, and may write below its folder only."""
        signal.set_wakeup_fd(-1)
        if self._asked["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        landlock.confine(self._asked["root"])

    # What happens while it runs, and after

    def _serve(self) -> None:
        while True:
            alone = not self._reap()
            if self._reported and alone and self._connection is None:
                return
            watched = [self._wake, *self._drains]
            if self._connection is not None:
                watched.append(self._connection.fileno())
            left = None
            if self._deadline is not None and not self._reported:
                left = max(0.0, self._deadline - time.monotonic())
            ready, _, _ = select.select(watched, [], [], left)
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, _PIECE)
            for drain in self._drains & set(ready):
                self._drain(drain)
            if self._connection is not None and self._connection.fileno() in ready:
                self._hear(self._connection)
            if not self._reported and self._deadline is not None and time.monotonic() >= self._deadline:
                self._end(timed_out=True)

    def _hear(self, connection: socket.socket) -> None:
        """The orchestrator wants the command to end, or needs nothing more."""
        try:
            said = connection.recv(_PIECE)
        except OSError:
            said = b""
        if not self._reported:
            self._end(timed_out=False)
        if not said:
            connection.close()
            self._connection = None
            for drain in self._to_drain:
                os.set_blocking(drain, False)
                self._drains.add(drain)

    def _drain(self, drain: int) -> None:
        try:
            if os.read(drain, _PIECE):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._drains.discard(drain)
        os.close(drain)

    def _end(self, *, timed_out: bool) -> None:
        self._reported = True  # what the command's own end says is not told any more
        descendants.end({os.getpid()})
        last = time.monotonic() + _REAPING
        while self._reap() and time.monotonic() < last:
            time.sleep(0.001)
        self._reported = False
        self._report(signal.SIGKILL, timed_out=timed_out)

    def _reap(self) -> bool:
        """Take note of what has ended; false when there is nothing left."""
        while True:
            self._note_delay()
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._cpu += usage.ru_utime + usage.ru_stime
            self._rss = max(self._rss, usage.ru_maxrss * _MAXRSS_UNIT)
            if pid == self._command:
                self._command = 0
                self._report(status)

    def _note_delay(self) -> None:
        """How long the command waited for a processor, which is known for as long as it is not reaped."""
        if self._command:
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{self._command}/schedstat", "rb") as file,
            ):
                self._delay = int(file.read().split()[1]) / 1e9

    def _report(self, status: int, *, timed_out: bool = False) -> None:
        if self._reported:
            return
        self._reported = True
        self._say(
            {
                "status": status,
                "timed_out": timed_out,
                "cpu": self._cpu,
                "wait": self._delay,
                "max_rss": self._rss,
            }
        )
