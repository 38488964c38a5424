"""Images that come as files: a tar file of a root filesystem, an OCI layout, or an archive of one.

Their layers are unpacked once, into the store of layers, by the code that also unpacks what was exported elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from race.errors import SandboxError
from race.sandboxes.local import oci, syscalls
from race.sandboxes.local.blobs import Blob, FolderBlobs, TarBlobs
from race.sandboxes.local.compression import is_compressed, uncompressed
from race.sandboxes.local.tar_reading import BadArchiveError, Reader
from race.sandboxes.local.unpacking import free_budget, is_opaque_root, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from race.sandboxes.local.blobs import Blobs
    from race.sandboxes.local.layer_store import LayerStore
    from race.sandboxes.local.tar_reading import Stream

_KNOWN = "known-images.json"
_MOST_KNOWN = 200
_BEGIN = 512
_PIECE = 1 << 20
_ARCHIVE_BEGINS = ("blobs", "index.json", "manifest.json", "oci-layout", "repositories")
_DIGEST_LENGTH = 64


@dataclass(frozen=True, slots=True)
class RootfsImage:
    """An image whose layers are in the store.

    Attributes:
        layers: their folders for the one mount there is, relative to home, the top one first.
        env: what the image itself wants its programs to have.
        workdir: where it wants them to be run; empty if it does not say.
    """

    layers: tuple[str, ...]
    env: dict[str, str]
    workdir: str


def is_layout(folder: Path) -> bool:
    """Whether a directory is an OCI layout rather than a root filesystem."""
    return (folder / oci.MARK).is_file() and (folder / oci.INDEX).is_file()


class RootfsImages:
    """Images that come as files.

    Args:
        home: the provider's folder.
        store: where their layers go.
    """

    def __init__(self, home: Path, store: LayerStore) -> None:
        self._home = home
        self._store = store

    def get(self, path: Path, pulse: Callable[[], None]) -> RootfsImage:
        """The image, unpacked if it has not been yet. The store must be held.

        Raises:
            SandboxError: it is damaged or hostile, or there is no room.
        """
        with _failures(path), _opened(path, self._store) as blobs:
            if blobs is None:
                layers = [self._store.get(self._tar_digest(path), partial(_unpack_tar, path, pulse))]
                return RootfsImage(self._stacked(layers), {}, "")
            image = oci.read_image(blobs, syscalls.MACHINE)
            layers = [
                self._store.get(each.digest, partial(_unpack_layer, each, blobs, pulse))
                for each in image.layers
            ]
            settings = image.configuration.config
            workdir = (settings.workdir if settings else None) or ""
            return RootfsImage(self._stacked(layers), image.env, workdir if workdir.startswith("/") else "")

    def identity(self, path: Path) -> str:
        """A name for the content of the image.

        Raises:
            SandboxError: it is damaged.
        """
        with _failures(path), _opened(path, self._store) as blobs:
            if blobs is None:
                return f"tar-{self._tar_digest(path)[:16]}"
            return f"oci-{oci.read_image(blobs, syscalls.MACHINE).digest[:16]}"

    def _stacked(self, layers: list[str]) -> tuple[str, ...]:
        """The layers for the kernel: what is below an opaque root shows nowhere."""
        if not layers:
            raise BadArchiveError("it has no layers")
        found: list[str] = []
        for layer in reversed(layers):
            found.append(f"{layer}/0")
            if is_opaque_root(self._home / layer / "0"):
                break
        return tuple(dict.fromkeys(found))

    def _tar_digest(self, path: Path) -> str:
        """The checksum of a file, remembered as long as it is not touched."""
        status = path.stat()
        key = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        place = self._home / _KNOWN
        known: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(place.read_text())
        if key in known:
            return known[key]
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(_PIECE):
                digest.update(part)
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = dict([*known.items(), (key, digest.hexdigest())][-_MOST_KNOWN:])
        beside = place.with_name(f".{_KNOWN}-{os.getpid()}")
        beside.write_text(json.dumps(kept))
        beside.replace(place)
        return digest.hexdigest()


@contextlib.contextmanager
def opened_image(path: Path, store: LayerStore) -> Generator[Blobs]:
    """The files of an OCI or docker image.

    Args:
        path: a folder or a file.
        store: where what is compressed is unpacked to meanwhile.

    Raises:
        BadArchiveError: it is damaged.
    """
    with _plain(path, store) as descriptor:
        yield FolderBlobs(descriptor) if path.is_dir() else TarBlobs(descriptor)


@contextlib.contextmanager
def _opened(path: Path, store: LayerStore) -> Generator[Blobs | None]:
    """The files of an OCI or docker image; None for a tar file of a root filesystem."""
    if path.is_file() and not _begins_like_an_image(path):
        yield None
        return
    with opened_image(path, store) as blobs:
        yield blobs if oci.is_image(blobs) else None


@contextlib.contextmanager
def _plain(path: Path, store: LayerStore) -> Generator[int]:
    """A descriptor of a folder, or of a file's content without compression."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if path.is_dir() or not is_compressed(os.pread(descriptor, _BEGIN, 0)):
            yield descriptor
            return
        with store.building() as folder:
            plain = _inflated(descriptor, folder)
            try:
                yield plain
            finally:
                os.close(plain)
    finally:
        os.close(descriptor)


def _begins_like_an_image(path: Path) -> bool:
    """Whether the first entry of a tar file is one of an image's archive, which is no directory of a system."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for member in Reader(uncompressed(_whole(descriptor))):
            if not member.path:
                continue
            first = os.fsdecode(member.path).partition("/")[0]
            return first in _ARCHIVE_BEGINS or len(first.removesuffix(".json")) == _DIGEST_LENGTH
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def _failures(path: Path) -> Generator[None]:
    """Say of which image something is wrong."""
    try:
        yield
    except BadArchiveError as error:
        raise SandboxError(f"the image {str(path)!r} cannot be used: {error}") from None
    except OSError as error:
        raise SandboxError(f"the image {str(path)!r} cannot be read or unpacked: {error}") from error


def _whole(descriptor: int) -> Blob:
    return Blob(descriptor, 0, os.fstat(descriptor).st_size)


def _inflated(descriptor: int, folder: Path) -> int:
    """The content of a compressed file, in a new file that has no name."""
    plain = os.open(folder / "plain", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _inflate(uncompressed(_whole(descriptor)), plain, free_budget(folder).size)
        (folder / "plain").unlink()
    except BaseException:
        os.close(plain)
        raise
    return plain


def _inflate(stream: Stream, plain: int, left: int) -> None:
    while part := stream.read(_PIECE):
        left -= len(part)
        if left < 0:
            raise BadArchiveError("it grows to more than half of the room that there is on this disk")
        view = memoryview(part)
        while view:
            view = view[os.write(plain, view) :]


def _unpack_tar(path: Path, pulse: Callable[[], None], folder: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _unpack(uncompressed(_whole(descriptor)), folder, pulse)
    finally:
        os.close(descriptor)


def _unpack_layer(layer: oci.ImageLayer, blobs: Blobs, pulse: Callable[[], None], folder: Path) -> None:
    layer.read(blobs, lambda stream: _unpack(stream, folder, pulse))


def _unpack(stream: Stream, folder: Path, pulse: Callable[[], None]) -> None:
    root = folder / "0"
    root.mkdir()
    root.chmod(0o755)
    unpack(stream, lambda path: (root, path), free_budget(folder), pulse)
