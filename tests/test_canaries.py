"""Nothing that an agent planted runs outside of its fork, whatever is done with its submission."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import race
from race.plugins import provider
from tests.racing import project, script, spec

pytestmark = pytest.mark.anyio

PLANT = r"""
canary() { printf '#!/bin/sh\necho "$0" >> {log}\nexit 0\n' > "$1"; chmod +x "$1"; }
mkdir -p .git/hooks .git/info planted bin
for h in post-checkout pre-commit post-commit post-index-change reference-transaction post-merge pre-push \
    applypatch-msg pre-applypatch post-applypatch prepare-commit-msg commit-msg fsmonitor-watchman post-rewrite; do
    canary .git/hooks/$h
done
canary planted/run
C="$PWD/planted/run"
for key in core.fsmonitor core.pager core.editor core.sshCommand core.askPass sequence.editor diff.external \
    gpg.program merge.evil.driver filter.evil.clean filter.evil.smudge filter.evil.process diff.evil.textconv \
    diff.evil.command credential.helper remote.origin.uploadpack pager.diff pager.log interactive.diffFilter \
    uploadpack.packObjectsHook alias.diff alias.apply browser.web.cmd; do
    git config $key "$C"
done
git config core.hooksPath "$PWD/.git/hooks"
git config extensions.partialClone origin; git config remote.origin.promisor true; git config remote.origin.url /none
echo '* filter=evil diff=evil merge=evil' | tee .git/info/attributes > .gitattributes
printf '[include]\npath = planted/config\n' >> .git/config; cp .git/config planted/config
for p in git python python3 sh bash less vi pager env diff patch; do
    canary bin/$p; canary $p
    for d in /usr/local/bin /usr/local/sbin /opt/bin; do mkdir -p $d; canary $d/$p; done
done
for f in .profile .bashrc .bash_profile .zshrc .envrc .gitconfig .pdbrc .inputrc .vimrc .exrc .lesskey; do
    echo "$C" > ~/$f; echo "$C" > planted/$f
done
echo "export PAGER=$C GIT_PAGER=$C EDITOR=$C GIT_EXTERNAL_DIFF=$C LESSOPEN='|$C %s'" >> ~/.bashrc
echo "import os; os.system('$C')" > planted/code.py
for f in conftest.py setup.py _sitecustomize.py; do cp planted/code.py $f; done
for d in $(python3 -c 'import site; print(*site.getsitepackages(), site.getusersitepackages())' 2>/dev/null); do
    mkdir -p $d; echo "import os; os.system('$C')" > $d/zz.pth; cp planted/code.py $d/sitecustomize.py
done
printf 'all:\n\t%s\n' "$C" > Makefile; printf 'root = true\n' > .editorconfig
mkdir -p .vscode; echo '{"python.defaultInterpreterPath": "bin/python"}' > .vscode/settings.json
echo 50 > value.txt
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_planted_program_runs_outside(tmp_path: Path, home: Path) -> None:
    place = project(tmp_path)
    log = tmp_path / "canaries"  # the same path exists outside only: whoever writes to it ran outside
    log.touch()
    log.chmod(0o666)
    made = spec(tmp_path, [script("planter", PLANT.replace("{log}", str(log)))])
    verdict = await race.run(made, home=home)
    assert verdict.winner == "planter", verdict.attempts[0].reasons
    assert set(verdict.attempts[0].machine) >= {"startup", "programs"}
    assert "planted/run" in verdict.attempts[0].files_changed
    assert log.read_text() == ""
    environment = {**os.environ, "RACE_HOME": str(home), "PAGER": "cat"}

    def command(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-c", "from race.cli import main; main()", *arguments],
            cwd=place,
            env=environment,
            capture_output=True,
            check=False,
            timeout=60,
        )

    for arguments in (
        ("show",),
        ("show", "--json"),
        ("diff",),
        ("list",),
        ("export",),
        ("export", "--format", "jsonl", "--to", str(tmp_path / "told")),
        ("apply", "--to", str(place), "--branch", "race/planter"),
        ("apply", "--to", str(place)),
    ):
        done = command(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    assert (place / "value.txt").read_text() == "50\n"
    assert not (place / ".git" / "hooks" / "post-checkout").exists()
    assert "planted" not in (place / ".git" / "config").read_text()
    assert log.read_text() == ""
    # The replay that was kept is rebuilt: nothing that was planted on the machine is in it.
    sandboxes = provider("local", home, "test")
    try:
        kept = await sandboxes.get(verdict.attempts[0].sandbox or "")
        look = await kept.exec(
            "ls /usr/local/bin/git ~/.bashrc ~/.gitconfig; cat ~/.bashrc; ls .git/hooks", cwd="/app"
        )
        assert b"planted" not in look.stdout
        assert b"/usr/local/bin/git\n" not in look.stdout
        assert b"post-checkout" not in look.stdout
    finally:
        await sandboxes.aclose()
