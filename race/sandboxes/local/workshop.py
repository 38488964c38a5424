"""Brings recorded sandboxes to life, ends them, and turns what they wrote into layers.

The functions that take a record expect the sandbox's lock to be held.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from race.errors import MachineError, SandboxError
from race.sandboxes.local import copying, flattening, liveness, talk
from race.sandboxes.local.cgroups import Cgroups
from race.sandboxes.local.changes import Stack
from race.sandboxes.local.images import Images
from race.sandboxes.local.layer_store import LayerStore
from race.sandboxes.local.network import Gatekeeper
from race.sandboxes.local.record import Layer, Record
from race.sandboxes.local.records import Records
from race.sandboxes.local.removal import remove_tree
from race.sandboxes.local.spawner import Spawner
from race.sandboxes.local.zygote import is_host_root

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from race.sandboxes.local.messages import MountPlan, SpawnRequest

MOST_LAYERS = 400
"""The kernel stacks at most 500 layers; this leaves room for an image's own."""

_NOT_FILES = frozenset({b"proc", b"sys", b"dev"})


class Workshop:
    """Everything that a provider's sandboxes share.

    Args:
        home: the provider's folder.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.records = Records(home)
        self.layers = LayerStore(home)
        self.images = Images(home, self.layers)
        self.spawner = Spawner(home)
        self.cgroups = Cgroups(home)
        self.gatekeeper = Gatekeeper()
        self.trash = home / "trash"

    async def bring_up(self, record: Record) -> Record:
        """Start a sandbox that is not running.

        Returns:
            The record as it was saved.

        Raises:
            MachineError: this machine cannot.
        """
        if os.geteuid() == 0 and not is_host_root():
            raise MachineError(
                "this process is root, but may not mount (it has no CAP_SYS_ADMIN, or is in a user namespace), and a "
                "sandbox's root must never be the machine's: run it as an ordinary user, or in a container with "
                "--privileged"
            )
        record = self._finish_sealing(record)
        self._make_uppers(record)
        try:
            files = self.cgroups.make(record.cgroups, record.limits)
        except OSError as error:
            raise MachineError(
                f"the limits of the sandbox {record.name!r} could not be set: {error}"
            ) from error
        async with self.spawner.spawn(self._request(record, files)) as pid:
            record = record.model_copy(update={"init": liveness.noted(pid)})
            self.records.save_init(record)
        await self.gatekeeper.serve(self.records.folder(record.name), record)
        if not record.complete:
            self.records.save_complete(record.name)
        return record.model_copy(update={"complete": True, "frozen": False})

    async def end(self, record: Record) -> Record:
        """End every process of a sandbox."""
        await liveness.end(record.init)
        self.cgroups.remove(record.cgroups)
        ended = record.model_copy(update={"init": None, "frozen": False})
        self.records.save_init(ended)
        return ended

    def _request(self, record: Record, cgroups: list[str]) -> SpawnRequest:
        own = f"sandboxes/{record.name}"
        mounts: list[MountPlan] = []
        for index, mount in enumerate(record.mounts):
            layers = [f"{each.folder}/{index}" for each in record.lower if index in each.parts]
            mounts.append(
                {
                    "at": mount.at,
                    "lower": [*layers, *mount.image],
                    "upper": f"{own}/upper/{index}",
                    "work": f"{own}/work/{index}",
                }
            )
        return {
            "folder": own,
            "mounts": mounts,
            "hostname": record.name[:64],
            "share_network": record.network == "full",
            "processes": record.limits.processes,
            "cgroups": cgroups,
            "lifetime": record.lifetime,
            "idle_lifetime": record.idle_lifetime,
            "cores": None if record.limits.cores is None else list(record.limits.cores),
            "memory": self.cgroups.watched_memory(record.limits),
            # No process has it, so that nobody could be ended for it; half leaves the processes some.
            "shared_memory": None if record.limits.memory is None else record.limits.memory // 2,
            "disk": record.limits.disk,
            "written": [] if record.limits.disk is None else _written_by(record),
        }

    # Layers

    def _absolute(self, layer: str) -> str:
        return layer if layer.startswith("/") else str(self.home / layer)

    def stacks(self, record: Record) -> list[Stack]:
        """The layers of each mount, for looking into them from outside."""
        points = [mount.at.strip("/").encode() for mount in record.mounts]
        found: list[Stack] = []
        for index, mount in enumerate(record.mounts):
            own = [f"{each.folder}/{index}" for each in record.own if index in each.parts]
            inherited = [f"{each.folder}/{index}" for each in record.inherited if index in each.parts]
            at = points[index]
            inside = {
                each[len(at) + 1 :] if at else each for each in points if each != at and _below(each, at)
            }
            found.append(
                Stack(
                    at=at,
                    own=[self._absolute(each) for each in (f"sandboxes/{record.name}/upper/{index}", *own)],
                    base=[self._absolute(each) for each in (*inherited, *mount.image)],
                    apart=frozenset(inside | (_NOT_FILES if not at else set())),
                )
            )
        return found

    def _make_uppers(self, record: Record) -> None:
        """Make the directories that a sandbox will write to, each like the one that it lies over."""
        own = str(self.records.folder(record.name))  # as text: this is done for each mount of each fork
        is_root = os.geteuid() == 0
        for index in range(len(record.mounts)):
            upper = f"{own}/upper/{index}"
            if not os.path.exists(upper):
                like = os.stat(self._below_upper(record, index))
                os.mkdir(upper)
                os.chmod(upper, stat.S_IMODE(like.st_mode))
                if is_root:
                    os.chown(upper, like.st_uid, like.st_gid)
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{own}/work/{index}")

    def _below_upper(self, record: Record, index: int) -> str:
        for layer in (*record.own, *record.inherited):
            if index in layer.parts:
                return self._absolute(f"{layer.folder}/{index}")
        return self._absolute(record.mounts[index].image[0])

    def _written(self, record: Record) -> tuple[int, ...]:
        """The mounts whose upper directories hold anything."""
        upper = self.records.folder(record.name) / "upper"
        found: list[int] = []
        for index in range(len(record.mounts)):
            try:
                with os.scandir(upper / str(index)) as entries:
                    holds = next(entries, None) is not None
                now, before = os.stat(upper / str(index)), os.stat(self._below_upper(record, index))
            except FileNotFoundError:
                continue
            if holds or now.st_mode != before.st_mode:
                found.append(index)
        return tuple(found)

    def seal(self, record: Record) -> Record:
        """Make what a stopped sandbox has written a layer that it and its forks share. Nothing is copied."""
        record = self._finish_sealing(record)
        written = self._written(record)
        if not written:
            return record
        folder = self.records.folder(record.name)
        relative = f"layers/{record.sealed + 1}"
        (folder / "layers").mkdir(mode=0o700, exist_ok=True)
        (folder / relative).mkdir(mode=0o700, exist_ok=True)
        layer = Layer(folder=f"sandboxes/{record.name}/{relative}", parts=written)
        sealed = record.model_copy(update={"own": (layer, *record.own), "sealed": record.sealed + 1})
        self.records.save(sealed)  # first: what is noted but not moved can be moved later
        return self._finish_sealing(sealed)

    def _finish_sealing(self, record: Record) -> Record:
        """Move what the last sealing noted down, if it was not moved then."""
        if record.own:
            upper = self.records.folder(record.name) / "upper"
            for index in record.own[0].parts:
                place = self.home / record.own[0].folder / str(index)
                if not place.exists():
                    (upper / str(index)).rename(place)
        return record

    async def flattened(self, record: Record) -> Record:
        """Merge the layers of a sandbox that stands on many.

        Returns:
            The record as it was saved.

        Raises:
            SandboxError: it cannot be done, and there are as many as the kernel stacks.
        """
        if not flattening.is_deep(record):
            return record
        try:
            record = await anyio.to_thread.run_sync(flattening.flatten, self.home, record)
        except OSError as error:
            if max(len(record.own), len(record.lower)) < MOST_LAYERS:
                return record  # it is slower than it could be, and works
            raise SandboxError(
                f"the sandbox {record.name!r} stands on {len(record.lower)} layers, one for each fork before it, which "
                f"is the limit, and they cannot be merged: {error}"
            ) from error
        self.records.save(record)
        return record

    async def copy_written(self, parent: Record, child: Record) -> Record:
        """Copy what a running sandbox has written, as of one moment, into a layer that belongs to its fork.

        Returns:
            The fork's record as it was saved.

        Raises:
            SandboxError: the sandbox ended meanwhile, or there is no room.
        """
        target = self.records.folder(child.name) / "layers" / "0"
        source = self.records.folder(parent.name) / "upper"
        target.mkdir(mode=0o700, parents=True)

        def copy() -> tuple[int, ...]:
            written = self._written(parent)
            for index in written:
                copying.copy_layer(str(source / str(index)), str(target / str(index)))
            return written

        async with talk.connected(self.records.folder(parent.name), parent.name) as connection:
            talk.tell(connection, parent.name, {"do": "hold"})
            await talk.answer(connection, parent.name)
            try:
                written = await anyio.to_thread.run_sync(copy)
            except OSError as error:
                raise SandboxError(
                    f"the files of the sandbox {parent.name!r} could not be copied: {error}"
                ) from error
        if written:
            layer = Layer(folder=f"sandboxes/{child.name}/layers/0", parts=written)
            child = child.model_copy(update={"inherited": (layer, *child.inherited)})
            self.records.save(child)
        return child

    # The end

    @contextlib.asynccontextmanager
    async def removed_on_failure(self, record: Record) -> AsyncGenerator[None]:
        """Leave nothing of a new sandbox if it cannot be brought to life."""
        try:
            yield
        except BaseException:
            with anyio.CancelScope(shield=True):
                latest = self.records.load(record.name)
                await liveness.end(latest.init)
                self.cgroups.remove(latest.cgroups)
                await self.remove(self.discard(record.name))
            raise

    def discard(self, name: str) -> Path:
        """Take a sandbox's folder out of sight in one step."""
        self.trash.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self.trash / f"{name}-{secrets.token_hex(8)}"
        self.records.folder(name).rename(place)
        return place

    async def remove(self, place: Path) -> None:
        """Remove a folder without holding up the event loop."""
        await anyio.to_thread.run_sync(_remove_locked, place)

    def close(self) -> None:
        """End this process's helpers."""
        self.spawner.close()
        self.gatekeeper.close()


def _written_by(record: Record) -> list[str]:
    """The directories, relative to home, that hold what a sandbox has written since it was made."""
    sealed = [f"{each.folder}/{index}" for each in record.own for index in each.parts]
    return [*(f"sandboxes/{record.name}/upper/{index}" for index in range(len(record.mounts))), *sealed]


def _remove_locked(place: Path) -> None:
    """Remove a folder of the trash, unless another process has done so meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        opened = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if place.exists():
                remove_tree(place)
        finally:
            os.close(opened)


def _below(path: bytes, folder: bytes) -> bool:
    return not folder or path.startswith(folder + b"/")
