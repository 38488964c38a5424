"""Which files decide how a project is tested: they are those of the base, whoever changed them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection

CONFIGURATION = frozenset(
    [
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "pyproject.toml",
        "setup.cfg",
        "tox.ini",
    ]
)
"""Names of files that pytest takes settings or code from."""

_TEST_FOLDERS = frozenset(
    {"test", "tests", "testing", "__tests__", "spec", "snapshots", "__snapshots__", "golden"}
)
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py|.*\.snap|.*\.ambr")


def is_settled(path: bytes, known: Collection[str] = ()) -> bool:
    """Whether a path belongs to the tests rather than to what is tested.

    Args:
        path: relative to the project.
        known: further paths that do: files of tests that ran on the base, and what they opened there.
    """
    text = path.decode("utf-8", "surrogateescape")
    folder, name = posixpath.split(text)
    return (
        text in known
        or name in CONFIGURATION
        or _TEST_FILE.fullmatch(name) is not None
        or any(part in _TEST_FOLDERS for part in folder.split("/"))
    )
