"""The command as a shell sees it: what it prints where, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.racing import project
from tests.test_project import git

RACE_FILE = """
[task]
name = "tiny"
prompt = "Make it less."
protected = ["check.sh", "bench.sh"]
[base]
project = "project"
network = { agent = "none", setup = "none" }
[finals]
mode = "quick"
[[scorers]]
use = "tests"
run = "sh check.sh"
[[scorers]]
use = "benchmark"
run = "sh bench.sh"
unit = "points"
"""


def entry(name: str, *commands: str, more: str = "") -> str:
    return (
        f'[[entries]]\nname = "{name}"\nagent = "script"\ncommands = {json.dumps(list(commands))}\n{more}\n'
    )


HONEST = entry("honest", "echo 50 > value.txt")


class Shell:
    """Runs the command with a state folder and a home of its own."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "user"),
            "RACE_HOME": str(self.home),
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
        }
        (folder / "user").mkdir()

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "race", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=50)
        return process.returncode, out, err

    def write(self, text: str) -> Path:
        path = self.folder / "race.toml"
        path.write_text(text)
        return path

    def sandboxes(self) -> list[dict[str, Any]]:
        return json.loads(self.run("sandbox", "ls", "--json")[1])


@pytest.fixture
def shell(tmp_path: Path, home: Path) -> Shell:
    project(tmp_path)
    return Shell(tmp_path, home)


def test_a_race_from_its_file_to_a_branch(shell: Shell) -> None:
    shell.write(RACE_FILE + HONEST + entry("less", "echo 90 > value.txt"))
    status, out, err = shell.run("run", "race.toml", "--json")
    assert status == 0, err
    verdict = json.loads(out)
    assert verdict["winner"] == "honest"
    assert "honest" in err
    assert "\x1b" not in out + err
    race = verdict["race"]
    status, out, _ = shell.run("show", race, "--json")
    assert (status, json.loads(out)) == (0, verdict)
    status, out, _ = shell.run("show")
    assert status == 0
    assert "honest" in out
    assert race in shell.run("list")[1]
    assert json.loads(shell.run("list", "--json")[1])[0]["winner"] == "honest"
    status, out, _ = shell.run("diff", race)
    assert "-100\n+50\n" in out
    assert "+90" in shell.run("diff", race, "less")[1]
    sandbox = verdict["attempts"][0]["sandbox"]
    assert shell.run("sandbox", "exec", sandbox, "cat", "value.txt")[:2] == (0, "50\n")
    assert shell.run("sandbox", "exec", sandbox, "exit 3")[0] == 3
    status, out, err = shell.run("apply", race, "--branch", "faster")
    assert status == 0, err
    shown = subprocess.run(
        ["git", "diff", "--stat", "HEAD", "faster"],
        cwd=shell.folder / "project",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "value.txt" in shown
    assert "1 file changed" in shown
    assert (shell.folder / "project" / "value.txt").read_text() == "100\n"
    status, _, err = shell.run("apply", race)
    assert status == 0, err
    assert (shell.folder / "project" / "value.txt").read_text() == "50\n"
    assert shell.run("rm", race)[0] == 0
    assert [s["labels"]["role"] for s in shell.sandboxes()] == ["base"]
    assert shell.run("gc", "--bases")[0] == 0
    assert shell.sandboxes() == []
    assert shell.run("show", race)[0] == 2


def test_no_winner_is_exit_status_1(shell: Shell) -> None:
    shell.write(RACE_FILE + entry("cheat", "echo 'echo 1' > bench.sh"))
    status, out, _ = shell.run("run", "race.toml")
    assert status == 1
    assert "bench.sh is protected" in out


@pytest.mark.parametrize(
    ("text", "says", "expected"),
    [
        (RACE_FILE.replace("prompt", "promt") + HONEST, "did you mean 'prompt'", 2),
        (RACE_FILE + HONEST + HONEST, "'honest' is taken already", 2),
        (RACE_FILE + HONEST.replace("script", "scrpit"), "did you mean 'script'", 2),
        (RACE_FILE.replace('"check.sh"', '"chekc.sh"') + HONEST, "did you mean 'check.sh'", 2),
        (
            RACE_FILE + HONEST.replace('"script"', '"openai"\nmodel = "m"').replace("commands", "#"),
            "OPENAI_API_KEY",
            3,
        ),
        (RACE_FILE.replace('"project"', '"nowhere"') + HONEST, "no folder", 2),
    ],
)
def test_bad_files_are_one_clear_message_and_leave_nothing(
    shell: Shell, text: str, says: str, expected: int
) -> None:
    shell.write(text)
    status, out, err = shell.run("run", "race.toml")
    assert (status, out) == (expected, "")
    assert says in err
    assert "race.toml" in err
    assert "Traceback" not in err
    assert shell.sandboxes() == []


def test_a_project_without_a_commit(shell: Shell) -> None:
    (shell.folder / "empty").mkdir()
    git(shell.folder / "empty", "init", "-q")
    shell.write(RACE_FILE.replace('"project"', '"empty"') + HONEST)
    status, _, err = shell.run("run", "race.toml")
    assert status == 2
    assert "no commit yet" in err


@pytest.mark.parametrize(
    "call", [["run", "none.toml"], ["run"], ["rum"], ["show", "x"], ["sandbox", "stop", "x"], ["apply"]]
)
def test_wrong_calls(shell: Shell, call: list[str]) -> None:
    status, out, err = shell.run(*call)
    assert status in (1, 2)
    assert out == ""
    assert err
    assert "Traceback" not in err


def wait_for(shell: Shell, process: subprocess.Popen[str], count: int) -> None:
    """Until so many attempts have written the marker in their forks."""
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        if sum(s["labels"].get("role") == "attempt" for s in shell.sandboxes()) >= count:
            return
        time.sleep(0.1)
    pytest.fail(f"the race did not get so far: {process.communicate(timeout=5)}")


def test_an_interrupt_cleans_up_and_a_second_one_does_not_disturb(shell: Shell) -> None:
    shell.write(RACE_FILE + entry("a", "sleep 60") + entry("b", "sleep 60") + entry("c", "sleep 60"))
    process = shell.start("run", "race.toml")
    wait_for(shell, process, 3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert [s["labels"]["role"] for s in shell.sandboxes()] == ["base"]
    assert json.loads(shell.run("list", "--json")[1])[0]["status"] == "cancelled"


def test_a_killed_race_leaves_nothing_that_gc_does_not_remove(shell: Shell) -> None:
    shell.write(RACE_FILE + entry("a", "sleep 60") + entry("b", "sleep 60"))
    process = shell.start("run", "race.toml")
    wait_for(shell, process, 2)
    process.kill()
    process.communicate()
    assert len(shell.sandboxes()) == 3
    status, out, _ = shell.run("gc")
    assert status == 0
    assert out.count("removed sandbox") == 2
    assert [s["labels"]["role"] for s in shell.sandboxes()] == ["base"]
    assert json.loads(shell.run("list", "--json")[1])[0]["status"] == "interrupted"
    assert "nothing to remove" in shell.run("gc")[1]


def test_gc_leaves_a_living_race_alone(shell: Shell) -> None:
    shell.write(RACE_FILE + entry("a", "echo 50 > value.txt", "sleep 2"))
    process = shell.start("run", "race.toml")
    wait_for(shell, process, 1)
    assert "nothing to remove" in shell.run("gc", "--bases")[1]
    _, err = process.communicate(timeout=40)
    assert process.returncode == 0, err


def test_doctor_and_help(shell: Shell) -> None:
    status, out, _ = shell.run("doctor", "--json")
    assert status == 0
    assert json.loads(out)["works"] is True
    assert "races work here" in shell.run("doctor")[1]
    status, out, _ = shell.run("--help")
    assert status == 0
    for name in ("init", "run", "demo", "list", "show", "diff", "apply", "rm", "sandbox", "gc", "doctor"):
        assert name in out
    assert shell.run("--version")[1].startswith("race ")
