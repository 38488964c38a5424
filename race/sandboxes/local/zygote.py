"""The helper that makes namespaces: one small single-threaded process for each orchestrator.

It is asked on a socket, forks for every sandbox, and ends when the socket closes; its sandboxes go on.

*As root* sandboxes map their user 0 to a high range of ids, never to the host's root, and see every layer
through a mount that shifts owners by as much, so that files on disk keep the ids they have inside. *As an
ordinary user* they map 0 to that user. Either way the layers are mounted inside the sandbox's own user
namespace, and what is on disk is the same.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import resource
import signal
import socket
import struct
from typing import TYPE_CHECKING

from race.sandboxes.local import confine, file_tree, pid1, shim, syscalls, wire
from race.sandboxes.local.guard import DiskGuard, Guard
from race.sandboxes.local.lifetimes import Lifetime

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandboxes.local.messages import Failure, SpawnRequest

FIRST_ID = 0x70000000
"""What user and group 0 of a sandbox are to the host, when root makes it."""
IDS = 65536

_CAP_SYS_ADMIN = 21
_SPARE_PROCESSES = 64
"""How many more processes PID 1 may have than its commands, so that it can still act when they use all
theirs."""
_LEAST_PID_MAX = 1024
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41
_SOURCES = "sources"


def is_host_root() -> bool:
    """Whether this process may do everything on this machine: user 0, not in a user namespace, not
    confined.
    """
    if os.geteuid() != 0:
        return False
    with open("/proc/self/uid_map", encoding="ascii") as file:
        if file.read().split() != ["0", "0", "4294967295"]:
            return False
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def main(descriptor: int, home: str) -> None:
    """Serve requests until the orchestrator is gone.

    Args:
        descriptor: of the socket to it.
        home: the provider's folder.
    """
    os.umask(0o022)
    syscalls.close_from(descriptor + 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then reaps children by itself
    # The kernel keeps from PID 1 whatever it has no handler for, and Python has one for this.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Each sandbox's PID 1 becomes this process's child, so that it is reaped even where the machine's own PID
    # 1 does not do so.
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    requests = socket.socket(fileno=descriptor)
    zygote = Zygote(home)
    gc.collect()
    gc.freeze()
    while (received := wire.receive(requests)) is not None:
        request, (answers,) = received
        with socket.socket(fileno=answers) as answer:
            try:
                zygote.spawn(request, answer)
            except OSError as error:
                _fail(answer, error)


def _fail(answer: socket.socket, error: BaseException) -> None:
    failure: Failure = {"error": f"{type(error).__name__}: {error}"}
    if isinstance(error, OSError):
        failure = {"error": error.strerror or str(error), "call": os.fsdecode(error.filename or "")}
    with contextlib.suppress(OSError):
        wire.send(answer, failure)


class Zygote:
    """Makes sandboxes.

    Args:
        home: the provider's folder. Becomes visible, to root's sandboxes while they are being made, under
            another name with shifted owners.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._root = is_host_root()
        self._filters: dict[bool, bytes] = {}
        self._shifted = -1
        self._sources: dict[tuple[str, int, int], str] = {}

    def spawn(self, request: SpawnRequest, answer: socket.socket) -> None:
        """Make a sandbox. Answers come from the forked processes too.

        Raises:
            OSError: it cannot even be begun.
        """
        pinned = request["cores"] is not None
        if pinned not in self._filters:
            made = confine.system_call_filter(syscalls.MACHINE, pretend_owners=not self._root, pinned=pinned)
            self._filters[pinned] = made
        self._stage()
        found = {
            layer: self._visible(layer)
            for plan in request["mounts"]
            for layer in (*plan["lower"], plan["upper"], plan["work"])
        }
        ours, theirs = socket.socketpair()
        # Made here, because every page of memory that a child touches becomes its own.
        with ours, theirs, self._listener(request["folder"]) as listener:
            child = os.fork()
            if child == 0:
                ours.close()
                _in_child(answer, lambda: self._build(request, found, answer, theirs, listener))
            theirs.close()
            if self._root and ours.recv(1):
                _write_map(child, FIRST_ID, IDS)
                ours.send(b"x")

    def _stage(self) -> None:
        """Go where layers can be found by relative paths, from inside a sandbox's user namespace too."""
        if not self._root:
            os.makedirs(os.path.join(self._home, file_tree.NEW_ROOT), 0o700, exist_ok=True)
            os.chdir(self._home)
            return
        if self._shifted >= 0:
            return
        stage = os.path.join(self._home, "stage")
        os.makedirs(stage, 0o700, exist_ok=True)
        self._shifted = _shifted_namespace()
        syscalls.unshare(syscalls.CLONE_NEWNS)
        # Nothing that is mounted here shows on the host, but what the host unmounts is not kept busy.
        syscalls.mount(None, "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)
        syscalls.mount("stage", stage, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=1m")
        os.chdir(stage)
        for name in (file_tree.NEW_ROOT, _SOURCES):
            os.mkdir(name, 0o755)

    def _show(self, path: str, target: str) -> None:
        mounted = syscalls.clone_mount(path)
        try:
            syscalls.map_mount(mounted, self._shifted)
            syscalls.attach_mount(mounted, target)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{error.filename} of {path}") from None
        finally:
            os.close(mounted)

    def _visible(self, layer: str) -> str:
        """Where a layer is found from the working directory."""
        if not self._root:
            return layer
        if not layer.startswith("/"):
            return f"{self._visible(self._home)}/{layer}"
        status = os.stat(layer)
        key = (layer, status.st_dev, status.st_ino)  # the same path may have become another directory
        if key not in self._sources:
            target = f"{_SOURCES}/{len(self._sources)}"
            os.mkdir(target, 0o755)
            self._show(layer, target)
            self._sources[key] = target
        return self._sources[key]

    def _build(
        self,
        request: SpawnRequest,
        found: dict[str, str],
        answer: socket.socket,
        maps: socket.socket,
        listener: socket.socket,
    ) -> None:
        """In the child: enter new namespaces, mount the layers, and fork PID 1 into them."""
        for file in request["cgroups"]:
            _write(file, "0")
        user, group = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        if self._root:
            maps.send(b"x")
            if not maps.recv(1):
                raise OSError(errno.EPERM, "the ids of the sandbox could not be mapped", "uid_map")
            os.setgroups([])
        else:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"0 {user} 1")
            _write("/proc/self/gid_map", f"0 {group} 1")
        maps.close()
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        flags = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
        flags |= syscalls.CLONE_NEWCGROUP
        if not request["share_network"]:
            flags |= syscalls.CLONE_NEWNET
        syscalls.unshare(flags)
        file_tree.mount_overlays(request["mounts"], found.__getitem__)
        pid = os.fork()
        if pid == 0:
            written = [found[each] for each in request["written"]]
            _in_child(answer, lambda: self._become_pid1(request, answer, listener, written))
        wire.send(answer, {"pid": pid})

    def _listener(self, folder: str) -> socket.socket:
        """The socket of the new sandbox, in its own folder, which only the owner of home can enter."""
        back = os.open(".", os.O_PATH | os.O_CLOEXEC)
        try:
            os.chdir(os.path.join(self._home, folder))  # a socket's path may be no longer than 107 bytes
            with contextlib.suppress(FileNotFoundError):
                os.unlink("socket")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind("socket")
            os.chmod("socket", 0o600)
            listener.listen(1024)
        finally:
            os.fchdir(back)
            os.close(back)
        return listener

    def _become_pid1(
        self, request: SpawnRequest, answer: socket.socket, listener: socket.socket, written: list[str]
    ) -> None:
        os.setsid()
        if request["cores"] is not None:
            os.sched_setaffinity(0, request["cores"])
        watched = [os.open(each, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for each in written]
        file_tree.enter(request["shared_memory"])
        socket.sethostname(request["hostname"])
        if not request["share_network"]:
            _bring_loopback_up()
        # Nobody inside can raise it again, for lack of the capability.
        _write("/proc/sys/user/max_user_namespaces", "0")
        limit = request["processes"]
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_NPROC, (limit + _SPARE_PROCESSES, limit + _SPARE_PROCESSES))
            # That counts for each user; all users together are limited by the numbers there are, since Linux
            # 6.14.
            with contextlib.suppress(OSError):
                _write("/proc/sys/kernel/pid_max", str(max(2 * limit, _LEAST_PID_MAX)))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # it holds three for each command
        bounds = shim.Bounds(processes=limit, files=(soft, hard))
        confine.confine(self._filters[request["cores"] is not None], share_network=request["share_network"])
        # Only the two sockets and what is watched go on, at places of their own.
        kept = [listener.fileno(), answer.fileno(), *watched]
        above = [syscalls.duplicate_above(each, 16 + len(kept)) for each in kept]
        for place, descriptor in enumerate(above, 3):
            os.dup2(descriptor, place, inheritable=False)
        syscalls.close_from(3 + len(kept))
        for each in (listener, answer):
            each.detach()
        lifetime = Lifetime(request["lifetime"], request["idle_lifetime"])
        disk = request["disk"]
        guard = Guard(
            request["memory"], None if disk is None else DiskGuard(disk, list(range(5, 3 + len(kept))))
        )
        server = pid1.Server(socket.socket(fileno=3), bounds, lifetime, guard)
        with socket.socket(fileno=4) as committed:
            wire.send(committed, {"done": True})
            if wire.receive(committed) is None:
                return  # the orchestrator died before it had noted this sandbox down
        server.run()


def _in_child(answer: socket.socket, work: Callable[[], None]) -> None:
    """Do the work of a forked child, tell what went wrong, and exit."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - nothing may escape into the parent's loop
        _fail(answer, error)
    finally:
        os._exit(0)


def _shifted_namespace() -> int:
    """A descriptor of a user namespace with the sandboxes' ids, for mounts; no process stays in it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if child == 0:
            try:
                syscalls.unshare(syscalls.CLONE_NEWUSER)
                theirs.send(b"x")
                ours.close()
                theirs.recv(1)
            finally:
                os._exit(0)
        theirs.close()
        if not ours.recv(1):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), "unshare")
        _write_map(child, FIRST_ID, IDS)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _write_map(pid: int, first: int, count: int) -> None:
    for kind in ("uid", "gid"):
        _write(f"/proc/{pid}/{kind}_map", f"0 {first} {count}")


def _write(path: str, text: str) -> None:
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
