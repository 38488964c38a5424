"""Handing a submission over: into a working tree, or onto a new branch of a repository.

A submission is a change of bytes from known content to known content, so it is applied as such: only where the content
is still what the race started from, or can be merged without a conflict. No hook, filter, driver, pager or editor runs,
nothing is written through a link or outside of the folder, and nothing at all is written before everything is known
to fit.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import git

from race.errors import SpecError
from race.repository import BareGit, ProjectRepository, TreeEntry
from race.sandbox import File, Link
from race.submission import Submission, printable

_GONE = "000000"


@dataclass(frozen=True, slots=True)
class Delta:
    """One path of a submission, with its content before and after; None where there is nothing."""

    path: bytes
    old_mode: str | None
    old: bytes | None
    new_mode: str | None
    new: bytes | None


def deposit(folder: Path, attempt: str, submission: Submission, base: ProjectRepository) -> None:
    """Keep a submission's content with its race, so that it can be handed over when the base is long gone.

    Args:
        folder: of the race.
        attempt: whose submission it is.
        submission: what to keep.
        base: where the content from before is.
    """
    (folder / f"{attempt}.patch").write_bytes(submission.patch)
    repository = _repository(folder)
    after = {e.path: e for e in submission.entries}
    for change in submission.changes:
        if change.old_mode != _GONE:
            repository.store(base.content(change.old_blob))
        entry = after[change.path]
        if isinstance(entry, Link):
            repository.store(entry.target)
        elif isinstance(entry, File) and isinstance(entry.content, bytes):
            repository.store(entry.content)
    kept = [
        {
            "path": c.path.hex(),
            "old_mode": c.old_mode,
            "new_mode": c.new_mode,
            "old_blob": c.old_blob,
            "new_blob": c.new_blob,
        }
        for c in submission.changes
    ]
    (folder / f"{attempt}.changes.json").write_text(json.dumps(kept))


def _repository(folder: Path) -> ProjectRepository:
    place = folder / "objects.git"
    return ProjectRepository(place) if place.is_dir() else ProjectRepository.create(place)


def deltas(folder: Path, attempt: str) -> list[Delta]:
    """The content of a submission, as `deposit` kept it.

    Raises:
        SpecError: the attempt handed nothing in.
    """
    try:
        changes = json.loads((folder / f"{attempt}.changes.json").read_text())
    except (FileNotFoundError, NotADirectoryError) as e:
        raise SpecError(f"there is no submission of {attempt!r}") from e
    repository = _repository(folder)
    out: list[Delta] = []
    for c in changes:
        old = None if c["old_mode"] == _GONE else repository.content(c["old_blob"])
        new = None if c["new_mode"] == _GONE else repository.content(c["new_blob"])
        out.append(
            Delta(
                bytes.fromhex(c["path"]),
                None if old is None else c["old_mode"],
                old,
                None if new is None else c["new_mode"],
                new,
            )
        )
    return out


def apply_to_tree(folder: Path, changes: Sequence[Delta]) -> list[str]:
    """Write a submission into a folder. Returns the paths written, for people.

    Raises:
        SpecError: a path is not what the race started from and does not merge, or leads through a link; nothing
            was written.
    """
    plan: list[tuple[Delta, bytes | None]] = []
    problems: list[str] = []
    going = {c.path for c in changes if c.new is None}
    for change in changes:
        try:
            _check_parents(folder, change.path)
            plan.append((change, _merged(change, _on_disk(folder, change.path, going))))
        except _ConflictError as e:
            problems.append(str(e))
    if problems:
        raise SpecError(f"nothing was applied to {folder}:\n" + "\n".join(f"  {p}" for p in problems))
    # What goes has to go first: a folder may have become a file.
    for change, content in sorted(plan, key=lambda item: item[1] is not None):
        _write(folder, change, content)
    return [printable(c.path) for c in changes]


def apply_to_branch(folder: Path, branch: str, changes: Sequence[Delta], message: str) -> str:
    """Put a submission as one commit, on top of the current one, onto a new branch. The working tree, the index and the
    current branch stay as they are.

    Args:
        folder: of the project in its repository.
        branch: to make.
        changes: the submission.
        message: of the commit.

    Returns:
        The commit's name.

    Raises:
        SpecError: no repository, no commit, the branch is there already or has no valid name, or a path is not what the
            race started from and does not merge.
    """
    try:
        repo = git.Repo(folder, search_parent_directories=True)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError) as e:
        raise SpecError(f"{folder} is in no git repository, so it has no branches; leave out --branch") from e
    with repo:
        return _commit(repo, folder, branch, changes, message)


def _commit(repo: git.Repo, folder: Path, branch: str, changes: Sequence[Delta], message: str) -> str:
    if not repo.head.is_valid():
        raise SpecError(f"the repository of {folder} has no commit to branch from")
    runner = BareGit(str(folder))
    where = {"GIT_DIR": str(Path(repo.git_dir).absolute())}
    if repo.common_dir:
        where["GIT_COMMON_DIR"] = str(Path(repo.common_dir).absolute())
    try:
        runner.run("check-ref-format", "--branch", branch)
    except git.GitCommandError as e:
        raise SpecError(f"{branch!r} is no valid name for a branch") from e
    if branch in {h.name for h in repo.heads}:
        raise SpecError(f"the branch {branch!r} is there already; name another with --branch")
    head = repo.head.commit.hexsha
    top = Path(repo.working_tree_dir or folder).resolve()
    prefix = os.fsencode(os.path.relpath(folder.resolve(), top))
    prefix = b"" if prefix == b"." else prefix + b"/"
    there = _tree_entries(runner, where, head, [prefix + c.path for c in changes])
    lines: list[bytes] = []
    problems: list[str] = []
    for change in changes:
        path = prefix + change.path
        entry = there.get(path)
        current = (
            None if entry is None else (entry.mode, runner.run("cat-file", "blob", entry.blob, env=where))
        )
        try:
            content = _merged(change, current)
        except _ConflictError as e:
            problems.append(str(e))
            continue
        if content is None:
            lines.append(b"0 " + b"0" * 40 + b"\t" + path + b"\0")
        else:
            blob = runner.run(
                "hash-object", "-w", "--no-filters", "--stdin", stdin=content, env=where
            ).strip()
            lines.append((change.new_mode or "100644").encode() + b" " + blob + b"\t" + path + b"\0")
    if problems:
        raise SpecError(f"no branch was made in {folder}:\n" + "\n".join(f"  {p}" for p in problems))
    with tempfile.TemporaryDirectory() as temporary:
        index = {**where, "GIT_INDEX_FILE": str(Path(temporary) / "index")}
        runner.run("read-tree", head, env=index)
        runner.run("update-index", "-z", "--index-info", stdin=b"".join(lines), env=index)
        tree = runner.run("write-tree", env=index).decode().strip()
    commit = runner.run("commit-tree", tree, "-p", head, "-m", message, env={**where, **_identity(repo)})
    name = commit.decode().strip()
    runner.run("update-ref", f"refs/heads/{branch}", name, "0" * 40, env=where)
    return name


def _identity(repo: git.Repo) -> dict[str, str]:
    """Who commits: whoever asked for it, as the repository knows them."""
    with repo.config_reader() as config:
        name = str(config.get_value("user", "name", "race"))
        email = str(config.get_value("user", "email", "race@localhost"))
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": email,
    }


def _tree_entries(
    runner: BareGit, where: Mapping[str, str], commit: str, paths: Sequence[bytes]
) -> dict[bytes, TreeEntry]:
    if not paths:
        return {}
    env = {**where, "GIT_LITERAL_PATHSPECS": "1"}
    found: dict[bytes, TreeEntry] = {}
    for line in runner.run("ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths, env=env).split(b"\0")[
        :-1
    ]:
        head, _, path = line.partition(b"\t")
        mode, _, blob = head.decode().split(" ")
        found[path] = TreeEntry(mode, blob)
    return found


class _ConflictError(Exception):
    """A path is not what the race started from."""


def _merged(change: Delta, current: tuple[str, bytes] | None) -> bytes | None:
    """What a path becomes: the submission's content, merged with what was changed since; None to remove it."""
    shown = printable(change.path)
    if change.old is None:
        if current is None or current[1] == change.new:
            return change.new
        raise _ConflictError(f"{shown} is new in the submission, but is there already with other content")
    if current is None:
        if change.new is None:
            return None
        raise _ConflictError(f"{shown} is gone, but the submission changes it")
    mode, content = current
    if content == change.old:
        return change.new
    if change.new is not None and content == change.new:
        return change.new
    plain = mode != "120000" and change.old_mode != "120000" and change.new_mode != "120000"
    if plain and content == _unix(change.old):
        # The repository holds the file with other line ends than the working tree that the race started from.
        return None if change.new is None else _unix(change.new)
    if change.new is None or not plain:
        raise _ConflictError(f"{shown} has changed since the race began")
    return _merge_text(shown, content, change.old, change.new)


def _merge_text(shown: str, current: bytes, old: bytes, new: bytes) -> bytes:
    if b"\0" in current + old + new:
        raise _ConflictError(
            f"{shown} has changed since the race began, and is not text that could be merged"
        )
    with tempfile.TemporaryDirectory() as temporary:
        names: list[str] = []
        for name, content in (("current", current), ("old", old), ("new", new)):
            (Path(temporary) / name).write_bytes(content)
            names.append(name)
        try:
            return BareGit(temporary).run("merge-file", "-p", "--quiet", *names)
        except git.GitCommandError as e:
            raise _ConflictError(f"{shown} has changed since the race began, in the same lines") from e


def _unix(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")


def _check_parents(folder: Path, path: bytes) -> None:
    """Refuse to write through a link, or into what is no part of a working tree."""
    parts = path.split(b"/")
    if path.startswith(b"/") or b".." in parts or any(re.fullmatch(rb"(?i)\.git", p) for p in parts):
        raise _ConflictError(f"{printable(path)} leaves the working tree")
    for parent in reversed(_place(folder, path).relative_to(folder).parents):
        if (folder / parent).is_symlink() and parent != Path():
            raise _ConflictError(f"{printable(path)} lies behind the link {printable(str(parent))}")


def _place(folder: Path, path: bytes) -> Path:
    return folder / os.fsdecode(path)


def _on_disk(folder: Path, path: bytes, going: set[bytes]) -> tuple[str, bytes] | None:
    """What is at a path: its git mode and content. A folder of which nothing stays counts as nothing."""
    place = _place(folder, path)
    try:
        mode = place.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        return "120000", os.fsencode(place.readlink())
    if stat.S_ISREG(mode):
        return "100755" if mode & stat.S_IXUSR else "100644", place.read_bytes()
    if stat.S_ISDIR(mode):
        below = {
            os.fsencode(p.relative_to(folder)) for p in place.rglob("*") if p.is_symlink() or not p.is_dir()
        }
        if below <= going:
            return None
    raise _ConflictError(f"{printable(path)} is a folder, or no file, here")


def _write(folder: Path, change: Delta, content: bytes | None) -> None:
    place = _place(folder, change.path)
    if content is None:
        place.unlink(missing_ok=True)
        for parent in place.parents:
            if parent == folder or not parent.is_dir() or any(parent.iterdir()):
                return
            parent.rmdir()
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir() and not place.is_symlink():
        _remove_empty(place)
    temporary = place.with_name(place.name + ".race-new")
    if change.new_mode == "120000":
        temporary.symlink_to(os.fsdecode(content))
    else:
        mode = _mode(place, executable=change.new_mode == "100755")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
    temporary.replace(place)


def _remove_empty(folder: Path) -> None:
    for inner in folder.iterdir():
        _remove_empty(inner)
    folder.rmdir()


def _mode(place: Path, *, executable: bool) -> int:
    """The permissions of a file to write: those it has, with or without the executable bits."""
    try:
        mode = 0o644 if place.is_symlink() else stat.S_IMODE(place.lstat().st_mode)
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    return mode | ((mode & 0o444) >> 2) if executable else mode & ~0o111
