"""What sandboxes are forked from, and how the first process of one gets from there to serving the orchestrator.

The way of a sandbox: the *template*, asked by the zygote, forks PID 1 with namespaces of its own. PID 1 forks a
*helper*, which mounts the file tree and ends, and meanwhile confines itself; then it says that it is ready, and sleeps.
With the first request it becomes the server of `race.sandboxes.local.pid1`. Until then it has carried out a list of
system calls and nothing else, so that a sandbox that nobody has used yet costs next to no memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from race.sandboxes.local import confine, file_tree, pid1, syscalls, wire
from race.sandboxes.local.guard import DiskGuard, Guard
from race.sandboxes.local.launch import Bounds
from race.sandboxes.local.lifetimes import Lifetime
from race.sandboxes.local.sequence import NEVER, Call, Ended, Memory, SystemCalls, number

if TYPE_CHECKING:
    from typing import NoReturn

    from race.sandboxes.local.messages import Failure, SpawnRequest

_SPARE_PROCESSES = 64
"""How many more processes PID 1 may have than its commands, so that it can still act when they use all
theirs."""
_LEAST_PID_MAX = 1024
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41

_NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)
_READY = b'={"done": true}'
"""As `wire` would send it."""
FIRST = 128
"""The first of the descriptors that the zygote leaves for a new PID 1; those below are its own."""
_LISTENER, _ANSWER, _MAPS, _GO, _GONE, _ASKED, _WATCHED = range(FIRST, FIRST + 7)
"""What they are, in their order: the socket of the sandbox, that of who asked for it, what tells that the ids
are mapped, the two ends of what tells that the helper is done, what was asked for, and the directories to watch."""
_QUIET = ("let in", "helped", "noted")
"""Where PID 1 just ends if what it waits for is gone: somebody else has said why."""
_CLONE_FS = 0x200
_CLONE_FILES = 0x400
_CLONE_PARENT_SETTID = 0x100000


class Kind(NamedTuple):
    """What sandboxes that are forked from the same template have in common."""

    shares_network: bool
    is_pinned: bool
    is_limited_in_time: bool


class Asked(TypedDict):
    """What a new PID 1 and its helper find in the file at `_ASKED`."""

    request: SpawnRequest
    found: dict[str, str]
    """Where each layer is found from the working directory."""
    watched: int
    """How many directories are watched."""


class Template:
    """A process that does nothing but fork, so that what is forked from it shares its memory.

    Whatever a process writes to is copied for those that were forked from it before, so the zygote itself, which is a
    Python program at work, would make each sandbox cost the memory that it goes through. This one carries out lists of
    system calls only. It shares the zygote's descriptors and working directory, and dies with it.

    Args:
        kind: of the sandboxes.
        root: whether the zygote is the host's root.
    """

    def __init__(self, kind: Kind, *, root: bool) -> None:
        memory = Memory()
        self._told_pid, self._anything = memory.put(bytes(8)), memory.put(bytes(8))
        self._polled = memory.put(struct.pack("ihh", _LISTENER, select.POLLIN, 0))
        self._memory = memory
        self._wait, self._ask = os.pipe2(os.O_CLOEXEC)
        self._told, self._tell = os.pipe2(os.O_CLOEXEC)
        self._calls = SystemCalls(self._all_calls(kind, root=root))
        zygote = os.getpid()
        # What both have open and where both are, they have in common.
        self._pid = syscalls.plainly(number("clone"), [_CLONE_FS | _CLONE_FILES | signal.SIGCHLD, 0, 0, 0, 0])
        if self._pid < 0:
            raise OSError(-self._pid, os.strerror(-self._pid), "clone")
        if self._pid == 0:
            self._stand_by(zygote)
        self._handle = os.pidfd_open(self._pid)

    def is_alive(self) -> bool:
        """Whether it can be asked."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Let go of what belongs to one that is not alive."""
        for each in (self._wait, self._ask, self._told, self._tell, self._handle):
            os.close(each)

    def fork(self) -> int:
        """Fork a PID 1 with namespaces of its own, and give its number.

        Raises:
            OSError: that is not possible.
        """
        os.write(self._ask, b"x")
        poll = select.poll()
        for each in (self._told, self._handle):
            poll.register(each, select.POLLIN)
        if self._told not in dict(poll.poll()):
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), "clone")
        (pid,) = struct.unpack("i", os.read(self._told, 4))
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid), "unshare")
        return int(pid)

    def _all_calls(self, kind: Kind, *, root: bool) -> list[Call]:
        told = self._told_pid
        flags = _NAMESPACES | (0 if kind.shares_network else syscalls.CLONE_NEWNET)
        return [
            Call("read", (self._wait, self._anything, 1), least=1, label="next"),
            # Its number is written to memory that the zygote sees too.
            Call("clone", (flags | _CLONE_PARENT_SETTID | signal.SIGCHLD, 0, told, 0, 0), label="clone"),
            Call("getpid", least=2, instead="pid 1"),  # that is the first one only in its own namespace
            Call("write", (self._tell, told, 4), least=4),
            Call("getpid", least=NEVER, instead="next"),
            *self._calls_of_pid1(kind, root=root),
        ]

    def _calls_of_pid1(self, kind: Kind, *, root: bool) -> list[Call]:
        anything = self._anything
        program = confine.system_call_filter(syscalls.MACHINE, pretend_owners=not root, pinned=kind.is_pinned)
        return [
            Call("close_range", (3, FIRST - 1, 0), label="pid 1"),
            Call("setsid"),
            Call("read", (_MAPS, anything, 1), least=1, label="let in"),
            *([Call("setgroups", (0, 0))] if root else []),
            Call("setresgid", (0, 0, 0)),
            Call("setresuid", (0, 0, 0)),
            Call("unshare", (syscalls.CLONE_NEWCGROUP,)),
            Call("clone", (signal.SIGCHLD, 0, 0, 0, 0), least=1, label="helper"),
            Call("close", (_GONE,)),
            *confine.confinement(program, share_network=kind.shares_network),  # while the helper is at work
            Call("read", (_GO, anything, 1), least=1, label="helped"),
            Call("chdir", (b"/\0",)),
            Call("write", (_ANSWER, _READY, len(_READY)), least=1),
            # It must not stay if the orchestrator dies before it has noted this sandbox down.
            Call("read", (_ANSWER, anything, 1), least=1, label="noted"),
            *(Call("close", (each,)) for each in (_ANSWER, _MAPS, _GO)),
            *([] if kind.is_limited_in_time else [Call("ppoll", (self._polled, 1, 0, 0, 0))]),
        ]

    def _stand_by(self, zygote: int) -> NoReturn:
        try:
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == zygote:
                self._carry_out()
        finally:
            os._exit(0)

    def _carry_out(self) -> None:
        """Carry out the list, and what belongs to the place where it ends, in whichever process that is."""
        while True:
            ended = self._calls.run()
            where = None if ended.call is None else ended.call.label
            if where == "helper" and ended.result == 0:
                _build()
            elif os.getpid() == 1 and not (where in _QUIET and ended.result >= 0):
                _serve(ended)
            elif where == "clone":
                os.write(self._tell, struct.pack("i", ended.result))
                continue
            return


def _read_asked() -> Asked:
    asked: Asked = json.loads(wire.whole(_ASKED))
    return asked


def _build() -> None:
    """In a helper inside of the new namespaces: mount the layers, enter them, and set up what belongs to the namespaces
    as a whole.
    """
    try:
        asked = _read_asked()
        request = asked["request"]
        file_tree.mount_overlays(request["mounts"], asked["found"].__getitem__)
        file_tree.enter(request["shared_memory"])
        socket.sethostname(request["hostname"])
        if not request["share_network"]:
            _bring_loopback_up()
        if request["cores"] is not None:
            os.sched_setaffinity(1, request["cores"])
        # Nobody inside can raise it again, for lack of the capability.
        write("/proc/sys/user/max_user_namespaces", "0")
        limit = request["processes"]
        if limit is not None:
            # The limit on processes counts for each user; all users together are limited by the numbers there are,
            # since Linux 6.14.
            with contextlib.suppress(OSError):
                write("/proc/sys/kernel/pid_max", str(max(2 * limit, _LEAST_PID_MAX)))
        os.write(_GONE, b"x")
    except BaseException as error:  # noqa: BLE001 - nothing may escape into PID 1
        fail(socket.socket(fileno=_ANSWER), error)


def _serve(ended: Ended) -> None:
    """As PID 1: serve the orchestrator until the sandbox's lifetime is over."""
    try:
        ended.check()
    except OSError as error:
        fail(socket.socket(fileno=_ANSWER), error)
        return
    asked = _read_asked()
    request = asked["request"]
    limit = request["processes"]
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit + _SPARE_PROCESSES, limit + _SPARE_PROCESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # it holds three for each command
    bounds = Bounds(processes=limit, files=(soft, hard))
    # Only the socket and what is watched go on, at places of their own.
    watched = range(4, 4 + asked["watched"])
    for place, descriptor in enumerate([_LISTENER, *range(_WATCHED, _WATCHED + len(watched))], 3):
        os.dup2(descriptor, place, inheritable=False)
    syscalls.close_from(watched.stop)
    disk = request["disk"]
    guard = Guard(request["memory"], None if disk is None else DiskGuard(disk, list(watched)))
    lifetime = Lifetime(request["lifetime"], request["idle_lifetime"])
    pid1.Server(socket.socket(fileno=3), bounds, lifetime, guard).run()


def fail(answer: socket.socket, error: BaseException) -> None:
    """Tell the orchestrator why there is no sandbox, if it is still there."""
    failure: Failure = {"error": f"{type(error).__name__}: {error}"}
    if isinstance(error, OSError):
        failure = {"error": error.strerror or str(error), "call": os.fsdecode(error.filename or "")}
    with contextlib.suppress(OSError):
        wire.send(answer, failure)


def write(path: str, text: str) -> None:
    """Write to a file of the kernel's.

    Raises:
        OSError: with the path.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)


def _bring_loopback_up() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))
