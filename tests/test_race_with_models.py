"""The race file of the repository's own benchmark, with a scripted model on loopback in place of a paid one."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from race.plugins import provider
from race.spec import from_data
from race.testing import Script, ScriptedModel
from tests.racing import run
from tests.test_project import git

pytestmark = pytest.mark.anyio

PRIMES = Path(__file__).parent.parent / "benchmarks" / "primes"

FASTER = """cat > primes.py <<'END'
def count_primes(n):
    if n < 3:
        return 0
    odd = bytearray([1]) * (n // 2)
    for k in range(3, int(n**0.5) + 1, 2):
        if odd[k // 2]:
            odd[k * k // 2 :: k] = bytes(len(range(k * k // 2, n // 2, k)))
    return sum(odd)
END"""
SCRIPTS = {
    "sieve": Script(
        commands=("cat primes.py", FASTER, "python3 -m unittest -q; python3 bench.py"), final="A sieve."
    ),
    "cheat": Script(
        commands=("echo 'print(0.01)' > bench.py", "git commit -qam faster"), final="Made it fast."
    ),
    "wrong": Script(
        commands=("echo 'def count_primes(n): return 78498' > primes.py",), final="Constant time."
    ),
}


async def test_three_models_race_for_real(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "primes"
    shutil.copytree(PRIMES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    # What a million costs here is not what this shows.
    bench = (folder / "bench.py").read_text().replace("1_000_000", "60_000").replace("78_498", "6057")
    (folder / "bench.py").write_text(bench)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-secret")
    async with ScriptedModel(SCRIPTS) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        data = tomllib.loads((folder / "race.toml").read_text())
        data["base"]["setup"] = []
        data["base"]["env"] = {}
        data["finals"] = {"mode": "quick"}
        for entry, model in zip(data["entries"], SCRIPTS, strict=True):
            entry["model"] = model
        verdict = await run(home, from_data(data, folder / "race.toml"))
    assert verdict.winner == "stdlib"
    by_name = {a.name: a for a in verdict.attempts}
    assert by_name["stdlib"].message == "A sieve."
    assert by_name["stdlib"].steps == 4
    assert "bench.py is protected and was changed" in by_name["numpy"].reasons[0]
    assert by_name["small"].state == "ineligible"
    for attempt, model in zip(verdict.attempts, SCRIPTS, strict=True):
        served = server.usage[model]
        assert (attempt.usage.input_tokens, attempt.usage.output_tokens) == (
            served.input_tokens,
            served.output_tokens,
        )
    using = provider("local", home, "test")
    try:
        left = await using.list()
        assert [i.labels["role"] for i in left] == ["base", "replay"]
        base = await (await using.get(left[0].name)).fork("look")
        shown = await base.exec("git status --porcelain; git log --oneline | wc -l; cat bench.py", cwd="/app")
        assert shown.stdout.decode() == f"1\n{bench}"
        await base.delete()
    finally:
        await using.aclose()
    for file in (p for p in home.rglob("*") if p.is_file() and not p.is_symlink()):
        assert b"sk-planted-secret" not in file.read_bytes(), file
