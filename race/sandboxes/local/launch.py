"""Starts commands in a sandbox, for its PID 1, by lists of system calls.

To fork a Python program, and for the new process to get hold of the memory that it writes to, takes longer than all
else between a request and its command. So nothing is forked that goes on in Python: a list of system calls is carried
out by processes that share PID 1's memory until there is the command's program in its place, as with vfork(2).

Between PID 1 and the command is the *shim*. It is the subreaper of everything that the command starts, so that nothing
can leave the tree that a time-out ends. It ends when the command does, and leaves it, dead, to PID 1, which reads how
it ended and what it used; what is still running then belongs to PID 1, too.

Only the shim and the command touch files of the sandbox; where these block, PID 1 does not.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from race.sandboxes.local import sequence, syscalls, wire
from race.sandboxes.local.sequence import NEVER, WHATEVER, Call, Memory, SharedSystemCalls

if TYPE_CHECKING:
    from race.sandboxes.local.messages import ExecRequest, Failure

LONGEST_ARGUMENT: Final = 120_000
"""Bytes of a script that go on the command line; the kernel's limit for one argument is 131,072."""
BROKEN: Final = 70
"""How a child exits that could not do its work nor say so (EX_SOFTWARE of sysexits(3))."""

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_STANDARD_PATH: Final = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL_OPTIONS: Final = {b"bash": (b"--noprofile", b"--norc"), b"sh": ()}
"""The shells for scripts, the best one first."""
_SCRIPT_DESCRIPTOR: Final = 3
_LONGEST_REASON: Final = 200
"""Bytes of what is said of a program that cannot be started."""

_CLONE_VM: Final = 0x100
_CLONE_PIDFD: Final = 0x1000
_CLONE_VFORK: Final = 0x4000
_CLONE_CHILD_SETTID: Final = 0x1000000
_ALL_SIGNALS: Final = b"\xff" * 8
_SIGNAL_SET: Final = 8
_DEFAULT_ACTION: Final = bytes(32)
"""A ``struct sigaction`` of the kernel's whose handler is ``SIG_DFL``."""
_SET_ANEW: Final = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, 32, 33)
"""What PID 1 has a handler for, which must not run elsewhere, and what Python and glibc's posix_spawn(3) ignore."""
_P_ALL: Final = 0
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_LAST_DESCRIPTOR: Final = 0xFFFFFFFF
_TIOCSCTTY: Final = 0x540E
_TIOCGPTPEER: Final = 0x5441
_TIOCSPTLCK: Final = 0x40045431
_TIOCSWINSZ: Final = 0x5414
"""From asm-generic/ioctls.h, which x86_64 and aarch64 share."""
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR)


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


class Launch:
    """One command, from its start to its end.

    Args:
        memory: for the list.
        request: what to run.
        connection: a descriptor of where it was asked for.
        streams: of standard input, output and error.
        script: a descriptor of a file that holds the script, if it is too long for an argument; else -1.
        bounds: for the command.

    Raises:
        BufferError: the memory is too small.
    """

    def __init__(
        self,
        memory: Memory,
        request: ExecRequest,
        connection: int,
        streams: list[int],
        script: int,
        bounds: Bounds,
    ) -> None:
        self.memory = memory
        self.pid = 0
        """Of the shim."""
        self.failure: Failure | None = None
        """What to say in place of how it ended."""
        self._is_told = False
        self._request = request
        self._connection = connection
        self._streams = streams
        self._script = script
        self._bounds = bounds
        self._shares_memory = sequence.runs_as_machine_code()
        self._tries: list[int] = []  # where the paths are of what may be the program
        self._sh = self._text(b"/bin/sh")
        self._for_sh = 0
        self._name = os.fsencode((request["argv"] or ["sh"])[0])
        self._said = memory.put(bytes(len(self._name) + _LONGEST_REASON))
        self._mask = memory.put(bytes(_SIGNAL_SET))
        self._shim_word, self._pidfd, self._command, self._status, self._go_on = (
            memory.put(bytes(8)) for _ in range(5)
        )
        self._environment = self._array(
            [os.fsencode(key) + b"=" + os.fsencode(value) for key, value in request["env"].items()]
        )
        self._calls = SharedSystemCalls(
            [
                *self._until_shim(),
                *self._of_shim(),
                *self._of_command(),
                Call("exit_group", (BROKEN,), label="broken"),
                Call("rt_sigprocmask", (signal.SIG_SETMASK, self._mask, 0, _SIGNAL_SET), label="pid 1"),
            ],
            memory,
        )

    @property
    def command(self) -> int:
        """The number of the command's process; 0 before there is one."""
        return self.memory.number(self._command)

    @property
    def status(self) -> int:
        """As ``wait`` gives it: of what the shim reaped last."""
        return self.memory.number(self._status)

    def start(self) -> None:
        """Carry out the list.

        Raises:
            OSError: there is no room for a process.
        """
        self._calls.run().check()
        failure = self._calls.result("shim")
        if failure < 0:
            raise OSError(-failure, os.strerror(-failure))
        self.pid = self.memory.number(self._shim_word)

    # The list

    def _text(self, text: bytes) -> int:
        return self.memory.put(text + b"\0")

    def _array(self, texts: list[bytes]) -> int:
        return self._pointers([self._text(each) for each in texts])

    def _pointers(self, addresses: list[int]) -> int:
        return self.memory.put(struct.pack(f"{len(addresses) + 1}q", *addresses, 0))

    def _until_shim(self) -> list[Call]:
        every = self.memory.put(_ALL_SIGNALS)
        flags = syscalls.CLONE_PARENT_SETTID | signal.SIGCHLD | (_CLONE_VM if self._shares_memory else 0)
        return [
            # No handler of PID 1's may run in a process that shares its memory.
            Call("rt_sigprocmask", (signal.SIG_SETMASK, every, self._mask, _SIGNAL_SET)),
            Call("clone", (flags, 0, self._shim_word), instead="pid 1", label="shim"),
            Call("getpid", least=2, instead="pid 1"),  # that is the first one
        ]

    def _of_shim(self) -> list[Call]:
        """What the shim does. From here on the list never stops before its end, for there is no way back to Python."""
        flags = _CLONE_PIDFD | _CLONE_CHILD_SETTID | _CLONE_VFORK | signal.SIGCHLD
        flags |= _CLONE_VM if self._shares_memory else 0
        before, free = self._in_place()
        polled = self.memory.put(struct.pack("ihh", free, select.POLLIN, 0))
        at_once = self.memory.put(bytes(16))
        number = self._command
        look = ("ppoll", (polled, 1, at_once, 0, _SIGNAL_SET), 1)
        return [
            Call("setsid", instead="broken"),
            Call("prctl", (syscalls.PR_SET_CHILD_SUBREAPER, 1), instead="broken"),
            *before,
            # The number is the fourth argument on one processor, and the fifth on another.
            Call("clone", (flags, 0, self._pidfd, number, number), least=1, instead="command", label="clone"),
            *self._report(look, free - 1),
            Call("close_range", (0, free - 1, 0), least=WHATEVER, label="wait"),
            # All are reaped but the command, until it has ended.
            Call("waitid", (_P_ALL, 0, 0, os.WEXITED | os.WNOWAIT, 0), instead="leave", label="next"),
            Call(*look, instead="reap"),
            Call("getpid", least=NEVER, instead="leave"),
            Call("wait4", (-1, self._status, os.WNOHANG, 0), least=WHATEVER, label="reap"),
            Call("getpid", least=NEVER, instead="next"),
            Call("exit_group", (0,), label="leave"),
        ]

    def _in_place(self) -> tuple[list[Call], int]:
        """What puts descriptors in their places and sets bounds; and the first descriptor that is free then.

        PID 1 has the first few for itself, so that none of those given is at the place of another.
        """
        free = _SCRIPT_DESCRIPTOR
        calls = [Call("dup3", (each, place, 0), instead="broken") for place, each in enumerate(self._streams)]
        if self._script >= 0:
            calls.append(Call("dup3", (self._script, free, 0), instead="broken"))
            free += 1
        terminal = self._request["terminal"]
        if self._request["named"] or terminal is not None:
            calls.append(Call("dup3", (self._connection, free, os.O_CLOEXEC), instead="broken"))
            free += 1
        calls.append(Call("close_range", (free, _LAST_DESCRIPTOR, 0), instead="broken"))
        limits = {resource.RLIMIT_NOFILE: self._bounds.files}
        for which, most in (
            (resource.RLIMIT_NPROC, self._bounds.processes),
            (resource.RLIMIT_FSIZE, self._bounds.file_size),
        ):
            if most is not None:
                limits[which] = (most, most)
        for which, limit in limits.items():
            calls.append(
                Call("prlimit64", (0, which, self.memory.put(struct.pack("qq", *limit)), 0), instead="broken")
            )
        folder = self._text(os.fsencode(self._request["cwd"]))
        calls.append(Call("chdir", (folder,), instead="broken", label="cwd"))
        if terminal is not None:
            calls += self._terminal(terminal, free)
        return calls, free

    def _terminal(self, size: list[int], master: int) -> list[Call]:
        """What makes a terminal, puts it in its places, and gives its other side to the orchestrator."""
        put = self.memory.put
        unlocked = put(struct.pack("i", 0))
        window = put(struct.pack("HHHH", *size, 0, 0))
        data = put(struct.pack("qq", put(wire.DONE), len(wire.DONE)))
        rights = struct.pack("qiiixxxx", socket.CMSG_LEN(4), socket.SOL_SOCKET, socket.SCM_RIGHTS, master)
        message = put(struct.pack("qixxxxqqqqixxxx", 0, 0, data, 1, put(rights), len(rights), 0))
        device = self._text(b"/dev/ptmx")
        flags = os.O_RDWR | os.O_NOCTTY
        return [
            Call("openat", (syscalls.AT_FDCWD, device, flags | os.O_CLOEXEC), instead="broken"),
            Call("ioctl", (master, _TIOCSPTLCK, unlocked), instead="broken"),
            Call("ioctl", (master, _TIOCGPTPEER, flags), instead="broken"),
            Call("ioctl", (master, _TIOCSWINSZ, window), instead="broken"),
            Call("sendmsg", (master - 1, message, socket.MSG_NOSIGNAL), instead="broken"),
            *(Call("dup3", (master + 1, place, 0), instead="broken") for place in range(3)),
            Call("close_range", (master, _LAST_DESCRIPTOR, 0), instead="broken"),
        ]

    def _report(self, look: tuple[str, tuple[int, ...], int], connection: int) -> list[Call]:
        """What says that a named process has started, if it has not ended yet, which says so too."""
        if not self._request["named"]:
            return []
        return [
            Call(*look, instead="started"),
            Call("getpid", least=NEVER, instead="wait"),
            Call(
                "write",
                (connection, self.memory.put(wire.DONE), len(wire.DONE)),
                least=WHATEVER,
                label="started",
            ),
        ]

    def _of_command(self) -> list[Call]:
        action = self.memory.put(_DEFAULT_ACTION)
        none = self.memory.put(bytes(_SIGNAL_SET))
        return [
            # It is still the shim if that could not be forked.
            Call("getppid", least=2, instead="broken", label="command"),
            Call("setsid", instead="broken"),
            *(
                []
                if self._request["terminal"] is None
                else [Call("ioctl", (0, _TIOCSCTTY, 0), instead="broken")]
            ),
            *(Call("rt_sigaction", (each, action, 0, _SIGNAL_SET), instead="broken") for each in _SET_ANEW),
            Call("rt_sigprocmask", (signal.SIG_SETMASK, none, 0, _SIGNAL_SET), instead="broken"),
            *(self._program() if self._request["script"] is None else self._shell(self._request["script"])),
            # None could be started: PID 1 is asked what to do.
            Call("getpid", least=NEVER, instead="ask", label="lost"),
            Call("kill", (1, signal.SIGCHLD), least=WHATEVER, label="ask"),
            Call("futex", (self._go_on, _FUTEX_WAIT, 0), instead="told", label="hear"),
            Call("getpid", least=NEVER, instead="hear"),
            Call("execve", (0, 0, 0), least=WHATEVER, label="told"),
            Call("write", (2, 0, 0), least=WHATEVER, label="say"),
            Call("exit_group", (BROKEN,), label="end"),
        ]

    # Programs

    def _search(self, name: bytes) -> list[bytes]:
        """Where a program is looked for that has no folder in its name."""
        path = os.fsencode(self._request["env"].get("PATH", _STANDARD_PATH))
        return [os.path.join(folder or b".", name) for folder in path.split(b":")]

    def _execute(self, path: bytes, arguments: int, instead: str) -> Call:
        self._tries.append(self._text(path))
        return Call(
            "execve",
            (self._tries[-1], arguments, self._environment),
            instead=instead,
            label=f"run {len(self._tries) - 1}",
        )

    def _shell(self, script: str) -> list[Call]:
        text = os.fsencode(script) if self._script < 0 else b". /proc/self/fd/%d" % _SCRIPT_DESCRIPTOR
        last, option = self._text(text), self._text(b"-c")
        calls: list[Call] = []
        for name, options in _SHELL_OPTIONS.items():
            rest = [*map(self._text, options), option, last]
            for path in self._search(name):
                arguments = self._pointers([self._text(path), *rest])
                place = len(self._tries) + 1
                calls.append(self._execute(path, arguments, f"run {place}"))
        calls[-1] = calls[-1]._replace(instead="lost")
        return calls

    def _program(self) -> list[Call]:
        addresses = [self._text(os.fsencode(each)) for each in self._request["argv"] or []]
        arguments = self._pointers(addresses)
        self._for_sh = self._pointers([self._text(b"sh"), *addresses])
        if b"/" in self._name:
            return [self._execute(self._name, arguments, "lost")]
        calls: list[Call] = []
        for number, path in enumerate(self._search(self._name)):
            run = self._execute(path, arguments, f"not {number}")
            found = self._tries[number]
            folder = self._text(path + b"/.")
            calls += [
                Call(
                    "faccessat",
                    (syscalls.AT_FDCWD, found, os.X_OK),
                    instead=f"after {number}",
                    label=f"may {number}",
                ),
                run,
                Call(
                    "faccessat", (syscalls.AT_FDCWD, folder, os.F_OK), instead="lost", label=f"not {number}"
                ),
                Call("getpid", label=f"after {number}"),
            ]
        return calls

    # What could not be started

    @property
    def is_lost(self) -> bool:
        """Whether the command waits to be told what to do, as it could not be started."""
        return not self._is_told and self._calls.result("lost") != 0

    def tell(self) -> None:
        """Tell a command that could not be started what to do: let a shell run it, or say why not, and end."""
        self._is_told = True
        program, error = self._reason()
        if error == errno.ENOEXEC and self._for_sh:
            # A script without a first line that names its interpreter, which shells run themselves.
            self.memory.change(self._for_sh + 8, struct.pack("q", program))
            self._calls.change("told", self._sh, self._for_sh, self._environment)
        if error == errno.E2BIG:
            self.failure = {"error": f"the command cannot be started: {os.strerror(error)}"}
        is_missing = error in _MISSING
        text = self._name + b": " + (b"not found" if is_missing else os.strerror(error).encode()) + b"\n"
        self.memory.change(self._said, text)
        self._calls.change("say", 2, self._said, len(text))
        self._calls.change("end", _NOT_FOUND if is_missing else _NOT_EXECUTABLE)
        self.memory.change(self._go_on, struct.pack("q", 1))
        syscalls.plainly(sequence.number("futex"), [self._go_on, _FUTEX_WAKE, 1, 0, 0, 0])

    def _reason(self) -> tuple[int, int]:
        """Why no program could be started: the address of its path, and the number of the error."""
        results = {call.label: -result for call, result in self._calls.failed()}
        tried = [(each, results.get(f"run {place}", 0)) for place, each in enumerate(self._tries)]
        if self._request["script"] is None and b"/" not in self._name:
            # One that may be executed is the one that is meant, unless it is a folder.
            tried = [each for place, each in enumerate(tried) if f"not {place}" in results]
            if not tried and errno.EACCES in [
                results.get(f"may {place}") for place in range(len(self._tries))
            ]:
                return 0, errno.EACCES
        return next((each for each in tried if each[1] not in _MISSING), (0, errno.ENOENT))

    def broken(self) -> str | None:
        """What could not be done before the command could be started; None if there is no such thing."""
        for call, result in self._calls.failed():
            reason = os.strerror(-result)
            if call.label == "cwd":
                return f"the working directory {self._request['cwd']!r} cannot be used: {reason}"
            if call.label == "clone":
                return f"the sandbox cannot start a process: {reason}"
            if call.instead == "broken":
                return f"the command cannot be started: {call.name}: {reason}"
        return None
