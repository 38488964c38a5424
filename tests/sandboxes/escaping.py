"""Tries `attacks` in sandboxes with all their defences and with some of them off.

``python -m tests.sandboxes.escaping HOME IMAGE PYTHON`` is a program of its own, so that another user can run it too.
PYTHON is one inside the image. Prints a JSON object: for each set of defences that was off, what became of each
attempt.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import anyio

from race.sandbox import File, Sandbox, SandboxSpec
from race.sandboxes.local import LocalProvider, confine, host_mask, spawner

_HERE = Path(__file__).parent
_BOOT = spawner._BOOT

_NO_FILTER = """
confine.system_call_filter = lambda *_, **__: struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
"""
WITHOUT: dict[str, str] = {
    "filter": _NO_FILTER,
    "filter and capabilities": _NO_FILTER + "confine.CAPABILITIES = frozenset(range(32))",
    "filter and hidden PID 1": _NO_FILTER
    + """
confinement = confine.confinement
confine.confinement = lambda *given, **more: [
    call._replace(arguments=(syscalls.PR_SET_DUMPABLE, 1)) if call.arguments == (syscalls.PR_SET_DUMPABLE, 0) else call
    for call in confinement(*given, **more)
]
""",
    "limit on user namespaces": """
written = file_tree.written
file_tree.written = lambda path, text: [] if path.endswith("max_user_namespaces") else written(path, text)
""",
    "no new privileges": """
confinement = confine.confinement
confine.confinement = lambda *given, **more: [
    call for call in confinement(*given, **more) if call.arguments != (syscalls.PR_SET_NO_NEW_PRIVS, 1)
]
confine.CAPABILITIES |= {21}  # a filter needs one or the other
""",
    "scope of abstract sockets": """
syscalls.landlock_version = lambda: 0
""",
}
"""For each set of defences the lines that switch it off in the helper that makes sandboxes."""

_WEAK_BOOT = """
import importlib.util
import sys

specification = importlib.util.spec_from_file_location("boot", {boot!r})
boot = importlib.util.module_from_spec(specification)
specification.loader.exec_module(boot)
load = boot.importlib.import_module

def weakened(name):
    module = load(name)
    if name.endswith(".zygote"):
        import struct
        from race.sandboxes.local import confine, file_tree, syscalls
        exec({lines!r}, {{"file_tree": file_tree, "confine": confine, "syscalls": syscalls, "struct": struct}})
    return module

boot.importlib = type("importlib", (), {{"import_module": staticmethod(weakened)}})
boot.__file__ = {boot!r}
boot.main()
"""


def write_boot(path: Path, lines: str) -> None:
    """Write a program that starts the helper after some lines that change its modules, to be `spawner`'s."""
    path.write_text(_WEAK_BOOT.format(boot=str(_BOOT), lines=lines))


def numbers() -> dict[str, int]:
    """The system calls that attacks make, by name, on this processor."""
    column = ["x86_64", "aarch64"].index(os.uname().machine)
    found = {name: each[column] for name, each in confine.DENIED.items()}
    return {**found, "unshare": (272, 97)[column]}


async def tried(
    provider: LocalProvider, spec: SandboxSpec, python: str, facts: dict[str, object]
) -> dict[str, str]:
    """What becomes of all attempts in a new sandbox."""
    made: Sandbox = await provider.create(spec)
    try:
        await made.write([File(b"/tmp/attacks.py", (_HERE / "attacks.py").read_bytes())])
        upper = next((provider.home / "sandboxes" / spec.name / "upper").glob("*/tmp/attacks.py"))
        if os.geteuid() == 0:
            os.mknod(upper.with_name("shipped-device"), 0o20666, os.makedev(1, 3))
        done = await made.exec(
            [python, "/tmp/attacks.py", json.dumps(numbers()), json.dumps(facts)], timeout=30
        )
        if done.exit_code != 0:
            raise SystemExit(f"{spec.name}: {done}")
        found: dict[str, str] = json.loads(done.stdout)
        return found
    finally:
        await made.delete()


async def run(home: Path, image: str, python: str) -> dict[str, dict[str, str]]:
    """All of it."""
    results: dict[str, dict[str, str]] = {}
    weak = home.with_name("weak.py")
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(("0.0.0.0", 0))  # noqa: S104 - the attacks try all addresses
        listener.listen()
        abstract.bind(f"\0race-escape-{os.getpid()}")
        abstract.listen()
        provider = LocalProvider(home)
        await provider.create(SandboxSpec("sibling", image=image))
        facts: dict[str, object] = {
            "process": os.getpid(),
            "sibling": provider._workshop.records.load("sibling").init.pid,  # type: ignore[union-attr]
            "port": listener.getsockname()[1],
            "address": _address(),
            "abstract": f"race-escape-{os.getpid()}",
            "home": str(home),
            "shadow": host_mask.REPLACED["/etc/shadow"][0],
        }
        results["nothing"] = await tried(provider, SandboxSpec("all", image=image), python, facts)
        shared = SandboxSpec("shared", image=image, network="full")
        results["network"] = await tried(provider, shared, python, facts)
        for number, (what, lines) in enumerate(WITHOUT.items()):
            write_boot(weak, lines)
            spawner._BOOT = weak
            weakened = LocalProvider(home)
            spec = SandboxSpec(
                f"weak-{number}", image=image, network="full" if "abstract" in what else "none"
            )
            results[what] = await tried(weakened, spec, python, facts)
            await weakened.aclose()
        spawner._BOOT = _BOOT
        await provider.aclose()
        if os.geteuid() == 0:  # others may not read what the mask hides
            host_mask.REPLACED.pop("/etc/shadow")
            host_mask.unreadable = lambda _: []
            unmasked = LocalProvider(home.with_name("unmasked"))
            results["mask"] = await tried(unmasked, SandboxSpec("unmasked"), "python3", facts)
            await unmasked.aclose()
    return results


async def cleaned(home: Path, image: str, python: str) -> dict[str, dict[str, str]]:
    """Leave no sandbox, whatever happens."""
    try:
        return await run(home, image, python)
    finally:
        provider = LocalProvider(home)
        for each in await provider.list():
            await (await provider.get(each.name)).delete()
        await provider.aclose()


def _address() -> str:
    """One of this machine's own addresses, other than its loopback's if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        found: str = asking.getsockname()[0]
        return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(anyio.run(cleaned, Path(sys.argv[1]), *sys.argv[2:])))
