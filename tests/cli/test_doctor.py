"""``race doctor --full``: the conformance suite for whoever writes a provider."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from race.cli.app import run


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = run(["doctor", "--sandbox", "copy", "--full", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


def test_each_check_is_a_line_and_the_last_counts_them(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = doctor(capsys, "--check", "read_missing", "--check", "export_and_load")
    assert status == 0
    passed, left, last = out.splitlines()
    assert passed == "passed   read_missing"
    assert left.startswith("left out export_and_load: the provider does not declare")
    assert last == "1 passed, 0 failed, 1 left out"


def test_as_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = doctor(capsys, "--json", "--check", "read_missing")
    document = json.loads(out)
    assert (status, document["works"]) == (0, True)
    assert [(c["name"], c["outcome"]) for c in document["checks"]] == [("read_missing", "passed")]


def test_a_failure_and_an_unknown_name_have_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = doctor(capsys, "--image", "/", "--check", "read_missing")
    assert status == 1
    assert "failed   read_missing: SandboxError" in out
    status, _, err = doctor(capsys, "--check", "read_mising")
    assert status == 2
    assert "read_missing" in err
