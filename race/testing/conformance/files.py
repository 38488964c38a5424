"""Checks of what goes into a sandbox and comes out of it."""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from race.errors import SandboxError
from race.sandbox import Directory, Entry, File, Link, Removed
from race.testing.conformance.bench import (
    INSIDE,
    WORK,
    Bench,
    Broken,
    Check,
    expect,
    output,
    refused,
    same,
)

_QUICKLY = 10.0
_PERMISSIONS = 0o7777


def _at(name: bytes) -> bytes:
    return INSIDE + b"/" + name


async def write_files(bench: Bench) -> None:
    """Files, links and directories are written, with their modes and missing parents, in the order given."""
    sandbox = await bench.new()
    (bench.folder / "program").write_text("#!/bin/sh\necho ran\n")
    await sandbox.write(
        [
            Directory(_at(b"private"), 0o750),
            File(_at(b"a/deep/file"), b"content"),
            File(_at(b"program"), bench.folder / "program", 0o755),
            Link(_at(b"link"), b"a/deep/file"),
            File(_at(b"twice"), b"first"),
            File(_at(b"twice"), b"second"),
        ]
    )
    seen = await output(
        sandbox, "cat link; ./program; cat twice; [ -x program ]; [ ! -x a/deep/file ]; [ -L link ]"
    )
    same(seen, b"contentran\nsecond", "what was written, as a command sees it")
    seen = await output(sandbox, "stat -c %a private a program a/deep/file")
    same(seen.split(), [b"750", b"755", b"755", b"644"], "modes")


async def write_removes(bench: Bench) -> None:
    """Paths are removed with everything below them, links themselves, and it is no error if nothing is there."""
    sandbox = await bench.new()
    await sandbox.write([File(_at(b"gone/deep/file"), b""), File(_at(b"kept/file"), b"")])
    await sandbox.write([Link(_at(b"link"), b"kept")])
    await sandbox.write([Removed(_at(b"gone")), Removed(_at(b"never/was")), Removed(_at(b"link"))])
    same(await output(sandbox, "ls; ls kept"), b"kept\nfile\n", "what is left")


async def write_replaces_what_is_in_the_way(bench: Bench) -> None:
    """What is in the way of something that is written is replaced, and no link at its end is followed."""
    sandbox = await bench.new()
    await output(
        sandbox, "mkdir -p d/e; touch d/e/f file; ln -s nowhere dangling; echo safe >safe; ln -s safe to"
    )
    await sandbox.write(
        [
            File(_at(b"d"), b"1"),
            File(_at(b"file/below"), b"2"),
            File(_at(b"dangling"), b"3"),
            File(_at(b"to"), b"4"),
        ]
    )
    seen = await output(sandbox, "cat d file/below dangling to safe; [ ! -e nowhere ]; [ ! -L to ]")
    same(seen, b"1234safe\n", "what replaced what was in the way")


async def write_follows_parents_inside(bench: Bench) -> None:
    """A link that is a parent directory is followed inside the sandbox."""
    sandbox = await bench.new()
    await output(sandbox, "mkdir real; ln -s real link; ln -s ../../../../../../race-check/real up")
    await sandbox.write([File(_at(b"link/one"), b"1"), File(_at(b"up/two"), b"2")])
    same(await output(sandbox, "cat real/one real/two; [ -L link ]"), b"12", "files written below a link")


async def write_refuses_bad_paths(bench: Bench) -> None:
    """A path that is relative, goes up, or holds a NUL byte is refused."""
    sandbox = await bench.new()
    for path in (b"relative", WORK.encode() + b"/../up", _at(b"nul\0")):
        with refused(f"writing to {path!r}"):
            await sandbox.write([File(path, b"")])


async def write_odd_names(bench: Bench) -> None:
    """Names need not be UTF-8, and may hold anything but a slash and NUL."""
    sandbox = await bench.new()
    names = [b"\xff", b"new\nline", b"-dash", b"with space", b"\xc3\xa9", b"$HOME", b"*"]
    await sandbox.write([File(_at(n), n) for n in names])
    for name in names:
        same(await sandbox.read(_at(name)), name, f"the content of a file named {name!r}")
    seen = await output(sandbox, "for f in * -dash; do printf '%s|' \"$f\"; done")
    same(sorted(set(seen.split(b"|")) - {b""}), sorted(names), "the names, as a command sees them")


async def write_much(bench: Bench) -> None:
    """Large files and many small ones arrive."""
    sandbox = await bench.new()
    data = os.urandom(5_000_000)
    entries: list[Entry] = [File(_at(b"many/%d" % n), b"%d" % n) for n in range(300)]
    await sandbox.write([File(_at(b"large"), data), *entries])
    expect(await sandbox.read(_at(b"large")) == data, "a file of 5 MB is not as it was written")
    same((await output(sandbox, "ls many | wc -l")).strip(), b"300", "how many files arrived")


async def read_what_commands_wrote(bench: Bench) -> None:
    """A file that a command wrote can be read."""
    sandbox = await bench.new()
    await output(sandbox, "printf '\\000\\377data' >made")
    same(await sandbox.read(f"{WORK}/made"), b"\0\xffdata", "what a command wrote")


async def read_missing(bench: Bench) -> None:
    """Reading what is not there is a `FileNotFoundError`."""
    sandbox = await bench.new()
    try:
        await sandbox.read(f"{WORK}/missing")
    except FileNotFoundError:
        return
    raise Broken("reading a missing file did not raise FileNotFoundError")


async def read_follows_no_link(bench: Bench) -> None:
    """Reading a link, or what is below one, is refused."""
    sandbox = await bench.new()
    await output(sandbox, "echo x >file; ln -s file link; mkdir d; echo y >d/y; ln -s d below")
    for path in ("link", "below/y"):
        with refused(f"reading {path!r}"):
            await sandbox.read(f"{WORK}/{path}")


async def read_refuses_what_is_no_file(bench: Bench) -> None:
    """Reading a directory or a FIFO is refused, and at once."""
    sandbox = await bench.new()
    await output(sandbox, "mkdir d; mkfifo pipe")
    with anyio.move_on_after(_QUICKLY) as scope:
        for path in ("d", "pipe"):
            with refused(f"reading {path!r}, which is no regular file"):
                await sandbox.read(f"{WORK}/{path}")
    expect(not scope.cancelled_caught, "reading what is no regular file waited for ever")


async def read_limit(bench: Bench) -> None:
    """Reading a file that is larger than the limit is refused."""
    sandbox = await bench.new()
    await sandbox.write([File(_at(b"file"), b"12345")])
    same(await sandbox.read(f"{WORK}/file", limit=5), b"12345", "a file of as many bytes as the limit")
    with refused("reading a file beyond the limit"):
        await sandbox.read(f"{WORK}/file", limit=4)


def _tree(folder: Path) -> None:
    (folder / "folder" / "empty").mkdir(parents=True)
    (folder / "folder" / "tool").write_bytes(b"#!/bin/sh\necho tool\n")
    (folder / "folder" / "tool").chmod(0o755)
    (folder / "secret").write_text("x")
    (folder / "secret").chmod(0o600)
    (folder / "link").symlink_to("/etc/passwd")


async def upload_keeps_a_tree(bench: Bench) -> None:
    """A tree goes in with its modes and links."""
    sandbox = await bench.new()
    source = bench.folder / "in"
    _tree(source)
    await sandbox.upload(source, f"{WORK}/tree")
    seen = await output(
        sandbox, "readlink link; stat -c %a secret folder/tool; ls -A folder", cwd=f"{WORK}/tree"
    )
    same(seen.split(), [b"/etc/passwd", b"600", b"755", b"empty", b"tool"], "an uploaded tree")
    same(await sandbox.read(f"{WORK}/tree/secret"), b"x", "an uploaded file")
    await sandbox.upload(source / "secret", f"{WORK}/one")
    same(await sandbox.read(f"{WORK}/one"), b"x", "a single uploaded file")


async def upload_owners_become_root(bench: Bench) -> None:
    """Owners of what is uploaded become the sandbox's root."""
    sandbox = await bench.new()
    _tree(bench.folder / "in")
    await sandbox.upload(bench.folder / "in", f"{WORK}/tree")
    same((await output(sandbox, "stat -c %u tree tree/secret")).split(), [b"0", b"0"], "owners")


async def download_keeps_a_tree(bench: Bench) -> None:
    """A tree comes out with its modes and links, and without special files and setuid bits."""
    sandbox = await bench.new()
    await sandbox.write(
        [
            Directory(_at(b"tree/empty"), 0o750),
            File(_at(b"tree/tool"), b"tool", 0o4755),
            File(_at(b"tree/secret"), b"x", 0o600),
            Link(_at(b"tree/link"), b"/etc/passwd"),
        ]
    )
    await output(sandbox, "chmod 4755 tree/tool; mkfifo tree/pipe")
    out = bench.folder / "out"
    await sandbox.download(f"{WORK}/tree", out)
    names = sorted(p.name for p in out.iterdir())
    same(names, ["empty", "link", "secret", "tool"], "what came out")
    same((out / "link").readlink(), Path("/etc/passwd"), "where a link points")
    same((out / "secret").read_bytes(), b"x", "a file")
    modes = [oct((out / n).stat().st_mode & _PERMISSIONS) for n in ("empty", "secret", "tool")]
    same(modes, ["0o750", "0o600", "0o755"], "modes")
    await sandbox.download(f"{WORK}/tree/secret", bench.folder / "one")
    same((bench.folder / "one").read_bytes(), b"x", "a single file")


async def download_refuses_an_existing_target(bench: Bench) -> None:
    """A target that exists is a `FileExistsError`, and stays as it is."""
    sandbox = await bench.new()
    await sandbox.write([File(_at(b"file"), b"new")])
    target = bench.folder / "out"
    target.write_text("old")
    try:
        await sandbox.download(f"{WORK}/file", target)
    except FileExistsError:
        same(target.read_text(), "old", "what was there before")
        return
    raise Broken("a download to what exists did not raise FileExistsError")


async def download_missing(bench: Bench) -> None:
    """Downloading what is not there is an error, and leaves nothing."""
    sandbox = await bench.new()
    target = bench.folder / "out"
    try:
        await sandbox.download(f"{WORK}/missing", target)
    except (SandboxError, FileNotFoundError):
        expect(not os.path.lexists(target), "something was left at the target")
        return
    raise Broken("downloading what is missing was not refused")


async def place_is_what_commands_call_it(bench: Bench) -> None:
    """What commands call a path is known, and all methods take that as well."""
    sandbox = await bench.new()
    await sandbox.write([File(_at(b"file"), b"x")])
    place = sandbox.place(f"{WORK}/file")
    same(await output(sandbox, ["cat", place], cwd="/"), b"x", "what a command finds there")
    same(await output(sandbox, "ls", cwd=sandbox.place(WORK)), b"file\n", "what is in a working directory")
    await sandbox.write([File(place.encode(), b"y")])
    same(await sandbox.read(place), b"y", "what was written there")
    same(await sandbox.read(f"{WORK}/file"), b"y", "what was written there, by its other name")


async def host_out_of_reach(bench: Bench) -> None:
    """A file of the host is not seen inside."""
    sandbox = await bench.new()
    secret = bench.folder / "secret"
    secret.write_text("of the host")
    done = await sandbox.exec(["cat", str(secret)])
    expect(b"of the host" not in done.stdout, "a file of the host could be read inside")


async def paths_are_the_sandboxes_own(bench: Bench) -> None:
    """Absolute paths in commands are those of the sandbox, whose root may write everywhere."""
    sandbox = await bench.new()
    await sandbox.write([File(b"/etc/race-check", b"written")])
    same(await output(sandbox, f"cat /etc/race-check; echo mine >{WORK}/x"), b"written", "an absolute path")
    same(await sandbox.read(f"{WORK}/x"), b"mine\n", "what was written to an absolute path")
    same(await output(sandbox, "id -u"), b"0\n", "the user")


CHECKS = (
    Check(write_files),
    Check(write_removes),
    Check(write_replaces_what_is_in_the_way),
    Check(write_follows_parents_inside),
    Check(write_refuses_bad_paths),
    Check(write_odd_names),
    Check(write_much),
    Check(read_what_commands_wrote),
    Check(read_missing),
    Check(read_follows_no_link),
    Check(read_refuses_what_is_no_file),
    Check(read_limit),
    Check(upload_keeps_a_tree),
    Check(upload_owners_become_root, isolated=True),
    Check(download_keeps_a_tree),
    Check(download_refuses_an_existing_target),
    Check(download_missing),
    Check(place_is_what_commands_call_it),
    Check(host_out_of_reach, isolated=True),
    Check(paths_are_the_sandboxes_own, isolated=True),
)
