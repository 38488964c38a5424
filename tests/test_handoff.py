"""Handing a submission over: bytes arrive as they are, conflicts are named, and nothing is run or written elsewhere."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from race.errors import SpecError
from race.handoff import Delta, apply_to_branch, apply_to_tree
from tests.test_project import git


def change(path: str, old: str | None, new: str | None, mode: str = "100644") -> Delta:
    return Delta(
        path.encode(),
        None if old is None else mode,
        None if old is None else old.encode(),
        None if new is None else mode,
        None if new is None else new.encode(),
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a.py").write_text("one\ntwo\nthree\n")
    (folder / "gone.py").write_text("x\n")
    return folder


@pytest.fixture
def repository(tree: Path) -> Path:
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "one")
    return tree


EDIT = change("a.py", "one\ntwo\nthree\n", "one\n2\nthree\n")


def files(folder: Path) -> dict[str, str]:
    found = (p for p in folder.rglob("*") if p.is_file() and ".git" not in p.parts)
    return {str(p.relative_to(folder)): p.read_text() for p in found}


def test_files_are_changed_added_and_removed(tree: Path) -> None:
    changes = [
        EDIT,
        change("gone.py", "x\n", None),
        change("new/b.py", None, "b\n"),
        change("empty", None, ""),
    ]
    apply_to_tree(tree, changes)
    assert files(tree) == {"a.py": "one\n2\nthree\n", "new/b.py": "b\n", "empty": ""}


def test_modes_and_links(tree: Path) -> None:
    changes = [
        Delta(b"run.sh", None, None, "100755", b"#!/bin/sh\n"),
        Delta(b"link", None, None, "120000", b"a.py"),
        Delta(b"a.py", "100644", b"one\ntwo\nthree\n", "100755", b"one\ntwo\nthree\n"),
    ]
    apply_to_tree(tree, changes)
    assert (tree / "run.sh").stat().st_mode & stat.S_IXUSR
    assert (tree / "link").readlink() == Path("a.py")
    assert (tree / "a.py").stat().st_mode & stat.S_IXUSR


def test_a_folder_becomes_a_file_and_a_file_a_folder(tree: Path) -> None:
    (tree / "d").mkdir()
    (tree / "d" / "x").write_text("x")
    apply_to_tree(tree, [change("d", None, "now a file"), change("d/x", "x", None)])
    assert (tree / "d").read_text() == "now a file"
    apply_to_tree(tree, [change("d/y", None, "y"), change("d", "now a file", None)])
    assert (tree / "d" / "y").read_text() == "y"


def test_other_edits_are_merged(tree: Path) -> None:
    (tree / "a.py").write_text("zero\none\ntwo\nthree\n")
    apply_to_tree(tree, [change("a.py", "one\ntwo\nthree\n", "one\ntwo\n3\n")])
    assert (tree / "a.py").read_text() == "zero\none\ntwo\n3\n"


def test_applying_twice_does_nothing_more(tree: Path) -> None:
    changes = [EDIT, change("gone.py", "x\n", None), change("b", None, "b")]
    apply_to_tree(tree, changes)
    before = files(tree)
    apply_to_tree(tree, changes)
    assert files(tree) == before


@pytest.mark.parametrize(
    ("path", "content", "delta", "says"),
    [
        ("a.py", "one\nTWO\nthree\n", EDIT, "in the same lines"),
        ("gone.py", "y\n", change("gone.py", "x\n", None), "has changed since"),
        ("b.py", "mine\n", change("b.py", None, "theirs\n"), "is there already"),
        ("a.py", "\0", EDIT, "not text"),
    ],
)
def test_conflicts_are_named_and_nothing_is_written(
    tree: Path, path: str, content: str, delta: Delta, says: str
) -> None:
    (tree / path).write_text(content)
    before = files(tree)
    with pytest.raises(SpecError, match=says) as caught:
        apply_to_tree(tree, [change("first.py", None, "1\n"), delta])
    assert path in str(caught.value)
    assert files(tree) == before


def test_a_missing_file_is_a_conflict(tree: Path) -> None:
    (tree / "a.py").unlink()
    with pytest.raises(SpecError, match=r"a\.py is gone"):
        apply_to_tree(tree, [EDIT])


@pytest.mark.parametrize(
    "path", ["../out", "/etc/out", "x/../../out", ".git/hooks/post-checkout", "sub/.GIT/config"]
)
def test_paths_out_of_the_tree_are_refused(tree: Path, path: str) -> None:
    with pytest.raises(SpecError, match="leaves the working tree"):
        apply_to_tree(tree, [change(path, None, "x")])
    assert not (tree.parent / "out").exists()


def test_links_are_not_written_through(tree: Path) -> None:
    outside = tree.parent / "outside"
    outside.mkdir()
    (tree / "d").symlink_to(outside)
    with pytest.raises(SpecError, match="behind the link"):
        apply_to_tree(tree, [change("d/x", None, "x")])
    assert not list(outside.iterdir())
    (tree / "l").symlink_to(outside / "target")
    with pytest.raises(SpecError, match="is there already"):
        apply_to_tree(tree, [change("l", None, "x")])
    assert not list(outside.iterdir())


def test_a_branch_holds_the_change_and_nothing_else(repository: Path) -> None:
    (repository / "untracked.txt").write_text("mine\n")
    (repository / "gone.py").write_text("edited, not committed\n")
    before = files(repository)
    apply_to_branch(repository, "faster", [EDIT, change("new.py", None, "n\n")], "message")
    assert files(repository) == before
    assert _show(repository, "faster:a.py") == "one\n2\nthree\n"
    assert _names(repository, "faster") == ["M\ta.py", "A\tnew.py"]
    assert _show(repository, "main:a.py") == "one\ntwo\nthree\n"


def test_a_branch_in_a_part_of_a_repository(repository: Path) -> None:
    part = repository / "part"
    part.mkdir()
    (part / "a.py").write_text("one\ntwo\nthree\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "two")
    apply_to_branch(part, "faster", [EDIT], "message")
    assert _names(repository, "faster") == ["M\tpart/a.py"]


def test_line_ends_of_the_repository_are_kept(repository: Path) -> None:
    windows = Delta(b"a.py", "100644", b"one\r\ntwo\r\nthree\r\n", "100644", b"one\r\n2\r\nthree\r\n")
    apply_to_branch(repository, "faster", [windows], "message")
    assert _show(repository, "faster:a.py") == "one\n2\nthree\n"


def test_no_hook_or_filter_runs(repository: Path) -> None:
    canary = repository.parent / "canary"
    program = f"#!/bin/sh\ntouch {canary}\ncat\n"
    for hook in ("post-checkout", "reference-transaction", "pre-commit", "post-commit", "post-index-change"):
        (repository / ".git" / "hooks" / hook).write_text(program)
        (repository / ".git" / "hooks" / hook).chmod(0o755)
    (repository / ".git" / "monitor").write_text(program)
    (repository / ".git" / "monitor").chmod(0o755)
    git(repository, "config", "filter.x.clean", f"touch {canary}; cat")
    git(repository, "config", "filter.x.smudge", f"touch {canary}; cat")
    (repository / ".gitattributes").write_text("* filter=x\n")
    git(repository, "config", "core.fsmonitor", ".git/monitor")
    apply_to_branch(repository, "faster", [EDIT], "message")
    apply_to_tree(repository, [EDIT])
    assert not canary.exists()


def test_what_no_branch_can_be_made_of(repository: Path, tmp_path: Path) -> None:
    for name in ("main", "a b", "-x", "x..y", ""):
        with pytest.raises(SpecError, match="branch"):
            apply_to_branch(repository, name, [EDIT], "m")
    plain = tmp_path / "plain"
    plain.mkdir()
    with pytest.raises(SpecError, match="in no git repository"):
        apply_to_branch(plain, "x", [EDIT], "m")
    (repository / "a.py").write_text("other\n")
    git(repository, "commit", "-qam", "two")
    with pytest.raises(SpecError, match="same lines"):
        apply_to_branch(repository, "x", [EDIT], "m")
    assert "x" not in _branches(repository)


def _output(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def _show(folder: Path, name: str) -> str:
    return _output(folder, "cat-file", "-p", name)


def _names(folder: Path, branch: str) -> list[str]:
    return _output(folder, "diff-tree", "-r", "--name-status", f"{branch}~", branch).splitlines()


def _branches(folder: Path) -> list[str]:
    return _output(folder, "branch", "--format=%(refname:short)").split()
