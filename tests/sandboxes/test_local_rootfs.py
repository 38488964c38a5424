"""Sandboxes of this machine made from images that come as files."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from race.errors import SandboxError
from race.sandbox import SandboxSpec
from tests.sandboxes import archives
from tests.sandboxes.archives import documents, entry, folder, link, packed, whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from race.sandboxes.local import LocalProvider

_MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


@pytest.fixture(scope="session")
def rootfs_tar(small_image: Path) -> bytes:
    """The small image as a tar file."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        tar.add(small_image, arcname=".")
    return held.getvalue()


def _layout(files: dict[str, bytes], top: Path) -> Path:
    for name, content in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(content)
    return top


@pytest.mark.anyio
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
async def test_a_tar_file_is_an_image(
    provider: LocalProvider,
    new_name: Callable[[], str],
    rootfs_tar: bytes,
    tmp_path: Path,
    compress: Callable[[bytes], bytes],
) -> None:
    image = tmp_path / "image"
    image.write_bytes(compress(rootfs_tar))
    made = await provider.create(SandboxSpec(new_name(), image=str(image)))
    done = await made.exec("cat /etc/passwd; id -u")
    assert done.stdout.split() == [b"root:x:0:0:root:/root:/bin/sh", b"0"]
    assert await made.changes() == []
    identity = await provider.image_id(str(image))
    assert identity.startswith("tar-")
    image.write_bytes(compress(rootfs_tar + bytes(512)))
    assert await provider.image_id(str(image)) != identity
    assert {"tar", "oci"} <= provider.capabilities.images


@pytest.mark.anyio
async def test_layers_are_stored_once_and_collected_when_nothing_uses_them(
    provider: LocalProvider, new_name: Callable[[], str], rootfs_tar: bytes, tmp_path: Path
) -> None:
    upper = whole(folder("app"), entry("app/x", content=b"upper"))
    first = _layout(documents([rootfs_tar], {}, _MACHINE), tmp_path / "first")
    second = _layout(documents([rootfs_tar, upper], {}, _MACHINE), tmp_path / "second")
    stored = provider.home / "layers"

    def count() -> int:
        return sum(each.is_dir() for each in stored.iterdir())

    await provider.collect()
    before = count()
    one = await provider.create(SandboxSpec(new_name(), image=str(first)))
    two = await provider.create(SandboxSpec(new_name(), image=str(second)))
    assert count() == before + 2
    await one.delete()
    assert await provider.collect() == []
    fork = await two.fork(new_name())
    assert (await fork.exec("cat /app/x")).stdout == b"upper"
    await fork.delete()
    record = stored.parent / "sandboxes" / two.name / "record.json"
    text = record.read_text()
    record.write_text("{}")  # of a later version, perhaps: who knows what it uses
    assert await provider.collect() == []
    record.write_text(text)
    await two.delete()
    assert [each for each in await provider.collect() if "layer" in each] != []
    assert count() == before


_LOWER = whole(
    *(folder(name) for name in ("app", "app/kept", "app/gone", "app/emptied", "app/replaced", "app/first")),
    *(entry(f"app/{name}/x", content=b"lower") for name in ("kept", "gone", "emptied", "replaced", "first")),
    entry("app/file", content=b"lower"),
    link("app/link", "file"),
)
_UPPER = whole(
    folder("app"),
    entry("app/.wh.gone"),
    entry("app/.wh.file"),
    folder("app/emptied"),
    entry("app/emptied/.wh..wh..opq"),
    entry("app/emptied/new", content=b"upper"),
    entry("app/.wh.replaced"),
    entry("app/replaced/new", content=b"upper"),
    folder("app/first"),
    entry("app/first/new", content=b"upper"),
    entry("app/.wh.first"),
    entry("app/.wh.link"),
    entry("app/link", content=b"upper"),
)


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["layout", "archive", "archive.gz", "docker"])
async def test_whiteouts_and_opaque_directories_hide_what_is_below(
    provider: LocalProvider, new_name: Callable[[], str], rootfs_tar: bytes, tmp_path: Path, form: str
) -> None:
    settings = {"config": {"Env": ["GREETING=hello", "PATH=/bin:/mine"], "WorkingDir": "/app"}}
    layers = [gzip.compress(rootfs_tar, 1), lzma.compress(_LOWER), bz2.compress(_UPPER)]
    files = documents(layers, settings, _MACHINE)
    image = tmp_path / "image"
    match form:
        case "layout":
            _layout(files, image)
        case "docker":
            plain = [rootfs_tar, _LOWER, _UPPER]
            digests = [name.rpartition("/")[2] for name in documents(plain, {}) if name.startswith("blobs")][
                :3
            ]
            config = {
                **settings,
                "architecture": _MACHINE,
                "rootfs": {"diff_ids": [f"sha256:{d}" for d in digests]},
            }
            manifest = [
                {"Config": "blobs/c.json", "RepoTags": ["x"], "Layers": [f"{n}/layer.tar" for n in range(3)]}
            ]
            image.write_bytes(
                packed(
                    {
                        "blobs/c.json": json.dumps(config).encode(),
                        **{f"{n}/layer.tar": layer for n, layer in enumerate(layers)},
                        "manifest.json": json.dumps(manifest).encode(),
                    }
                )
            )
        case _:
            content = packed(files)
            image.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    made = await provider.create(SandboxSpec(new_name(), image=str(image)))
    done = await made.exec("cd /app; ls *; cat link; echo; echo $GREETING $PATH")
    assert done.stdout.decode().split() == [
        *("link", "emptied:", "new", "first:", "new", "kept:", "x", "replaced:", "new", "upper"),
        *("hello", "/bin:/mine"),
    ], done
    assert (await made.info()).labels == {"workdir": "/app"}
    assert (await provider.image_id(str(image))).startswith("oci-")
    assert await made.changes() == []
    await made.exec("rm -r /app/kept; echo x >/app/file")
    assert [(each.path, each.kind, each.existed) for each in await made.changes()] == [
        (b"/app/file", "file", False),
        (b"/app/kept", "removed", True),
    ]


@pytest.mark.anyio
async def test_an_opaque_root_hides_all_layers_below(
    provider: LocalProvider, new_name: Callable[[], str], rootfs_tar: bytes, tmp_path: Path
) -> None:
    lower = whole(entry("below", content=b"x"))
    marked = entry(".wh..wh..opq") + rootfs_tar
    image = _layout(documents([lower, marked], {}, _MACHINE), tmp_path / "image")
    made = await provider.create(SandboxSpec(new_name(), image=str(image)))
    assert (await made.exec("ls /below")).exit_code != 0
    assert (await made.exec("cat /etc/passwd")).exit_code == 0


@pytest.mark.anyio
async def test_images_that_cannot_be_used_are_refused(
    provider: LocalProvider, new_name: Callable[[], str], rootfs_tar: bytes, tmp_path: Path
) -> None:
    rootfs_tar = entry(new_name()) + rootfs_tar  # one that no other test has stored
    good = documents([rootfs_tar], {}, _MACHINE)
    index = json.loads(good["index.json"])
    layer = next(name for name, content in good.items() if content == rootfs_tar)

    def with_index(**values: Any) -> dict[str, bytes]:
        return {
            **good,
            "index.json": json.dumps({"manifests": [{**index["manifests"][0], **values}]}).encode(),
        }

    other = {"architecture": "s390x", "os": "linux"}
    cases: list[tuple[bytes | dict[str, bytes], str]] = [
        ({**good, layer: rootfs_tar[:-1] + b"x"}, "checksum"),
        ({**good, layer: rootfs_tar[:-512]}, "bytes, not"),
        ({name: content for name, content in good.items() if name != layer}, "missing|cannot be opened"),
        (documents([rootfs_tar], {}, "riscv64"), "riscv64"),
        (with_index(platform=other), "s390x"),
        (with_index(digest="sha256:../../x"), "digest"),
        (with_index(digest="md5:" + "0" * 32), "digest"),
        (with_index(size=1), "damaged"),
        ({**good, "index.json": b"[" * 100_000}, "index.json"),
        ({**good, "index.json": b"{}"}, "manifests"),
        (documents([], {}, _MACHINE), "no layers"),
        (whole(link("etc", "/etc"), entry("etc/x")), "'etc'.*link"),
        (whole(entry("dev/sda", tarfile.BLKTYPE)), "'dev/sda'.*device"),
        (b"not a tar file at all", "cut off"),
        (b"\x28\xb5\x2f\xfd1234567890", "zstd"),
    ]
    for number, (content, words) in enumerate(cases):
        image = tmp_path / str(number)
        forms: list[Path] = []
        if isinstance(content, bytes):
            image.write_bytes(content)
        else:
            forms.append(_layout(content, tmp_path / f"{number}-layout"))
            image.write_bytes(packed(content))
        for form in [image, *forms]:
            name = new_name()
            with pytest.raises(SandboxError, match=words):
                await provider.create(SandboxSpec(name, image=str(form)))
    assert await provider.list() == []


@pytest.mark.anyio
async def test_a_layout_of_links_leads_nowhere(
    provider: LocalProvider, new_name: Callable[[], str], rootfs_tar: bytes, tmp_path: Path
) -> None:
    files = documents([rootfs_tar], {}, _MACHINE)
    image = _layout(files, tmp_path / "image")
    layer = next(name for name, content in files.items() if content == rootfs_tar)
    (image / layer).unlink()
    (tmp_path / "outside").write_bytes(rootfs_tar)
    (image / layer).symlink_to(tmp_path / "outside")
    with pytest.raises(SandboxError, match="cannot be opened"):
        await provider.create(SandboxSpec(new_name(), image=str(image)))


@pytest.mark.anyio
async def test_the_image_for_this_processor_is_taken(
    provider: LocalProvider, new_name: Callable[[], str], rootfs_tar: bytes, tmp_path: Path
) -> None:
    ours = documents([rootfs_tar], {}, _MACHINE)
    theirs = documents([whole(entry("x"))], {}, "s390x")
    manifests = [
        {
            **json.loads(files["index.json"])["manifests"][0],
            "platform": {"architecture": machine, "os": "linux"},
        }
        for files, machine in ((theirs, "s390x"), (ours, _MACHINE))
    ]
    files = {**theirs, **ours, "index.json": json.dumps({"manifests": manifests}).encode()}
    image = _layout(files, tmp_path / "image")
    made = await provider.create(SandboxSpec(new_name(), image=str(image)))
    assert (await made.exec("cat /etc/passwd")).exit_code == 0


@pytest.mark.anyio
async def test_owners_and_attributes_of_an_image(
    provider: LocalProvider, new_name: Callable[[], str], rootfs_tar: bytes, tmp_path: Path
) -> None:
    layer = whole(
        folder("data", uid=33, gid=33, mode=0o1777),
        entry(
            "data/a",
            content=b"x",
            uid=33,
            gid=34,
            mode=0o4755,
            pax_headers={"SCHILY.xattr.user.note": "kept"},
        ),
        entry("data/far", uid=1_000_000, gid=5),
        entry("data/capable", pax_headers={"SCHILY.xattr.security.capability": "x" * 20}),
        entry("implied/deep/file"),
    )
    image = _layout(documents([rootfs_tar, layer], {}, _MACHINE), tmp_path / "image")
    made = await provider.create(SandboxSpec(new_name(), image=str(image)))
    done = await made.exec("stat -c '%a %u %g %n' /data /data/* /implied/deep")
    if os.geteuid() == 0:
        assert done.stdout.decode().splitlines() == [
            "1777 33 33 /data",
            "4755 33 34 /data/a",
            "644 0 0 /data/capable",
            "644 65534 5 /data/far",
            "755 0 0 /implied/deep",
        ]
    place = next(provider.home.glob("layers/*/0/data"))
    assert os.listxattr(place / "a") == ["user.note"]
    assert os.listxattr(place / "capable") == []


def test_what_the_forger_makes_is_what_tarfile_reads() -> None:
    """The hand-made archives of these tests are real ones."""
    layer = whole(folder("d"), entry("d/x", content=b"abc"), archives.sparse("s", 4096, [(1024, 3)], b"abc"))
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert {each.name: each.size for each in tar} == {"d": 0, "d/x": 3, "s": 4096}
