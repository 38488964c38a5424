"""Runs one command inside a sandbox: the process between PID 1 and the command.

It is the subreaper of everything that the command starts, so that nothing can leave the tree that a time-out
ends, and it accounts for what that used. It ends when the command does; what is still running then belongs
to PID 1.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import termios
from typing import TYPE_CHECKING, NamedTuple

from race.sandboxes.local import processes, syscalls, wire

if TYPE_CHECKING:
    from typing import Any

    from race.sandboxes.local.messages import Ended, ExecRequest, Failure

LONGEST_ARGUMENT = 120_000
"""Bytes of a script that go on the command line; the kernel's limit for one argument is 131,072."""

_OUT_OF_MEMORY_SCORE = 500
_TIOCGPTN = 0x80045430
_TIOCSPTLCK = 0x40045431
"""From asm-generic/ioctls.h, which x86_64 and aarch64 share; Python has no names for them."""
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_SCRIPT_DESCRIPTOR = 3


class Bounds(NamedTuple):
    """What commands may have at most.

    Attributes:
        processes: the number of processes of one user; None if it is not limited.
        files: the soft and the hard limit on open files.
        file_size: bytes of any one file that they make larger; None if that is not limited.
    """

    processes: int | None
    files: tuple[int, int]
    file_size: int | None = None


def get_ready() -> None:
    """What has to be done in each such process, whatever it will run."""
    os.setsid()
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    _go_first_when_memory_is_short()


def rehearse() -> None:
    """Do for nothing what `run` will do, so that it does it faster."""
    with contextlib.suppress(OSError):
        _found("sh", {})
    processes.run_delay(os.getpid())


def run(request: ExecRequest, descriptors: list[int], connection: socket.socket, bounds: Bounds) -> None:
    """Run the command and report on the connection, after `get_ready`. The caller must exit afterwards, whatever
    happens.

    Args:
        request: what to run.
        descriptors: standard input, output and error, not yet in their places.
        connection: where the answer goes.
        bounds: for the command.
    """
    spare, *streams = (syscalls.duplicate_above(each, 16) for each in (connection.fileno(), *descriptors))
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, place)
    os.dup2(spare, 3, inheritable=False)
    syscalls.close_from(4)
    answer = socket.socket(fileno=3)
    if bounds.processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (bounds.processes, bounds.processes))
    resource.setrlimit(resource.RLIMIT_NOFILE, bounds.files)
    if bounds.file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bounds.file_size, bounds.file_size))
    try:
        ended: Ended | Failure = _run(request, answer)
    except Exception as error:  # noqa: BLE001 - whoever asked has to be told, whatever it was
        ended = {"error": f"{type(error).__name__}: {error}"}
    wire.send(answer, ended)


def _go_first_when_memory_is_short() -> None:
    """Commands are the first to go when the whole machine runs out of memory; PID 1 is not."""
    # As long as this process may not be looked into, the file belongs to the host's root.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
        file.write(b"%d" % _OUT_OF_MEMORY_SCORE)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)


def _run(request: ExecRequest, answer: socket.socket) -> Ended | Failure:
    environment = {os.fsencode(key): os.fsencode(value) for key, value in request["env"].items()}
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        return {"error": f"the working directory {request['cwd']!r} cannot be used: {error.strerror}"}
    try:
        slave = _terminal(request["terminal"], answer) if request["terminal"] else None
        command = _spawn(request, environment, slave)
    except FileNotFoundError as error:
        return _refused(f"{error.filename}: not found", _NOT_FOUND)
    except OSError as error:
        if error.errno == errno.E2BIG:
            return {"error": f"the command cannot be started: {error.strerror}"}
        return _refused(f"{error.filename}: {error.strerror}", _NOT_EXECUTABLE)
    if request["named"]:
        wire.send(answer, {"done": True})
    return _wait(command)


def _refused(text: str, status: int) -> Ended:
    os.write(2, f"{text}\n".encode("utf-8", "surrogateescape"))
    return {"status": status << 8, "timed_out": False, "cpu": 0.0, "wait": 0.0, "max_rss": 0}


def _terminal(size: list[int], answer: socket.socket) -> str:
    """Make a terminal, give its other side to the orchestrator, and return its path.

    The child opens it as the leader of a new session, which makes it the controlling one (tty_ioctl(4)).
    """
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    (number,) = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", size[0], size[1], 0, 0))
    wire.send(answer, {"done": True}, [master])
    os.close(master)
    return f"/dev/pts/{number}"


def _spawn(request: ExecRequest, environment: dict[bytes, bytes], terminal: str | None) -> int:
    script = request["script"]
    actions: list[tuple[Any, ...]] = []
    if terminal is not None:
        actions.append((os.POSIX_SPAWN_OPEN, 0, terminal, os.O_RDWR, 0))
        actions.extend((os.POSIX_SPAWN_DUP2, 0, place) for place in (1, 2))
    if script is None:
        argv = request["argv"] or []
    else:
        shell = _shell(environment)
        argv = [*shell, "-c", script]
        encoded = os.fsencode(script)
        if len(encoded) > LONGEST_ARGUMENT:
            argv[-1] = f". /proc/self/fd/{_SCRIPT_DESCRIPTOR}"
            held = wire.held(b"exec 3<&-; " + encoded)
            actions.append((os.POSIX_SPAWN_DUP2, held, _SCRIPT_DESCRIPTOR))
    program = _found(argv[0], environment)
    try:
        return _started(program, argv, environment, actions)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without a first line that names its interpreter, which shells run themselves.
        return _started("/bin/sh", ["sh", program, *argv[1:]], environment, actions)


def _started(
    program: str, argv: list[str], environment: dict[bytes, bytes], actions: list[tuple[Any, ...]]
) -> int:
    return os.posix_spawn(
        program,
        argv,
        environment,
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=_IGNORED_BY_PYTHON,
    )


def _shell(environment: dict[bytes, bytes]) -> list[str]:
    try:
        return [_found("bash", environment), "--noprofile", "--norc"]
    except OSError:
        return [_found("sh", environment)]


def _found(name: str, environment: dict[bytes, bytes]) -> str:
    """The program that ``name`` means with the command's own PATH.

    Raises:
        OSError: there is none, or none that may be executed.
    """
    if "/" in name:
        if not os.path.exists(name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return name
    path = os.fsdecode(environment.get(b"PATH", _STANDARD_PATH.encode()))
    blocked = False
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            blocked = True
    if blocked:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _wait(command: int) -> Ended:
    """Reap everything until the command itself has ended."""
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for place in range(3):
        os.dup2(nothing, place)
    cpu, delay, max_rss = 0.0, 0.0, 0
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is None:
            continue
        if ended.si_pid == command:
            delay = processes.run_delay(command)
        _, status, usage = os.wait4(ended.si_pid, 0)
        cpu += usage.ru_utime + usage.ru_stime
        max_rss = max(max_rss, usage.ru_maxrss * 1024)
        if ended.si_pid == command:
            return {"status": status, "timed_out": False, "cpu": cpu, "wait": delay, "max_rss": max_rss}
