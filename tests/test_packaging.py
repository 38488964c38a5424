"""What is shipped, and which way imports may go."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_the_framework_imports_no_plugin() -> None:
    for path in (ROOT / "race").rglob("*.py"):
        assert not imported(path) & {"race_agents", "race_scorers"}, path


def test_plugins_import_only_the_framework_and_never_each_other() -> None:
    for folder, other in (("agents/race_agents", "race_scorers"), ("scorers/race_scorers", "race_agents")):
        for path in (ROOT / folder).rglob("*.py"):
            assert other not in imported(path), path
            own = Path(folder).name
            siblings = {n for n in imported(path) if n == own}
            assert not siblings, path


def test_the_wheel_holds_what_is_needed_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        points = next(archive.read(n).decode() for n in names if n.endswith("entry_points.txt"))
    for wanted in (
        "race/__init__.py",
        "race/py.typed",
        "race/sandboxes/local/boot.py",
        "race/demo/demo.toml",
        "race/demo/primes.py",
        "race_agents/script.py",
        "race_scorers/tests.py",
    ):
        assert wanted in names
    tops = {n.split("/")[0] for n in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"race", "race_agents", "race_scorers"}
    for line in (
        "race = race.cli:main",
        "script = race_agents.script:Script",
        "tests = race_scorers.tests:Tests",
    ):
        assert line in points
