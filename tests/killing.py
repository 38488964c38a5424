"""A race with scripted models that is killed again and again, and gone on with each time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from race.store import Store
from race.testing import Script, ScriptedModel
from race.verdict import Verdict
from tests.racing import project

SCRIPTS = {
    "half": Script(
        ("cat value.txt", "sleep 0.1; echo 60 > value.txt", "echo 50 > value.txt", "cat value.txt"), "Half."
    ),
    "third": Script(("echo 40 > value.txt", "sleep 0.05; echo 33 > value.txt"), "A third.", delay=0.02),
    "cheat": Script(("echo 'echo 1' > bench.sh",), "One point."),
}
"""What the models do; every command may be run twice without doing anything else."""

RUN = """
import os, sys, anyio, race
from pathlib import Path
from race.store import Store
home, file, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def die(event):
    if event.kind == kind:
        os.kill(os.getpid(), 9)

rows = Store(home).races()
if rows and rows[-1].verdict is None:
    anyio.run(lambda: race.resume("last", home=home, on_event=die))
elif not rows:
    anyio.run(lambda: race.run(race.load(file), home=home, on_event=die))
"""
"""One life of the race: begins it, or goes on with it, and dies at the first event of a kind."""

KINDS = (
    "race.started", "base.progress", "base.ready", "attempt.started", "attempt.asking", "attempt.answered",
    "attempt.command", "attempt.result", "attempt.ended", "attempt.submitted", "attempt.replay", "attempt.gate",
    "attempt.done", "finals.started", "finals.sample", "race.verdict", "sandbox.deleted",
)  # fmt: skip
"""Every phase of a race, in order."""


@dataclass
class Killed:
    """What came of a race that was killed.

    Attributes:
        verdict: at the end.
        kills: how many processes were killed.
        phases: the kind of the last event before each kill.
        calls: how often each call of a model was made, by model and turn.
        repeats: how many calls the race says were made again.
        patches: what each attempt handed in.
    """

    verdict: Verdict
    kills: int
    phases: Counter[str]
    calls: Counter[tuple[str, int]]
    repeats: int
    patches: dict[str, bytes]


def race_file(folder: Path) -> Path:
    """A race of three models and a script."""
    project(folder)
    entries = "".join(
        f'[[entries]]\nname = "{name}"\nmodel = "{name}"\napi_key_env = ""\nmax_retries = 0\n'
        for name in SCRIPTS
    )
    (folder / "race.toml").write_text(
        '[task]\nname = "tiny"\nprompt = "Make it less."\nprotected = ["check.sh", "bench.sh"]\n'
        '[base]\nproject = "project"\nnetwork = { agent = "none", setup = "none" }\n'
        '[finals]\nmode = "quick"\n[[scorers]]\nuse = "tests"\nrun = "sh check.sh"\n'
        '[[scorers]]\nuse = "benchmark"\nrun = "sh bench.sh"\nunit = "points"\n'
        f'{entries}[[entries]]\nname = "by-hand"\nagent = "script"\n'
        'commands = ["echo 80 > value.txt", "sleep 0.1; echo 75 > value.txt", "cat value.txt"]\n'
    )
    return folder / "race.toml"


def run_and_kill(
    folder: Path, home: Path, *, rng: random.Random | None = None, kills: int = 0, kinds: Sequence[str] = ()
) -> Killed:
    """Run one race in ``folder`` to its end, killing its process before that.

    Args:
        folder: holds the race file, see `race_file`.
        home: the state folder, without a race.
        rng: of the moments, within a second of each process's first event.
        kills: how often it is killed at random at most; then it is left alone.
        kinds: each process, one after the other, kills itself at the first event of one of these kinds.
    """
    killed = 0
    phases: Counter[str] = Counter()
    waiting = list(kinds)
    with ScriptedModel(SCRIPTS) as server:
        environment = {**os.environ, "OPENAI_BASE_URL": server.url, "RACE_HOME": str(home)}
        while True:
            kind = waiting.pop(0) if waiting else ""
            command = [sys.executable, "-c", RUN, str(home), str(folder / "race.toml"), kind]
            process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            try:
                if rng is not None and killed < kills:
                    _wait_for_life(home, process)
                    process.wait(timeout=rng.uniform(0, 1))
                else:
                    process.wait(timeout=50)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            _, err = process.communicate()
            if process.returncode == 0 and not waiting:
                break
            assert process.returncode == -signal.SIGKILL, err or f"it ended before {kind}"
            killed += 1
            phases[_phase(home)] += 1
        # A process that dies while it sends leaves half a request, which no server answers.
        calls = Counter(
            (r.model, sum(m["role"] == "assistant" for m in r.json["messages"]))
            for r in server.requests
            if r.status == 200
        )
    store = Store(home)
    row = store.races()[-1]
    repeats = sum(e.kind == "attempt.repeated" for e in store.events(row.id))
    store.close()
    assert row.verdict is not None
    patches = {a.name: Path(a.patch).read_bytes() for a in row.verdict.attempts if a.patch}
    return Killed(row.verdict, killed, phases, calls, repeats, patches)


def _wait_for_life(home: Path, process: subprocess.Popen[str]) -> None:
    """Until the process has written its first event: what Python needs to start is of no interest."""
    before = _number(home)
    deadline = time.monotonic() + 30
    while process.poll() is None and _number(home) == before and time.monotonic() < deadline:
        time.sleep(0.005)


def _number(home: Path) -> int:
    if not (home / "race.db").exists():
        return 0
    store = Store(home)
    try:
        rows = store.races()
        return store.events(rows[-1].id)[-1].number if rows and store.events(rows[-1].id) else 0
    finally:
        store.close()


def _phase(home: Path) -> str:
    """What the race was at when it was killed."""
    store = Store(home)
    try:
        rows = store.races()
        events = store.events(rows[-1].id) if rows else []
        return events[-1].kind if events else "start"
    finally:
        store.close()


def summary(verdict: Verdict) -> dict[str, Any]:
    """What must be the same however often a race was killed."""
    return json.loads(
        json.dumps(
            {
                "status": verdict.status,
                "winner": verdict.winner,
                "attempts": [
                    (a.name, a.state, a.outcome, a.files_changed, a.steps, a.usage.output_tokens, a.message)
                    for a in verdict.attempts
                ],
            }
        )
    )
