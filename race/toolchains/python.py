"""Python projects: pytest, unittest, Django's runner, or tests that are plain scripts.

The virtual environment lies outside of the project, so that no submission holds it. Its programs are called
by their full paths: the image's own PATH may be the only way to its Python, and stays as it is.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any, cast

from race.toolchains.tree import SourceTree, Toolchain, argument, pattern_of, protect, typable

VENV = "/opt/venv"
"""The virtual environment inside the sandbox."""
PYTHON = f"{VENV}/bin/python"
"""Its interpreter."""

_ADVICE = f"Python is {PYTHON}. What you install with `{PYTHON} -m pip install` is part of your work."
_IS_COMPILED = (
    "Parts of this project are compiled, once, in [base].setup. If agents may change them, put the command "
    "that compiles them before those of the tests and the benchmark."
)
_TEST_FILE = re.compile(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py")
_FOLDERS = ("tests", "test", "testing")
_ODD_FILE = re.compile(r"(?:.*/)?(?:tests|test)(?:\.py|/[^/]+\.py)")
_PYTEST = re.compile(
    r"^(?:async )?def test|^class Test\w*(?:\(\))?:|^\s*(?:import|from) pytest\b|^\s*@pytest\.", re.MULTILINE
)
_UNITTEST = re.compile(r"^\s*class .*TestCase\b", re.MULTILINE)
_SCRIPT = re.compile(r"^\s*assert\b|\bsys\.exit\(|\bSystemExit\b", re.MULTILINE)
_COMPILED = re.compile(r".*\.(?:pyx|pxd|c|cc|cpp|rs|f90)")
_REQUIREMENTS = (
    ("requirements.txt",),
    (
        *("requirements-dev.txt", "requirements_dev.txt", "dev-requirements.txt", "requirements/dev.txt"),
        *(
            "requirements-test.txt",
            "requirements_test.txt",
            "requirements-tests.txt",
            "test-requirements.txt",
        ),
        *("requirements/test.txt", "requirements/tests.txt", "tests/requirements.txt"),
    ),
)
_FOR_TESTS = ("test", "tests", "testing", "dev")
_PLUGINS = {
    "pytest-cov": r"--cov\b",
    "pytest-xdist": r"(?:^|[\s\"'=])-n[\s=\"',]*(?:auto|logical|\d)|--numprocesses",
    "pytest-timeout": r"--timeout\b|^\s*timeout\s*=|pytest\.mark\.timeout",
    "pytest-asyncio": r"asyncio_mode|pytest\.mark\.asyncio",
    "pytest-benchmark": r"--benchmark-",
    "pytest-django": r"DJANGO_SETTINGS_MODULE",
    "anyio": r"pytest\.mark\.anyio",
}


def python(tree: SourceTree) -> Toolchain | None:
    """Recognize a Python project; None if there is nothing of Python in it."""
    own = tree.own()
    if not any(p.endswith(".py") for p in own) and not tree.has("pyproject.toml"):
        return None
    configured = _configuration(tree)
    standard = [p for p in own if _TEST_FILE.fullmatch(p)]
    odd = [p for p in own if p not in standard and _ODD_FILE.fullmatch(p) and _holds_tests(tree.text(p))]
    test = _test_command(tree, configured, standard, odd)
    tests = {*standard, *odd}
    conftests = [p for p in own if posixpath.basename(p) == "conftest.py"]
    runs_pytest = test is not None and "-m pytest" in test
    protected = protect(
        tree,
        lambda p: p in tests or p in conftests,
        folders=_FOLDERS,
        wildcards=("test_*.py", "*_test.py", "conftest.py"),
    )
    if runs_pytest:
        protected += [pattern_of(p) for p in configured]
    about = _table(tree.toml("pyproject.toml").get("project"))
    is_compiled = _installable(tree) and any(_COMPILED.fullmatch(p) for p in own)
    return Toolchain(
        "Python",
        test,
        name=str(about.get("name", "")),
        setup=_setup(tree, tests, configured, pytest=runs_pytest),
        protected=tuple(protected),
        advice=(_ADVICE,),
        notes=(_IS_COMPILED,) if is_compiled else (),
    )


def import_path(tree: SourceTree, script: str = "") -> str:
    """What a command needs before it to import the project's modules: nothing, or ``PYTHONPATH=…``."""
    if _installable(tree):
        return ""
    places = ["src"] if any(re.fullmatch(r"src/.+\.py", p) for p in tree.paths) else []
    if "/" in script or places:
        places.append(".")
    return f"PYTHONPATH={':'.join(places)} " if places else ""


def is_test_file(path: str) -> bool:
    """Whether pytest would look into a file of that name."""
    return _TEST_FILE.fullmatch(path) is not None


def _holds_tests(text: str) -> bool:
    return bool(
        re.search(r"^(?:async )?def test|^class Test\w*(?:\(\))?:", text, re.MULTILINE)
        or _UNITTEST.search(text)
    )


def _configuration(tree: SourceTree) -> dict[str, str]:
    """The files that configure pytest, and the text that does."""
    found: dict[str, str] = {}
    if _table(tree.toml("pyproject.toml").get("tool")).get("pytest"):
        found["pyproject.toml"] = _section(tree.text("pyproject.toml"), r"tool\.pytest[^\]]*")
    for path, section in (
        *((p, "pytest") for p in ("pytest.ini", ".pytest.ini", "tox.ini")),
        ("setup.cfg", "tool:pytest"),
    ):
        if text := _section(tree.text(path), re.escape(section)):
            found[path] = text
    for path in ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"):
        if tree.has(path):
            found.setdefault(path, tree.text(path))
    return found


def _section(text: str, name: str) -> str:
    """All sections of a configuration file whose names match, with their headings."""
    return "".join(
        m[0] for m in re.finditer(rf"^\[{name}\][^\n]*\n(?:(?!\[[\w.:\"-]+\]).*\n?)*", text, re.MULTILINE)
    )


def _test_command(
    tree: SourceTree, configured: Mapping[str, str], standard: list[str], odd: list[str]
) -> str | None:
    texts = {p: tree.text(p) for p in (*standard, *odd)}
    before = import_path(tree)
    trusted = any(re.search(r"python_files|--doctest", text) for text in configured.values())
    asked_for = bool(configured) or re.search(r"\bpytest\b", tree.text("tox.ini")) is not None
    if "django" in tree.text("manage.py") and not asked_for:
        return f"{PYTHON} manage.py test"
    if trusted or (standard and (asked_for or any(_PYTEST.search(texts[p]) for p in standard))):
        return f"{before}{PYTHON} -m pytest -q"
    if any(_UNITTEST.search(texts[p]) for p in standard):
        return f"{before}{PYTHON} {_unittest(tree, standard) or '-m pytest -q'}"
    named = [p for p in odd if typable(p)]
    if named:
        return f"{before}{PYTHON} -m pytest -q {' '.join(map(argument, named))}"
    scripts = [p for p in standard if typable(p) and _SCRIPT.search(texts[p])]
    return " && ".join(f"{import_path(tree, p)}{PYTHON} {argument(p)}" for p in scripts) or None


def _unittest(tree: SourceTree, files: list[str]) -> str | None:
    """The discovery of unittest where it finds all of them: one folder, one naming. pytest runs the rest."""
    folders = {posixpath.dirname(p) for p in files}
    begins = {posixpath.basename(p).startswith("test_") for p in files}
    if len(folders) > 1 or len(begins) > 1:
        return None
    folder = folders.pop()
    if "/" in folder or not typable(folder):
        return None
    command = "-m unittest discover"
    if folder:
        command += f" -s {argument(folder)}" + (" -t ." if tree.has(f"{folder}/__init__.py") else "")
    return command if begins.pop() else f"{command} -p '*_test.py'"


def _installable(tree: SourceTree) -> bool:
    """Whether pip can install it. Without ``[build-system]``, ``[project]`` only lists what it needs."""
    return (
        "build-system" in tree.toml("pyproject.toml")
        or tree.has("setup.py")
        or bool(_section(tree.text("setup.cfg"), "metadata"))
    )


def _setup(
    tree: SourceTree, tests: set[str], configured: Mapping[str, str], *, pytest: bool
) -> tuple[str, ...]:
    pip = f"{PYTHON} -m pip install -q"
    commands = [f"python3 -m venv {VENV}"]
    if pytest:
        said = "\n".join([*configured.values(), *(tree.text(p) for p in sorted(tests))])
        plugins = [name for name, sign in _PLUGINS.items() if re.search(sign, said, re.MULTILINE)]
        commands.append(" ".join([pip, "pytest", *plugins]))
    files = [tree.first(*names) for names in _REQUIREMENTS]
    commands += [f"{pip} -r {argument(file)}" for file in files if file]
    data = tree.toml("pyproject.toml")
    project = _table(data.get("project"))
    if _installable(tree):
        extras = _table(project.get("optional-dependencies"))
        extra = next((e for e in _FOR_TESTS if e in extras), None)
        commands.append(f"{pip} -e {shlex.quote(f'.[{extra}]' if extra else '.')}")
    elif needed := _strings(project.get("dependencies")):
        commands.append(f"{pip} {shlex.join(needed)}")
    groups = _table(data.get("dependency-groups"))
    group = next((g for g in _FOR_TESTS if g in groups), None)
    if group and (needed := _group(groups, group, set())):
        commands.append(f"{pip} {shlex.join(needed)}")
    return tuple(commands)


def _group(groups: Mapping[str, Any], name: str, seen: set[str]) -> list[str]:
    """The requirements of a dependency group, those of the groups it includes among them (PEP 735)."""
    if name in seen:
        return []
    seen.add(name)
    listed: object = groups.get(name)
    needed: list[str] = []
    for item in cast("list[object]", listed) if isinstance(listed, list) else []:
        included = _table(item).get("include-group")
        needed += [item] if isinstance(item, str) else _group(groups, str(included), seen)
    return needed


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _strings(value: object) -> list[str]:
    return [v for v in cast("list[object]", value) if isinstance(v, str)] if isinstance(value, list) else []
