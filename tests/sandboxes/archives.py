"""Makes archives by hand, hostile ones too, as anybody could send them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def entry(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **values: Any) -> bytes:
    """One entry of a tar file, its content included."""
    made = tarfile.TarInfo(name)
    made.type = kind
    made.size = len(content)
    made.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for key, value in values.items():
        setattr(made, key, value)
    header = made.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % 512)


def link(name: str, target: str) -> bytes:
    return entry(name, tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> bytes:
    return entry(name, tarfile.LNKTYPE, linkname=target)


def folder(name: str, **values: Any) -> bytes:
    return entry(name, tarfile.DIRTYPE, **values)


def sparse(name: str, size: int, extents: list[tuple[int, int]], content: bytes) -> bytes:
    """A sparse file of pax's version 1.0, honest or not."""
    numbers = [len(extents), *(each for pair in extents for each in pair)]
    table = "".join(f"{each}\n" for each in numbers).encode()
    table += bytes(-len(table) % 512)
    pax = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": name,
        "GNU.sparse.realsize": str(size),
    }
    return entry(name, content=table + content, pax_headers=pax)


def whole(*entries: bytes) -> bytes:
    """A tar file."""
    return b"".join(entries) + bytes(1024)


def tree(members: Mapping[str, bytes | None]) -> bytes:
    """A tar file of directories (None) and files."""
    return whole(
        *(
            folder(name) if content is None else entry(name, content=content)
            for name, content in members.items()
        )
    )


def documents(
    layers: list[bytes], configuration: Mapping[str, Any], machine: str = "amd64"
) -> dict[str, bytes]:
    """The files of an OCI layout, by name."""
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": "x", "digest": f"sha256:{digest}", "size": len(content)}

    described = [blob(each) for each in layers]
    config = blob(json.dumps({"architecture": machine, "os": "linux", **configuration}).encode())
    manifest = blob(json.dumps({"schemaVersion": 2, "config": config, "layers": described}).encode())
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    return files


def packed(files: Mapping[str, bytes]) -> bytes:
    """A tar file of such files."""
    return whole(*(entry(name, content=content) for name, content in files.items()))


def unpacked(archive: Path) -> dict[str, bytes]:
    """The files of an exported sandbox."""
    with tarfile.open(archive) as tar:
        return {each.name: _content(tar, each) for each in tar}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def passport(archive: Path) -> dict[str, Any]:
    """What an exported sandbox says of itself."""
    files = unpacked(archive)
    manifest = json.loads(files["blobs/" + _path(json.loads(files["index.json"])["manifests"][0])])
    return json.loads(files["blobs/" + _path(manifest["config"])])["race.sandbox"]


def _path(descriptor: Mapping[str, Any]) -> str:
    return descriptor["digest"].replace(":", "/")


def forged(
    archive: Path, layer: bytes, change: Callable[[dict[str, Any]], None] = lambda _: None, **said: int
) -> bytes:
    """An exported sandbox whose last layer is another one, with all checksums right.

    Args:
        archive: a real one.
        layer: a tar file.
        change: what else to change in the passport.
        said: what the passport says that the layer has; default: what it has.
    """
    files = unpacked(archive)
    manifest = json.loads(files["blobs/" + _path(json.loads(files["index.json"])["manifests"][0])])
    layers = [files["blobs/" + _path(each)] for each in manifest["layers"][:-1]]
    paper = passport(archive)
    paper["layers"][-1] |= {"entries": 100, "size": 1 << 20, **said}
    change(paper)
    return packed(documents([*layers, layer], {"race.sandbox": paper}))


def counted(layer: bytes) -> dict[str, int]:
    """What a passport must say of a tar file."""
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        members = tar.getmembers()
    return {"entries": len(members), "size": sum(each.size for each in members)}
