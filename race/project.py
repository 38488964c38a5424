"""Collecting a project: which of its files go into the base.

Of a folder: what git tracks there and what it does not track but does not ignore either, as it is on disk, submodules
included. A folder outside of any repository works too. Of a git URL: the files of one commit. Names are bytes.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import git

from race.errors import SpecError
from race.spec import RaceSpec
from race.submission import printable

LEFT_OVERS = (b"__pycache__", b".pytest_cache", b".mypy_cache", b".ruff_cache", b".hypothesis", b".DS_Store")
"""Names of files and folders that programs leave behind and nobody means to hand in."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+|[^/\\\\]+@[^/:]+:.+")


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """One file or link of a project.

    Attributes:
        path: relative to the project.
        source: where it is on the host.
        mode: its permission bits; 0 for a link.
        target: where a link points, else None.
    """

    path: bytes
    source: bytes
    mode: int
    target: bytes | None = None

    @property
    def git_mode(self) -> str:
        """As git writes it."""
        if self.target is not None:
            return "120000"
        return "100755" if self.mode & stat.S_IXUSR else "100644"


@dataclass(frozen=True, slots=True)
class Project:
    """What a project consists of.

    Attributes:
        files: sorted by path.
        commit: the commit that a git URL was resolved to, or None for a folder as it is on disk.
        skipped: what could not be taken, for people.
    """

    files: tuple[ProjectFile, ...]
    commit: str | None = None
    skipped: tuple[str, ...] = ()


def is_url(project: str) -> bool:
    """Whether a race file's ``project`` is a git URL rather than a folder."""
    return _URL.fullmatch(project) is not None


@contextmanager
def collected(spec: RaceSpec) -> Generator[Project]:
    """The files of a race's project; those of a git URL exist until the block ends.

    Raises:
        SpecError: there is no such project, no such ref, no commit, or nothing in it.
    """
    base = spec.base
    where = spec.place("base", "project")
    try:
        if is_url(base.project) or base.ref is not None:
            source = base.project if is_url(base.project) else str(_folder(base.project, spec.folder, where))
            with tempfile.TemporaryDirectory(prefix="race-clone-") as clone:
                folder = Path(clone) / "project"
                commit = _clone(source, base.ref, folder, where)
                yield _selected(_gather(folder), spec, where, commit)
        else:
            yield _selected(_gather(_folder(base.project, spec.folder, where)), spec, where, None)
    except git.GitCommandError as e:
        raise SpecError(f"{where}: git cannot read {base.project!r}: {str(e.stderr).strip()}") from e


def matching(patterns: Iterable[str], paths: Iterable[bytes]) -> set[bytes]:
    """The paths that any of the patterns names: a path itself, everything below a folder, or a glob in which ``*``
    and ``?`` do not match ``/`` and ``**`` matches any number of folders. A pattern without ``/`` that has a wildcard
    matches in every folder.
    """
    rules = [_pattern(p) for p in patterns]
    return {p for p in paths if any(r.fullmatch(os.fsdecode(p)) for r in rules)}


def is_left_over(path: bytes) -> bool:
    """Whether a path is a cache or other left-over, by its name alone."""
    parts = path.split(b"/")
    return any(part in LEFT_OVERS for part in parts) or path.endswith((b".pyc", b".pyo"))


def _pattern(pattern: str) -> re.Pattern[str]:
    pattern = pattern.removeprefix("./").rstrip("/")
    if "/" not in pattern and any(c in pattern for c in "*?["):
        pattern = f"**/{pattern}"
    out = ""
    i = 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
        elif pattern.startswith("**", i):
            out, i = out + ".*", i + 2
        elif pattern[i] == "*":
            out, i = out + "[^/]*", i + 1
        elif pattern[i] == "?":
            out, i = out + "[^/]", i + 1
        elif pattern[i] == "[" and "]" in pattern[i + 2 :]:
            end = pattern.index("]", i + 2) + 1
            out, i = out + fnmatch.translate(pattern[i:end])[4:-3], end
        else:
            out, i = out + re.escape(pattern[i]), i + 1
    return re.compile(f"{out}(?:/.*)?", re.DOTALL)


def _folder(project: str, folder: Path, where: str) -> Path:
    path = folder / Path(project).expanduser()
    if not path.is_dir():
        raise SpecError(f"{where}: {project!r} is no folder and no git URL (looked for {str(path)!r})")
    return path


def _selected(project: Project, spec: RaceSpec, where: str, commit: str | None) -> Project:
    out = matching(spec.base.exclude, (f.path for f in project.files))
    own = os.fsencode(spec.path)
    files = tuple(f for f in project.files if f.path not in out and os.path.normpath(f.source) != own)
    if not files:
        raise SpecError(f"{where}: there is no file in {spec.base.project!r} that git does not ignore")
    return Project(files, commit, project.skipped)


def _gather(folder: Path) -> Project:
    files: list[ProjectFile] = []
    skipped: list[str] = []
    root = os.fsencode(folder)
    _gather_into(files, skipped, root, b"", _listing(folder))
    return Project(tuple(sorted(files, key=lambda f: f.path)), None, tuple(skipped))


def _gather_into(
    files: list[ProjectFile], skipped: list[str], root: bytes, prefix: bytes, listing: Iterable[bytes]
) -> None:
    for name in set(listing):
        path, source = prefix + name, root + b"/" + prefix + name
        try:
            info = os.lstat(source)
        except FileNotFoundError:
            continue  # tracked, but deleted on disk
        if stat.S_ISLNK(info.st_mode):
            files.append(ProjectFile(path, source, 0, os.fsencode(Path(os.fsdecode(source)).readlink())))
        elif stat.S_ISREG(info.st_mode):
            files.append(ProjectFile(path, source, stat.S_IMODE(info.st_mode) & 0o777))
        elif stat.S_ISDIR(info.st_mode):
            # git names a repository inside another one (a submodule, say) as a path without looking into it.
            inner = path.rstrip(b"/") + b"/"
            _gather_into(files, skipped, root, inner, _listing(Path(os.fsdecode(source))))
        else:
            skipped.append(f"{printable(path)} is neither a file nor a link")


def _listing(folder: Path) -> list[bytes]:
    try:
        repo = git.Repo(folder, search_parent_directories=True)
    except (git.InvalidGitRepositoryError, git.NoSuchPathError):
        return _listing_without_repository(folder)
    with repo:
        if not repo.head.is_valid():
            raise SpecError(
                f"{folder}: the repository has no commit yet, so there is nothing to go back to; commit once "
                "(git add -A && git commit), or remove its .git folder"
            )
        if repo.bare:
            raise SpecError(f"{folder}: is a bare repository; name its URL (file://...) and a ref instead")
        return _split(git.Git(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard")


def _listing_without_repository(folder: Path) -> list[bytes]:
    with tempfile.TemporaryDirectory(prefix="race-listing-") as temporary:
        git.Git(temporary).init("-q", "--bare", "--template=")
        runner = git.Git(folder)
        runner.update_environment(GIT_DIR=temporary, GIT_WORK_TREE=str(folder))
        names = _split(runner, "-c", "core.bare=false", "ls-files", "-z", "--others", "--exclude-standard")
    return [n for n in names if not is_left_over(n)]


def _split(runner: git.Git, *arguments: str) -> list[bytes]:
    out = runner.execute(["git", *arguments], stdout_as_string=False, strip_newline_in_stdout=False)
    return out.split(b"\0")[:-1]


def _clone(source: str, ref: str | None, target: Path, where: str) -> str:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "clone", "-q", "--no-checkout", "--", source, str(target)]
    try:
        done = subprocess.run(  # noqa: S603 - the user's git, on the user's own address
            command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )
    except FileNotFoundError as e:
        raise SpecError(f"{where}: git is needed to clone {source!r}, and is not installed") from e
    if done.returncode:
        raise SpecError(f"{where}: cannot clone {source!r}: {done.stderr.decode(errors='replace').strip()}")
    with git.Repo(target) as repo:
        name = ref or "HEAD"
        found = None
        for candidate in (name, f"origin/{name}"):
            try:
                found = repo.commit(candidate).hexsha
                break
            except (git.BadName, ValueError, git.GitCommandError):
                continue
        if found is None:
            what = f"there is no commit, tag or branch {ref!r}" if ref else "it has no commit"
            raise SpecError(f"{where}: {what} in {source!r}")
        repo.git.checkout("-q", "--detach", found)
        return found
