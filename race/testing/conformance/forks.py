"""Checks of forks, and of what is known to have changed in one."""

from __future__ import annotations

import anyio

from race.sandbox import Change, File, Limits, Link, Removed, Sandbox
from race.testing.conformance.bench import (
    INSIDE,
    WORK,
    Bench,
    Check,
    expect,
    grows,
    output,
    refused,
    same,
    tick,
)


def _at(name: bytes) -> bytes:
    return INSIDE + b"/" + name


async def fork_of_a_stopped_one(bench: Bench) -> None:
    """A fork of a stopped sandbox runs, has its files, and names it as its parent."""
    parent = await bench.new()
    await output(parent, "mkdir d; echo one >d/file; chmod 700 d; ln -s d link")
    await parent.stop()
    fork = await bench.fork(parent)
    same(await output(fork, "cat link/file; stat -c %a d"), b"one\n700\n", "the files of a fork")
    info = await fork.info()
    same((info.state, info.parent), ("running", parent.name), "state and parent of a fork")
    same((await parent.info()).state, "stopped", "the state of what was forked")


async def fork_of_a_running_one(bench: Bench) -> None:
    """A fork of a running sandbox has its files and none of its processes, and the original goes on."""
    parent = await bench.new()
    await output(parent, "echo kept >kept")
    await tick(parent, "ticks")
    fork = await bench.fork(parent)
    same(await output(fork, "cat kept"), b"kept\n", "the files of a fork")
    expect(not await grows(fork, "ticks"), "a process of the original runs in the fork")
    expect(await grows(parent, "ticks"), "a process of the original was ended")


async def fork_as_of_one_moment(bench: Bench) -> None:
    """A fork of a running sandbox has its files as of one moment."""
    parent = await bench.new()
    # Of the two files one is always as old as the other, or one step older, whenever both are looked at together.
    await parent.exec(
        "i=0; while :; do i=$((i+1)); echo $i >a.new; mv a.new a; echo $i >b.new; mv b.new b; done &",
        cwd=WORK,
    )
    await anyio.sleep(0.1)
    for _ in range(3):
        fork = await bench.fork(parent)
        first, second = [int(await fork.read(f"{WORK}/{name}")) for name in "ab"]
        expect(first - second in (0, 1), f"the files of a fork are of two moments: {first} and {second}")
        same([c.path for c in await fork.changes()], [], "what has changed in a new fork")


async def fork_shares_nothing(bench: Bench) -> None:
    """What one of parent and forks writes, no other sees."""
    parent = await bench.new()
    await parent.write([File(_at(b"file"), b"one"), File(_at(b"gone"), b"")])
    await parent.stop()
    first, second = await bench.fork(parent), await bench.fork(parent)
    await output(first, "printf two >file; rm gone; touch new")
    await parent.start()
    await output(parent, "printf three >file; touch mine")
    same(await output(second, "cat file; ls"), b"onefile\ngone\n", "a sibling of a fork that was changed")
    same(await output(first, "cat file; ls"), b"twofile\nnew\n", "a fork whose parent was changed")
    same(await output(parent, "cat file; ls"), b"threefile\ngone\nmine\n", "a parent whose fork was changed")


async def fork_of_a_fork(bench: Bench) -> None:
    """Forks can be forked, and each has what was written before it."""
    line: list[Sandbox] = [await bench.new()]
    for number in range(4):
        await line[-1].write([File(_at(b"%d" % number), b""), File(_at(b"last"), b"%d" % number)])
        if number % 2:
            await line[-1].stop()
        line.append(await bench.fork(line[-1]))
    same(await output(line[-1], "ls; cat last"), b"0\n1\n2\n3\nlast\n3", "the files of a late descendant")
    same((await line[-1].info()).parent, line[-2].name, "its parent")


async def fork_lineage(bench: Bench) -> None:
    """What a sandbox descends from is known, the nearest first."""
    first = await bench.new()
    second = await bench.fork(first)
    third = await bench.fork(second)
    same((await third.info()).ancestors, (second.name, first.name), "ancestors")
    same((await first.info()).ancestors, (), "ancestors of one that was not forked")


async def forks_at_once(bench: Bench) -> None:
    """One sandbox can be forked several times at once."""
    parent = await bench.new()
    await parent.write([File(_at(b"file"), b"x")])
    await parent.stop()
    names = [bench.name() for _ in range(4)]
    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(parent.fork, name)
    for name in names:
        same(
            await output(await bench.provider.get(name), "cat file"), b"x", "the file of one of several forks"
        )


async def fork_takes_over(bench: Bench) -> None:
    """A fork takes over environment and image, and no labels but its own."""
    parent = await bench.new(env={"FROM": "parent"}, labels={"race": "parent"})
    fork = await bench.fork(parent, labels={"role": "fork"})
    info, before = await fork.info(), await parent.info()
    same(dict(info.labels), {"role": "fork"}, "the labels of a fork")
    same((info.network, info.image), (before.network, before.image), "network and image of a fork")
    same(await output(fork, "echo $FROM"), b"parent\n", "the environment of a fork")


async def fork_under_a_taken_name(bench: Bench) -> None:
    """A fork under a name that is taken is refused, and the owner of the name stays as it is."""
    parent = await bench.new()
    other = await bench.new()
    await other.write([File(_at(b"mine"), b"x")])
    with refused("a fork under a taken name", naming=[other.name]):
        await parent.fork(other.name)
    same(await output(other, "ls"), b"mine\n", "the files of the one with this name")


async def fork_apart(bench: Bench) -> None:
    """Processes of one sandbox are not seen from another."""
    parent = await bench.new()
    fork = await bench.fork(parent)
    await fork.exec("sleep 98765 &")
    look = "for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$p 2>/dev/null; echo; done"
    expect(b"sleep 98765" in await output(fork, look), "a process is not seen where it runs")
    expect(b"sleep 98765" not in await output(parent, look), "a process of a fork is seen in its parent")


async def _forked(bench: Bench) -> Sandbox:
    """A fork in which every kind of thing was changed."""
    parent = await bench.new()
    await output(
        parent,
        "mkdir -p d/e gone f mode; echo 1 >d/e/1; echo 2 >d/2; echo 3 >gone/3; touch f/x; echo 4 >kept; echo 5 >dead",
    )
    await parent.stop()
    fork = await bench.fork(parent)
    await output(
        fork,
        "rm -r d; mkdir d; echo new >d/2; rm -r gone f; echo file >f; chmod 711 mode; mkdir -m 700 fresh;"
        "ln -s x link; printf '' >empty; mkfifo fifo; rm dead; echo y >fresh/y",
    )
    return fork


_EXPECTED = [
    Change(_at(b"d/2"), "file", 0o644, 4, existed=True),
    Change(_at(b"d/e"), "removed", existed=True),
    Change(_at(b"dead"), "removed", existed=True),
    Change(_at(b"empty"), "file", 0o644, 0),
    Change(_at(b"f"), "file", 0o644, 5, existed=True),
    Change(_at(b"f/x"), "removed", existed=True),
    Change(_at(b"fifo"), "special", 0o644),
    Change(_at(b"fresh"), "directory", 0o700),
    Change(_at(b"fresh/y"), "file", 0o644, 2),
    Change(_at(b"gone"), "removed", existed=True),
    Change(_at(b"link"), "link", 0o777, target=b"x"),
    Change(_at(b"mode"), "directory", 0o711, existed=True),
]


async def changes_of_every_kind(bench: Bench) -> None:
    """What was added, replaced and removed is listed, sorted by path, with what is there now."""
    fork = await _forked(bench)
    seen = await fork.changes(WORK)
    # Whether a directory that was removed and made again is listed itself is left open.
    seen = [c for c in seen if c.path not in (INSIDE, _at(b"d"))]
    for one, other in zip(seen, _EXPECTED, strict=False):
        same(one, other, "a change")
    same([c.path for c in seen], [c.path for c in _EXPECTED], "the changed paths")


async def changes_of_a_stopped_one(bench: Bench) -> None:
    """What changed is also known of a stopped sandbox, and the same as before."""
    fork = await _forked(bench)
    before = await fork.changes(WORK)
    await fork.stop()
    same(await fork.changes(WORK), before, "what changed, once it was stopped")


async def changes_below_a_path(bench: Bench) -> None:
    """What changed is asked for below a path."""
    fork = await _forked(bench)
    same(
        [c.path for c in await fork.changes(f"{WORK}/f")], [_at(b"f"), _at(b"f/x")], "changes below one path"
    )
    same([c.path for c in await fork.changes(f"{WORK}/fresh/y")], [_at(b"fresh/y")], "changes at a file")
    same(await fork.changes(_at(b"kept")), [], "changes at a file that was not changed")
    same(await fork.changes(f"{WORK}/nothing/here"), [], "changes where nothing is")


async def changes_limit(bench: Bench) -> None:
    """More changes than the limit are refused."""
    fork = await bench.fork(await bench.new())
    await output(fork, "touch 1 2 3 4")
    same(
        len([c for c in await fork.changes(WORK, limit=9) if c.path != INSIDE]), 4, "changes within the limit"
    )
    with refused("more changes than the limit"):
        await fork.changes(WORK, limit=3)


async def changes_that_hide(bench: Bench) -> None:
    """A change of the same size is listed even if the times of the file were put back."""
    parent = await bench.new()
    await output(parent, "echo one >file; touch -t 200001010000 file")
    await parent.stop()
    fork = await bench.fork(parent)
    await output(fork, "echo two >file; touch -t 200001010000 file")
    expect(
        _at(b"file") in [c.path for c in await fork.changes(WORK)], "a file that was changed is not listed"
    )


async def changes_by_writing(bench: Bench) -> None:
    """What `Sandbox.write` did is a change as well."""
    parent = await bench.new()
    await parent.write([File(_at(b"old"), b"")])
    fork = await bench.fork(parent)
    await fork.write([File(_at(b"new"), b"x"), Link(_at(b"link"), b"new"), Removed(_at(b"old"))])
    seen = [(c.path, c.kind) for c in await fork.changes(WORK) if c.path != INSIDE]
    same(seen, [(_at(b"link"), "link"), (_at(b"new"), "file"), (_at(b"old"), "removed")], "changes")


async def changes_of_a_new_fork(bench: Bench) -> None:
    """In a new fork nothing has changed, whatever had in its parent."""
    parent = await bench.new()
    await output(parent, "touch before")
    await parent.stop()
    fork = await bench.fork(parent)
    same(await fork.changes(WORK), [], "what changed in a new fork")
    await output(fork, "touch after")
    later = await bench.fork(fork)
    same(await later.changes(WORK), [], "what changed in a new fork of a changed one")
    same(
        [c.path for c in await fork.changes(WORK) if c.path != INSIDE],
        [_at(b"after")],
        "what its parent changed",
    )


async def changes_anywhere(bench: Bench) -> None:
    """What changed anywhere on the machine is listed."""
    fork = await bench.fork(await bench.new())
    await fork.write([File(b"/opt/race-check/new", b"x"), File(b"/race-check-top", b"x")])
    seen = [c.path for c in await fork.changes() if c.kind == "file"]
    for path in (b"/opt/race-check/new", b"/race-check-top"):
        expect(path in seen, f"{path!r} is not among the changes of the machine: {seen[:5]}")


async def fork_limits(bench: Bench) -> None:
    """A fork may be given other limits than its parent."""
    parent = await bench.new(limits=Limits(processes=30))
    fork = await bench.fork(parent, limits=Limits(processes=None))
    many = "for i in $(seq 60); do sleep 1 & done; jobs -p | wc -l"
    done = await fork.exec(many, cwd=WORK)
    same((done.exit_code, done.stdout.strip()), (0, b"60"), "sixty processes where there is no limit")


CHECKS = (
    Check(fork_of_a_stopped_one),
    Check(fork_of_a_running_one),
    Check(fork_as_of_one_moment, feature="live_fork"),
    Check(fork_shares_nothing),
    Check(fork_of_a_fork),
    Check(fork_lineage),
    Check(forks_at_once),
    Check(fork_takes_over),
    Check(fork_under_a_taken_name),
    Check(fork_apart, isolated=True),
    Check(fork_limits, limit="processes"),
    Check(changes_of_every_kind),
    Check(changes_of_a_stopped_one),
    Check(changes_below_a_path),
    Check(changes_limit),
    Check(changes_that_hide),
    Check(changes_by_writing),
    Check(changes_of_a_new_fork),
    Check(changes_anywhere, feature="changes"),
)
