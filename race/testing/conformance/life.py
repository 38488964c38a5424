"""Checks of a sandbox's life: made, stopped, frozen, found, and deleted."""

from __future__ import annotations

from typing import Any

import anyio

from race.errors import MachineError, SandboxError, SpecError
from race.sandbox import File, Finding, Limits, Network
from race.testing.conformance.bench import (
    INSIDE,
    WORK,
    Bench,
    Broken,
    Check,
    expect,
    grows,
    output,
    refused,
    same,
    tick,
)

_FILE = INSIDE + b"/file"


async def machine_is_looked_at(bench: Bench) -> None:
    """Looking at the machine finds that sandboxes work here, and says what was looked at."""
    findings = await bench.provider.check()
    for each in findings:
        expect(isinstance(each, Finding), f"{each!r} is no Finding")  # pyright: ignore[reportUnnecessaryIsInstance] - a plugin may give anything
        expect(each.ok or not each.required, f"{each.name}: {each.detail}")
        expect(each.name, "a finding has no name")
    expect(findings, "nothing was looked at")


async def image_id_stays(bench: Bench) -> None:
    """The identity of an image that does not change stays the same."""
    image = bench.spec().image
    first, second = [await bench.provider.image_id(image) for _ in range(2)]
    expect(first, "the identity of an image is empty")
    same(second, first, "the identity of an image, asked again")


async def create_refuses_bad_names(bench: Bench) -> None:
    """A name that is taken, or cannot be one, is refused."""
    sandbox = await bench.new()
    with refused("a name that is taken", naming=[sandbox.name]):
        await bench.provider.create(bench.spec(name=sandbox.name))
    for name in ("../up", "", "a b", "a/b", "x" * 101):
        with refused(f"the name {name!r}"):
            await bench.provider.create(bench.spec(name=name))


async def create_refuses_what_it_cannot(bench: Bench) -> None:
    """A network or limit that is not declared is refused rather than left out silently."""
    networks: dict[str, Network] = {"none": "none", "full": "full", "hosts": ("example.org",)}
    limits = {
        "cpus": Limits(cpus=0.5),
        "memory": Limits(memory=1 << 28),
        "disk": Limits(disk=1 << 28),
        "cores": Limits(cores=(0,)),
    }
    given: list[tuple[str, dict[str, Any]]] = [
        (f"the network {kind!r}", {"network": asked})
        for kind, asked in networks.items()
        if kind not in bench.can.networks
    ]
    for kind, limit in limits.items():
        if kind not in bench.can.limits:
            given.append((f"the limit {kind!r}", {"limits": limit}))
    for what, asked in given:
        try:
            await bench.provider.create(bench.spec(**asked))
        except (SandboxError, MachineError, SpecError):
            continue
        raise Broken(f"{what}, which is not declared, was not refused")


async def stop_ends_processes_and_keeps_files(bench: Bench) -> None:
    """Stopping ends every process; the files stay, and can be read."""
    sandbox = await bench.new()
    await output(sandbox, "echo kept >file")
    await tick(sandbox, "ticks")
    await sandbox.stop()
    await sandbox.stop()
    same((await sandbox.info()).state, "stopped", "the state")
    same(await sandbox.read(_FILE), b"kept\n", "a file of a stopped sandbox")
    before = len(await sandbox.read(f"{WORK}/ticks"))
    await anyio.sleep(0.2)
    same(len(await sandbox.read(f"{WORK}/ticks")), before, "the size of what a process wrote to")


async def stopped_ones_run_nothing(bench: Bench) -> None:
    """A stopped sandbox runs no command."""
    sandbox = await bench.new()
    await sandbox.stop()
    with refused("a command in a stopped sandbox"):
        await sandbox.exec("true")


async def start_runs_it_again(bench: Bench) -> None:
    """Starting runs a stopped sandbox again, with its files and without its processes."""
    sandbox = await bench.new()
    await output(sandbox, "echo kept >file")
    await tick(sandbox, "ticks")
    await sandbox.stop()
    await sandbox.start()
    await sandbox.start()
    same((await sandbox.info()).state, "running", "the state")
    same(await output(sandbox, "cat file"), b"kept\n", "a file")
    expect(not await grows(sandbox, "ticks"), "a process came back")


async def start_leaves_a_running_one(bench: Bench) -> None:
    """Starting a running sandbox does nothing to it."""
    sandbox = await bench.new()
    await tick(sandbox, "ticks")
    await sandbox.start()
    expect(await grows(sandbox, "ticks"), "a process was ended")


async def freeze_holds(bench: Bench) -> None:
    """Freezing holds every process where it is, and thawing lets it go on."""
    sandbox = await bench.new()
    await tick(sandbox, "ticks")
    await sandbox.freeze()
    same((await sandbox.info()).state, "frozen", "the state")
    before = len(await sandbox.read(f"{WORK}/ticks"))
    await anyio.sleep(0.2)
    same(len(await sandbox.read(f"{WORK}/ticks")), before, "the size of what a frozen process writes to")
    await sandbox.thaw()
    same((await sandbox.info()).state, "running", "the state")
    expect(await grows(sandbox, "ticks"), "a process did not go on")


async def frozen_ones_can_be_stopped(bench: Bench) -> None:
    """A frozen sandbox can be forked, stopped and started."""
    sandbox = await bench.new()
    await sandbox.write([File(_FILE, b"x")])
    await sandbox.freeze()
    fork = await bench.fork(sandbox)
    same(await output(fork, "cat file"), b"x", "the file of a fork of a frozen one")
    same((await sandbox.info()).state, "frozen", "the state of what was forked")
    await sandbox.stop()
    same((await sandbox.info()).state, "stopped", "the state")
    await sandbox.start()
    same(await output(sandbox, "cat file"), b"x", "the file, once it was started")


async def delete_ends_it(bench: Bench) -> None:
    """A deleted sandbox is gone, with its processes and from the list; deleting it again is no error."""
    sandbox = await bench.new()
    await sandbox.delete()
    await sandbox.delete()
    expect(sandbox.name not in [i.name for i in await bench.provider.list()], "it is still listed")
    with refused("asking what is known of a deleted sandbox"):
        await sandbox.info()
    with refused("a command in a deleted sandbox"):
        await sandbox.exec("true")


async def delete_frees_the_name(bench: Bench) -> None:
    """The name of a deleted sandbox can be used again, and nothing of it comes back."""
    sandbox = await bench.new(labels={"race": "first"})
    await sandbox.write([File(_FILE, b"x")])
    await sandbox.delete()
    later = await bench.provider.create(bench.spec(name=sandbox.name))
    same(dict((await later.info()).labels), {}, "the labels of a later one of the same name")
    with refused("reading a file of the earlier one"):
        try:
            await later.read(_FILE)
        except FileNotFoundError as e:
            raise SandboxError(str(e)) from e


async def delete_refuses_what_was_forked(bench: Bench) -> None:
    """What others were forked from is not deleted; the refusal names them all."""
    parent = await bench.new()
    await parent.write([File(_FILE, b"x")])
    first, second = await bench.fork(parent), await bench.fork(parent)
    await parent.stop()
    with refused("deleting what others were forked from", naming=[first.name, second.name]):
        await parent.delete()
    same(await output(first, "cat file"), b"x", "the file of a fork after the refusal")
    same(await parent.read(_FILE), b"x", "the file of the parent after the refusal")
    await first.delete()
    await second.delete()
    await parent.delete()
    expect(parent.name not in [i.name for i in await bench.provider.list()], "it is still listed")


async def labels_are_kept(bench: Bench) -> None:
    """Labels are kept, set on top of those there are, and listed, also of a stopped sandbox."""
    sandbox = await bench.new(labels={"race": "r1", "role": "a b=c"})
    await sandbox.label({"keep": "yes", "race": "r2"})
    await sandbox.stop()
    await sandbox.label({"owner": "né"})
    wanted = {"race": "r2", "role": "a b=c", "keep": "yes", "owner": "né"}
    same(dict((await sandbox.info()).labels), wanted, "the labels")
    listed = [dict(i.labels) for i in await bench.provider.list() if i.name == sandbox.name]
    same(listed, [wanted], "the labels in the list")


async def list_has_all(bench: Bench) -> None:
    """All sandboxes are listed, oldest first, with what is known of each."""
    first = await bench.new()
    second = await bench.fork(first)
    third = await bench.new()
    await third.stop()
    infos = [i for i in await bench.provider.list() if i.name in (first.name, second.name, third.name)]
    same([i.name for i in infos], [first.name, second.name, third.name], "the names, oldest first")
    same([i.state for i in infos], ["running", "running", "stopped"], "the states")
    same([i.parent for i in infos], [None, first.name, None], "the parents")
    expect(0 < infos[0].created <= infos[1].created <= infos[2].created, "the times of their making")
    same(await second.info(), infos[1], "what it says of itself")


async def get_finds(bench: Bench) -> None:
    """A sandbox is found by its name; a name that none has is refused with those there are."""
    sandbox = await bench.new()
    same((await bench.provider.get(sandbox.name)).name, sandbox.name, "the name of what was found")
    with refused("a name that no sandbox has", naming=[sandbox.name]):
        await bench.provider.get(bench.name())


async def others_take_over(bench: Bench) -> None:
    """Another instance of the provider takes a running sandbox over, with its processes, and both go on with it."""
    sandbox = await bench.new(labels={"race": "r1"})
    await output(sandbox, "echo here >file")
    await tick(sandbox, "ticks")
    async with bench.again() as other:
        taken = await other.get(sandbox.name)
        same(dict((await taken.info()).labels), {"race": "r1"}, "the labels, as another instance sees them")
        same(await output(taken, "cat file"), b"here\n", "a file, as another instance sees it")
        expect(await grows(taken, "ticks"), "its process was ended")
        await taken.label({"keep": "yes"})
        same((await sandbox.info()).labels.get("keep"), "yes", "a label that another instance set")
        fork = await taken.fork(bench.name())
        same(await output(fork, "cat file"), b"here\n", "a file of a fork by another instance")
        await fork.delete()
        await taken.delete()
    with refused("a command in what another instance deleted"):
        await sandbox.exec("true")


async def sandboxes_outlive_the_provider(bench: Bench) -> None:
    """Sandboxes go on when the instance that made them is closed."""
    async with bench.again() as other:
        sandbox = await other.create(bench.spec())
        await sandbox.write([File(_FILE, b"x")])
        await tick(sandbox, "ticks")
    left = await bench.provider.get(sandbox.name)
    same((await left.info()).state, "running", "the state")
    expect(await grows(left, "ticks"), "its process was ended")


async def collect_leaves_what_is_whole(bench: Bench) -> None:
    """Collecting removes nothing that is complete or in use."""
    parent = await bench.new()
    await parent.write([File(_FILE, b"x")])
    fork = await bench.fork(parent)
    await parent.stop()
    await bench.provider.collect()
    names = [i.name for i in await bench.provider.list()]
    expect(parent.name in names and fork.name in names, "a sandbox is gone")
    same(await output(fork, "cat file"), b"x", "a file of a running one")
    same(await parent.read(_FILE), b"x", "a file of a stopped one")


CHECKS = (
    Check(machine_is_looked_at),
    Check(image_id_stays),
    Check(create_refuses_bad_names),
    Check(create_refuses_what_it_cannot),
    Check(stop_ends_processes_and_keeps_files),
    Check(stopped_ones_run_nothing),
    Check(start_runs_it_again),
    Check(start_leaves_a_running_one),
    Check(freeze_holds, feature="freeze"),
    Check(frozen_ones_can_be_stopped, feature="freeze"),
    Check(delete_ends_it),
    Check(delete_frees_the_name),
    Check(delete_refuses_what_was_forked),
    Check(labels_are_kept),
    Check(list_has_all),
    Check(get_finds),
    Check(others_take_over, again=True),
    Check(sandboxes_outlive_the_provider, again=True),
    Check(collect_leaves_what_is_whole),
)
