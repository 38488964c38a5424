"""Collecting projects of all shapes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from race.errors import SpecError
from race.project import Project, collected, is_url, matching
from race.spec import RaceSpec, from_data

ODD_NAMES = [
    b"with space",
    b"quote\"s'",
    b"new\nline",
    "prüfung 1.py".encode(),
    b"not-utf8-\xff.bin",
    b"-dash",
    b"*",
]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def spec_for(folder: Path, **base: object) -> RaceSpec:
    data = {"task": {"prompt": "x"}, "entries": [{"name": "a"}], "base": {"project": "project", **base}}
    return from_data(data, folder / "race.toml")


def collect(folder: Path, **base: object) -> Project:
    with collected(spec_for(folder, **base)) as project:
        return project


def paths(project: Project) -> set[bytes]:
    return {f.path for f in project.files}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def fill(folder: Path) -> None:
    (folder / "tracked.py").write_text("1\n")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")


def test_tracked_and_untracked_but_not_ignored(project: Path) -> None:
    fill(project)
    (project / "untracked.py").write_text("2\n")
    (project / "x.log").write_text("no\n")
    found = collect(project.parent)
    assert paths(found) == {b"tracked.py", b".gitignore", b"untracked.py"}


def test_what_was_deleted_on_disk_is_not_taken(project: Path) -> None:
    fill(project)
    (project / "tracked.py").unlink()
    assert paths(collect(project.parent)) == {b".gitignore"}


def test_odd_names_links_and_modes(project: Path) -> None:
    for name in ODD_NAMES:
        Path(os.fsdecode(os.fsencode(project) + b"/" + name)).write_bytes(name)
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "private").write_text("x")
    (project / "private").chmod(0o600)
    (project / "link").symlink_to("run.sh")
    (project / "dangling").symlink_to("nowhere")
    (project / "folder").mkdir()
    (project / "folder" / "x").write_text("x")
    (project / "to-folder").symlink_to("folder")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "one")
    files = {f.path: f for f in collect(project.parent).files}
    assert set(ODD_NAMES) <= set(files)
    assert files[b"run.sh"].git_mode == "100755"
    assert files[b"private"].mode == 0o600
    assert files[b"link"].target == b"run.sh"
    assert files[b"dangling"].target == b"nowhere"
    assert files[b"to-folder"].git_mode == "120000"
    assert b"to-folder/x" not in files


def test_a_folder_without_a_repository(project: Path) -> None:
    (project / "a.py").write_text("1\n")
    (project / ".gitignore").write_text("secret\n")
    (project / "secret").write_text("no\n")
    (project / "__pycache__").mkdir()
    (project / "__pycache__" / "a.pyc").write_text("no")
    os.mkfifo(project / "fifo")
    assert paths(collect(project.parent)) == {b"a.py", b".gitignore"}


def test_a_part_of_a_repository(project: Path) -> None:
    (project / "part").mkdir()
    (project / "part" / "x.py").write_text("1\n")
    fill(project)
    assert paths(collect(project.parent, project="project/part")) == {b"x.py"}


def test_a_repository_without_a_commit_is_refused(project: Path) -> None:
    (project / "a.py").write_text("1\n")
    git(project, "init", "-q")
    with pytest.raises(SpecError, match="no commit yet"):
        collect(project.parent)


def test_a_linked_worktree(project: Path) -> None:
    fill(project)
    git(project, "worktree", "add", "-q", "../linked")
    before = (project.parent / "linked" / ".git").read_bytes()
    assert paths(collect(project.parent, project="linked")) == {b"tracked.py", b".gitignore"}
    assert (project.parent / "linked" / ".git").read_bytes() == before


def test_a_repository_inside_the_project(project: Path) -> None:
    inner = project / "vendor" / "lib"
    inner.mkdir(parents=True)
    (inner / "lib.py").write_text("1\n")
    git(inner, "init", "-q")
    git(inner, "add", "-A")
    git(inner, "commit", "-qm", "one")
    fill(project)
    assert paths(collect(project.parent)) == {b"tracked.py", b".gitignore", b"vendor/lib/lib.py"}


def test_a_url_at_a_ref(project: Path) -> None:
    fill(project)
    git(project, "tag", "v1")
    (project / "later.py").write_text("2\n")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "two")
    url = f"file://{project}"
    assert b"later.py" in paths(collect(project.parent, project=url))
    old = collect(project.parent, project=url, ref="v1")
    assert b"later.py" not in paths(old)
    assert old.commit is not None
    assert b"later.py" not in paths(collect(project.parent, ref="v1"))


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ({"project": "nowhere"}, "no folder and no git URL"),
        ({"project": "file:///nowhere/at/all"}, "cannot clone"),
        ({"ref": "v9"}, "no commit, tag or branch 'v9'"),
        ({"exclude": ["*"]}, "no file"),
    ],
)
def test_what_cannot_be_collected(project: Path, base: dict[str, object], says: str) -> None:
    fill(project)
    with pytest.raises(SpecError, match=says) as caught:
        collect(project.parent, **base)
    assert "base.project" in str(caught.value)


def test_the_race_file_itself_stays_out(project: Path) -> None:
    fill(project)
    (project / "race.toml").write_text("x")
    with collected(spec_for(project, project=".")) as found:
        assert b"race.toml" not in paths(found)


def test_urls_are_told_from_folders() -> None:
    assert is_url("https://example.org/x.git")
    assert is_url("git@example.org:x/y.git")
    assert not is_url("../project")
    assert not is_url("C")


@pytest.mark.parametrize(
    ("pattern", "hit", "miss"),
    [
        ("bench.py", [b"bench.py"], [b"x/bench.py", b"bench.pyc", b"benchXpy"]),
        ("tests", [b"tests/a.py", b"tests/b/c.py", b"tests"], [b"tests2/a.py"]),
        ("tests/", [b"tests/a.py"], [b"testsx"]),
        ("*.py", [b"a.py", b"x/a.py"], [b"a.pyx"]),
        ("src/*.py", [b"src/a.py"], [b"src/x/a.py", b"a.py"]),
        ("src/**/*.py", [b"src/a.py", b"src/x/y/a.py"], [b"b.py"]),
        ("**/conftest.py", [b"conftest.py", b"a/b/conftest.py"], [b"xconftest.py"]),
        ("test_?.py", [b"test_a.py"], [b"test_ab.py"]),
        ("test_[ab].py", [b"test_a.py"], [b"test_c.py"]),
        ("a b/prüfung.py", ["a b/prüfung.py".encode()], [b"a b/prufung.py"]),
    ],
)
def test_patterns(pattern: str, hit: list[bytes], miss: list[bytes]) -> None:
    assert matching([pattern], [*hit, *miss]) == set(hit)


def test_patterns_match_names_that_are_no_text() -> None:
    assert matching(["*"], [b"\xff", b"new\nline"]) == {b"\xff", b"new\nline"}
