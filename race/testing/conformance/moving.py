"""Checks of sandboxes that go to another machine in a file."""

from __future__ import annotations

import contextlib

from race.errors import SandboxError
from race.sandbox import File, Link
from race.testing.conformance.bench import INSIDE, Bench, Broken, Check, expect, output, refused, same


async def export_and_load(bench: Bench) -> None:
    """What was exported is loaded under another name: stopped, with all files, environment and labels."""
    first = await bench.new(env={"FROM": "spec"}, labels={"race": "r1"})
    await first.write([File(INSIDE + b"/of-the-parent", b"1"), File(INSIDE + b"/gone", b"")])
    sandbox = await bench.fork(first, labels={"race": "r2"})
    await output(sandbox, "rm gone; echo 2 >of-the-fork; chmod 700 of-the-fork; ln -s of-the-fork link")
    await sandbox.stop()
    archive = bench.folder / "archive"
    await sandbox.export(archive)
    loaded = await bench.provider.load(archive, bench.name())
    info = await loaded.info()
    same((info.state, dict(info.labels)), ("stopped", {"race": "r2"}), "state and labels of what was loaded")
    await loaded.start()
    seen = await output(loaded, "ls; cat link of-the-parent; stat -c %a of-the-fork; echo $FROM")
    same(seen, b"link\nof-the-fork\nof-the-parent\n2\n1700\nspec\n", "the files of what was loaded")


async def export_leaves_what_is_there(bench: Bench) -> None:
    """A file that exists is not exported to, and stays as it is."""
    sandbox = await bench.new()
    await sandbox.stop()
    archive = bench.folder / "archive"
    archive.write_text("old")
    with contextlib.suppress(SandboxError, FileExistsError):
        await sandbox.export(archive)
        raise Broken("an export to a file that exists was not refused")
    same(archive.read_text(), "old", "the file that was there")


async def load_under_a_taken_name(bench: Bench) -> None:
    """A name that is taken is refused."""
    sandbox = await bench.new()
    await sandbox.stop()
    await sandbox.export(bench.folder / "archive")
    with refused("loading under a name that is taken", naming=[sandbox.name]):
        await bench.provider.load(bench.folder / "archive")


async def load_refuses_what_is_damaged(bench: Bench) -> None:
    """An archive that is cut off, changed, or none at all is refused, and nothing is left of it."""
    sandbox = await bench.new()
    await sandbox.write([File(INSIDE + b"/file", bytes(range(256)) * 400), Link(INSIDE + b"/link", b"file")])
    await sandbox.stop()
    archive = bench.folder / "archive"
    await sandbox.export(archive)
    whole = archive.read_bytes()
    middle = len(whole) // 2
    damaged = {
        "cut off": whole[:middle],
        "changed": whole[:middle]
        + bytes(b ^ 0xFF for b in whole[middle : middle + 64])
        + whole[middle + 64 :],
        "empty": b"",
        "none": b"this is no archive" * 100,
    }
    for how, content in damaged.items():
        place = bench.folder / how.replace(" ", "-")
        place.write_bytes(content)
        name = bench.name()
        with refused(f"an archive that is {how}"):
            await bench.provider.load(place, name)
        expect(
            name not in [i.name for i in await bench.provider.list()],
            f"something is left of one that is {how}",
        )


CHECKS = (
    Check(export_and_load, feature="export"),
    Check(export_leaves_what_is_there, feature="export"),
    Check(load_under_a_taken_name, feature="export"),
    Check(load_refuses_what_is_damaged, feature="export"),
)
