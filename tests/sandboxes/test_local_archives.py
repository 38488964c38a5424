"""Sandboxes of this machine that are exported to a file and loaded from one, honest or not."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from race.errors import SandboxError
from race.sandbox import Limits, SandboxSpec
from race.sandboxes.local import LocalProvider
from tests.sandboxes import archives
from tests.sandboxes.archives import entry, folder, forged, hard_link, link, sparse, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from race.sandbox import Sandbox

_MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]

_CONTENT = """
mkdir -p /app/gone /app/emptied /app/deep/er; echo one >/app/f; ln /app/f /app/g; ln -s /etc/passwd /app/l
echo x >/app/gone/x; echo x >/app/emptied/x; echo literal >/app/.wh.name; chmod 4755 /app/f; chmod 1777 /app/deep
echo secret >/app/deep/er/none
chmod 0 /app/deep/er/none /app/deep/er; touch -d 2001-02-03T04:05:06.123456789 /app/g
"""


@pytest.fixture
async def elsewhere(tmp_path: Path, anyio_backend: str) -> AsyncIterator[LocalProvider]:  # noqa: ARG001 - as in `provider`
    """The provider of another machine."""
    (tmp_path / "elsewhere").mkdir()
    made = LocalProvider(tmp_path / "elsewhere" / "local")
    yield made
    for each in reversed(await made.list()):
        await (await made.get(each.name)).delete()
    await made.collect()
    await made.aclose()


async def _looks(sandbox: Sandbox) -> bytes:
    done = await sandbox.exec(
        "cd /app; ls -Aln --time-style=full-iso . deep; cat f g .wh.name deep/er/none; ls emptied"
    )
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.anyio
@pytest.mark.parametrize("image", ["host", "small"])
async def test_a_fork_moves_with_all_that_it_was_forked_from(
    provider: LocalProvider,
    elsewhere: LocalProvider,
    new_name: Callable[[], str],
    small_image: Path,
    tmp_path: Path,
    image: str,
) -> None:
    spec = SandboxSpec(
        new_name(),
        image=str(small_image) if image == "small" else image,
        env={"GREETING": "hello"},
        limits=Limits(processes=200),
    )
    parent = await provider.create(spec)
    assert (await parent.exec(_CONTENT)).stderr == b""
    await parent.stop()
    fork = await parent.fork(new_name(), labels={"role": "mine"})
    await fork.exec(
        "rm -r /app/gone /app/emptied; mkdir /app/emptied; rm /etc/passwd; echo two >/app/.wh..wh..opq"
    )
    before = await _looks(fork)
    await fork.stop()
    with pytest.raises(SandboxError, match="already"):
        await fork.export(tmp_path)
    await fork.export(tmp_path / "file")
    moved = await elsewhere.load(tmp_path / "file")
    info, was = await moved.info(), await fork.info()
    assert (info.name, info.state, info.parent) == (fork.name, "stopped", None)
    assert (info.image, info.labels, info.ancestors) == (was.image, {"role": "mine"}, (parent.name,))
    assert await moved.changes() == await fork.changes() != []
    await moved.start()
    assert await _looks(moved) == before
    assert (await moved.exec("echo $GREETING; ls /etc/passwd")).stdout == b"hello\n"
    await moved.stop()
    # What is moved on is the same, to the byte.
    again = await elsewhere.load(tmp_path / "file", "again")
    await again.export(tmp_path / "again")
    first, second = archives.unpacked(tmp_path / "file"), archives.unpacked(tmp_path / "again")
    assert len(set(first) & set(second)) >= len(archives.passport(tmp_path / "file")["layers"])


@pytest.mark.anyio
async def test_a_running_sandbox_is_not_exported(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="stop it first"):
        await sandbox.export(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
async def test_holes_stay_holes(
    provider: LocalProvider, elsewhere: LocalProvider, new_name: Callable[[], str], tmp_path: Path
) -> None:
    made = await provider.create(SandboxSpec(new_name()))
    script = (
        "truncate -s 3G /hole; cd /; echo middle | dd of=hole bs=1 seek=1G conv=notrunc; truncate -s 5M empty"
    )
    assert (await made.exec(script)).exit_code == 0
    await made.stop()
    started = time.monotonic()
    await made.export(tmp_path / "file")
    assert (tmp_path / "file").stat().st_size < 1 << 20
    with tarfile.open(tmp_path / "file") as outer:  # other programs can read it too
        layer = next(each for each in outer if each.name.startswith("blobs/") and each.size > 10_000)
        with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
            assert {each.name: each.size for each in inner if each.isfile()} == {
                "hole": 3 << 30,
                "empty": 5 << 20,
            }
    moved = await elsewhere.load(tmp_path / "file")
    assert time.monotonic() - started < 10
    await moved.start()
    done = await moved.exec(
        "cd /; du -k hole empty; stat -c %s hole empty; dd if=hole bs=1 skip=1G count=7 status=none"
    )
    sizes = [int(each) for each in done.stdout.split()[:4:2]]
    assert max(sizes) <= 64
    assert done.stdout.split()[4:] == [b"3221225472", b"5242880", b"middle"]


async def _exported(
    provider: LocalProvider, new_name: Callable[[], str], small_image: Path, tmp_path: Path
) -> Path:
    made = await provider.create(SandboxSpec(new_name(), image=str(small_image)))
    await made.exec("mkdir /app; echo x >/app/x")
    await made.stop()
    await made.export(tmp_path / "honest")
    return tmp_path / "honest"


def _left(provider: LocalProvider) -> list[str]:
    return sorted(
        str(each.relative_to(provider.home))
        for each in provider.home.rglob("*")
        if each.name not in ("lock", "layers", "sandboxes", "trash")
        and each.relative_to(provider.home).parts[0] != "images"
    )


_A_FILE = entry("a", content=b"x")
_HOSTILE: dict[str, tuple[bytes, str]] = {
    "link in the path": (link("a", "/etc") + entry("a/passwd", content=b"x"), "'a'.*link"),
    "relative link in the path": (folder("b") + link("a", "b") + entry("a/x"), "'a'.*link"),
    "link deeper in the path": (folder("b") + link("b/c", "..") + folder("b/c/d"), "'b/c'.*link"),
    "whiteout below a link": (link("a", "/etc") + entry("a/.wh.passwd"), "'a'.*link"),
    "hard link below a link": (link("a", "/etc") + hard_link("b", "a/passwd"), "'b'"),
    "hard link out": (hard_link("b", "../../../etc/passwd"), "leads out"),
    "absolute hard link": (hard_link("b", "/etc/passwd"), "absolute"),
    "hard link to what comes later": (hard_link("b", "a") + _A_FILE, "'a'.*not there before"),
    "hard link to a directory": (folder("a") + hard_link("b", "a"), "no file"),
    "hard link to a whiteout": (entry(".wh.a") + hard_link("b", "a"), "no file"),
    "hard link to the root": (hard_link("b", "."), "directory"),
    "block device": (entry("disk", tarfile.BLKTYPE, devmajor=8), "'disk'.*device"),
    "character device": (entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3), "'null'.*device"),
    "a whiteout of our own kind": (entry("w", tarfile.CHRTYPE), "'w'.*device"),
    "name that goes up": (entry("a/../../x"), "leads out"),
    "name that is absolute": (entry("/etc/x"), "absolute"),
    "name too long": (entry("a" * 300), "too long"),
    "path too long": (entry("a/" * 2500), "too long"),
    "nul in the name": (entry("x", pax_headers={"path": "a\0b"}), "NUL"),
    "the same file twice": (_A_FILE + _A_FILE, "'a'.*twice"),
    "a file that is a directory": (_A_FILE + folder("a"), "'a'.*twice"),
    "a directory that is a link": (link("a", "/etc") + folder("a"), "'a'.*twice"),
    "a file below a file": (_A_FILE + entry("a/b"), "'a'.*not a directory"),
    "mark of overlay": (
        folder("a", pax_headers={"SCHILY.xattr.user.overlay.opaque": "y"}),
        "'a'.*user.overlay.opaque",
    ),
    "mark of overlay for root": (
        folder("a", pax_headers={"SCHILY.xattr.trusted.overlay.redirect": "/etc"}),
        "'a'.*trusted.overlay",
    ),
    "whiteout with content": (entry(".wh.a", content=b"x"), "content"),
    "whiteout of nothing": (entry(".wh."), "hides nothing"),
    "whiteout that goes up": (entry(".wh..."), "hides nothing"),
    "huge sparse file": (sparse("big", 2 << 40, [(0, 512)], bytes(512)), "'big'"),
    "sparse file that lies": (sparse("s", 1 << 20, [(0, 1024)], bytes(512)), "'s'"),
    "sparse pieces that overlap": (sparse("s", 1 << 20, [(0, 512), (100, 512)], bytes(1024)), "contradicts"),
    "sparse piece beyond the end": (sparse("s", 100, [(0, 512)], bytes(512)), "contradicts"),
    "sparse map without an end": (
        entry(
            "s",
            content=b"1" * 1024,
            pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"},
        ),
        "map",
    ),
    "old sparse format": (entry("s", b"S"), "kind"),
    "directory with content": (entry("d", tarfile.DIRTYPE, content=b"x" * 10), "content"),
    "size beyond the end": (entry("a", size=1 << 33), "cut off|more content"),
    "negative size": (entry("a", pax_headers={"size": "-1"}), "size"),
    "header that lies about its size": (entry("x", b"x", size=1 << 30), "header"),
    "damaged pax header": (entry("x", b"x", content=b"99999 a=b\n"), "pax"),
    "pax header that goes backwards": (entry("x", b"x", content=b"-5 a=b\n"), "pax"),
    "global path": (entry("x", b"g", content=b"10 path=a\n"), "global"),
    "time out of range": (entry("a", pax_headers={"mtime": "9" * 15}), "time"),
    "garbage": (b"garbage!" * 64, "checksum|header"),
    "too many entries": (b"".join(entry(f"f{n}") for n in range(101)), "more than"),
    "too much content": (entry("a", content=bytes((1 << 20) + 1)), "more content"),
    "opaque root": (entry(".wh..wh..opq"), "hides all"),
}


@pytest.mark.anyio
async def test_hostile_archives_are_refused_and_leave_nothing(
    provider: LocalProvider,
    elsewhere: LocalProvider,
    new_name: Callable[[], str],
    small_image: Path,
    tmp_path: Path,
) -> None:
    """All in one test, because each takes some milliseconds once there is an honest archive."""
    honest = await _exported(provider, new_name, small_image, tmp_path)
    hostname = Path("/etc/passwd").stat().st_mtime_ns
    bad = tmp_path / "bad"
    for what, (layer, words) in _HOSTILE.items():
        said = {"entries": 1, "size": 0} if what == "opaque root" else {}
        bad.write_bytes(forged(honest, layer + bytes(1024), **said))
        with pytest.raises(SandboxError, match=words) as caught:
            pytest.fail(f"{what} was loaded: {await elsewhere.load(bad)}")
        assert "less than" not in str(caught.value), what
        assert await elsewhere.list() == [], what
        assert await elsewhere.collect() != [] or _left(elsewhere) == [], (
            what
        )  # layers that were whole may go now
        assert _left(elsewhere) == [], what
    assert Path("/etc/passwd").stat().st_mtime_ns == hostname
    # The same forger makes archives that are taken when they are honest.
    layer = whole(
        folder("app"), entry("app/f", content=b"forged"), hard_link("app/g", "app/f"), link("l", "app")
    )
    bad.write_bytes(forged(honest, layer, **archives.counted(layer)))
    assert await (await elsewhere.load(bad)).read("/app/g") == b"forged"


@pytest.mark.anyio
async def test_archives_that_say_what_is_not_so_are_refused(
    provider: LocalProvider,
    elsewhere: LocalProvider,
    new_name: Callable[[], str],
    small_image: Path,
    tmp_path: Path,
) -> None:
    honest = await _exported(provider, new_name, small_image, tmp_path)
    layer = whole(_A_FILE)
    right = archives.counted(layer)

    def saying(**said: Any) -> Callable[[dict[str, Any]], None]:
        return lambda passport: passport.update(said)

    cases: list[tuple[bytes, str]] = [
        (forged(honest, layer, entries=2, size=1), "less than"),
        (forged(honest, layer, entries=1, size=1 << 60), "room"),
        (forged(honest, layer, entries=1 << 50, size=1), "room"),
        (forged(honest, layer, saying(format=2), **right), "format"),
        (forged(honest, layer, saying(name="../x"), **right), "name"),
        (forged(honest, layer, saying(image="host"), **right), "other-system"),
        (forged(honest, layer, saying(network=["not a host"]), **right), "host"),
        (forged(honest, layer, saying(limits={"processes": "many"}), **right), "limits"),
        (forged(honest, layer, saying(layers=[]), **right), "layers"),
        (archives.packed(archives.documents([layer], {}, _MACHINE)), "not a sandbox"),
        (archives.packed(archives.documents([layer], {}, "riscv64")), "riscv64"),
        (whole(_A_FILE), "index.json"),
        (b"", "cut off"),
    ]
    bad = tmp_path / "bad"
    for content, words in cases:
        bad.write_bytes(content)
        with pytest.raises(SandboxError, match=words):
            await elsewhere.load(bad)
        assert await elsewhere.list() == []
    assert _left(elsewhere) == []


@pytest.mark.anyio
async def test_damaged_archives_are_refused_wherever_the_damage_is(
    provider: LocalProvider,
    elsewhere: LocalProvider,
    new_name: Callable[[], str],
    small_image: Path,
    tmp_path: Path,
) -> None:
    honest = await _exported(provider, new_name, small_image, tmp_path)
    content = honest.read_bytes()
    bad = tmp_path / "bad"
    with tarfile.open(honest) as tar:
        members = tar.getmembers()
    end = members[-1].offset_data + members[-1].size
    cuts = [0, 1, 511, 512, *range(0, end, end // 15), end]
    for cut in cuts:
        bad.write_bytes(content[:cut])
        with pytest.raises(SandboxError, match=r"cut off|damaged|header"):
            await elsewhere.load(bad)
    for member in members[1:-1]:  # the index has no checksum, but names one
        for place in (
            member.offset_data,
            member.offset_data + member.size // 2,
            member.offset_data + member.size - 1,
        ):
            changed = bytearray(content)
            changed[place] ^= 4
            bad.write_bytes(changed)
            with pytest.raises(SandboxError):
                await elsewhere.load(bad)
    assert await elsewhere.list() == []
    assert _left(elsewhere) == []


@pytest.mark.anyio
async def test_compressed_data_is_unpacked_no_further_than_it_may_grow(
    provider: LocalProvider,
    elsewhere: LocalProvider,
    new_name: Callable[[], str],
    small_image: Path,
    tmp_path: Path,
) -> None:
    honest = await _exported(provider, new_name, small_image, tmp_path)
    bomb = gzip.compress(whole(entry("zeros", content=bytes(64 << 20))), 1)
    bad = tmp_path / "bad"
    bad.write_bytes(forged(honest, bomb))
    with pytest.raises(SandboxError, match=r"'zeros'.*more content"):
        await elsewhere.load(bad)
    bad.write_bytes(forged(honest, gzip.compress(whole(entry("x", b"x", size=1 << 30)))))
    with pytest.raises(SandboxError, match="header"):
        await elsewhere.load(bad)
    bad.write_bytes(forged(honest, gzip.compress(whole(_A_FILE))[:-10]))
    with pytest.raises(SandboxError, match="compressed data is damaged"):
        await elsewhere.load(bad)
    layer = bz2.compress(whole(_A_FILE))
    bad.write_bytes(gzip.compress(forged(honest, layer, entries=1, size=1)))
    assert await (await elsewhere.load(bad)).read("/a") == b"x"


_LOAD_AND_DIE = """
import os, signal, sys
from pathlib import Path
from race.sandboxes.local import teleport
from race.sandboxes.local.workshop import Workshop

left = int(sys.argv[3])
def pulse():
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

workshop = Workshop(Path(sys.argv[1]))
teleport.load(workshop, Path(sys.argv[2]), None, other_system=False, pulse=pulse)
print("loaded")
"""


@pytest.mark.anyio
async def test_an_import_that_is_killed_leaves_nothing_that_is_not_collected(
    provider: LocalProvider,
    elsewhere: LocalProvider,
    new_name: Callable[[], str],
    small_image: Path,
    tmp_path: Path,
) -> None:
    """Takes several interpreters' starts."""
    honest = await _exported(provider, new_name, small_image, tmp_path)
    await elsewhere.collect()
    elsewhere.home.mkdir(mode=0o700, exist_ok=True)
    for pulses in (0, 3, 20, 1000):
        command = [sys.executable, "-c", _LOAD_AND_DIE, str(elsewhere.home), str(honest), str(pulses)]
        done = await anyio.run_process(command, check=False)
        expected = 0 if pulses == 1000 else -signal.SIGKILL
        assert done.returncode == expected, done.stderr
        assert await elsewhere.list() == []
        with anyio.fail_after(15):
            while _left(elsewhere):  # a folder without a lock is given some seconds
                await elsewhere.collect()
                await anyio.sleep(0.05)


@pytest.mark.anyio
async def test_a_cancelled_export_or_import_leaves_nothing(
    provider: LocalProvider, elsewhere: LocalProvider, new_name: Callable[[], str], tmp_path: Path
) -> None:
    made = await provider.create(SandboxSpec(new_name()))
    await made.exec("mkdir /many; cd /many; head -c 80M /dev/urandom >big; seq 3000 | xargs touch")
    await made.stop()
    with anyio.move_on_after(0.03) as moved:
        await made.export(tmp_path / "file")
    assert moved.cancelled_caught
    assert [each.name for each in tmp_path.iterdir()] == ["elsewhere"]
    await made.export(tmp_path / "file")
    with anyio.move_on_after(0.03) as moved:
        await elsewhere.load(tmp_path / "file")
    assert moved.cancelled_caught
    assert _left(elsewhere) == []
    assert await elsewhere.list() == []


@pytest.mark.anyio
async def test_a_name_that_is_taken_is_refused(
    provider: LocalProvider, new_name: Callable[[], str], small_image: Path, tmp_path: Path
) -> None:
    honest = await _exported(provider, new_name, small_image, tmp_path)
    with pytest.raises(SandboxError, match=r"already a sandbox.*another name"):
        await provider.load(honest)
    other = await provider.load(honest, new_name())
    assert await other.read("/app/x") == b"x\n"
    # Of what both stand on there is one copy, for as long as one of them is there.
    third = await provider.load(honest, new_name())
    await other.delete()
    await provider.collect()
    await third.start()
    assert (await third.exec("cat /app/x")).stdout == b"x\n"
    fork = await third.fork(new_name())
    assert (await fork.exec("cat /app/x")).stdout == b"x\n"


@pytest.mark.anyio
async def test_another_system_must_be_asked_for(
    provider: LocalProvider, elsewhere: LocalProvider, sandbox: Sandbox, tmp_path: Path
) -> None:
    await sandbox.exec("echo x >/usr/local/x; mkdir /opt/tool; echo y >/y")
    await sandbox.stop()
    await sandbox.export(tmp_path / "file")
    files = archives.unpacked(tmp_path / "file")
    paper = archives.passport(tmp_path / "file")
    assert paper["image_id"] == await provider.image_id("host")
    manifest = json.loads(files["index.json"])["manifests"][0]["digest"].replace(":", "/")
    layers = [
        files["blobs/" + each["digest"].replace(":", "/")]
        for each in json.loads(files[f"blobs/{manifest}"])["layers"]
    ]
    paper |= {"image_id": "host-other", "system": "plan9 4 on x86_64"}
    (tmp_path / "other").write_bytes(
        archives.packed(archives.documents(layers, {"race.sandbox": paper}, _MACHINE))
    )
    with pytest.raises(SandboxError, match=r"plan9 4 .*host-other.*--other-system"):
        await elsewhere.load(tmp_path / "other")
    moved = await elsewhere.load(tmp_path / "other", other_system=True)
    await moved.start()
    assert (await moved.exec("cat /usr/local/x /y; ls -d /opt/tool")).stdout == b"x\ny\n/opt/tool\n"


def test_archives_are_what_other_programs_read(small_image: Path, tmp_path: Path) -> None:
    """GNU tar lists what was exported."""

    async def export() -> None:
        provider = LocalProvider(tmp_path / "home" / "local")
        made = await provider.create(SandboxSpec("one", image=str(small_image)))
        await made.exec("mkdir /app; echo x >/app/x; rm /etc/passwd; : >/app/" + "long" * 50)
        await made.stop()
        await made.export(tmp_path / "file")
        await made.delete()
        await provider.aclose()

    (tmp_path / "home").mkdir()
    anyio.run(export)
    subprocess.run(["tar", "-xf", tmp_path / "file", "-C", tmp_path], check=True)
    index = json.loads((tmp_path / "index.json").read_text())
    name = index["manifests"][0]["digest"].replace(":", "/")
    manifest = json.loads((tmp_path / "blobs" / name).read_text())
    blob = tmp_path / "blobs" / manifest["layers"][-1]["digest"].replace(":", "/")
    listed = subprocess.run(["tar", "-tf", blob], check=True, capture_output=True, text=True).stdout.split()
    assert {"app/x", "etc/.wh.passwd", "app/" + "long" * 50} <= set(listed)
