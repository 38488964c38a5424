"""What `race init` proposes for projects of many shapes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import git
import pytest

from race.base import check_patterns
from race.errors import SpecError
from race.project import collected
from race.spec import RaceSpec, load
from race.starter import Proposal, propose, race_file, write
from race.toolchains.python import PYTHON

MODULE = "def double(n):\n    return 2 * n\n"
PYTEST = "from double import double\n\n\ndef test_double():\n    assert double(4) == 8\n"
UNITTEST = """\
import unittest

from double import double


class DoubleTest(unittest.TestCase):
    def test_double(self):
        self.assertEqual(double(4), 8)
"""
SCRIPT = "from double import double\n\nassert double(4) == 8\n"
BENCH = """\
import time

if __name__ == "__main__":
    start = time.perf_counter()
    sum(range(1000))
    print(f"{(time.perf_counter() - start) * 1000:.3f}")
"""


def project(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def uncommented(text: str) -> str:
    """The race file with every setting that waits as a comment switched on."""
    return re.sub(r"^#(?=[^ \n])", "", text, flags=re.MULTILINE)


def checked(folder: Path) -> RaceSpec:
    """Write the race file, load it as `race run` would, and see that what it protects is there."""
    path = write(folder)
    spec = load(path)
    with collected(spec) as found:
        check_patterns(spec, found)
    text = path.read_text()
    path.write_text(text + '\n[[entries]]\nname = "more"\nagent = "script"\ncommands = ["true"]\n')
    assert [e.name for e in load(path).entries] == ["nothing", "more"]
    path.write_text(uncommented(text))
    entries = load(path).entries
    assert [e.agent for e in entries] == ["nop", "script", "openai", "openai", "openai"]
    assert all(e.model for e in entries if e.agent == "openai")
    path.write_text(text)
    return spec


def status(command: str, folder: Path, env: Mapping[str, str]) -> int:
    return subprocess.run(
        command, shell=True, cwd=folder, env=env, capture_output=True, check=False
    ).returncode


def runs(spec: RaceSpec, use: str) -> list[str]:
    return [str(s.options["run"]) for s in spec.scorers if s.use == use]


SHAPES: dict[str, tuple[dict[str, str], str | None, set[str]]] = {
    "a test beside the module": (
        {"double.py": MODULE, "test_double.py": PYTEST},
        f"{PYTHON} -m pytest -q",
        {"test_double.py"},
    ),
    "a folder of tests, with its data": (
        {"double.py": MODULE, "tests/test_double.py": PYTEST, "tests/data/four.json": "4"},
        f"{PYTHON} -m pytest -q",
        {"tests/"},
    ),
    "tests inside packages": (
        {"a/double.py": MODULE, "a/tests/test_a.py": PYTEST, "b/tests/unit/test_b.py": PYTEST},
        f"{PYTHON} -m pytest -q",
        {"a/tests/", "b/tests/"},
    ),
    "pytest configured in pyproject.toml": (
        {
            "double.py": MODULE,
            "double_test.py": SCRIPT,
            "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-ra'\n",
        },
        f"{PYTHON} -m pytest -q",
        {"double_test.py", "pyproject.toml"},
    ),
    "pytest configured in setup.cfg": (
        {"double.py": MODULE, "test_double.py": UNITTEST, "setup.cfg": "[tool:pytest]\naddopts = -ra\n"},
        f"{PYTHON} -m pytest -q",
        {"test_double.py", "setup.cfg"},
    ),
    "pytest run by tox": (
        {"double.py": MODULE, "test_double.py": UNITTEST, "tox.ini": "[testenv]\ncommands = pytest\n"},
        f"{PYTHON} -m pytest -q",
        {"test_double.py"},
    ),
    "pytest configured in tox.ini": (
        {"double.py": MODULE, "test_double.py": UNITTEST, "tox.ini": "[pytest]\naddopts = -ra\n"},
        f"{PYTHON} -m pytest -q",
        {"test_double.py", "tox.ini"},
    ),
    "a conftest outside of the tests": (
        {"double.py": MODULE, "conftest.py": "", "tests/test_double.py": PYTEST},
        f"{PYTHON} -m pytest -q",
        {"tests/", "conftest.py"},
    ),
    "source in src, not installable": (
        {"src/double.py": MODULE, "tests/test_double.py": PYTEST},
        f"PYTHONPATH=src:. {PYTHON} -m pytest -q",
        {"tests/"},
    ),
    "unittest beside the module": (
        {"double.py": MODULE, "test_double.py": UNITTEST},
        f"{PYTHON} -m unittest discover",
        {"test_double.py"},
    ),
    "unittest in a folder": (
        {"double.py": MODULE, "tests/test_double.py": UNITTEST},
        f"{PYTHON} -m unittest discover -s tests",
        {"tests/"},
    ),
    "unittest in a package": (
        {"double.py": MODULE, "tests/__init__.py": "", "tests/test_double.py": UNITTEST},
        f"{PYTHON} -m unittest discover -s tests -t .",
        {"tests/"},
    ),
    "unittest with the other naming": (
        {"double.py": MODULE, "double_test.py": UNITTEST},
        f"{PYTHON} -m unittest discover -p '*_test.py'",
        {"double_test.py"},
    ),
    "unittest in a folder with a space": (
        {"double.py": MODULE, "test it's/__init__.py": "", "test it's/test_double.py": UNITTEST},
        f"""{PYTHON} -m unittest discover -s 'test it'"'"'s' -t .""",
        {"test it's/test_double.py"},
    ),
    "tests that no runner would find by their names": (
        {"double.py": MODULE, "tests/doubles.py": PYTEST, "tests/more words.py": PYTEST},
        f"{PYTHON} -m pytest -q tests/doubles.py 'tests/more words.py'",
        {"tests/"},
    ),
    "tests that are scripts": (
        {"double.py": MODULE, "test_double.py": SCRIPT, "-/test_more.py": SCRIPT},
        f"PYTHONPATH=. {PYTHON} ./-/test_more.py && {PYTHON} test_double.py",
        {"test_double.py", "-/test_more.py"},
    ),
    "a Django site": (
        {
            "manage.py": "import django\n",
            "app/tests.py": "from django.test import TestCase\nclass A(TestCase): pass\n",
        },
        f"{PYTHON} manage.py test",
        {"app/tests.py"},
    ),
    "Python without tests": (
        {"double.py": MODULE, "latest.py": "x = 1\n", "contest_data.py": "y = 2\n"},
        None,
        set(),
    ),
    "Rust": (
        {
            "Cargo.toml": '[package]\nname = "halver"\n',
            "src/lib.rs": "#[test]\nfn t() {}\n",
            "tests/all.rs": "#[test]\nfn t() {}\n",
        },
        "cargo test -q",
        {"Cargo.toml", "tests/"},
    ),
    "a Rust workspace": (
        {
            "Cargo.toml": '[workspace]\nmembers = ["a"]\n',
            "a/Cargo.toml": '[package]\nname = "a"\n',
            "a/src/lib.rs": "",
        },
        "cargo test -q",
        {"**/Cargo.toml"},
    ),
    "Go": (
        {
            "go.mod": "module example.org/tools/halver/v2\n",
            "halver.go": "package halver\n",
            "halver_test.go": "package halver\n",
        },
        "go test ./...",
        {"halver_test.go", "go.mod"},
    ),
    "JavaScript": (
        {
            "package.json": json.dumps({"name": "@me/halver", "scripts": {"test": "node --test"}}),
            "halver.js": "",
            "halver.test.js": "",
            "__tests__/a.js": "",
            "jest.config.js": "",
        },
        "npm test",
        {"package.json", "halver.test.js", "__tests__/", "jest.config.js"},
    ),
    "JavaScript with the placeholder for tests": (
        {
            "package.json": json.dumps({"scripts": {"test": 'echo "Error: no test specified" && exit 1'}}),
            "a.js": "",
        },
        None,
        {"package.json"},
    ),
    "JavaScript with pnpm": (
        {
            "package.json": json.dumps({"scripts": {"test": "vitest"}}),
            "pnpm-lock.yaml": "",
            "src/a.spec.ts": "",
        },
        "pnpm test",
        {"package.json", "src/a.spec.ts"},
    ),
    "a makefile": (
        {
            "Makefile": "CC = cc\n.PHONY: all test\nall:\n\ttrue\ntest: all\n\t./t/run\n",
            "a.c": "",
            "t/run": "",
            "test_a.c": "",
        },
        "make test",
        {"Makefile", "t/", "test_a.c"},
    ),
    "a makefile that only has a variable of that name": (
        {"Makefile": "test := 1\ncheck ::= 2\n", "a.c": ""},
        None,
        {"Makefile"},
    ),
    "Python whose tests only the makefile knows": (
        {"double.py": MODULE, "Makefile": "test check:\n\tpython -m doctest double.py\n"},
        "PATH=/opt/venv/bin:$PATH make test",
        {"Makefile"},
    ),
    "nothing that is known": ({"notes.txt": "hello"}, None, set()),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_tests_are_recognized_and_protected(shape: str, tmp_path: Path) -> None:
    files, command, protected = SHAPES[shape]
    spec = checked(project(tmp_path / "work", files))
    assert runs(spec, "tests") == ([command] if command else [])
    assert set(spec.task.protected) == protected
    assert spec.task.prompt.strip()


@pytest.mark.parametrize(
    "shape",
    [
        "a folder of tests, with its data",
        "source in src, not installable",
        "unittest beside the module",
        "unittest in a folder",
        "unittest in a package",
        "unittest with the other naming",
        "unittest in a folder with a space",
        "tests that no runner would find by their names",
        "tests that are scripts",
    ],
)
def test_the_command_finds_the_tests(shape: str, tmp_path: Path) -> None:
    """It passes, and fails once the project is wrong; the latter shows that tests are run at all."""
    files, _, _ = SHAPES[shape]
    spec = checked(project(tmp_path, files))
    command = runs(spec, "tests")[0].replace(PYTHON, sys.executable)
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }
    module = next(tmp_path.rglob("double.py"))
    assert status(command, tmp_path, env) == 0
    module.write_text("def double(n):\n    return n\n")
    assert status(command, tmp_path, env) != 0


PRINTS = {
    'print(f"{ms:.2f}")': ("benchmark", "ms", "min"),
    "print(elapsed)": ("benchmark", "s", "min"),
    'print("%.3f" % (elapsed * 1000))': ("benchmark", "ms", "min"),
    'print("{:.3f}".format(elapsed))': ("benchmark", "s", "min"),
    "print(round(elapsed, 3))": ("benchmark", "s", "min"),
    "print(100 / elapsed)": ("benchmark", "1/s", "max"),
    'print(elapsed); print("in seconds", file=sys.stderr)': ("benchmark", "s", "min"),
    'print(f"took {elapsed} s")': ("command", "", ""),
    'print("took", elapsed)': ("command", "", ""),
    "print(json.dumps(elapsed))": ("command", "", ""),
    "print(results)": ("command", "", ""),
    "for i in range(3): print(elapsed)": ("command", "", ""),
    "print(elapsed); print(elapsed)": ("command", "", ""),
    "[print(elapsed) for _ in range(3)]": ("command", "", ""),
    "sum([])": ("command", "", ""),
}


@pytest.mark.parametrize("statement", PRINTS)
def test_a_benchmark_is_believed_only_if_it_plainly_prints_one_number(statement: str, tmp_path: Path) -> None:
    use, unit, goal = PRINTS[statement]
    code = (
        f"import json, sys, time\nt = time.perf_counter()\nelapsed = time.perf_counter() - t\n{statement}\n"
    )
    spec = checked(project(tmp_path, {"double.py": MODULE, "bench.py": code}))
    scorer = spec.scorers[-1]
    assert (scorer.use, scorer.options["run"]) == (use, f"{PYTHON} bench.py")
    assert (scorer.options.get("unit", ""), scorer.options.get("goal", "")) == (unit, goal)
    assert spec.task.protected == ("bench.py",)


BENCHMARKS: list[tuple[dict[str, str], str | None, set[str]]] = [
    (
        {"benchmark.py": BENCH, "perf_all.py": BENCH},
        f"{PYTHON} benchmark.py",
        {"benchmark.py", "perf_all.py"},
    ),
    (
        {"benchmarks/speed bench.py": "x", "benchmarks/bench_speed.py": BENCH, "benchmarks/data.txt": ""},
        f"PYTHONPATH=. {PYTHON} benchmarks/bench_speed.py",
        {"benchmarks/"},
    ),
    (
        {"scripts/my benchmark.py": BENCH},
        f"PYTHONPATH=. {PYTHON} 'scripts/my benchmark.py'",
        {"scripts/my benchmark.py"},
    ),
    ({"perfect.py": BENCH}, None, set()),
    ({"lib/benchmark.py": BENCH}, None, set()),
    ({"bench.py": "def bench_double(benchmark):\n    benchmark(abs)\n"}, None, set()),
    ({"bench.py": "import sys\nprint(float(sys.argv[1]))\n"}, None, set()),
    ({"bench.py": "not python at all"}, None, set()),
    (
        {"bench.py": "import sys\nprint(sys.argv[1] if len(sys.argv) > 1 else 3)\n"},
        f"{PYTHON} bench.py",
        {"bench.py"},
    ),
    ({"Makefile": "bench:\n\t./run\n"}, "PATH=/opt/venv/bin:$PATH make -s bench", {"Makefile"}),
]


@pytest.mark.parametrize(("files", "command", "protected"), BENCHMARKS)
def test_benchmarks_are_found_by_name_place_and_content(
    files: dict[str, str], command: str | None, protected: set[str], tmp_path: Path
) -> None:
    spec = checked(project(tmp_path, {"double.py": MODULE, **files}))
    assert [*runs(spec, "benchmark"), *runs(spec, "command")] == ([command] if command else [])
    assert set(spec.task.protected) == protected


def test_a_script_named_bench_in_package_json(tmp_path: Path) -> None:
    package = {"scripts": {"test": "node --test", "bench": "node bench.js"}, "devDependencies": {"x": "1"}}
    spec = checked(
        project(tmp_path, {"package.json": json.dumps(package), "a.js": "", "package-lock.json": "{}"})
    )
    assert runs(spec, "command") == ["npm run -s bench"]
    assert spec.base.setup == ("npm ci --no-audit --no-fund",)
    assert spec.base.env == {"CI": "true"}


def test_the_set_up_of_a_python_project(tmp_path: Path) -> None:
    pyproject = """\
[build-system]
requires = ["hatchling"]
[project]
name = "my halver!"
[project.optional-dependencies]
test = ["x"]
[dependency-groups]
lint = ["l"]
dev = ["hypothesis>=6", {include-group = "lint"}, {include-group = "dev"}]
[tool.pytest.ini_options]
addopts = ["-n", "auto", "--cov=halver"]
"""
    files = {"pyproject.toml": pyproject, "halver/__init__.py": "", "tests/test_a.py": PYTEST}
    files |= {"requirements.txt": "", "requirements-dev.txt": "", "halver/fast.pyx": ""}
    spec = checked(project(tmp_path, files))
    pip = f"{PYTHON} -m pip install -q"
    assert spec.base.setup == (
        "python3 -m venv /opt/venv",
        f"{pip} pytest pytest-cov pytest-xdist",
        f"{pip} -r requirements.txt",
        f"{pip} -r requirements-dev.txt",
        f"{pip} -e '.[test]'",
        f"{pip} 'hypothesis>=6' l",
    )
    assert spec.task.name == "my-halver"
    assert "compiled" in (tmp_path / "race.toml").read_text()


def test_a_project_that_is_not_to_be_installed_gets_what_it_lists(tmp_path: Path) -> None:
    pyproject = '[project]\nname = "tool"\ndependencies = ["numpy>=1.2; python_version > \'3\'"]\n'
    spec = checked(project(tmp_path, {"pyproject.toml": pyproject, "tool.py": ""}))
    assert spec.base.setup[-1] == f"""{PYTHON} -m pip install -q 'numpy>=1.2; python_version > '"'"'3'"'"''"""


def test_many_test_files_are_named_by_a_pattern(tmp_path: Path) -> None:
    files = {f"test_{i}.py": PYTEST for i in range(20)} | {f"p{i}/tests/test_x.py": PYTEST for i in range(20)}
    spec = checked(project(tmp_path, {"double.py": MODULE, **files, "tests.py": PYTEST}))
    assert set(spec.task.protected) == {"**/tests/", "test_*.py", "tests.py"}


def test_without_any_metric_the_file_says_who_wins(tmp_path: Path) -> None:
    text = race_file(propose(project(tmp_path, {"double.py": MODULE, "test_double.py": PYTEST})))
    assert "the smallest change that passes every check wins" in text
    assert f'#use = "command"\n#run = "{PYTHON} -m pytest -q"' in text


def test_what_had_better_stay_outside(tmp_path: Path) -> None:
    files = {
        "double.py": MODULE,
        "test_double.py": PYTEST,
        ".env": "API_KEY=x",
        "env/pyvenv.cfg": "",
        "env/lib/python3.11/site-packages/thing/tests/test_thing.py": PYTEST,
        "node_modules/thing/test/a.test.js": "",
        "vendor/other/test_other.py": PYTEST,
    }
    spec = checked(project(tmp_path, files))
    assert spec.base.exclude == (".env", "env/", "node_modules/")
    assert spec.task.protected == ("test_double.py",)
    with collected(spec) as found:
        assert [f.path for f in found.files] == [
            b"double.py",
            b"test_double.py",
            b"vendor/other/test_other.py",
        ]


def test_names_of_any_characters(tmp_path: Path) -> None:
    names = [
        'test_"quoted".py',
        "test_back\\slash.py",
        "test_line\nend.py",
        "test_[a].py",
        "test_\u202eevil.py",
        "test_#.py",
    ]
    folder = project(tmp_path / 'my "project"', {"double.py": MODULE, **dict.fromkeys(names, PYTEST)})
    (folder / os.fsdecode(b"test_\xff.py")).write_text(PYTEST)
    spec = checked(folder)
    assert len(spec.task.protected) == len(names) + 1
    assert spec.task.name == "my-project"
    text = (folder / "race.toml").read_text()
    assert "\u202e" not in text
    assert "\\U0000202e" in text


def test_a_name_that_would_end_the_prompt(tmp_path: Path) -> None:
    name = 'x"""\nprotected = []\n[budget]\\'
    text = race_file(Proposal(name=name, test='echo """ && \x1b[31m true'))
    (tmp_path / "race.toml").write_text(text.replace(f"name = {json.dumps(name)}", 'name = "x"'))
    spec = load(tmp_path / "race.toml")
    assert name.partition("\n")[0] in spec.task.prompt
    assert spec.budget.cost_usd is None
    assert "\x1b" not in text


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = project(tmp_path / "outside", {"secret.py": PYTEST})
    folder = project(tmp_path / "inside", {"double.py": MODULE})
    (folder / "test_link.py").symlink_to(outside / "secret.py")
    assert runs(checked(folder), "tests") == []


def test_a_part_of_a_repository(tmp_path: Path) -> None:
    project(
        tmp_path,
        {
            "test_top.py": PYTEST,
            "part/double.py": MODULE,
            "part/tests/test_double.py": UNITTEST,
            ".gitignore": "*.log\n",
        },
    )
    with git.Repo.init(tmp_path) as repository:
        repository.git.add("-A")
        repository.git.execute(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"])
    (tmp_path / "part" / "test_ignored.log").write_text("")
    spec = checked(tmp_path / "part")
    assert spec.task.name == "part"
    assert spec.task.protected == ("tests/",)
    assert runs(spec, "tests") == [f"{PYTHON} -m unittest discover -s tests"]


def test_a_repository_without_a_commit_is_refused(tmp_path: Path) -> None:
    git.Repo.init(tmp_path).close()
    project(tmp_path, {"double.py": MODULE})
    with pytest.raises(SpecError, match="no commit yet"):
        write(tmp_path)
    assert not (tmp_path / "race.toml").exists()


def test_a_race_file_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    project(tmp_path, {"double.py": MODULE, "race.toml": "mine"})
    with pytest.raises(SpecError, match="is there already"):
        write(tmp_path)
    assert (tmp_path / "race.toml").read_text() == "mine"
    assert load(write(tmp_path, force=True)).entries[0].agent == "nop"


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    folder = project(tmp_path / "work", {"double.py": MODULE})
    (folder / "race.toml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="is there already"):
        write(folder)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
def test_what_is_no_project_is_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError):
        write(tmp_path / what)


def test_nothing_of_the_project_is_run(tmp_path: Path) -> None:
    trap = "open('trapped', 'w')\n"
    names = ("conftest.py", "test_a.py", "bench.py", "setup.py", "sitecustomize.py")
    write(project(tmp_path, dict.fromkeys(names, trap + PYTEST)))
    assert not (tmp_path / "trapped").exists()
