"""A race killed with SIGKILL at random moments leaves nothing that `race gc` does not remove."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.cli.test_cli import HONEST, RACE_FILE, Shell, entry
from tests.racing import project

KILLS = 4


@pytest.mark.timeout(120)
def test_killed_anywhere_and_collected(tmp_path: Path, home: Path) -> None:
    shell = Shell(tmp_path, home)
    project(tmp_path)
    shell.write(
        RACE_FILE + HONEST + entry("other", "echo 60 > value.txt", "sleep 0.3") + entry("bad", "rm check.sh")
    )
    began = time.monotonic()
    status, _, err = shell.run("run", "race.toml")
    assert status == 0, err
    whole = time.monotonic() - began
    shell.run("rm", "last")
    rng = random.Random(7)
    for i in range(KILLS):
        arguments = ["run", "race.toml", *(["--fresh"] if i % 2 else [])]
        process = shell.start(*arguments)
        time.sleep(rng.uniform(0.2, whole))
        process.kill()
        process.communicate()
        status, _, err = shell.run("gc")
        assert status == 0, err
        kept = [s for s in shell.sandboxes() if s["labels"].get("keep") != "yes"]
        assert {s["labels"]["role"] for s in kept} <= {"base"}
        assert len(kept) <= 1
    status, _, err = shell.run("run", "race.toml")
    assert status == 0, err
    _, out, _ = shell.run("list")
    for race in [line.split()[0] for line in out.splitlines() if "tiny-" in line]:
        shell.run("rm", race)
    shell.run("gc", "--bases")
    assert shell.sandboxes() == []
    store = home / "sandboxes" / "local"
    assert not [p for p in (store / "sandboxes").glob("*") if p.is_dir()]
    assert list((home / "races").iterdir()) == []
    assert not [p for p in (home / "bases").iterdir() if p.is_dir()]
