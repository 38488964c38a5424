"""The README's code is run, and what it names exists."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import tomllib
import types
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from race.batch_spec import batch_from_data
from race.cli.app import app
from race.cli.app import run as run_command
from race.cli.sandboxes import app as sandboxes_app
from race.fleet import fleets
from race.spec import from_data
from tests.racing import project, run, script, spec

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def plugins() -> Iterator[str]:
    """A module with the plugins of the README in it."""
    module = types.ModuleType("readme_plugins")
    for block in blocks("python"):
        if "class " in block:
            exec(compile(block, str(README), "exec"), module.__dict__)  # noqa: S102 - our own README
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


@pytest.mark.anyio
async def test_the_plugins_race(tmp_path: Path, home: Path, plugins: str) -> None:
    (project(tmp_path) / "a.py").write_text("long = 1\n")
    entries = [{"name": "careful", "agent": f"{plugins}:Careful"}, script("small", "echo 'x=1' > a.py")]
    verdict = await run(home, spec(tmp_path, entries, scorers=[{"use": f"{plugins}:Size", "name": "size"}]))
    assert verdict.winner == "small"
    assert verdict.attempts[0].message == "added a line"
    assert verdict.attempts[0].files_changed == ("README.md",)


def test_the_race_file_is_taken(tmp_path: Path) -> None:
    block, product, _ = blocks("toml")
    made = from_data(tomllib.loads(block), tmp_path / "race.toml")
    assert [e.name for e in made.entries] == ["numpy", "by-hand"]
    many = from_data({**tomllib.loads(block), **tomllib.loads(product), "seed": 7}, tmp_path / "race.toml")
    assert sum(len(e.attempt_names()) for e in many.entries) == 12


def test_the_batch_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "printer.md").write_text("Print.")
    made = batch_from_data(tomllib.loads(blocks("toml")[2]), tmp_path / "batch.toml")
    assert [t.task.prompt for t in made.tasks] == [
        "Make the tests in tests/test_parser.py pass.",
        "Print.\n\nOnly printer.py may change.",
    ]
    assert [t.base.project for t in made.tasks] == ["../parser", "https://example.org/printer.git"]


def test_the_fleet_works(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RACE_HOME", str(home))
    (block,) = [b for b in blocks("python") if "Fleet.create" in b]
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})  # noqa: S102 - our own README
    assert capsys.readouterr().out.count("exit_code=0") == 2
    assert fleets(home) == []


def test_the_sandbox_commands_work(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RACE_HOME", str(home))
    (block,) = [b for b in blocks("console") if "race sandbox" in b]
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        for line in block.splitlines():
            _, program, *arguments = shlex.split(line, comments=True)
            if "attach" in arguments:
                assert run_command(["sandbox", "kill", "lab", "web"]) == 0
                assert run_command(arguments) == 128 + signal.SIGTERM
            else:
                assert (program, run_command(arguments)) == ("race", 0), line
    printed = capsys.readouterr().out
    assert "one\ntwo\nthree\n" in printed
    assert "python3 -m http.server 8000" in printed


def test_the_demo_is_there() -> None:
    (block,) = [b for b in blocks("python") if "race.load" in b]
    path = re.search(r'race\.load\("([^"]+)"\)', block)
    assert path is not None
    assert (README.parent / path[1]).is_file()


def test_commands_and_plugins_are_all_named() -> None:
    top = [c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands if not c.hidden]
    named = re.findall(r"race ([a-z]+)", TEXT)
    assert set(top) <= set(named)
    (line,) = re.findall(r"`race sandbox ([a-z\\|]+)`", TEXT)
    inner = [c.name or getattr(c.callback, "__name__", "") for c in sandboxes_app.registered_commands]
    assert sorted(line.replace("\\", "").split("|")) == sorted(inner)
    for group in ("race.agents", "race.scorers"):
        for point in entry_points(group=group):
            assert f"| `{point.name}` |" in TEXT, point.name
