"""Reads the documents of an image: an OCI image layout, or what ``docker save`` writes.

What they say is checked: each document against its digest and size, and later each layer against its own.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from race.sandboxes.local.blobs import Hashed, document
from race.sandboxes.local.compression import uncompressed
from race.sandboxes.local.tar_reading import BadArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable

    from race.sandboxes.local.blobs import Blobs
    from race.sandboxes.local.tar_reading import Stream

T = TypeVar("T")

MARK = "oci-layout"
INDEX = "index.json"
EXTENSION = "race.sandbox"
"""The key, in an image's configuration, of what only a sandbox has."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

_DOCKER_MANIFEST = "manifest.json"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MOST_LAYERS = 256
_DEEPEST_INDEX = 3


class _Document(BaseModel):
    model_config = ConfigDict(populate_by_name=True, frozen=True)


class Platform(_Document):
    """What a manifest's image runs on."""

    architecture: str = ""
    os: str = ""


class Descriptor(_Document):
    """Another document, or a layer."""

    digest: str
    size: int = Field(ge=0)
    platform: Platform | None = None


class Index(_Document):
    """Which images there are."""

    manifests: list[Descriptor]


class Manifest(_Document):
    """Of what an image consists."""

    config: Descriptor | None = None
    layers: list[Descriptor] | None = None
    manifests: list[Descriptor] | None = None


class Settings(_Document):
    """How an image's programs are to be run."""

    env: list[str] | None = Field(default=None, alias="Env")
    workdir: str | None = Field(default=None, alias="WorkingDir")


class RootFilesystem(_Document):
    """The layers as they are without compression."""

    diff_ids: list[str] = []


class Configuration(_Document):
    """An image's configuration."""

    architecture: str = ""
    os: str = ""
    config: Settings | None = None
    rootfs: RootFilesystem = RootFilesystem()
    sandbox: JsonValue = Field(default=None, alias="race.sandbox")


class _DockerImage(_Document):
    config: str = Field(alias="Config")
    layers: list[str] = Field(alias="Layers")


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """One layer of an image.

    Attributes:
        name: of the file.
        digest: SHA-256 in hexadecimal, which is also the name of the layer in the store.
        of_content: whether the digest is that of the content without compression.
    """

    name: str
    digest: str
    of_content: bool

    def read(self, blobs: Blobs, work: Callable[[Stream], None]) -> None:
        """Have its content, without compression, worked on.

        Raises:
            BadArchiveError: it does not have this digest; found out only when the work is done.
        """
        with blobs.opened(self.name) as blob:
            raw = Hashed(blob)
            content = Hashed(uncompressed(raw))
            work(content)
            what = f"the layer {self.name!r}"
            if self.of_content:
                content.finish(self.digest, what)
            else:
                raw.finish(self.digest, what)


@dataclass(frozen=True, slots=True)
class OciImage:
    """One image.

    Attributes:
        digest: of its manifest, or its configuration where there is no manifest.
        layers: the lowest first.
        configuration: see `Configuration`.
    """

    digest: str
    layers: tuple[ImageLayer, ...]
    configuration: Configuration

    @property
    def env(self) -> dict[str, str]:
        """The environment that it wants."""
        settings = self.configuration.config or Settings()
        pairs = (each.partition("=") for each in settings.env or ())
        return {key: value for key, _, value in pairs if key and "\0" not in key + value}


def is_image(blobs: Blobs) -> bool:
    """Whether these files are an image's."""
    return (MARK in blobs and INDEX in blobs) or _docker_images(blobs) is not None


def read_image(blobs: Blobs, machine: str) -> OciImage:
    """The image for a processor.

    Args:
        blobs: the files.
        machine: the processor as the kernel names it.

    Raises:
        BadArchiveError: a document is missing, damaged, or says what cannot be.
    """
    wanted = ARCHITECTURES.get(machine, machine)
    if INDEX in blobs:
        index = _parsed(Index, document(blobs, INDEX), INDEX)
        return _from_manifest(blobs, _chosen(index.manifests, wanted), wanted, 0)
    images = _docker_images(blobs)
    if not images:
        raise BadArchiveError(f"there is neither {INDEX!r} nor {_DOCKER_MANIFEST!r} in it")
    if len(images) > 1:
        raise BadArchiveError(f"it holds {len(images)} images; it must be one")
    image = images[0]
    text = document(blobs, image.config)
    configuration = _checked(_parsed(Configuration, text, image.config), wanted)
    digests = [_digest(each) for each in configuration.rootfs.diff_ids]
    if len(digests) != len(image.layers):
        raise BadArchiveError(f"it has {len(image.layers)} layers, and digests of {len(digests)}")
    layers = (
        ImageLayer(name, digest, of_content=True) for name, digest in zip(image.layers, digests, strict=True)
    )
    return OciImage(hashlib.sha256(text).hexdigest(), tuple(layers), configuration)


def _from_manifest(blobs: Blobs, descriptor: Descriptor, wanted: str, depth: int) -> OciImage:
    manifest = _parsed(Manifest, _blob(blobs, descriptor), descriptor.digest)
    if manifest.manifests is not None and depth < _DEEPEST_INDEX:
        return _from_manifest(blobs, _chosen(manifest.manifests, wanted), wanted, depth + 1)
    if manifest.config is None or manifest.layers is None:
        raise BadArchiveError(f"the manifest {descriptor.digest} names no configuration, or no layers")
    if len(manifest.layers) > _MOST_LAYERS:
        raise BadArchiveError(f"it has {len(manifest.layers)} layers; {_MOST_LAYERS} is the most")
    configuration = _checked(
        _parsed(Configuration, _blob(blobs, manifest.config), manifest.config.digest), wanted
    )
    layers: list[ImageLayer] = []
    for each in manifest.layers:
        name = _name(each)
        with blobs.opened(name) as blob:
            if blob.size != each.size:
                raise BadArchiveError(f"the layer {name!r} has {blob.size} bytes, not {each.size}")
        layers.append(ImageLayer(name, _digest(each.digest), of_content=False))
    return OciImage(_digest(descriptor.digest), tuple(layers), configuration)


def _chosen(manifests: list[Descriptor], wanted: str) -> Descriptor:
    fitting = [
        each
        for each in manifests
        if each.platform is None or (each.platform.architecture == wanted and each.platform.os == "linux")
    ]
    if len(fitting) != 1:
        found = [each.platform.architecture for each in manifests if each.platform is not None]
        raise BadArchiveError(
            f"it holds {len(fitting)} images for {wanted}, where it must be one"
            + (f"; there are images for {', '.join(found)}" if found else "")
        )
    return fitting[0]


def _checked(configuration: Configuration, wanted: str) -> Configuration:
    if configuration.architecture not in ("", wanted):
        raise BadArchiveError(f"it is for {configuration.architecture}, and this machine is {wanted}")
    if configuration.os not in ("", "linux"):
        raise BadArchiveError(f"it is for {configuration.os}")
    return configuration


def _docker_images(blobs: Blobs) -> list[_DockerImage] | None:
    if _DOCKER_MANIFEST not in blobs:
        return None
    try:
        return TypeAdapter(list[_DockerImage]).validate_json(document(blobs, _DOCKER_MANIFEST))
    except (ValidationError, BadArchiveError):
        return None


def _name(descriptor: Descriptor) -> str:
    return f"blobs/sha256/{_digest(descriptor.digest)}"


def _blob(blobs: Blobs, descriptor: Descriptor) -> bytes:
    text = document(blobs, _name(descriptor))
    if len(text) != descriptor.size or hashlib.sha256(text).hexdigest() != _digest(descriptor.digest):
        raise BadArchiveError(
            f"the document {descriptor.digest} is damaged: that is not its size, or its checksum"
        )
    return text


def _digest(text: str) -> str:
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise BadArchiveError(f"{text[:100]!r} is no digest that is known here: it must be sha256:...")
    return found[1]


def _parsed(kind: type[T], text: bytes, name: str) -> T:
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(each) for each in first["loc"])
        raise BadArchiveError(f"{name!r} is not what it should be: {place or 'it'}: {first['msg']}") from None
