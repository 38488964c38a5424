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
import gc
import json
import os
import signal
import socket
from typing import TYPE_CHECKING

from race.sandboxes.local import file_tree, syscalls, wire
from race.sandboxes.local.template import FIRST, Asked, Kind, Template, fail, write

if TYPE_CHECKING:
    from race.sandboxes.local.messages import SpawnRequest

FIRST_ID = 0x70000000
"""What user and group 0 of a sandbox are to the host, when root makes it."""
IDS = 65536

_CAP_SYS_ADMIN = 21
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
                fail(answer, error)


class Zygote:
    """Makes sandboxes.

    Args:
        home: the provider's folder. Becomes visible, to root's sandboxes while they are being made, under
            another name with shifted owners.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._root = is_host_root()
        self._shifted = -1
        self._sources: dict[tuple[str, int, int], str] = {}
        self._templates: dict[Kind, Template] = {}

    def spawn(self, request: SpawnRequest, answer: socket.socket) -> None:
        """Make a sandbox. Answers come from the forked processes too.

        Raises:
            OSError: it cannot even be begun.
        """
        self._stage()
        found = {
            layer: self._visible(layer)
            for plan in request["mounts"]
            for layer in (*plan["lower"], plan["upper"], plan["work"])
        }
        written = [] if request["disk"] is None else [found[each] for each in request["written"]]
        asked: Asked = {"request": request, "found": found, "watched": len(written)}
        ours, theirs = socket.socketpair()
        opened: list[int] = []
        try:
            template = self._template(request)
            opened.append(wire.held(template.plan(request, found)))
            opened.append(wire.held(json.dumps(asked).encode()))
            opened += [os.open(each, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for each in written]
            with ours, theirs, self._listener(request["folder"]) as listener:
                kept = [listener.fileno(), answer.fileno(), theirs.fileno(), *opened]
                for place, descriptor in enumerate(kept, FIRST):
                    os.dup2(descriptor, place, inheritable=False)
                pid = template.fork()
                self._let_in(pid, request["cgroups"])
                ours.send(b"x")
        finally:
            for each in opened:
                os.close(each)
            syscalls.close_from(FIRST)
        wire.send(answer, {"pid": pid})

    def _template(self, request: SpawnRequest) -> Template:
        """What a sandbox of this kind is forked from."""
        kind = Kind(
            shares_network=request["share_network"],
            is_pinned=request["cores"] is not None,
            is_limited_in_time=request["lifetime"] is not None or request["idle_lifetime"] is not None,
        )
        known = self._templates.get(kind)
        if known is not None and not known.is_alive():
            known.close()
            known = None
        if known is None:
            known = self._templates[kind] = Template(kind, root=self._root)
        return known

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

    def _let_in(self, pid: int, cgroups: list[str]) -> None:
        """Give a new PID 1 its ids and its control groups."""
        if self._root:
            _write_map(pid, FIRST_ID, IDS)
        else:
            write(f"/proc/{pid}/setgroups", "deny")
            write(f"/proc/{pid}/uid_map", f"0 {os.geteuid()} 1")
            write(f"/proc/{pid}/gid_map", f"0 {os.getegid()} 1")
        for file in cgroups:
            write(file, str(pid))

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
        write(f"/proc/{pid}/{kind}_map", f"0 {first} {count}")
