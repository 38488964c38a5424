"""Providers that break one promise each, made of a real one: what the conformance suite has to notice."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
import socket
import time
from pathlib import Path
from typing import Any, ClassVar

from race.errors import SandboxError
from race.sandbox import File, Finding, Limits

MUTANTS: dict[str, type[Provider]] = {}
"""By the name of the check that has to fail, what breaks the promise."""


class Provider:
    """A real provider, whose sandboxes are wrapped."""

    sandbox: ClassVar[type[Sandbox]]

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def wrap(self, sandbox: Any) -> Any:
        return self.sandbox(sandbox, self)

    async def create(self, spec: Any) -> Any:
        return self.wrap(await self.inner.create(spec))

    async def get(self, name: str) -> Any:
        return self.wrap(await self.inner.get(name))

    async def load(self, *given: Any) -> Any:
        return self.wrap(await self.inner.load(*given))


class Sandbox:
    """A real sandbox."""

    def __init__(self, inner: Any, provider: Provider) -> None:
        self.inner = inner
        self.provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def fork(self, name: str, **given: Any) -> Any:
        return self.provider.wrap(await self.inner.fork(name, **given))


Provider.sandbox = Sandbox


def breaks(*checks: str) -> Any:
    """Register a wrapper of sandboxes, or of a provider, as what these checks have to notice."""

    def register(cls: Any) -> Any:
        made = cls if issubclass(cls, Provider) else type(cls.__name__, (Provider,), {"sandbox": cls})
        for check in checks:
            assert check not in MUTANTS, check
            MUTANTS[check] = made
        return cls

    return register


# Life


@breaks("machine_is_looked_at")
class FindsNothing(Provider):
    async def check(self) -> list[Finding]:
        return []


@breaks("image_id_stays")
class RandomImage(Provider):
    async def image_id(self, image: str) -> str:
        return os.urandom(8).hex()


@breaks("create_refuses_bad_names")
class TakesAnyName(Provider):
    async def create(self, spec: Any) -> Any:
        with contextlib.suppress(SandboxError):
            return await super().create(spec)
        return await self.get(spec.name)


@breaks("create_refuses_what_it_cannot")
class LeavesOut(Provider):
    @property
    def capabilities(self) -> Any:
        can = self.inner.capabilities
        return dataclasses.replace(can, limits=can.limits - {"disk"})

    async def create(self, spec: Any) -> Any:
        limits = dataclasses.replace(spec.limits, disk=None)
        return await super().create(dataclasses.replace(spec, limits=limits))


@breaks("stop_ends_processes_and_keeps_files")
class OnlyFreezes(Sandbox):
    async def stop(self) -> None:
        await self.inner.freeze()


@breaks("stopped_ones_run_nothing")
class StartsByItself(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        await self.inner.start()
        return await self.inner.exec(command, **given)


@breaks("start_runs_it_again")
class LosesFiles(Sandbox):
    async def start(self) -> None:
        await self.inner.start()
        await self.inner.exec("rm -rf /race-check/*")


@breaks("start_leaves_a_running_one")
class Restarts(Sandbox):
    async def start(self) -> None:
        await self.inner.stop()
        await self.inner.start()


@breaks("freeze_holds")
class FreezesInName(Sandbox):
    frozen = False

    async def freeze(self) -> None:
        self.frozen = True

    async def info(self) -> Any:
        info = await self.inner.info()
        return dataclasses.replace(info, state="frozen") if self.frozen else info

    async def thaw(self) -> None:
        self.frozen = False


@breaks("frozen_ones_can_be_stopped")
class ThawsToFork(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        with contextlib.suppress(SandboxError):
            await self.inner.thaw()
        return await super().fork(name, **given)


@breaks("delete_ends_it")
class OnlyStops(Sandbox):
    async def delete(self) -> None:
        await self.inner.stop()


@breaks("delete_frees_the_name")
class KeepsLabels(Provider):
    async def create(self, spec: Any) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        spec = dataclasses.replace(spec, labels={**kept.get(spec.name, {}), **spec.labels})
        kept[spec.name] = spec.labels
        return await super().create(spec)


@breaks("delete_refuses_what_was_forked")
class NamesNobody(Sandbox):
    async def delete(self) -> None:
        try:
            await self.inner.delete()
        except SandboxError:
            raise SandboxError("others were forked from it") from None


@breaks("labels_are_kept")
class ReplacesLabels(Sandbox):
    async def info(self) -> Any:
        info = await self.inner.info()
        return dataclasses.replace(info, labels={k: v for k, v in info.labels.items() if k != "role"})


@breaks("list_has_all")
class ListsByName(Provider):
    async def list(self) -> Any:
        return list(reversed(await self.inner.list()))


@breaks("get_finds")
class KnowsNoNames(Provider):
    async def get(self, name: str) -> Any:
        try:
            return await super().get(name)
        except SandboxError:
            raise SandboxError("there is none of this name") from None


@breaks("others_take_over")
class RestartsWhenFound(Provider):
    async def get(self, name: str) -> Any:
        found = await super().get(name)
        if (await found.info()).labels:
            await found.stop()
            await found.start()
        return found


@breaks("sandboxes_outlive_the_provider")
class TakesThemAlong(Provider):
    async def aclose(self) -> None:
        for info in await self.inner.list():
            await (await self.inner.get(info.name)).stop()
        await self.inner.aclose()


@breaks("collect_leaves_what_is_whole")
class CollectsTheStopped(Provider):
    async def collect(self) -> Any:
        for info in reversed(await self.inner.list()):
            if info.parent is not None:
                await (await self.inner.get(info.name)).delete()
        return []


# Commands


@breaks("exec_status_and_streams")
class MixesStreams(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        return await self.inner.exec(command, **{**given, "merge_stderr": True})


@breaks("exec_text_in_a_shell")
class ShellForAll(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        return await self.inner.exec(command if isinstance(command, str) else " ".join(command), **given)


@breaks("exec_long_text")
class OneArgument(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        if isinstance(command, str):
            command = ["bash", "-c", command]
        return await self.inner.exec(command, **given)


@breaks("exec_working_directory")
class AlwaysWork(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        if given.get("cwd", "/").startswith("/race-check"):
            given["cwd"] = "/race-check"
        return await self.inner.exec(command, **given)


@breaks("exec_missing_directory")
class MakesDirectories(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        with contextlib.suppress(SandboxError):
            return await self.inner.exec(command, **given)
        return await self.inner.exec(command, **{**given, "cwd": "/"})


@breaks("exec_environment")
class KeepsCallsEnvironment(Sandbox):
    kept: dict[str, str]

    async def exec(self, command: Any, **given: Any) -> Any:
        self.__dict__.setdefault("kept", {}).update(given.get("env") or {})
        return await self.inner.exec(command, **{**given, "env": self.kept})


@breaks("exec_path_extends_the_images")
class ShortPath(Provider):
    async def create(self, spec: Any) -> Any:
        env = {k: v.replace("$PATH", "/bin") for k, v in spec.env.items()}
        return await super().create(dataclasses.replace(spec, env=env))


@breaks("exec_nothing_of_the_hosts_environment")
class Inherits(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        mine = {k: v for k, v in os.environ.items() if k.startswith("RACE")}
        return await self.inner.exec(command, **{**given, "env": {**mine, **(given.get("env") or {})}})


@breaks("exec_input")
class CutsInput(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        if given.get("stdin"):
            given["stdin"] = given["stdin"][:1_000_000]
        return await self.inner.exec(command, **given)


@breaks("exec_no_terminal")
class OnATerminal(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        if isinstance(command, str) and "test -t" in command:
            command = f"script -qec {shlex.quote(command)} /dev/null"
        return await self.inner.exec(command, **given)


def _after(command: str, seconds: float) -> list[str]:
    """Run a command under coreutils' time limit, which ends only that."""
    return ["timeout", "--foreground", "-s", "KILL", str(seconds), "bash", "-c", command]


@breaks("exec_timeout_ends_everything")
class EndsTheCommandOnly(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        seconds = given.pop("timeout", None)
        if seconds is None:
            return await self.inner.exec(command, **given)
        done = await self.inner.exec(_after(command, seconds), **given)
        return dataclasses.replace(done, timed_out=True, exit_code=None)


@breaks("exec_timeout_spares_others")
class EndsTheSandbox(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        done = await self.inner.exec(command, **given)
        if done.timed_out:
            await self.inner.stop()
            await self.inner.start()
        return done


@breaks("exec_output_is_bounded")
class KeepsTheHead(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        limit = given.pop("output_limit", 1 << 20)
        done = await self.inner.exec(command, **given)
        return dataclasses.replace(done, stdout=done.stdout[:limit])


@breaks("exec_merged_streams")
class MergesAtTheEnd(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        merged = given.pop("merge_stderr", False)
        done = await self.inner.exec(command, **given)
        return dataclasses.replace(done, stdout=done.stdout + done.stderr, stderr=b"") if merged else done


@breaks("exec_missing_program")
class RaisesIfMissing(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        done = await self.inner.exec(command, **given)
        if done.exit_code == 127:
            raise SandboxError("not found")
        return done


@breaks("exec_signal")
class ShellStatus(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        done = await self.inner.exec(command, **given)
        code = done.exit_code
        return dataclasses.replace(done, exit_code=128 - code if code is not None and code < 0 else code)


@breaks("exec_refuses_what_no_program_takes")
class CutsAtNul(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        if isinstance(command, str):
            command = command.partition("\0")[0]
        return await self.inner.exec(command, **given)


@breaks("exec_background_goes_on")
class EndsTheBackground(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        if isinstance(command, str) and "& echo started" in command:
            # Ended by signal, with everything that it had started.
            command = f"setsid bash -c {shlex.quote(command + '; kill -KILL -$$')} | cat"
        return await self.inner.exec(command, **given)


@breaks("exec_background_may_print")
class BreaksPipes(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        if isinstance(command, str) and "over >over" in command:
            command = f"({command}) | head -c 1000 >/dev/null"
        return await self.inner.exec(command, **given)


@breaks("exec_cancelling_ends")
class Forgets(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        if isinstance(command, str) and ">>main" in command:
            await self.inner.exec(f"({command}) >/dev/null 2>&1 &", **given)
            await asyncio.sleep(100)
        return await self.inner.exec(command, **given)


@breaks("exec_at_once")
class OneByOne(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        lock = self.provider.__dict__.setdefault("lock", asyncio.Lock())
        if given.get("timeout"):
            given["timeout"] = 0.5
        async with lock:
            return await self.inner.exec(command, **given)


@breaks("exec_seconds")
class NoClock(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        return dataclasses.replace(await self.inner.exec(command, **given), seconds=0.0)


# Files


def _entries(change: Any) -> Any:
    """A wrapper whose entries to write are changed."""

    class Writes(Sandbox):
        async def write(self, entries: Any) -> None:
            await self.inner.write([e for e in map(change, entries) if e is not None])

    return Writes


breaks("write_files")(_entries(lambda e: dataclasses.replace(e, mode=0o644) if isinstance(e, File) else e))
breaks("write_removes")(_entries(lambda e: None if type(e).__name__ == "Removed" else e))
breaks("write_odd_names")(
    _entries(lambda e: dataclasses.replace(e, path=e.path.decode("utf-8", "replace").encode()))
)
breaks("write_much")(
    _entries(lambda e: dataclasses.replace(e, content=e.content[: 1 << 20]) if isinstance(e, File) else e)
)
breaks("write_refuses_bad_paths")(_entries(lambda e: e if e.path.startswith(b"/") else None))


@breaks("write_replaces_what_is_in_the_way")
class FollowsLinks(Sandbox):
    async def write(self, entries: Any) -> None:
        for e in entries:
            if e.path == b"/race-check/to":
                await self.inner.exec("cat >/race-check/to", stdin=e.content)
            else:
                await self.inner.write([e])


@breaks("write_follows_parents_inside")
class ReplacesParents(Sandbox):
    async def write(self, entries: Any) -> None:
        for e in entries:
            await self.inner.exec(
                ["sh", "-c", '[ ! -L "$0" ] || rm "$0"', str(Path(os.fsdecode(e.path)).parent)]
            )
            await self.inner.write([e])


class Reads(Sandbox):
    """Reads by a command inside."""

    async def read(self, path: Any, *, limit: int = 1 << 30) -> bytes:
        path = os.fsdecode(path)
        if not (await self.inner.exec(["test", "-e", path])).exit_code:
            done = await self.inner.exec(["cat", path], output_limit=limit, timeout=1)
            if done.exit_code == 0:
                return done.stdout
            raise SandboxError("it cannot be read")
        raise FileNotFoundError(path)


breaks("read_follows_no_link", "read_limit")(Reads)


@breaks("read_what_commands_wrote")
class ReadsText(Sandbox):
    async def read(self, path: Any, **given: Any) -> bytes:
        return (await self.inner.read(path, **given)).decode("utf-8", "replace").encode()


@breaks("read_missing")
class EmptyIfMissing(Sandbox):
    async def read(self, path: Any, **given: Any) -> bytes:
        try:
            return await self.inner.read(path, **given)
        except FileNotFoundError:
            return b""


@breaks("read_refuses_what_is_no_file")
class EmptyIfSpecial(Sandbox):
    async def read(self, path: Any, **given: Any) -> bytes:
        with contextlib.suppress(SandboxError):
            return await self.inner.read(path, **given)
        return b""


@breaks("upload_keeps_a_tree")
class FollowsUploadedLinks(Sandbox):
    async def upload(self, source: Any, target: str) -> None:
        await self.inner.upload(source, target)
        await self.inner.exec(
            ["sh", "-c", 'for f in "$0"/*; do [ ! -L "$f" ] || { rm "$f"; echo >"$f"; }; done', target]
        )


@breaks("upload_owners_become_root")
class KeepsOwners(Sandbox):
    async def upload(self, source: Any, target: str) -> None:
        await self.inner.upload(source, target)
        done = await self.inner.exec(["chown", "-R", "1000:1000", target])
        assert done.exit_code == 0


@breaks("download_keeps_a_tree")
class PlainModes(Sandbox):
    async def download(self, source: str, target: Any) -> None:
        await self.inner.download(source, target)
        for each in target.rglob("*"):
            if not each.is_symlink():
                each.chmod(0o755)


@breaks("download_refuses_an_existing_target")
class Overwrites(Sandbox):
    async def download(self, source: str, target: Any) -> None:
        target.unlink(missing_ok=True)
        await self.inner.download(source, target)


@breaks("download_missing")
class LeavesAFolder(Sandbox):
    async def download(self, source: str, target: Any) -> None:
        try:
            await self.inner.download(source, target)
        except SandboxError:
            target.mkdir()
            raise


@breaks("place_is_what_commands_call_it")
class Elsewhere(Sandbox):
    def place(self, path: str) -> str:
        return f"/elsewhere{path}"


@breaks("host_out_of_reach")
class SharesFiles(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        if isinstance(command, list) and command[0] == "cat" and Path(command[1]).is_file():
            await self.inner.upload(Path(command[1]), command[1])
        return await self.inner.exec(command, **given)


@breaks("paths_are_the_sandboxes_own")
class NotRoot(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        done = await self.inner.exec(command, **given)
        return dataclasses.replace(done, stdout=b"1000\n") if command == "id -u" else done


# Forks and changes


@breaks("fork_of_a_stopped_one")
class StopsForks(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        made = await super().fork(name, **given)
        await made.stop()
        return made


@breaks("fork_of_a_running_one")
class TakesProcessesOver(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        made = await super().fork(name, **given)
        await made.exec("while :; do echo x >>ticks; sleep 0.02; done &", cwd="/race-check")
        return made


@breaks("fork_as_of_one_moment")
class CopiesSlowly(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        made = await super().fork(name, **given)
        await asyncio.sleep(0.1)
        with contextlib.suppress(FileNotFoundError):
            later = await self.inner.read("/race-check/b")
            await made.write([File(b"/race-check/b", later)])
        return made


@breaks("fork_shares_nothing")
class SharesChanges(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        others = self.provider.__dict__.setdefault("others", [])
        if isinstance(command, str) and command.startswith("printf two"):
            for each in others:
                with contextlib.suppress(SandboxError):
                    await each.exec(command, **given)
        return await self.inner.exec(command, **given)

    async def fork(self, name: str, **given: Any) -> Any:
        made = await super().fork(name, **given)
        self.provider.__dict__.setdefault("others", []).append(made.inner)
        return made


@breaks("fork_of_a_fork")
class ForgetsGrandparents(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        made = await super().fork(name, **given)
        if (await self.inner.info()).parent is not None:
            await made.exec("rm -f /race-check/0")
        return made


@breaks("fork_lineage")
class ForgetsLineage(Sandbox):
    async def info(self) -> Any:
        return dataclasses.replace(await self.inner.info(), ancestors=())


@breaks("forks_at_once")
class OneForkAtOnce(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        if self.__dict__.get("busy"):
            raise SandboxError("it is being forked")
        self.busy = True
        try:
            return await super().fork(name, **given)
        finally:
            self.busy = False


@breaks("fork_takes_over")
class TakesLabelsOver(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        labels = {**(await self.inner.info()).labels, **(given.pop("labels", None) or {})}
        return await super().fork(name, labels=labels, **given)


@breaks("fork_under_a_taken_name")
class ReplacesTheTaken(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        with contextlib.suppress(SandboxError):
            await (await self.provider.inner.get(name)).delete()
        return await super().fork(name, **given)


@breaks("fork_apart")
class ShowsProcesses(Sandbox):
    async def exec(self, command: Any, **given: Any) -> Any:
        seen = self.provider.__dict__.setdefault("seen", [])
        if command == "sleep 98765 &":
            seen.append(b"sleep 98765\n")
        done = await self.inner.exec(command, **given)
        return dataclasses.replace(done, stdout=done.stdout + b"".join(seen))


@breaks("fork_limits")
class SameLimits(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        given.pop("limits", None)
        return await super().fork(name, **given)


def _changed(change: Any) -> Any:
    """A wrapper that tells other changes."""

    class Tells(Sandbox):
        async def changes(self, under: Any = "/", **given: Any) -> Any:
            return change(await self.inner.changes(under, **given))

    return Tells


breaks("changes_of_every_kind")(_changed(lambda found: [c for c in found if c.kind != "removed"]))
breaks("changes_by_writing")(_changed(lambda found: [c for c in found if c.kind != "link"]))
breaks("changes_that_hide")(_changed(lambda found: [c for c in found if c.size != 4]))
breaks("changes_anywhere")(_changed(lambda found: [c for c in found if c.path.startswith(b"/race-check")]))


@breaks("changes_of_a_stopped_one")
class ForgetsWhenStopped(Sandbox):
    async def changes(self, under: Any = "/", **given: Any) -> Any:
        running = (await self.inner.info()).state == "running"
        return await self.inner.changes(under, **given) if running else []


@breaks("changes_below_a_path")
class AllChanges(Sandbox):
    async def changes(self, under: Any = "/", **given: Any) -> Any:
        return await self.inner.changes("/race-check", **given)


@breaks("changes_limit")
class CutsChanges(Sandbox):
    async def changes(self, under: Any = "/", *, limit: int = 200_000) -> Any:
        return (await self.inner.changes(under))[:limit]


@breaks("changes_of_a_new_fork")
class ParentsChanges(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        made = await super().fork(name, **given)
        made.parents = await self.inner.changes("/race-check")
        return made

    async def changes(self, under: Any = "/", **given: Any) -> Any:
        return [*self.__dict__.get("parents", []), *await self.inner.changes(under, **given)]


# Network, ports and terminals


@breaks("network_is_known")
class SaysNone(Sandbox):
    async def info(self) -> Any:
        return dataclasses.replace(await self.inner.info(), network="none")


@breaks("network_none", "network_of_hosts")
class AlwaysFull(Provider):
    async def create(self, spec: Any) -> Any:
        return await super().create(dataclasses.replace(spec, network="full"))


@breaks("network_of_a_fork_none")
class ParentsNetwork(Sandbox):
    async def fork(self, name: str, **given: Any) -> Any:
        given.pop("network", None)
        return await super().fork(name, **given)


@breaks("listening")
class SharesPorts(Sandbox):
    async def listen(self, port: int = 0) -> Any:
        return await self.inner.listen(0)


@breaks("listening_needs_a_running_one")
class StartsToListen(Sandbox):
    async def listen(self, port: int = 0) -> Any:
        await self.inner.start()
        return await self.inner.listen(port)


class _Terminals(Sandbox):
    def change(self, terminal: Any) -> Any:
        return terminal

    async def terminal(self, *given: Any, **more: Any) -> Any:
        return self.change(await self.inner.terminal(*given, **more))


@breaks("terminal_is_one")
class FixedSize(_Terminals):
    async def terminal(self, *given: Any, **more: Any) -> Any:
        return await self.inner.terminal(*given, **{**more, "rows": 24})


@breaks("terminal_takes_what_is_typed")
class NoStatus(_Terminals):
    def change(self, terminal: Any) -> Any:
        class Zero(Sandbox):
            async def wait(self) -> int:
                await self.inner.wait()
                return 0

        return Zero(terminal, self.provider)


@breaks("terminal_resizes")
class StaysSmall(_Terminals):
    def change(self, terminal: Any) -> Any:
        class Fixed(Sandbox):
            async def resize(self, rows: int, columns: int) -> None:
                """Nobody is told."""

        return Fixed(terminal, self.provider)


@breaks("terminal_close_ends_all")
class OnlyDetaches(_Terminals):
    def change(self, terminal: Any) -> Any:
        class Left(Sandbox):
            async def aclose(self) -> None:
                """It goes on."""

        return Left(terminal, self.provider)


@breaks("terminal_needs_a_running_one")
class StartsForATerminal(Sandbox):
    async def terminal(self, *given: Any, **more: Any) -> Any:
        await self.inner.start()
        return await self.inner.terminal(*given, **more)


# Limits


class _NoLimits(Provider):
    async def create(self, spec: Any) -> Any:
        return await super().create(dataclasses.replace(spec, limits=Limits(processes=None)))


breaks("limit_of_memory", "limit_of_processes", "limit_of_processors", "limit_of_disk", "limit_of_cores")(
    _NoLimits
)


# Named processes and lifetimes


class _Processes(Sandbox):
    """Named processes are wrapped as well."""

    process_type: ClassVar[type[Sandbox]] = Sandbox

    async def spawn(self, *given: Any, **more: Any) -> Any:
        return self.process_type(await self.inner.spawn(*given, **more), self.provider)

    async def process(self, name: str) -> Any:
        return self.process_type(await self.inner.process(name), self.provider)


def _process(cls: Any) -> Any:
    """A wrapper of sandboxes whose named processes are of this type."""
    return type(cls.__name__, (_Processes,), {"process_type": cls})


@breaks("process_starts")
class StartsElsewhere(Sandbox):
    async def spawn(self, name: str, command: Any, **given: Any) -> Any:
        return await self.inner.spawn(name, command, **{**given, "cwd": "/"})


class OfTheWhole(Sandbox):
    async def read(self, position: int = 0, *, limit: int = 1 << 20) -> bytes:
        return (await self.inner.read(0, limit=limit + position))[-limit:]


breaks("process_output_by_position")(_process(OfTheWhole))


class PositiveStatus(Sandbox):
    async def wait(self, timeout: float | None = None) -> Any:
        code = await self.inner.wait(timeout)
        return None if code is None else abs(code)


breaks("process_statuses")(_process(PositiveStatus))


class NeverEndsInput(Sandbox):
    async def send(self, data: bytes, *, end: bool = False) -> None:
        del end
        await self.inner.send(data)


breaks("process_input")(_process(NeverEndsInput))


class SignalsNobody(Sandbox):
    async def signal(self, number: int) -> None:
        """It is lost."""


breaks("process_signals")(_process(SignalsNobody))


@breaks("process_names")
class SharesNames(Sandbox):
    async def spawn(self, name: str, command: Any, **given: Any) -> Any:
        try:
            return await self.inner.spawn(name, command, **given)
        except SandboxError:
            return await self.inner.spawn(f"another-{time.monotonic_ns()}", command, **given)


@breaks("process_list")
class ListsTheRunning(Sandbox):
    async def processes(self) -> Any:
        return [p for p in await self.inner.processes() if p.state == "running"]


@breaks("process_attach")
class KnowsItsOwn(Sandbox):
    async def spawn(self, name: str, *given: Any, **more: Any) -> Any:
        self.provider.__dict__.setdefault("mine", set()).add(name)
        return await self.inner.spawn(name, *given, **more)

    async def process(self, name: str) -> Any:
        if name not in self.provider.__dict__.get("mine", ()):
            raise SandboxError("there is no such process")
        return await self.inner.process(name)


@breaks("process_outlives_its_client")
class EndsTheirProcesses(Provider):
    async def aclose(self) -> None:
        for info in await self.inner.list():
            sandbox = await self.inner.get(info.name)
            for process in await sandbox.processes():
                await (await sandbox.process(process.name)).signal(9)
        await self.inner.aclose()


@breaks("process_ends_with_its_sandbox")
class RemembersProcesses(Sandbox):
    async def stop(self) -> None:
        self.before = await self.inner.processes()
        await self.inner.stop()

    async def processes(self) -> Any:
        return [*self.__dict__.get("before", []), *await self.inner.processes()]


@breaks("lifetime_stops", "idle_lifetime_stops")
class LivesForEver(Provider):
    async def create(self, spec: Any) -> Any:
        return await super().create(dataclasses.replace(spec, lifetime=None, idle_lifetime=None))


@breaks("network_changes")
class SaysItChanged(Sandbox):
    said: Any = None

    async def set_network(self, network: Any) -> None:
        self.said = network

    async def info(self) -> Any:
        info = await self.inner.info()
        return dataclasses.replace(info, network=self.said) if self.said else info


@breaks("connecting")
class ConnectsToTheHost(Sandbox):
    async def connect(self, port: int) -> Any:
        one, other = socket.socketpair()
        one.setblocking(False)
        other.close()
        return one


# Moving


@breaks("export_and_load")
class LosesLinks(Sandbox):
    async def export(self, target: Path) -> None:
        await self.inner.start()
        await self.inner.exec("rm -f link", cwd="/race-check")
        await self.inner.stop()
        await self.inner.export(target)


@breaks("export_leaves_what_is_there")
class ExportsOver(Sandbox):
    async def export(self, target: Path) -> None:
        target.unlink(missing_ok=True)
        await self.inner.export(target)


@breaks("load_under_a_taken_name")
class LoadsUnderAnother(Provider):
    async def load(self, archive: Path, name: str | None = None) -> Any:
        try:
            return await super().load(archive, name)
        except SandboxError:
            return await super().load(archive, f"another-{time.monotonic_ns()}")


@breaks("load_refuses_what_is_damaged")
class LoadsAnything(Provider):
    async def load(self, archive: Path, name: str | None = None) -> Any:
        try:
            return await super().load(archive, name)
        except SandboxError:
            return None
