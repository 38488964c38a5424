"""What a newcomer does: init in a project of their own, two entries, a run, and the winner on a branch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_cli import Shell, entry
from tests.test_project import git

WORDS = '''"""Counting words."""


def count(text):
    found = {}
    for word in text.split():
        if word not in found:
            found[word] = sum(1 for other in text.split() if other == word)
    return found
'''
TEST = """import unittest
from words import count


class Count(unittest.TestCase):
    def test_count(self):
        self.assertEqual(count("a b a"), {"a": 2, "b": 1})
"""
BENCH = """import time
from words import count

text = " ".join(str(n % 300) for n in range(3000))
began = time.perf_counter()
count(text)
print((time.perf_counter() - began) * 1000)
"""
COUNTER = (
    "from collections import Counter\\n\\n\\ndef count(text):\\n    return dict(Counter(text.split()))\\n"
)
ENTRIES = (
    "\n"
    + entry("counter", f"printf '{COUNTER}' > words.py")
    + entry("wrong", "echo 'count = dict' > words.py")
)


@pytest.mark.timeout(120)  # it prepares a virtual environment
def test_from_init_to_a_branch(tmp_path: Path, home: Path) -> None:
    shell = Shell(tmp_path, home)
    project = tmp_path / "my words"
    project.mkdir()
    (project / "words.py").write_text(WORDS)
    (project / "test_words.py").write_text(TEST)
    (project / "bench.py").write_text(BENCH)
    (project / "notes.txt").write_text("to do\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "one")
    (project / "notes.txt").write_text("an edit that nobody asked for\n")
    status, _, err = shell.run("init", str(project))
    assert status == 0, err
    file = project / "race.toml"
    assert shell.run("init", str(project))[0] == 2
    with file.open("a") as f:
        f.write(ENTRIES)
    status, out, err = shell.run("run", str(file), "--json")
    assert status == 0, err
    verdict = json.loads(out)
    assert verdict["winner"] == "counter"
    assert next(a for a in verdict["attempts"] if a["name"] == "wrong")["state"] == "ineligible"
    status, out, err = shell.run("apply", verdict["race"], "--branch", "race/counter")
    assert status == 0, err
    changed = subprocess.run(
        ["git", "diff", "--name-status", "HEAD", "race/counter"],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert changed == "M\twords.py\n"
    assert (project / "words.py").read_text() == WORDS
