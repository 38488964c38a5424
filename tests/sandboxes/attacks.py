"""Attempts to get out of a sandbox, run inside of one: ``python3 attacks.py NUMBERS FACTS [NAME ...]``.

Prints a JSON object: for each attempt ``"worked"`` or the name of the error that stopped it. Where success would do
harm to the machine, the call is made with an argument that is refused only after the permission was looked at: then the
error that says so counts as success. Needs nothing but the standard library.
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import socket
import stat
import struct
import sys
import termios
import time

NUMBERS = json.loads(sys.argv[1])
"""System calls by name."""
FACTS = json.loads(sys.argv[2])
"""What somebody might know of the host: a process, a port, an abstract socket."""
WANTED = sys.argv[3:]

libc = ctypes.CDLL(None, use_errno=True)
attempts = {}


class PastTheGateError(Exception):
    """Refused for its argument, after the permission was granted."""


def attempt(function):
    attempts[function.__name__] = function
    return function


def call(name, *arguments, past=()):
    """Make a system call by its name or number."""
    ctypes.set_errno(0)
    converted = [
        each if isinstance(each, (bytes, ctypes.Array)) else ctypes.c_long(each) for each in arguments
    ]
    result = libc.syscall(ctypes.c_long(NUMBERS.get(name, name)), *converted)
    if result >= 0:
        return result
    error = ctypes.get_errno()
    if error in past:
        raise PastTheGateError
    raise OSError(error, os.strerror(error))


def write(path, text="1"):
    with open(path, "w") as file:
        file.write(text)


# The kernel's settings


@attempt
def core_pattern():
    write("/proc/sys/kernel/core_pattern", "|/bin/false")


@attempt
def modprobe_path():
    write("/proc/sys/kernel/modprobe", "/bin/false")


@attempt
def sysrq():
    write("/proc/sysrq-trigger", "h")


@attempt
def sysrq_setting():
    write("/proc/sys/kernel/sysrq", "1")


@attempt
def more_user_namespaces():
    write("/proc/sys/user/max_user_namespaces", "100")


@attempt
def memory_of_the_kernel():
    with open("/proc/kcore", "rb") as file:
        file.read(64)


@attempt
def kernel_log():
    buffer = ctypes.create_string_buffer(64)
    call("syslog", 3, buffer, 64)


@attempt
def processors_off():
    write("/sys/devices/system/cpu/cpu1/online", "0")


# Mounts and namespaces


@attempt
def mount():
    os.makedirs("/tmp/m", exist_ok=True)
    call("mount", b"x", b"/tmp/m", b"tmpfs", 0, 0)


@attempt
def new_mount_calls():
    os.close(call("fsopen", b"tmpfs", 1))


@attempt
def copy_of_a_mount():
    os.close(call("open_tree", -100, b"/proc", 1))


@attempt
def unmount():
    call("umount2", b"/dev/shm", 2)


@attempt
def control_groups():
    os.makedirs("/tmp/c", exist_ok=True)
    call("mount", b"x", b"/tmp/c", b"cgroup2", 0, 0)


@attempt
def control_groups_shown():
    os.listdir("/sys/fs/cgroup")


@attempt
def user_namespace():
    call("unshare", 0x10000000)


@attempt
def mount_namespace():
    call("unshare", 0x20000)


@attempt
def network_namespace():
    call("unshare", 0x40000000)


@attempt
def join_a_namespace():
    opened = os.open("/proc/self/ns/uts", os.O_RDONLY)
    call("setns", opened, 0)


@attempt
def pivot_root():
    call("pivot_root", b"/tmp", b"/tmp", past=(errno.EINVAL, errno.EBUSY))


@attempt
def host_name():
    socket.sethostname("other")


# Other processes


@attempt
def trace_pid_1():
    call("ptrace", 0x4206, 1, 0, 0)


@attempt
def memory_of_pid_1():
    with open("/proc/1/mem", "rb") as file:
        file.seek(0)
        try:
            file.read(1)
        except OSError as error:
            if error.errno != errno.EIO:  # nothing is mapped there
                raise


@attempt
def read_pid_1():
    buffer = ctypes.create_string_buffer(8)
    vector = struct.pack("QQ", ctypes.addressof(buffer), 8)
    call("process_vm_readv", 1, vector, 1, struct.pack("QQ", 0, 8), 1, 0, past=(errno.EFAULT,))


@attempt
def files_of_pid_1():
    os.listdir("/proc/1/fd")


@attempt
def root_of_pid_1():
    os.listdir("/proc/1/root/")


@attempt
def program_of_pid_1():
    os.readlink("/proc/1/exe")


@attempt
def a_file_of_pid_1():
    call("pidfd_getfd", os.pidfd_open(1), 3, 0)


@attempt
def signal_to_the_host():
    os.kill(FACTS["process"], 0)


@attempt
def process_of_the_host():
    os.stat(f"/proc/{FACTS['process']}/root")


@attempt
def handle_of_the_host():
    os.close(os.pidfd_open(FACTS["process"]))


@attempt
def process_of_a_sibling():
    os.kill(FACTS["sibling"], 0)


@attempt
def trace_a_sibling():
    call("ptrace", 0x4206, FACTS["sibling"], 0, 0)


# The kernel's rarely trodden parts


@attempt
def keyring():
    call("add_key", b"user", b"race", b"x", 1, -3)


@attempt
def keyring_of_the_user():
    call("keyctl", 0, -4, 1)


@attempt
def bpf():
    call("bpf", 0, struct.pack("IIIIIIIIIIIIII", 2, 4, 4, 1, *[0] * 10), 56)


@attempt
def profile():
    attributes = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 << 5 | 1 << 6) + bytes(64)
    os.close(call("perf_event_open", attributes, 0, -1, -1, 0))


@attempt
def page_faults():
    os.close(call("userfaultfd", 1))


@attempt
def io_uring():
    os.close(call("io_uring_setup", 1, ctypes.create_string_buffer(120)))


@attempt
def file_by_handle():
    handle = struct.pack("II", 8, 1) + struct.pack("II", 2, 0)
    call("open_by_handle_at", os.open("/", os.O_RDONLY), handle, 0, past=(errno.ESTALE, errno.EINVAL))


@attempt
def load_a_module():
    call("init_module", 0, 0, b"", past=(errno.ENOEXEC, errno.EFAULT, errno.EINVAL))


@attempt
def another_kernel():
    call("kexec_load", 0, 0, 0, 0xFFFF, past=(errno.EINVAL,))


@attempt
def reboot():
    call("reboot", 0, 0, 0, 0, past=(errno.EINVAL,))


@attempt
def the_clock():
    call("clock_settime", 0, struct.pack("qq", int(time.time()), 0))


@attempt
def swap():
    call("swapon", b"/etc/passwd", 0, past=(errno.EINVAL,))


@attempt
def accounting():
    call("acct", b"/etc/passwd", past=(errno.EINVAL, errno.EACCES))


@attempt
def calls_of_another_abi():
    call(0x40000000 + 39)


# Devices and files


@attempt
def block_device():
    os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))


@attempt
def memory_device():
    os.mknod("/tmp/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1))


@attempt
def whiteout():
    os.mknod("/tmp/whiteout", stat.S_IFCHR | 0o600, 0)


@attempt
def device_in_the_image():
    with open("/tmp/shipped-device", "rb") as file:
        file.read(1)


@attempt
def overlay_mark():
    os.makedirs("/tmp/o", exist_ok=True)
    os.setxattr("/tmp/o", "trusted.overlay.opaque", b"y")


@attempt
def passwords_of_the_host():
    with open("/etc/shadow") as file:
        if file.read() == FACTS["shadow"]:
            raise PermissionError(errno.EACCES, "it is what every sandbox has")


@attempt
def home_of_the_host():
    os.stat(FACTS["home"])


@attempt
def become_root_by_a_set_uid_program():
    program = "/tmp/set-uid-python"
    if not os.path.exists(program):
        with open(sys.executable, "rb") as source, open(program, "wb") as target:
            target.write(source.read())
        os.chmod(program, 0o4755)  # noqa: S103 - that is what it tries
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(1000, 1000, 1000)
            os.setresuid(1000, 1000, 1000)
            if os.getuid() == 1000:
                environment = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
                script = "import os; os._exit(os.geteuid() == 0)"
                os.execve(program, [program, "-S", "-E", "-c", script], environment)
        finally:
            os._exit(3)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 1:
        raise PermissionError(errno.EPERM, str(status))


# The network and the terminal


@attempt
def vsock():
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()


@attempt
def packets():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


@attempt
def kernel_cryptography():
    socket.socket(38, socket.SOCK_SEQPACKET).close()


@attempt
def loopback_of_the_host():
    socket.create_connection(("127.0.0.1", FACTS["port"]), 2).close()


@attempt
def address_of_the_host():
    socket.create_connection((FACTS["address"], FACTS["port"]), 2).close()


@attempt
def metadata():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("169.254.169.254", 80))


@attempt
def abstract_socket_of_the_host():
    with socket.socket(socket.AF_UNIX) as made:
        made.connect("\0" + FACTS["abstract"])


@attempt
def type_into_a_terminal():
    with open("/dev/tty", "rb") as terminal:
        fcntl.ioctl(terminal, termios.TIOCSTI, b"x")


# More than its share


@attempt
def kept_from_memory_shortage():
    write("/proc/self/oom_score_adj", "-1000")


@attempt
def first_in_line():
    os.setpriority(os.PRIO_PROCESS, 0, -20)


@attempt
def real_time():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@attempt
def more_processes():
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1))
    except ValueError:  # Python's word for what the kernel does not permit
        raise PermissionError(errno.EPERM, "setrlimit") from None


def outcome(function):
    """What becomes of an attempt, in a process of its own: some change the process that makes them."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, tried(function).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as told:
        text = told.read()
    os.waitpid(child, 0)
    return text or "died"


def tried(function):
    try:
        function()
    except PastTheGateError:
        return "worked"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "worked"


if __name__ == "__main__":
    print(
        json.dumps({name: outcome(each) for name, each in attempts.items() if not WANTED or name in WANTED})
    )
