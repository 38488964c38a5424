"""Runs a command of a replay under a witness, which writes down what really happened: see `race.inside.witness`.

An exit status says too little. A session of tests that collected nothing, skipped everything, or was ended by the code
under test exits with 0 as well. So the framework brings its own runner, and learns which tests there were, how each of
them ended, whether the run reached its end, and whether the clock or the runner was replaced on the way.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from race.commandline import Program
from race.errors import Rejected, SandboxError
from race.sandbox import ExecResult, File
from race.scoring import Replay

_REPORT_LIMIT = 64 << 20
_ORDER = ("failed", "xpassed", "skipped", "xfailed", "passed")
"""Outcomes of a test's phases: the first of these that occurs is the test's."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a witness saw.

    Attributes:
        status: the exit status that the session or program asked for; None if it did not come to its end.
        outcomes: how each test ended, by its name: ``"passed"``, ``"failed"``, ``"skipped"``, ``"xfailed"``,
            ``"xpassed"``; nothing if it did not run.
        codes: what the function of each test does, as a hash.
        files: absolute path of the file of each test.
        uncollected: what could not be collected.
        exchanged: tests whose function became another one while the tests ran.
        replaced: functions of the interpreter or the runner that were replaced while it ran.
        opened: absolute paths of the project's files that its tests opened.
        plugins: modules of the plugins of pytest that the machine has.
        left: the file in which the program exited, if it did so before its last line.
    """

    status: int | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict[str, str])
    codes: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    uncollected: Sequence[str] = ()
    exchanged: Sequence[str] = ()
    replaced: Sequence[str] = ()
    opened: Sequence[str] = ()
    plugins: Sequence[str] = ()
    left: str = ""


async def witnessed(
    replay: Replay,
    program: Program,
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    plugins: Sequence[str] | None = None,
) -> tuple[ExecResult, Seen]:
    """Run a program in a replay, with a witness.

    Args:
        replay: to run it in.
        program: what to run.
        timeout: seconds that it may take.
        env: added to its environment.
        plugins: modules of the plugins that pytest loads; None: those that the machine has.

    Raises:
        Rejected: the interpreter of ``pytest`` cannot be found.
        SandboxError: the sandbox broke.
    """
    python = program.python or await _python_of_pytest(replay)
    folder = f"/.race-{secrets.token_hex(8)}"
    token = secrets.token_hex(16)
    source = files("race.inside").joinpath("witness.py").read_bytes()
    await replay.sandbox.write([File(f"{folder}/witness.py".encode(), source)])
    argv, root, place = program.argv, replay.root, replay.sandbox.place
    if program.kind == "script" and not program.module:
        root = f"{root}/{argv[0].rpartition('/')[0]}".rstrip("/")
    asked: dict[str, Any] = {
        "token": token,
        "kind": program.kind,
        "argv": argv,
        "root": root,
        "plugins": plugins,
        "module": argv[0] if program.module else "",
    }
    done = await replay.run(
        [*python, place(f"{folder}/witness.py"), place(f"{folder}/report")],
        timeout=timeout,
        env={**program.env, **(env or {})},
        stdin=json.dumps(asked).encode() + b"\n",
    )
    try:
        report = await replay.sandbox.read(f"{folder}/report", limit=_REPORT_LIMIT)
    except (FileNotFoundError, SandboxError):
        report = b""
    return done, read_report(report, token)


def read_report(report: bytes, token: str) -> Seen:
    """What a report says; lines without the token are not the witness's, and count for nothing."""
    outcomes: dict[str, str] = {}
    codes: dict[str, str] = {}
    where: dict[str, str] = {}
    lists: dict[str, list[str]] = {
        "uncollected": [],
        "exchanged": [],
        "replaced": [],
        "opened": [],
        "plugins": [],
    }
    status: int | None = None
    left = ""
    for line in report.splitlines():
        match _parsed(line):
            case [str(mine), str(kind), *rest] if mine == token:
                pass
            case _:
                continue
        match kind, rest:
            case "test", [str(name), str(code), str(path)]:
                outcomes.setdefault(name, "")
                codes[name], where[name] = code, path
            case "outcome", [str(name), str(_), str(outcome)]:
                outcomes[name] = _worse(outcomes.get(name, ""), outcome)
            case (("uncollected" | "exchanged"), [str(name)]):
                lists[kind].append(name)
            case (("replaced" | "opened" | "plugins"), [[*names]]):
                lists[kind] += map(str, names)
            case "left", [str(path)]:
                left = path
            case "end", [int(number)]:
                status = number
            case _:
                continue
    return Seen(status, outcomes, codes, where, left=left, **lists)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _worse(one: str, other: str) -> str:
    return min((o for o in (one, other) if o in _ORDER), key=_ORDER.index, default="")


async def _python_of_pytest(replay: Replay) -> tuple[str, ...]:
    done = await replay.run('head -c 200 "$(command -v pytest)"', timeout=20)
    first = done.stdout.decode("utf-8", "replace").partition("\n")[0]
    match = re.fullmatch(r"#!\s*(/\S*python[\d.]*)\s*", first)
    if match is None:
        raise Rejected("the interpreter of 'pytest' cannot be found; write 'python -m pytest' as the command")
    return (match[1],)
