"""The engine, through the docker SDK for Python: which one, what it can do, and its errors as ours."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from race.errors import MachineError, SandboxError

T = TypeVar("T")

_TIMEOUT = 600
_AT_ONCE = 500
_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
_GO_KINDS = {1 << 31: stat.S_IFDIR, 1 << 27: stat.S_IFLNK, 1 << 25: stat.S_IFIFO, 1 << 24: stat.S_IFSOCK}
_GO_DEVICE = 1 << 26
_GO_BITS = {1 << 23: stat.S_ISUID, 1 << 22: stat.S_ISGID, 1 << 20: stat.S_ISVTX}
_TAR_KINDS = {tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK, tarfile.FIFOTYPE: stat.S_IFIFO}
_PATTERN = re.compile(rb"[*?\[\\]")
_STANDARD = str.maketrans("-_", "+/")
_LIMITS = {"MemoryLimit": "memory", "CpuCfsQuota": "cpus", "PidsLimit": "processes", "CPUSet": "cores"}


@dataclass(frozen=True, slots=True)
class Status:
    """What is at a path of a container.

    Attributes:
        mode: kind and permission bits, as in `os.stat_result`.
        size: in bytes.
    """

    mode: int
    size: int


class Engine:
    """An engine with Docker's API. Nothing is asked of it before it is needed."""

    def __init__(self) -> None:
        self._client: Any = None
        self._info: dict[str, Any] | None = None
        self._threads: anyio.CapacityLimiter | None = None
        self._is_podman: bool | None = None

    @property
    def client(self) -> Any:
        """The SDK's client: that of ``DOCKER_HOST``, or of the first socket that is there.

        Raises:
            MachineError: the SDK or an engine is missing.
        """
        if self._client is None:
            try:
                docker: Any = importlib.import_module("docker")
            except ImportError as e:
                raise MachineError(
                    "the sandbox provider 'docker' needs the docker SDK for Python: pip install 'forkrace[docker]'"
                ) from e
            environment = _environment()
            place = environment.get("DOCKER_HOST", f"unix://{_SOCKETS[0]}").removeprefix("unix://")
            if place.startswith("/") and not os.path.exists(place):  # noqa: PTH110 - as the SDK will
                raise MachineError(_unreachable(FileNotFoundError(f"{place} is not there")))
            try:
                self._client = docker.DockerClient.from_env(timeout=_TIMEOUT, environment=environment)
            except Exception as e:
                raise MachineError(_unreachable(e)) from e
        return self._client

    def info(self) -> dict[str, Any]:
        """What the engine says of itself, asked once.

        Raises:
            MachineError: it cannot be reached.
        """
        if self._info is None:
            client = self.client
            try:
                self._info = cast("dict[str, Any]", client.info())
            except Exception as e:
                raise MachineError(_unreachable(e)) from e
        return self._info

    def limits(self) -> frozenset[str]:
        """The limits that hold, none when the engine cannot be reached."""
        try:
            info = self.info()
        except MachineError:
            return frozenset()
        return frozenset(limit for key, limit in _LIMITS.items() if info.get(key))

    async def call(self, work: Callable[[], T], *, abandon: bool = False) -> T:
        """Do something with the SDK in a thread, its errors as ours.

        Args:
            work: what to do.
            abandon: go on at once when cancelled, although it is not done.
        """
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_AT_ONCE)

        def run() -> T:
            with failures():
                return work()

        return await anyio.to_thread.run_sync(run, abandon_on_cancel=abandon, limiter=self._threads)

    def container(self, handle: str) -> Any:
        """A container by its id."""
        return self.client.containers.get(handle)

    @property
    def is_podman(self) -> bool:
        """Whether it is Podman's service, which differs from Docker's here and there."""
        if self._is_podman is None:
            components = self.client.version().get("Components") or ()
            self._is_podman = any("podman" in str(c.get("Name", "")).lower() for c in components)
        return self._is_podman

    def _apart(self, path: bytes) -> tuple[bytes, bytes]:
        """What to ask the engine for, and what to look for in the answer.

        Podman takes names for patterns, and Docker finds no single path that is not UTF-8.
        """
        is_odd = _PATTERN.search if self.is_podman else _is_no_text
        parts = path.split(b"/")
        first = next((i for i, p in enumerate(parts) if is_odd(p)), None)
        if first is None:
            return path, b""
        return b"/".join(parts[:first]) or b"/", b"/".join(parts[first:])

    def status(self, handle: str, path: bytes) -> Status | None:
        """What is at a path of a container, running or not; a link is not followed. None if nothing is there."""
        if self._apart(path)[1]:
            with contextlib.suppress(FileNotFoundError), self.archive(handle, path) as members:
                for member, _ in members:
                    return Status(_TAR_KINDS.get(member.type, stat.S_IFREG) | member.mode, member.size)
            return None
        api = self.client.api
        url = api._url("/containers/{0}/archive", handle)  # noqa: SLF001 - the SDK has no call for it
        told = api.head(url, params={"path": path}).headers.get("x-docker-container-path-stat")
        if told is None:
            return None
        # Podman writes it with the letters for URLs.
        found = json.loads(base64.b64decode(told.translate(_STANDARD) + "==="))
        return Status(_mode(int(found["mode"])), int(found["size"]))

    @contextmanager
    def archive(
        self, handle: str, path: bytes
    ) -> Generator[Generator[tuple[tarfile.TarInfo, tarfile.TarFile]]]:
        """The members of a tar stream of a path of a container, one after the other, the path itself first.

        Raises:
            FileNotFoundError: nothing is there.
        """
        asked, wanted = self._apart(path)
        api = self.client.api
        url = api._url("/containers/{0}/archive", handle)  # noqa: SLF001 - it takes no bytes
        # Docker would compress it otherwise, and what is read here is as it comes.
        plain = {"Accept-Encoding": "identity"}
        answer = api.get(url, params={"path": asked}, headers=plain, stream=True)
        try:
            if answer.status_code == 404:  # noqa: PLR2004 - HTTP's
                raise FileNotFoundError(path)
            answer.raise_for_status()
            with tarfile.open(
                fileobj=answer.raw, mode="r|", encoding="utf-8", errors="surrogateescape"
            ) as members:
                yield _below(members, wanted)
        finally:
            answer.close()

    def put(self, handle: str, archive: bytes | Path) -> None:
        """Unpack a tar file at the root of a container."""
        if isinstance(archive, bytes):
            self.client.api.put_archive(handle, "/", archive)
            return
        with archive.open("rb") as file:
            self.client.api.put_archive(handle, "/", file)

    def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _is_no_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return True
    return False


def _below(members: tarfile.TarFile, wanted: bytes) -> Generator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    top: bytes | None = None
    for member in members:
        name = member.name.encode("utf-8", "surrogateescape").strip(b"/")
        top = name if top is None else top
        inside = name[len(top) :].strip(b"/")
        if not wanted or inside == wanted or inside.startswith(wanted + b"/"):
            yield member, members


@contextmanager
def failures() -> Generator[None]:
    """Turn the SDK's errors into ours."""
    try:
        yield
    except Exception as e:
        name = type(e).__module__.partition(".")[0]
        if name in ("docker", "requests", "urllib3"):
            raise SandboxError(f"the container engine: {getattr(e, 'explanation', None) or e}") from e
        raise


def is_missing(error: Exception) -> bool:
    """Whether an error of the SDK says that there is no such thing."""
    return type(error).__name__ in ("NotFound", "ImageNotFound")


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    if not environment.get("DOCKER_HOST"):
        own = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}") + "/podman/podman.sock"
        found = next((s for s in (*_SOCKETS, own) if os.access(s, os.R_OK | os.W_OK)), None)
        if found is not None:
            environment["DOCKER_HOST"] = f"unix://{found}"
    return environment


def _unreachable(error: Exception) -> str:
    return (
        f"no container engine can be reached: {error}; start Docker or 'podman system service', or say where it "
        "is with DOCKER_HOST"
    )


def _mode(go: int) -> int:
    """A mode as Go writes it, as the kernel has it."""
    kind = next(
        (k for bit, k in _GO_KINDS.items() if go & bit), stat.S_IFCHR if go & _GO_DEVICE else stat.S_IFREG
    )
    return kind | (go & 0o777) | sum(bit for flag, bit in _GO_BITS.items() if go & flag)
