"""What sandboxes are forked from, and how the first process of one gets from there to serving the orchestrator.

The way of a sandbox: the *template*, asked by the zygote, forks PID 1 with namespaces of its own. PID 1 mounts its file
tree, confines itself, says that it is ready, and sleeps. With the first request it becomes the server of
`race.sandboxes.local.pid1`. Until then it has carried out lists of system calls and nothing else, so that a sandbox
that nobody has used yet costs next to no memory.
"""

from __future__ import annotations

import contextlib
import errno
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
from race.sandboxes.local.sequence import NEVER, RECORD, Call, Draft, Ended, Memory, SystemCalls, number

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from race.sandboxes.local.messages import Failure, SpawnRequest

_SPARE_PROCESSES = 64
"""How many more processes PID 1 may have than its commands, so that it can still act when they use all
theirs."""

_NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)
FIRST = 128
"""The first of the descriptors that the zygote leaves for a new PID 1; those below are its own."""
_LISTENER, _ANSWER, _MAPS, _PLAN, _ASKED, _WATCHED = range(FIRST, FIRST + 6)
"""What they are, in their order: the socket of the sandbox, that of who asked for it, what tells that the ids are
mapped, the list of calls by which the file tree is mounted, what was asked for, and the directories to watch."""
_QUIET = ("let in", "noted")
"""Where PID 1 just ends if what it waits for is gone: somebody else has said why."""
_CLONE_FS = 0x200
_CLONE_FILES = 0x400
_MOST_OF_A_PLAN = 4 << 20
"""Bytes of memory for a plan, of which only those that are used exist."""
_READ_WRITE = 3
_MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE = 2, 0x20, 0x4000
_MADV_DONTNEED = 4


class Kind(NamedTuple):
    """What sandboxes that are forked from the same template have in common."""

    shares_network: bool
    is_pinned: bool
    is_limited_in_time: bool


class Asked(TypedDict):
    """What a new PID 1 finds in the file at `_ASKED`."""

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
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
        self._plan = syscalls.map_memory(_MOST_OF_A_PLAN, _READ_WRITE, flags)
        self._wait, self._ask = os.pipe2(os.O_CLOEXEC)
        self._told, self._tell = os.pipe2(os.O_CLOEXEC)
        self._calls = SystemCalls(
            self._all_calls(kind, root=root),
            elsewhere={"plan": self._plan, "rest of the plan": self._plan + RECORD},
        )
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

    def plan(self, request: SpawnRequest, found: Mapping[str, str]) -> bytes:
        """What is to be in the file at `_PLAN`: the list by which a PID 1 mounts its file tree.

        Args:
            request: what is asked for.
            found: where each layer is found from the working directory.

        Raises:
            OSError: it has too many layers.
        """
        draft = Draft(self._plan)
        elsewhere = {label: self._calls.address(label) for label in ("tree", "built")}
        SystemCalls(file_tree.plan(request, found.__getitem__), draft, elsewhere=elsewhere)
        if len(draft.data) > _MOST_OF_A_PLAN:
            raise OSError(errno.E2BIG, "it has too many layers", "overlay")
        return bytes(draft.data)

    def _all_calls(self, kind: Kind, *, root: bool) -> list[Call]:
        told = self._told_pid
        flags = _NAMESPACES | (0 if kind.shares_network else syscalls.CLONE_NEWNET)
        return [
            Call("read", (self._wait, self._anything, 1), least=1, label="next"),
            # Its number is written to memory that the zygote sees too.
            Call(
                "clone", (flags | syscalls.CLONE_PARENT_SETTID | signal.SIGCHLD, 0, told, 0, 0), label="clone"
            ),
            Call("getpid", least=2, instead="pid 1"),  # that is the first one only in its own namespace
            Call("write", (self._tell, told, 4), least=4),
            Call("getpid", least=NEVER, instead="next"),
            *self._calls_of_pid1(kind, root=root),
        ]

    def _calls_of_pid1(self, kind: Kind, *, root: bool) -> list[Call]:
        anything = self._anything
        program = confine.system_call_filter(syscalls.MACHINE, pretend_owners=not root, pinned=kind.is_pinned)
        tree = file_tree.tree()
        return [
            Call("close_range", (3, FIRST - 1, 0), label="pid 1"),
            Call("setsid"),
            Call("read", (_MAPS, anything, 1), least=1, label="let in"),
            *([Call("setgroups", (0, 0))] if root else []),
            Call("setresgid", (0, 0, 0)),
            Call("setresuid", (0, 0, 0)),
            Call("unshare", (syscalls.CLONE_NEWCGROUP,)),
            Call("pread64", (_PLAN, self._plan, _MOST_OF_A_PLAN, 0), least=1),
            Call("close", (_PLAN,)),
            Call("getpid", least=NEVER, instead="plan"),
            *(tree[0]._replace(label="tree"), *tree[1:]),
            Call("getpid", least=NEVER, instead="rest of the plan"),
            Call("madvise", (self._plan, _MOST_OF_A_PLAN, _MADV_DONTNEED), label="built"),
            *confine.confinement(program, share_network=kind.shares_network),
            Call("write", (_ANSWER, wire.DONE, len(wire.DONE)), least=1),
            # It must not stay if the orchestrator dies before it has noted this sandbox down.
            Call("read", (_ANSWER, anything, 1), least=1, label="noted"),
            *(Call("close", (each,)) for each in (_ANSWER, _MAPS)),
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
            if os.getpid() == 1 and not (where in _QUIET and ended.result >= 0):
                self._serve(ended)
            elif where == "clone":
                os.write(self._tell, struct.pack("i", ended.result))
                continue
            return

    def _serve(self, ended: Ended) -> None:
        """As PID 1: serve the orchestrator until the sandbox's lifetime is over."""
        asked: Asked = json.loads(wire.whole(_ASKED))
        try:
            self._in_plan(ended, asked).check()
        except OSError as error:
            said = (
                syscalls.kernel_messages(file_tree.FREE) if str(error.filename).startswith("overlay") else ""
            )
            fail(
                socket.socket(fileno=_ANSWER), OSError(error.errno, f"{error.strerror}{said}", error.filename)
            )
            return
        _become_server(asked)

    def _in_plan(self, ended: Ended, asked: Asked) -> Ended:
        """The same, with the call where the plan ended if it is there that it did."""
        place = (ended.address - self._plan) // RECORD
        if not 0 <= place < _MOST_OF_A_PLAN // RECORD:
            return ended
        calls = file_tree.plan(asked["request"], asked["found"].__getitem__)
        return ended._replace(call=calls[place])


def _become_server(asked: Asked) -> None:
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
