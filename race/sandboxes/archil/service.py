"""The service, through the official SDK: its client, and its errors as ours."""

from __future__ import annotations

import importlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from race.errors import MachineError, SandboxError
from race.sandbox import Network, State

T = TypeVar("T")

_AT_ONCE = 500
_STATES: dict[str, State] = {
    "pending": "running",
    "running": "running",
    "pausing": "frozen",
    "paused": "frozen",
}


class Service:
    """The account's sandboxes. Nothing is asked of the service before it is needed."""

    def __init__(self) -> None:
        self._client: Any = None
        self._threads: anyio.CapacityLimiter | None = None

    @property
    def sdk(self) -> Any:
        """The SDK.

        Raises:
            MachineError: it is missing.
        """
        try:
            return importlib.import_module("archil")
        except ImportError as e:
            raise MachineError(
                "the sandbox provider 'archil' needs Archil's SDK: pip install 'forkrace[archil]'"
            ) from e

    @property
    def client(self) -> Any:
        """The SDK's client.

        Raises:
            MachineError: the SDK, the key or the region is missing.
        """
        if self._client is None:
            base_url = os.environ.get("ARCHIL_BASE_URL") or None
            region = os.environ.get("ARCHIL_REGION") or ("own" if base_url else None)
            try:
                self._client = self.sdk.Archil(region=region, base_url=base_url)
            except ValueError as e:
                raise MachineError(f"the sandbox provider 'archil': {e}") from e
        return self._client

    async def call(self, work: Callable[[], T], *, abandon: bool = False) -> T:
        """Do something with the SDK in a thread, its errors as ours.

        Args:
            work: what to do.
            abandon: go on at once when cancelled, although it is not done.
        """
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_AT_ONCE)

        def run() -> T:
            try:
                return work()
            except (ConnectionError, RuntimeError) as e:
                raise SandboxError(f"Archil: {e}") from e
            except Exception as e:
                if type(e).__module__.partition(".")[0] in ("archil", "httpx", "websockets"):
                    raise SandboxError(f"Archil: {e}") from e
                raise

        return await anyio.to_thread.run_sync(run, abandon_on_cancel=abandon, limiter=self._threads)

    def sandbox(self, handle: str) -> Any:
        """A sandbox by the id that the service gave it."""
        return self.client.sandboxes.get(handle)

    def network(self, network: Network) -> Any:
        """A network as the SDK has it."""
        if network == "full":
            return self.sdk.SandboxNetwork()
        allow = [] if network == "none" else list(network)
        policy = self.sdk.SandboxEgressPolicy(default="deny", allow=allow)
        return self.sdk.SandboxNetwork(egress=policy)

    def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            self._client.close()
            self._client = None


def state_of(sandbox: Any) -> State:
    """Whether a sandbox of the SDK runs."""
    return _STATES.get(sandbox.status, "stopped")


def is_missing(error: Exception) -> bool:
    """Whether an error says that there is no such sandbox."""
    cause = error.__cause__ or error
    return getattr(cause, "status", None) == 404  # noqa: PLR2004 - HTTP's


class Running:
    """A process in a sandbox, and what it prints.

    Args:
        service: of the sandbox.
        handle: of the sandbox.
    """

    def __init__(self, service: Service, handle: str) -> None:
        self._service = service
        self._handle = handle
        self._printed: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._status: int | None = None
        self.process: Any = None

    def start(self, command: str, environment: dict[str, str], terminal: Any = False) -> None:
        """Start it; its output comes from `next`."""

        def printed(output: Any) -> None:
            self._printed.put((0 if output.stream == "stdout" else 1, output.data))

        sandbox = self._service.sandbox(self._handle)
        self.process = sandbox.run(
            command, env=environment, terminal=terminal, on_output=printed, collect_output=False
        )
        threading.Thread(target=self._watch, name="archil-process", daemon=True).start()

    def feed(self, data: bytes) -> None:
        """Give it all of its input."""
        self.process.send_input(data)
        self.process.close_stdin()

    def _watch(self) -> None:
        try:
            self._status = self.process.wait().exit_code
        except Exception:  # noqa: BLE001 - its sandbox was stopped, or nobody listens any more: no status is known
            self._status = None
        finally:
            self._ended.set()
            self._printed.put(None)

    def wait(self) -> int | None:
        """Wait for its end. Returns its status, None if nobody knows it."""
        self._ended.wait()
        return self._status

    def next(self) -> tuple[int, bytes] | None:
        """What it printed next, with the number of the stream; None at its end. Waits for it."""
        return self._printed.get()

    def let_go(self) -> None:
        """Let it go on without anybody who listens."""
        if self.process is None:
            self._ended.set()
            self._printed.put(None)
        else:
            self.process.disconnect()  # which ends the wait
