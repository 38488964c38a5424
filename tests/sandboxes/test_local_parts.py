"""The parts of the local provider that need no sandbox: bounded output, streams of files, removal, copies."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from race.sandboxes.local import copying, frames
from race.sandboxes.local.exchange import HostSink
from race.sandboxes.local.images import private_folder
from race.sandboxes.local.output import Output
from race.sandboxes.local.removal import remove_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("limit", [0, 1, 2, 10, 1000])
@pytest.mark.parametrize("piece", [1, 3, 500])
def test_output_keeps_both_ends(limit: int, piece: int) -> None:
    data = bytes(index % 251 for index in range(1000))
    output = Output(limit)
    for start in range(0, len(data), piece):
        output.add(data[start : start + piece])
    assert output.total == 1000
    kept = output.kept()
    if limit == 1000:
        assert kept == data
        return
    head, tail = limit - limit // 2, limit // 2
    line = b"\n... [%d bytes cut] ...\n" % (1000 - limit)
    assert kept == data[:head] + line + data[1000 - tail :]


def test_output_memory_is_bounded() -> None:
    output = Output(1000)
    for _ in range(2000):
        output.add(bytes(1 << 16))
    assert output.total == 2000 << 16
    assert len(output._tail) < 1 << 18
    assert len(output.kept()) < 1100


def _give(target: Path, *parts: bytes) -> None:
    sink = HostSink(target)
    try:
        feed = frames.Feed(sink)
        for part in (*parts, frames.end()):
            for byte in range(0, len(part), 7):  # in pieces, as a pipe may give them
                feed.feed(part[byte : byte + 7])
        assert feed.complete
        sink.finish()
    finally:
        sink.close()


def _file(path: bytes, content: bytes, mode: int = 0o644) -> bytes:
    return frames.header(frames.FILE, path, mode=mode) + b"".join(frames.whole(content))


def test_a_stream_becomes_files(tmp_path: Path) -> None:
    target = tmp_path / "out"
    _give(
        target,
        frames.header(frames.DIRECTORY, b"", mode=0o750),
        frames.header(frames.DIRECTORY, b"closed", mode=0o500),
        _file(b"closed/tool", b"x" * 600_000, 0o6755),
        frames.header(frames.LINK, b"link", target=b"/etc"),
    )
    assert stat.S_IMODE(target.stat().st_mode) == 0o750
    assert stat.S_IMODE((target / "closed").stat().st_mode) == 0o500
    assert stat.S_IMODE((target / "closed" / "tool").stat().st_mode) == 0o755
    assert (target / "closed" / "tool").stat().st_size == 600_000
    assert str((target / "link").readlink()) == "/etc"


@pytest.mark.parametrize(
    "hostile",
    [
        [_file(b"../escaped", b"x")],
        [_file(b"/escaped", b"x")],
        [_file(b"a//b", b"x")],
        [_file(b".", b"x")],
        [_file(b"nul\0", b"x")],
        [frames.header(frames.LINK, b"a", target=b".."), _file(b"a/escaped", b"x")],
        [frames.header(frames.LINK, b"a", target=b".."), frames.header(frames.DIRECTORY, b"a/escaped")],
        [frames.header(frames.LINK, b"a", target=b"../escaped"), _file(b"a", b"x")],
        [frames.header(frames.REMOVED, b"a")],
        [frames.header(frames.DIRECTORY, b"")],
        [frames.header(b"?", b"a")],
        [frames.header(frames.FILE, b"a") + b"\xff\xff\xff\x7f"],
    ],
)
def test_a_hostile_stream_writes_nothing_outside(tmp_path: Path, hostile: list[bytes]) -> None:
    target = tmp_path / "folder" / "out"
    target.parent.mkdir()
    with pytest.raises((frames.BrokenStream, OSError)):
        _give(target, frames.header(frames.DIRECTORY, b"", mode=0o755), *hostile)
    assert sorted(each.name for each in tmp_path.rglob("*escaped*")) == []


def test_a_stream_that_was_cut_short_is_not_complete(tmp_path: Path) -> None:
    sink = HostSink(tmp_path / "out")
    feed = frames.Feed(sink)
    feed.feed(_file(b"", b"content")[:-2])
    assert not feed.complete
    sink.close()
    sink.discard()
    assert list(tmp_path.iterdir()) == []


def test_anything_can_be_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").write_text("kept")
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(keep)
    os.mkfifo(top / "pipe")
    deep = os.open(top, os.O_RDONLY)
    for _ in range(30):  # deeper than a path may be long
        os.mkdir("deeper" * 40, dir_fd=deep)
        inner = os.open("deeper" * 40, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    (top / "closed").mkdir()
    (top / "closed" / "file").touch()
    (top / "closed" / "inner").mkdir()
    (top / "closed" / "inner").chmod(0)
    (top / "closed").chmod(0)
    remove_tree(top)
    assert [each.name for each in tmp_path.iterdir()] == ["keep"]
    assert (keep / "file").read_text() == "kept"


def test_a_copied_layer_is_like_the_original(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "opaque").mkdir(parents=True)
    os.setxattr(top / "opaque", "user.overlay.opaque", b"y")
    os.mknod(top / "gone", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    (top / "file").write_bytes(b"content")
    os.utime(top / "file", ns=(10**18, 10**18 + 1))
    (top / "hard").hardlink_to(top / "file")
    (top / "link").symlink_to("file")
    os.mkfifo(top / "pipe", 0o640)
    with (top / "sparse").open("wb") as file:
        file.truncate(50 << 20)
        file.seek(20 << 20)
        file.write(b"island")
    (top / "closed").mkdir(mode=0o711)
    (top / "closed" / "secret").write_text("x")
    (top / "closed" / "secret").chmod(0)
    (top / "closed").chmod(0)
    copy = tmp_path / "copy"
    copying.copy_layer(str(top), str(copy))
    assert os.getxattr(copy / "opaque", "user.overlay.opaque") == b"y"
    gone = (copy / "gone").stat()
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    assert (copy / "file").stat().st_mtime_ns == 10**18 + 1
    assert (copy / "file").samefile(copy / "hard")
    assert str((copy / "link").readlink()) == "file"
    assert stat.S_ISFIFO((copy / "pipe").stat().st_mode)
    sparse = (copy / "sparse").stat()
    assert sparse.st_size == 50 << 20
    assert sparse.st_blocks < 1000
    with (copy / "sparse").open("rb") as file:
        file.seek(20 << 20)
        assert file.read(6) == b"island"
    for folder in (top, copy):
        assert stat.S_IMODE((folder / "closed").stat().st_mode) == 0
        (folder / "closed").chmod(0o700)
        assert stat.S_IMODE((folder / "closed" / "secret").stat().st_mode) == 0


@pytest.mark.parametrize(
    ("home", "private"),
    [
        ("/home/me/.local/state/race/sandboxes/local", "/home/me/.local/state/race"),
        ("/opt/race/sandboxes/local", "/opt/race"),
        ("/opt/sandboxes/local", "/opt/sandboxes/local"),
        ("/srv/race/local", "/srv/race"),
        ("/var/lib/race", "/var/lib/race"),
        ("/opt/race", "/opt/race"),
        ("/race", "/race"),
    ],
)
def test_the_folder_that_is_hidden_is_never_one_of_the_system(
    tmp_path: Path, home: str, private: str
) -> None:
    place = tmp_path.__class__(home)
    if place.parent.exists() and place.parent.resolve() != place.parent:
        pytest.skip("a part of the path is a link here")
    assert str(private_folder(place)) == private
