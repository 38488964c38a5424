"""Moves sandboxes between machines: one file with everything, written by `export` and read by `load`.

The file is an archive of an OCI image layout, a tar file that is not compressed (``load`` also takes it compressed with
gzip, xz, bzip2 or zstd), with these entries in this order:

``oci-layout``
    ``{"imageLayoutVersion": "1.0.0"}``.
``blobs/sha256/DIGEST``
    Each layer, the lowest first, as `tar_writing` writes them. Layers of the image come first, then those of the
    sandboxes that it descends from, then its own. A layer holds what one sandbox wrote in all its mounts, at the paths
    that these have inside. The layers of the image ``host`` are not in it, they are the machine itself.
``blobs/sha256/DIGEST``
    The image's configuration. Other tools find ``config.Env`` and ``rootfs.diff_ids`` in it; under ``race.sandbox``
    is a `_Passport`, whose ``format`` is 1. Whatever reads format 1 refuses a higher one.
``blobs/sha256/DIGEST``, ``index.json``
    The image's manifest, and the index that names it.

Every blob is named by its SHA-256, which is checked, and the passport says how much each layer unpacks to, which is
checked too. Sparse files are kept sparse (pax, version 1.0). Attributes other than ``user.*``, sockets and devices do
not travel. Owners do if root exports and root loads. Loading needs, for a sandbox on the image ``host``, a machine with
the same system: the same processor and the same packages, unless the caller takes another system knowingly.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from race.errors import SandboxError
from race.sandbox import Limits, Network
from race.sandboxes.local import liveness, oci, rootfs_images, syscalls
from race.sandboxes.local.images import HOST, Image
from race.sandboxes.local.network import check_network
from race.sandboxes.local.record import Layer, Mount, Record, check_name
from race.sandboxes.local.tar_reading import BLOCK, BadArchiveError
from race.sandboxes.local.tar_writing import LayerWriter, UnmovableError
from race.sandboxes.local.unpacking import Budget, free_budget, is_opaque_root, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from race.sandboxes.local.blobs import Blobs
    from race.sandboxes.local.tar_reading import Stream
    from race.sandboxes.local.workshop import Workshop

FORMAT = 1

_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_RECORD_BLOCKS = 20


class _Load(BaseModel):
    """What one layer is, and what it unpacks to."""

    model_config = ConfigDict(frozen=True)

    role: Literal["image", "inherited", "own"]
    entries: int = Field(ge=0)
    size: int = Field(ge=0)


class _Passport(BaseModel):
    """What an archive says of its sandbox beyond its files."""

    model_config = ConfigDict(frozen=True)

    format: int
    name: str
    image: str
    system: str
    """The machine's operating system and processor."""
    image_id: str
    """Of the image ``host``, what `SandboxProvider.image_id` said; else empty."""
    env: dict[str, str]
    image_env: dict[str, str]
    limits: Limits
    network: Network
    labels: dict[str, str]
    lifetime: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    idle_lifetime: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    created: float
    ancestors: tuple[str, ...]
    layers: tuple[_Load, ...]


def system_name() -> str:
    """This machine's operating system and processor, for people."""
    names: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/etc/os-release").read_text(errors="replace").splitlines():
            key, _, value = line.partition("=")
            names[key] = value.strip('"')
    return f"{names.get('ID', 'linux')} {names.get('VERSION_ID', '')}".strip() + f" on {syscalls.MACHINE}"


# Out


def export(workshop: Workshop, record: Record, target: Path, pulse: Callable[[], None]) -> None:
    """Write a stopped sandbox to a file. Its lock must be held.

    Args:
        workshop: of the sandbox.
        record: of it.
        target: must not exist; is there only when it is whole.
        pulse: called again and again; what it raises ends the work.

    Raises:
        SandboxError: the sandbox runs, something in it cannot travel, or the file cannot be written.
    """
    if liveness.alive(record.init):
        raise SandboxError(f"the sandbox {record.name!r} is running; stop it first (`race sandbox stop`)")
    record = workshop.seal(record)
    try:
        with _appearing(target) as opened:
            _Archive(opened, pulse).complete(workshop, record)
    except UnmovableError as error:
        raise SandboxError(f"the sandbox {record.name!r} cannot be exported: {error}") from None
    except OSError as error:
        raise SandboxError(
            f"the sandbox {record.name!r} could not be exported to {str(target)!r}: {error}"
        ) from error


@contextlib.contextmanager
def _appearing(target: Path) -> Generator[int]:
    """A file to write and read that gets its name only when the block has ended without an error."""
    if os.path.lexists(target):
        raise SandboxError(f"there is already something at {str(target)!r}")
    flags = os.O_RDWR | os.O_CLOEXEC
    beside: Path | None = None
    try:
        opened = os.open(target.parent, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        opened = os.open(beside, flags | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield opened
        os.fsync(opened)
        # Unlike a rename, this never replaces anything. A descriptor makes Python follow the link in /proc.
        source = beside or f"/proc/self/fd/{opened}"
        try:
            os.link(source, target, src_dir_fd=opened, follow_symlinks=True)
        except FileExistsError:
            raise SandboxError(f"there is already something at {str(target)!r}") from None
    finally:
        os.close(opened)
        if beside is not None:
            beside.unlink(missing_ok=True)


class _Archive:
    """The archive being written.

    Args:
        opened: a new file.
        pulse: see `export`.
    """

    def __init__(self, opened: int, pulse: Callable[[], None]) -> None:
        self._opened = opened
        self._pulse = pulse
        self._position = 0
        self._digest = hashlib.sha256()
        self._written: set[str] = set()

    def complete(self, workshop: Workshop, record: Record) -> None:
        """Write all of it."""
        self._member(oci.MARK, _json({"imageLayoutVersion": "1.0.0"}))
        layers: list[dict[str, object]] = []
        loads: list[_Load] = []
        for role, folders in _layers(workshop, record):
            descriptor, load = self._layer(role, folders)
            layers.append(descriptor)
            loads.append(load)
        config = self._document(_CONFIG_TYPE, _configuration(workshop, record, loads, layers))
        manifest = self._document(
            _MANIFEST_TYPE,
            {"schemaVersion": 2, "mediaType": _MANIFEST_TYPE, "config": config, "layers": layers},
        )
        index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": [manifest]}
        self._member(oci.INDEX, _json(index))
        blocks = -(self._position // BLOCK + 2) % _RECORD_BLOCKS + 2
        self._put(bytes(blocks * BLOCK))

    def _layer(
        self, role: Literal["image", "inherited", "own"], folders: list[tuple[str, bytes]]
    ) -> tuple[dict[str, object], _Load]:
        """Write a layer; its name and size are known, and put before it, when it is written."""
        begin = self._position
        self._put(bytes(BLOCK))
        self._digest = hashlib.sha256()
        writer = LayerWriter(self, self._pulse)
        for folder, at in folders:
            writer.add(folder, at)
        writer.end()
        size = self._position - begin - BLOCK
        digest = self._digest.hexdigest()
        load = _Load(role=role, entries=writer.entries, size=writer.size)
        descriptor: dict[str, object] = {"mediaType": _LAYER_TYPE, "digest": f"sha256:{digest}", "size": size}
        if digest in self._written:
            os.ftruncate(self._opened, begin)
            self._position = begin
        else:
            self._written.add(digest)
            os.pwrite(self._opened, _header(f"blobs/sha256/{digest}", size), begin)
        return descriptor, load

    def _document(self, kind: str, content: Mapping[str, object]) -> dict[str, object]:
        """Write a document; what names it in another."""
        text = _json(content)
        digest = hashlib.sha256(text).hexdigest()
        self._member(f"blobs/sha256/{digest}", text)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(text)}

    def _member(self, name: str, text: bytes) -> None:
        self._put(_header(name, len(text)) + text + bytes(-len(text) % BLOCK))

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._opened, view, self._position)
            view, self._position = view[written:], self._position + written

    def write(self, data: bytes, /) -> None:
        """Take the next bytes of a layer."""
        self._digest.update(data)
        self._put(data)


def _json(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry.tobuf(tarfile.GNU_FORMAT)


def _layers(
    workshop: Workshop, record: Record
) -> Iterator[tuple[Literal["image", "inherited", "own"], list[tuple[str, bytes]]]]:
    """The layers of a sandbox, the lowest first: for each its folders, and where these are inside."""

    def absolute(folder: str) -> str:
        return folder if folder.startswith("/") else str(workshop.home / folder)

    points = [mount.at.strip("/").encode() for mount in record.mounts]
    if record.image != HOST:
        for folder in reversed(record.mounts[0].image):
            yield "image", [(absolute(folder), b"")]
    for layer in reversed(record.inherited):
        yield "inherited", [(absolute(f"{layer.folder}/{each}"), points[each]) for each in layer.parts]
    for layer in reversed(record.own):
        yield "own", [(absolute(f"{layer.folder}/{each}"), points[each]) for each in layer.parts]


def _configuration(
    workshop: Workshop, record: Record, loads: list[_Load], layers: list[dict[str, object]]
) -> dict[str, object]:
    passport = _Passport(
        format=FORMAT,
        name=record.name,
        image=record.image,
        system=system_name(),
        image_id=workshop.images.identity(HOST) if record.image == HOST else "",
        env=record.env,
        image_env=record.image_env,
        limits=record.limits,
        network=record.network,
        labels=record.labels,
        lifetime=record.lifetime,
        idle_lifetime=record.idle_lifetime,
        created=record.created,
        ancestors=record.ancestors,
        layers=tuple(loads),
    )
    return {
        "architecture": oci.ARCHITECTURES.get(syscalls.MACHINE, syscalls.MACHINE),
        "os": "linux",
        "config": {"Env": [f"{key}={value}" for key, value in {**record.image_env, **record.env}.items()]},
        "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in layers]},
        oci.EXTENSION: passport.model_dump(mode="json"),
    }


# In


def load(
    workshop: Workshop, archive: Path, name: str | None, *, other_system: bool, pulse: Callable[[], None]
) -> Record:
    """Unpack an archive's layers into the store, which must be held.

    Args:
        workshop: where the sandbox will be.
        archive: not trusted.
        name: of the sandbox; None for the one that it had.
        other_system: load a sandbox on the image ``host`` although this machine's system is another.
        pulse: called again and again; what it raises ends the work.

    Returns:
        The record of a stopped sandbox, not yet saved.

    Raises:
        SandboxError: the archive is damaged or hostile, was made over another system, or its name is taken.
    """
    try:
        with rootfs_images.opened_image(archive, workshop.layers) as blobs:
            return _Loading(workshop, blobs, pulse).record(name, other_system=other_system)
    except BadArchiveError as error:
        raise SandboxError(f"the archive {str(archive)!r} cannot be used: {error}") from None
    except OSError as error:
        raise SandboxError(f"the archive {str(archive)!r} could not be read or unpacked: {error}") from error


class _Loading:
    def __init__(self, workshop: Workshop, blobs: Blobs, pulse: Callable[[], None]) -> None:
        self._workshop = workshop
        self._blobs = blobs
        self._pulse = pulse
        self._image = oci.read_image(blobs, syscalls.MACHINE)
        self._passport = _passport(self._image)

    def record(self, name: str | None, *, other_system: bool) -> Record:
        """Unpack, and say what there is then."""
        passport = self._passport
        name = name or passport.name
        check_name(name)
        check_network(passport.network)
        if self._workshop.records.folder(name).exists():
            raise SandboxError(f"there is already a sandbox {name!r}; give the imported one another name")
        cgroups = self._workshop.cgroups.plan(name, passport.limits)
        host = self._host(other_system=other_system) if passport.image == HOST else None
        self._check_room()
        layers: dict[str, list[Layer]] = {"image": [], "inherited": [], "own": []}
        points = [mount.at for mount in host.mounts] if host else ["/"]
        used: dict[str, int] = {}
        for image_layer, said in zip(self._image.layers, passport.layers, strict=True):
            folder = self._unpacked(image_layer, said, points, used)
            layers[said.role].insert(0, Layer(folder=folder, parts=self._workshop.layers.parts(folder)))
        if bool(host) == bool(layers["image"]):
            raise BadArchiveError("it has no layers of its image, or has some of this machine's")
        mounts = host.mounts if host else _mounts(layers["image"])
        return Record(
            name=name,
            image=passport.image,
            mounts=mounts,
            image_env=host.env if host else passport.image_env,
            env=passport.env,
            limits=passport.limits,
            network=passport.network,
            labels=passport.labels,
            lifetime=passport.lifetime,
            idle_lifetime=passport.idle_lifetime,
            created=time.time(),
            ancestors=passport.ancestors,
            inherited=tuple(layers["inherited"]),
            own=tuple(layers["own"]),
            sealed=len(layers["own"]),
            cgroups=cgroups,
            image_folder=host.folder if host else None,
        )

    def _host(self, *, other_system: bool) -> Image:
        """This machine's system, if it is the one that the archive was made over."""
        passport = self._passport
        if self._workshop.images.identity(HOST) != passport.image_id and not other_system:
            raise BadArchiveError(
                f"it holds what was changed on the system {passport.system} ({passport.image_id}), and this machine's "
                f"is {system_name()} ({self._workshop.images.identity(HOST)}), whose programs may not fit. Import it "
                "where the same packages are installed, export a sandbox that was made from an image, or say "
                "--other-system"
            )
        return self._workshop.images.get(HOST)

    def _check_room(self) -> None:
        """Refuse before anything is written what says itself that it will not fit."""
        room = free_budget(self._workshop.home)
        entries = sum(each.entries for each in self._passport.layers)
        size = sum(each.size for each in self._passport.layers)
        if entries > room.entries or size > room.size:
            raise BadArchiveError(
                f"it unpacks to {entries} entries and {size} bytes, more than {room.why}: {room.entries} entries and "
                f"{room.size} bytes"
            )

    def _unpacked(
        self, image_layer: oci.ImageLayer, said: _Load, points: list[str], used: dict[str, int]
    ) -> str:
        key = image_layer.digest
        if len(points) > 1:  # how it is split into mounts depends on the machine
            key += "-" + hashlib.sha256("\0".join(points).encode()).hexdigest()[:16]
        used[key] = used.get(key, 0) + 1
        if used[key] > 1:  # overlay takes no folder twice
            key += f"-{used[key]}"

        def fill(folder: Path) -> None:
            budget = Budget(said.entries, said.size, "its passport says")
            place = _Places(folder, points)
            image_layer.read(self._blobs, lambda stream: self._unpack(stream, place, budget))
            if budget.entries or budget.size:
                raise BadArchiveError(
                    f"the layer {image_layer.name!r} has {budget.entries} entries and {budget.size} bytes less than "
                    "its passport says"
                )

        made = self._workshop.layers.get(key, fill)
        for part in self._workshop.layers.parts(made):
            if is_opaque_root(self._workshop.home / made / str(part)):
                raise BadArchiveError(f"the layer {image_layer.name!r} hides all that is below it")
        return made

    def _unpack(self, stream: Stream, place: _Places, budget: Budget) -> None:
        unpack(stream, place, budget, self._pulse)


class _Places:
    """Splits paths among the mounts that they lie in.

    Args:
        folder: of the layer.
        points: where the mounts are.
    """

    def __init__(self, folder: Path, points: list[str]) -> None:
        self._folder = folder
        self._points = [each.strip("/").encode() for each in points]

    def __call__(self, path: bytes) -> tuple[Path, bytes]:
        """The root of the mount's part, which is made if it is missing, and the path in it."""
        index = max(
            (
                index
                for index, at in enumerate(self._points)
                if not at or path == at or path.startswith(at + b"/")
            ),
            key=lambda index: len(self._points[index]),
        )
        root = self._folder / str(index)
        if not root.exists():
            root.mkdir()
            root.chmod(0o755)
        return root, path[len(self._points[index]) :].lstrip(b"/")


def _passport(image: oci.OciImage) -> _Passport:
    content = image.configuration.sandbox
    if not isinstance(content, dict):
        raise BadArchiveError("it is an image, not a sandbox: give it as the image of a new sandbox")
    version = content.get("format")
    if version != FORMAT:
        raise BadArchiveError(f"its format is {version!r}; this version of race reads {FORMAT}")
    try:
        passport = _Passport.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(each) for each in first["loc"])
        raise BadArchiveError(f"its passport is not what it should be: {place}: {first['msg']}") from None
    if len(passport.layers) != len(image.layers):
        raise BadArchiveError(
            f"it has {len(image.layers)} layers, and its passport tells of {len(passport.layers)}"
        )
    return passport


def _mounts(layers: list[Layer]) -> tuple[Mount, ...]:
    return (Mount(at="/", image=tuple(f"{each.folder}/0" for each in layers)),)
