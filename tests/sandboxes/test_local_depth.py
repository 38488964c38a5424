"""Forks of forks of forks, whose layers are merged when there are many."""

from __future__ import annotations

import os
import random
import stat
from typing import TYPE_CHECKING

import pytest

from race.sandbox import Change, File, Removed, SandboxSpec
from race.sandboxes.local import flattening
from race.sandboxes.local.changes import Stack, changes
from race.sandboxes.local.layers import Layers, Whiteout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from race.sandbox import Sandbox
    from race.sandboxes.local import LocalProvider

_NAMES = "abc"


def _random_layer(top: Path, dice: random.Random, depth: int = 0) -> None:
    """Fill a layer with what overlay may write: files, links, directories, opaque ones, whiteouts."""
    for name in _NAMES:
        place = top / name
        match dice.choice(
            ["nothing", "nothing", "file", "link", "whiteout", "directory", "directory", "opaque"]
        ):
            case "file":
                place.write_text(str(dice.random()))
                place.chmod(dice.choice([0o600, 0o755, 0o4711, 0]))
            case "link":
                place.symlink_to(str(dice.random()))
            case "whiteout":
                os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(0, 0))
            case "directory" | "opaque" as kind if depth < 3:
                place.mkdir()
                if kind == "opaque":
                    os.setxattr(place, "user.overlay.opaque", b"y")
                _random_layer(place, dice, depth + 1)
                place.chmod(dice.choice([0o700, 0o755, 0o1777]))
            case _:
                pass


def _shown(folders: list[Path]) -> dict[bytes, tuple[int, int, float, str]]:
    """What a stack of layers shows: mode, owner, time and content of everything."""
    found: dict[bytes, tuple[int, int, float, str]] = {}
    with Layers(folders) as layers:
        waiting = [b""]
        while waiting:
            path = waiting.pop()
            here = layers.find(path)
            assert here is not None
            content = ""
            place = folders[here.layer] / os.fsdecode(path)
            if stat.S_ISREG(here.status.st_mode):
                content = place.read_text()
            elif stat.S_ISLNK(here.status.st_mode):
                content = str(place.readlink())
            status = here.status
            found[path] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
            for name in layers.names(here.folders, path):
                inside = path + b"/" + name if path else name
                step = layers.step(here.folders, inside)
                if step is not None and not isinstance(step, Whiteout):
                    waiting.append(inside)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_merged_layer_shows_what_its_layers_showed(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    tops = [tmp_path / str(number) for number in range(5)]
    for top in tops:
        top.mkdir()
        _random_layer(top, dice)
    image, *layers = tops
    top_first = [*reversed(layers), image]
    before = _shown(top_first)
    own = tmp_path / "own"
    own.mkdir()
    _random_layer(own, dice)
    apart: frozenset[bytes] = frozenset()
    told = changes([Stack(b"", [own], top_first, apart)], b"", 1000)
    flattening.merge([str(each) for each in layers], str(tmp_path / "merged"))
    merged = [tmp_path / "merged", image]
    assert _shown(merged) == before
    assert changes([Stack(b"", [own], merged, apart)], b"", 1000) == told


def test_what_is_merged_is_linked_and_not_copied(tmp_path: Path) -> None:
    for name in ("lower", "upper"):
        (tmp_path / name / "d").mkdir(parents=True)
    (tmp_path / "lower" / "d" / "big").write_bytes(b"x" * 1_000_000)
    (tmp_path / "lower" / "d" / "twice").hardlink_to(tmp_path / "lower" / "d" / "big")
    (tmp_path / "upper" / "d" / "new").write_text("new")
    os.setxattr(tmp_path / "upper" / "d", "user.note", b"kept")
    os.setxattr(tmp_path / "upper" / "d", "user.overlay.origin", b"not kept")
    flattening.merge([str(tmp_path / "lower"), str(tmp_path / "upper")], str(tmp_path / "merged"))
    big = (tmp_path / "merged" / "d" / "big").stat()
    assert big.st_ino == (tmp_path / "merged" / "d" / "twice").stat().st_ino
    assert big.st_ino == (tmp_path / "lower" / "d" / "big").stat().st_ino
    assert os.listxattr(tmp_path / "merged" / "d") == ["user.note"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.long
async def test_forks_go_five_hundred_deep(
    provider: LocalProvider, new_name: Callable[[], str], small_image: Path
) -> None:
    """Takes seconds: a fork, a write and a stop five hundred times."""
    first = await provider.create(SandboxSpec(new_name(), image=str(small_image)))
    await first.exec(
        "mkdir /app /app/gone /app/emptied; echo x >/app/gone/x; echo x >/app/emptied/x; rm /etc/passwd"
    )
    await first.stop()
    here: Sandbox = first
    chain = [here]
    for depth in range(1, 501):
        here = await here.fork(new_name())
        writes: list[File | Removed] = [
            File(b"/app/%d" % depth, b"%d" % depth),
            File(b"/app/last", b"%d" % depth),
        ]
        if depth > 2:
            writes.append(Removed(b"/app/%d" % (depth - 2)))
        await here.write(writes)
        if depth == 100:
            await here.exec("rm -r /app/gone /app/emptied; mkdir /app/emptied")
        await here.stop()
        chain.append(here)
    assert (await here.info()).ancestors == tuple(each.name for each in reversed(chain[:-1]))
    assert [(each.path, each.kind) for each in await here.changes()] == [
        (b"/app/498", "removed"),
        (b"/app/500", "file"),
        (b"/app/last", "file"),
    ]
    deepest = await here.fork(new_name())
    done = await deepest.exec("cd /app; ls -A . emptied; cat last; echo; ls /etc; cat /proc/self/mountinfo")
    words = done.stdout.decode().split()
    assert words[:8] == [".:", "499", "500", "emptied", "last", "emptied:", "500", words[7]]
    assert "passwd" not in words
    options = next(each for each in words if "upperdir=" in each)
    assert 1 <= options.count("lowerdir") <= flattening.MOST_LAYERS + 2
    assert await deepest.changes() == []
    # Those in the middle are still what they were, and can be forked and run.
    middle = chain[250]
    assert await middle.changes("/app") == [
        Change(b"/app/248", "removed", existed=True),
        Change(b"/app/250", "file", 0o644, 3),
        Change(b"/app/last", "file", 0o644, 3, existed=True),
    ]
    side = await middle.fork(new_name())
    assert (await side.exec("cd /app; ls -A; cat last")).stdout.split() == [
        b"249",
        b"250",
        b"emptied",
        b"last",
        b"250",
    ]
    await chain[50].start()
    assert (await chain[50].exec("cat /app/gone/x /app/last")).stdout == b"x\n50"
    assert await provider.collect() == []


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_one_sandbox_may_be_forked_a_hundred_times_between_writes(
    provider: LocalProvider, new_name: Callable[[], str], small_image: Path
) -> None:
    """Every fork of a stopped sandbox seals what it has written, so these are a hundred layers of its own."""
    made = await provider.create(SandboxSpec(new_name(), image=str(small_image)))
    await made.exec("mkdir /app")
    early = None
    for number in range(100):
        await made.stop()
        fork = await made.fork(new_name())
        if number == 10:
            early = fork
        await made.start()
        await made.write([File(b"/app/%d" % number, b"x"), Removed(b"/app/%d" % (number - 1))])
    assert [each.path for each in await made.changes()] == [b"/app", b"/app/99"]
    assert early is not None
    assert (await early.exec("ls /app")).stdout == b"9\n"
    await made.stop()
    last = await made.fork(new_name())
    assert (await last.exec("ls /app")).stdout == b"99\n"
    assert await last.changes() == []
    running = await last.fork(new_name())
    assert (await running.exec("ls /app")).stdout == b"99\n"


@pytest.mark.anyio
async def test_a_merge_that_was_killed_is_collected(
    provider: LocalProvider, new_name: Callable[[], str]
) -> None:
    made = await provider.create(SandboxSpec(new_name()))
    await made.stop()
    left = provider.home / "sandboxes" / made.name / "layers" / f"{flattening.UNFINISHED}x" / "0" / "d"
    left.mkdir(parents=True)
    assert await provider.collect() == [f"removed something unfinished of the sandbox {made.name!r}"]
    assert not left.exists()
