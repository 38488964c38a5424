"""Taking submissions out of real forks: whatever is on disk there, the patch says it, and nothing of it runs."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from race.base import Base, prepare
from race.capture import capture
from race.plugins import provider
from race.replay import build
from race.sandbox import SandboxProvider
from race.spec import RaceSpec
from race.submission import Submission
from tests.racing import script, spec
from tests.test_project import git

pytestmark = pytest.mark.anyio


@dataclass
class Place:
    """A prepared base, and what made it."""

    made: RaceSpec
    provider: SandboxProvider
    base: Base

    async def submission(self, *commands: str) -> Submission:
        """What a fork hands in after some commands."""
        fork = await (await self.provider.get(self.base.sandbox)).fork("fork")
        try:
            for command in commands:
                done = await fork.exec(command, cwd="/app", timeout=20)
                assert done.exit_code == 0, done.stderr
            await fork.stop()
            return await capture(fork, self.base)
        finally:
            await fork.delete()

    async def replayed(self, submission: Submission, command: str) -> str:
        """What a command prints in a replay of a submission."""
        image = await build(self.provider, self.base, submission, self.made, name="replayed", labels={})
        try:
            async with image.replay() as replay:
                done = await replay.run(command, timeout=20)
                assert done.exit_code == 0, done.stderr
                return done.stdout.decode(errors="surrogateescape")
        finally:
            await image.sandbox.delete()


@pytest.fixture
async def place(tmp_path: Path, home: Path) -> AsyncIterator[Place]:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "a.py").write_text("one\ntwo\n")
    (folder / "windows.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (folder / ".gitattributes").write_text("*.txt text eol=lf\n*.py diff=python\n")
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "m.py").write_text("m\n")
    (folder / "prüfung 1.py").write_text("p\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "link").symlink_to("a.py")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    made = spec(tmp_path, [script("x", "true")], task={"protected": []})
    using = provider("local", home, "test")
    base = await prepare(made, using, home)
    yield Place(made, using, base)
    await using.aclose()


async def test_an_untouched_fork_hands_in_nothing(place: Place) -> None:
    assert (
        await place.submission("git status --porcelain", "cat a.py", "touch a.py", "chmod 644 a.py")
    ) == Submission()


async def test_git_inside_is_clean_and_has_one_commit_without_a_past(place: Place) -> None:
    fork = await (await place.provider.get(place.base.sandbox)).fork("fork")
    look = "git status --porcelain; git log --oneline --all | wc -l; git remote; git stash list; git fsck --unreachable"
    done = await fork.exec(look, cwd="/app")
    await fork.delete()
    assert done.stdout == b"1\n"


async def test_every_kind_of_change_arrives_byte_for_byte(place: Place) -> None:
    commands = [
        "printf 'one\\r\\n2\\r\\nthree\\r\\n' > windows.txt",
        "touch package/empty.py; rm package/__init__.py; chmod +x run.sh",
        "mv a.py b.py; ln -sfn b.py link",
        "mkdir -p 'new dir'; printf '\\0\\1\\377' > 'new dir/bin'",
        "echo x > \"$(printf 'n\\nl')\"; echo x > \"$(printf 'x\\377')\"",
        "echo changed > 'prüfung 1.py'; echo -n 'no newline' > tail.txt",
    ]
    submission = await place.submission(*commands)
    status = {c.path: c.status for c in submission.changes}
    assert status == {
        b"windows.txt": "M",
        b"package/empty.py": "A",
        b"package/__init__.py": "D",
        b"run.sh": "M",
        b"a.py": "D",
        b"b.py": "A",
        b"link": "M",
        b"new dir/bin": "A",
        b"n\nl": "A",
        b"x\xff": "A",
        "prüfung 1.py".encode(): "M",
        b"tail.txt": "A",
    }
    assert "n\\nl" in submission.files_changed
    assert "x\\xff" in submission.files_changed
    assert submission.patch.count(b"-two\r\n+2\r\n") == 1
    look = (
        "find . -path ./.git -prune -o -print0 | sort -z | xargs -0 stat -c '%n %F %a' -- ; "
        "cat windows.txt b.py 'new dir/bin' | od -c"
    )
    fork = await (await place.provider.get(place.base.sandbox)).fork("fork")
    for command in commands:
        await fork.exec(command, cwd="/app")
    expected = (await fork.exec(look, cwd="/app")).stdout.decode(errors="surrogateescape")
    await fork.delete()
    assert await place.replayed(submission, look) == expected


async def test_the_patch_applies_with_git(place: Place, tmp_path: Path) -> None:
    submission = await place.submission(
        "sed -i s/two/2/ a.py; mkdir d; printf '\\0\\1' > d/bin; rm package/m.py",
        "chmod +x run.sh; printf 'x\\r\\n' > c.txt",
    )
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "-q", str(tmp_path / "project"), str(checkout))
    subprocess.run(["git", "apply", "--index", "-"], cwd=checkout, input=submission.patch, check=True)  # noqa: ASYNC221 - nothing else runs
    assert (checkout / "a.py").read_text() == "one\n2\n"
    assert (checkout / "d" / "bin").read_bytes() == b"\0\1"
    assert (checkout / "c.txt").read_bytes() == b"x\r\n"
    assert not (checkout / "package" / "m.py").exists()


async def test_the_forks_own_git_is_not_believed(place: Place) -> None:
    lies = [
        "git commit -qam x --allow-empty",
        "git update-index --assume-unchanged a.py; git update-index --skip-worktree package/m.py",
        "git config filter.k.clean 'git show HEAD:%f'; echo '* filter=k -diff' > .git/info/attributes",
        "echo '*' > .git/info/exclude; git config core.excludesFile .git/info/exclude",
        "git replace -f HEAD HEAD~ 2>/dev/null; git branch -m main other; touch .git/index.lock; true",
        "rm -rf .git; git init -q; git add -A; git -c user.name=x -c user.email=x commit -qm baseline",
        "rm -rf .git; echo 'gitdir: /tmp/elsewhere' > .git",
    ]
    for lie in lies:
        submission = await place.submission(
            f"echo evil > a.py; echo evil > package/m.py; echo new > conftest.py; {lie}"
        )
        assert [c.shown for c in submission.changes] == ["a.py", "conftest.py", "package/m.py"], lie


async def test_left_overs_and_ignored_files_are_no_part_of_it(place: Place) -> None:
    submission = await place.submission(
        "mkdir -p build package/__pycache__ .pytest_cache",
        "touch x.log build/out package/__pycache__/m.pyc .pytest_cache/v",
        "echo > .gitignore; echo real > real.py",
    )
    assert [c.shown for c in submission.changes] == [".gitignore", "real.py"]
    assert set(submission.ignored) == {"x.log", "build/out", "package/__pycache__/m.pyc", ".pytest_cache/v"}


async def test_an_agent_cannot_hide_by_new_ignore_rules(place: Place) -> None:
    submission = await place.submission("echo conftest.py >> .gitignore; echo evil > conftest.py")
    assert [c.shown for c in submission.changes] == [".gitignore", "conftest.py"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("mkfifo pipe", "pipe is a FIFO"),
        ("truncate -s 1T huge.bin", "huge.bin has 1,099,511,627,776 bytes"),
        ("mkdir sub; cd sub; git init -q; touch x", "sub/.git"),
        ("cd /; mv /app /gone", "the project's folder /app is gone"),
        ("cd /; rm -rf /app; ln -s /etc /app", "the project's folder /app is gone"),
        ("for i in $(seq 5); do truncate -s 15M f$i; done", "over 67,108,864 bytes"),
    ],
)
async def test_what_no_submission_can_hold(place: Place, command: str, says: str) -> None:
    submission = await place.submission(command)
    assert any(says in p for p in submission.problems), submission.problems


async def test_folders_without_permissions_are_read_all_the_same(place: Place) -> None:
    submission = await place.submission(
        "mkdir -p d/e; echo x > d/e/f; chmod 000 d/e/f d/e d; chmod 000 package/m.py; echo y > z"
    )
    assert {c.shown for c in submission.changes} >= {"d/e/f", "z"}


async def test_a_folder_becomes_a_file_and_a_file_a_folder(place: Place) -> None:
    submission = await place.submission(
        "rm -r package; echo file > package; rm a.py; mkdir a.py; echo x > a.py/x"
    )
    assert {(c.shown, c.status) for c in submission.changes} == {
        ("package", "A"),
        ("package/__init__.py", "D"),
        ("package/m.py", "D"),
        ("a.py", "D"),
        ("a.py/x", "A"),
    }
    assert await place.replayed(submission, "cat package a.py/x") == "file\nx\n"


async def test_a_removed_and_remade_folder(place: Place) -> None:
    submission = await place.submission("rm -r package; mkdir package; echo new > package/m.py")
    assert {(c.shown, c.status) for c in submission.changes} == {
        ("package/__init__.py", "D"),
        ("package/m.py", "M"),
    }
    assert await place.replayed(submission, "ls package") == "m.py\n"


async def test_what_changed_outside_is_counted_and_left_behind(place: Place) -> None:
    submission = await place.submission("echo x > /opt/x; echo x > /root/.bashrc; echo y > y")
    assert [c.shown for c in submission.changes] == ["y"]
    assert submission.outside >= 2
    assert await place.replayed(submission, "ls /opt/x 2>&1 || true") != "/opt/x\n"


async def test_packages_are_found_by_their_metadata(place: Place) -> None:
    site = "/usr/local/lib/python3.11/dist-packages"
    commands = [
        f"mkdir -p {site}/thing-1.2.dist-info {site}/evil-1.dist-info",
        f"printf 'Name: thing\\nVersion: 1.2\\n\\nx' > {site}/thing-1.2.dist-info/METADATA",
        f"printf 'Name: --index-url=http://x\\nVersion: 1\\n' > {site}/evil-1.dist-info/METADATA",
    ]
    submission = await place.submission(*commands)
    assert [(p.name, p.version, p.site) for p in submission.packages] == [("thing", "1.2", site)]
