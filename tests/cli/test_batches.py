"""Batches as a shell sees them: several repositories, detached, watched, cancelled, applied."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_cli import Shell
from tests.racing import project
from tests.test_project import git

THREE = """
[batch]
name = "fixes"
[base.network]
agent = "none"
setup = "none"
[[scorers]]
use = "tests"
run = "sh check.sh"
[[tasks]]
name = "one"
project = "one/project"
prompt = "Lower the value."
entries = [{ name = "lower", agent = "script", commands = ["echo 50 > value.txt"] }]
[[tasks]]
name = "two"
project = "two/project"
prompt = "Say more."
entries = [{ name = "more", agent = "script", commands = ["echo more > notes.txt"] }]
[[tasks]]
name = "three"
project = "three/project"
prompt = "Mend it."
entries = [{ name = "breaks", agent = "script", commands = ["echo no > status.txt"] }]
"""


@pytest.fixture
def shell(tmp_path: Path, home: Path) -> Shell:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        project(tmp_path / name)
    (tmp_path / "batch.toml").write_text(THREE)
    return Shell(tmp_path, home)


def shown(folder: Path, what: str) -> str:
    command = ["git", "show", what]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(150)
def test_three_repositories_and_one_that_fails(shell: Shell) -> None:
    status, out, err = shell.run("batch", "batch.toml", "--key", "nightly", "--json")
    assert status == 1, err
    result = json.loads(out)
    assert (result["totals"]["won"], result["totals"]["no_winner"]) == (2, 1)
    assert "three: no winner: no attempt is eligible" in err
    assert [t["project"] for t in result["tasks"]] == ["one/project", "two/project", "three/project"]
    before = shell.run("list", "--json")
    status, out, _ = shell.run("batch", "batch.toml", "--key", "nightly", "--csv")
    assert shell.run("list", "--json") == before  # shown at once: nothing was raced again
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(r["variant"], r["eligible_rate"]) for r in rows] == [
        ("lower", "1.0"),
        ("more", "1.0"),
        ("breaks", "0.0"),
    ]
    git(shell.folder / "two" / "project", "branch", "race/two")
    status, out, _ = shell.run("apply", "--all", "nightly")
    assert status == 1
    first, second, third = out.splitlines()
    assert first.startswith("one: branch race/one in ")
    assert second.startswith("two: not applied: ")
    assert "race/two" in second
    assert third == "three: not applied: no attempt is eligible"
    assert shown(shell.folder / "one" / "project", "race/one:value.txt") == "50\n"
    status, out, _ = shell.run("apply", "--all", "nightly", "--branch", "again/")
    assert shown(shell.folder / "two" / "project", "again/two:notes.txt") == "more\n"
    assert json.loads(shell.run("show", "nightly", "--json")[1]) == result
    text = (shell.folder / "batch.toml").read_text()
    (shell.folder / "batch.toml").write_text(text.replace("Say more", "Say less"))
    status, _, err = shell.run("batch", "batch.toml", "--key", "nightly")
    assert status == 2
    assert "belongs to another request" in err
    assert [s["labels"]["role"] for s in shell.sandboxes()] == ["base"]  # their content is the same


@pytest.mark.timeout(150)
def test_detached_watched_and_cancelled(shell: Shell) -> None:
    text = (shell.folder / "batch.toml").read_text()
    (shell.folder / "batch.toml").write_text(text.replace("echo more > notes.txt", "sleep 60"))
    status, out, err = shell.run("batch", "batch.toml", "--detach")
    assert (status, out) == (2, "")
    assert "--detach needs a --key" in err
    status, out, err = shell.run("batch", "batch.toml", "--key", "k", "--detach")
    assert (status, out) == (0, "")
    assert "race watch k" in err
    watcher = shell.start("watch", "k", "--json")
    assert watcher.stdout is not None
    kinds: list[str] = []
    for line in watcher.stdout:
        event = json.loads(line)
        kinds.append(event["kind"])
        if event["kind"] == "attempt.command" and event["data"]["command"] == "sleep 60":
            break
    status, out, _ = shell.run("cancel", "k", "--json")
    result = json.loads(out)
    assert result["status"] == "cancelled"
    assert {t["task"]: t["status"] for t in result["tasks"]}["two"] == "cancelled"
    with watcher:  # not communicate(), which does not see what is buffered already
        rest = watcher.stdout.read()
    events = [json.loads(line) for line in rest.splitlines()]
    assert events[-1]["kind"] == "batch.ended"
    status, out, _ = shell.run("watch", "k", "--after", str(events[-3]["number"]), "--json")
    assert [json.loads(line) for line in out.splitlines()] == events[-2:]
    assert "cancelled" in shell.run("watch", "k")[1]
    assert {s["labels"]["role"] for s in shell.sandboxes()} == {"base"}
    status, _, err = shell.run("cancel", "k")
    assert status == 2
    assert "has ended" in err
