"""Runs something as a user who is not root, in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import race

USER = 65534


def run_as_ordinary_user(arguments: list[str], home: Path, *readable: Path) -> bytes:
    """What a Python program prints. The test is skipped if this is no root, or there is no Python for others.

    Args:
        arguments: of the interpreter.
        home: a folder to make for that user.
        readable: folders below the system's temporary one that the user has to be able to enter.
    """
    if os.geteuid() != 0:
        pytest.skip("then all tests run as one")
    packages = [
        str(Path(race.__path__[0]).parent),
        *(each for each in sys.path if each.endswith("-packages")),
    ]
    path = ":".join(packages)
    program = _ordinary_python(path)
    if program is None:
        pytest.skip("no Python that an ordinary user may run has the dependencies")
    for folder in (*readable, home.parent):
        for each in (folder, *folder.parents):
            if each.is_relative_to("/tmp/") or each.is_relative_to("/dev/shm/"):
                each.chmod(each.stat().st_mode | 0o711)
    home.mkdir()
    os.chown(home, USER, USER)
    done = subprocess.run(
        [program, *arguments],
        user=USER,
        group=USER,
        extra_groups=[],
        cwd="/",
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def _ordinary_python(path: str) -> str | None:
    """A Python that any user may run and that has this package's dependencies."""
    for program in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run(
                [program, "-c", "import anyio, pydantic, race.sandboxes.local"],
                check=True,
                user=USER,
                cwd="/",
                env={"PYTHONPATH": path},
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return program
    return None
