"""The framework's own git: a bare repository per base that no agent ever sees.

Content goes in as exact bytes, without filters; nothing of a sandbox's ``.git``, attributes or configuration is
read; git runs in an environment made from nothing. So a patch says what the bytes on disk say.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import git
from gitdb import GitDB, IStream, LooseObjectDB  # pyright: ignore[reportMissingTypeStubs]

IDENTITY = {
    "GIT_AUTHOR_NAME": "race",
    "GIT_AUTHOR_EMAIL": "race@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "race",
    "GIT_COMMITTER_EMAIL": "race@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00+0000",
}
"""Who commits baselines: nobody in particular, always at the same moment, so that equal content has equal names."""

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}
"""All that git is told: no configuration of the user or the system, no replaced objects, no fetching."""

_FLAGS = [
    "core.fsmonitor=",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    f"core.excludesFile={os.devnull}",
    "core.autocrlf=false",
    "core.quotePath=false",
    "gc.auto=0",
]


class BareGit(git.Git):
    """GitPython's command runner, with `ENVIRONMENT` for its whole environment."""

    def run(
        self,
        *arguments: str | bytes,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        ok: tuple[int, ...] = (0,),
    ) -> bytes:
        """Run git and return what it printed.

        Raises:
            git.GitCommandError: its exit status is not in ``ok``.
        """
        flags = [part for flag in _FLAGS for part in ("-c", flag)]
        # GitPython adds to the caller's environment and cannot take away; what the user has set there
        # (GIT_DIR, GIT_EXTERNAL_DIFF, ...) must not reach a git that judges.
        blank = ["env", "-i", *(f"{k}={v}" for k, v in {**ENVIRONMENT, **(env or {})}.items())]
        command = [*blank, "git", *flags, *map(os.fsdecode, arguments)]
        with tempfile.TemporaryFile() as source:
            if stdin is not None:
                source.write(stdin)
                source.seek(0)
            status, out, err = self.execute(
                command,
                istream=source,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
                with_extended_output=True,
                with_exceptions=False,
            )
        if status not in ok:
            raise git.GitCommandError(["git", *map(os.fsdecode, arguments)], status, err, "")
        return out


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One path of a tree.

    Attributes:
        mode: ``"100644"``, ``"100755"`` or ``"120000"``.
        blob: object name of the content; for a link, of its target.
    """

    mode: str
    blob: str


_Node: TypeAlias = "TreeEntry | dict[bytes, _Node] | None"
"""What becomes of a name in a folder: an entry, nothing, or changes further below."""
_TREE = b"40000"
_EMPTY_TREE = bytes.fromhex("4b825dc642cb6eb9a060e54bf8d69288fbee4904")


class ProjectRepository:
    """The content of one base's project, and of the submissions made from it.

    Args:
        path: of the bare repository; see `create`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._objects: Any = LooseObjectDB(str(path / "objects"))
        self._git = BareGit(str(path))

    @classmethod
    def create(cls, path: Path) -> ProjectRepository:
        """Make an empty one; ``path`` must not exist."""
        path.mkdir(parents=True)
        BareGit(str(path)).run("init", "-q", "--bare", "--template=", "--initial-branch=main", ".")
        return cls(path)

    def store(self, content: bytes) -> str:
        """Keep content and return its object name."""
        stream = IStream("blob", len(content), io.BytesIO(content))
        store = cast("Callable[[IStream], Any]", self._objects.store)  # pyright: ignore[reportUnknownMemberType]
        return bytes(store(stream).binsha).hex()

    def store_files(self, paths: list[bytes]) -> list[str]:
        """Keep many files of the host at once, as they are on disk; one object name for each."""
        # git reads one path a line, so a name with a newline has to be read here.
        plain = [p for p in paths if b"\n" not in p]
        out = self._git.run(
            "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=b"".join(p + b"\n" for p in plain)
        )
        found = dict(zip(plain, out.decode().split(), strict=True))
        return [found[p] if p in found else self.store(Path(os.fsdecode(p)).read_bytes()) for p in paths]

    def content(self, blob: str) -> bytes:
        """The bytes of a kept object."""
        return self._git.run("cat-file", "blob", blob)

    def commit(self, entries: Mapping[bytes, TreeEntry], message: str) -> str:
        """Make a tree and a commit of it on ``main``; returns the commit's name."""
        tree = self.tree({}, entries)
        name = self._git.run("commit-tree", tree, "-m", message, env=IDENTITY).decode().strip()
        self._git.run("update-ref", "refs/heads/main", name)
        return name

    def tree(self, base: Mapping[bytes, TreeEntry], changes: Mapping[bytes, TreeEntry | None]) -> str:
        """The tree that ``base`` becomes by ``changes`` (None removes a path); returns its name."""
        merged: dict[bytes, TreeEntry] = dict(base)
        for path, entry in changes.items():
            if entry is None:
                merged.pop(path, None)
            else:
                merged[path] = entry
        lines = b"".join(f"{e.mode} {e.blob}\t".encode() + p + b"\0" for p, e in sorted(merged.items()))
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self._git.run("update-index", "-z", "--add", "--index-info", stdin=lines, env=index)
            return self._git.run("write-tree", env=index).decode().strip()

    def changed(self, changes: Mapping[bytes, TreeEntry | None], tree: str = "refs/heads/main^{tree}") -> str:
        """The tree that a kept one becomes by ``changes``; returns its name.

        Only the folders with a change in them, and those above, are read and written, so the cost does not grow with
        the project.
        """
        nested: dict[bytes, _Node] = {}
        for path, entry in changes.items():
            *folders, name = path.split(b"/")
            place = nested
            for folder in folders:
                inner = place.get(folder)
                if isinstance(inner, TreeEntry):
                    break  # a file took the place of a folder: what was below it goes with it
                if inner is None:
                    inner = place[folder] = {}
                place = inner
            else:
                if entry is not None or name not in place:
                    place[name] = entry
        root = self._git.run("rev-parse", "--verify", tree).decode().strip()
        # A reader of its own: that of a Repo talks to one process of git, and attempts hand in side by side.
        return self._rewritten(GitDB(str(self.path / "objects")), bytes.fromhex(root), nested).hex()

    def _rewritten(self, db: Any, tree: bytes | None, changes: Mapping[bytes, _Node]) -> bytes:
        items = _items(db, tree) if tree is not None else {}
        for name, change in changes.items():
            old = items.pop(name, None)
            if isinstance(change, TreeEntry):
                items[name] = change.mode.encode(), bytes.fromhex(change.blob)
            elif change is not None:
                below = old[1] if old is not None and old[0] == _TREE else None
                new = self._rewritten(db, below, change)
                if new != _EMPTY_TREE:
                    items[name] = _TREE, new
        # git sorts folders as if their names ended in a slash
        ordered = sorted(items.items(), key=lambda i: i[0] + (b"/" if i[1][0] == _TREE else b""))
        content = b"".join(mode + b" " + name + b"\0" + sha for name, (mode, sha) in ordered)
        stored: bytes = self._objects.store(IStream("tree", len(content), io.BytesIO(content))).binsha
        return stored

    def entries(self, tree: str = "refs/heads/main") -> dict[bytes, TreeEntry]:
        """All paths of a tree."""
        out = self._git.run("ls-tree", "-r", "-z", "--full-tree", tree)
        found: dict[bytes, TreeEntry] = {}
        for line in out.split(b"\0")[:-1]:
            head, _, path = line.partition(b"\t")
            mode, _, blob = head.decode().split(" ")
            found[path] = TreeEntry(mode, blob)
        return found

    def patch(self, old: str, new: str, *, paths: Iterable[bytes] = ()) -> bytes:
        """The difference of two trees: binary, with full object names, without renames, filters or drivers."""
        return self._git.run(
            "diff-tree",
            "-r",
            "-p",
            "--binary",
            "--full-index",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "--src-prefix=a/",
            "--dst-prefix=b/",
            old,
            new,
            "--",
            *paths,
            env={"GIT_LITERAL_PATHSPECS": "1"},
        )

    def ignored(self, rules: Path, paths: Iterable[bytes]) -> set[bytes]:
        """Which paths the ``.gitignore`` files below ``rules`` exclude.

        Args:
            rules: a folder that holds the base's ``.gitignore`` files, and nothing that an agent wrote.
            paths: relative to the project.
        """
        asked = b"".join(p + b"\0" for p in paths)
        if not asked:
            return set()
        env = {"GIT_DIR": str(self.path), "GIT_WORK_TREE": str(rules)}
        runner = BareGit(str(rules))
        out = runner.run(
            "-c",
            "core.bare=false",
            "check-ignore",
            "-z",
            "--stdin",
            "--no-index",
            stdin=asked,
            env=env,
            ok=(0, 1),
        )
        return set(out.split(b"\0")[:-1])

    def write_worktree_git(self, target: Path) -> None:
        """Make the ``.git`` folder that the sandbox's project gets: one commit, no history, remote or reflog."""
        env: dict[str, Any] = {"GIT_ALLOW_PROTOCOL": "file"}
        runner = BareGit(str(target.parent))
        runner.run(
            "clone", "-q", "--bare", "--no-hardlinks", "--template=", str(self.path), str(target), env=env
        )
        inside = BareGit(str(target))
        for key, value in (("core.bare", "false"), ("core.logAllRefUpdates", "true"), ("gc.auto", "0")):
            inside.run("config", key, value)
        inside.run("config", "user.name", "agent")
        inside.run("config", "user.email", "agent@localhost")
        inside.run("remote", "remove", "origin")
        inside.run("read-tree", "HEAD")
        # The baseline holds the bytes as they are on disk; without this, attributes of the project that
        # convert line ends would show untouched files as modified.
        (target / "info").mkdir(exist_ok=True)
        (target / "info" / "attributes").write_text("* -text -filter -ident -working-tree-encoding\n")


def _items(db: Any, tree: bytes) -> dict[bytes, tuple[bytes, bytes]]:
    """Mode and object name of what is in a folder, by name."""
    content: bytes = db.stream(tree).read()
    items: dict[bytes, tuple[bytes, bytes]] = {}
    at = 0
    while at < len(content):
        space = content.index(b" ", at)
        end = content.index(b"\0", space)
        items[content[space + 1 : end]] = content[at:space], content[end + 1 : end + 21]
        at = end + 21
    return items
