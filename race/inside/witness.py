"""Runs a Python program, a pytest or a unittest session, and writes down what really happened.

Started as ``python witness.py REPORT`` with a JSON object on standard input: ``kind`` (``"script"``, ``"pytest"`` or
``"unittest"``), ``argv``, ``root`` (what ``sys.path`` begins with), ``token``, and ``plugins`` for pytest. Every line
of the report is a JSON array that begins with the token, so what others write into the file is told apart.

The runner and the standard library are imported before the project is on the path, and what of them counts is
remembered then: if the code under test replaces the clock or the runner, the report names what. It is no sandbox:
code in the same process can always do more. Answers and clocks that must hold belong into another process.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import inspect
import json
import os
import runpy
import sys
import time
import timeit
import traceback
import types
import unittest
from collections.abc import Callable
from typing import Any

_CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")
_PLAIN = (types.FunctionType, types.BuiltinFunctionType, type)


def guarded(packages: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    """What must be the same at the end: by name, the object and, of a function, its code."""
    found: dict[str, tuple[Any, Any]] = {}

    def keep(name: str, value: Any) -> None:
        if isinstance(value, _PLAIN):
            found[name] = (value, getattr(value, "__code__", None))

    for name in _CLOCKS:
        keep("time." + name, getattr(time, name))
        if hasattr(time, name + "_ns"):
            keep("time." + name + "_ns", getattr(time, name + "_ns"))
    for name, value in vars(builtins).items():
        if name != "_":
            keep("builtins." + name, value)
    for name in ("_getframe", "exit", "settrace", "setprofile"):
        keep("sys." + name, getattr(sys, name))
    keep("os._exit", os._exit)
    modules = [timeit] + [m for n, m in list(sys.modules.items()) if n.split(".")[0] in packages]
    for module in modules:
        for name, value in list(vars(module).items()):
            # Of what a module only imported, its own module is asked.
            if getattr(value, "__module__", None) != module.__name__:
                continue
            keep(module.__name__ + "." + name, value)
            if isinstance(value, type):
                for inner, method in list(vars(value).items()):
                    keep(module.__name__ + "." + name + "." + inner, method)
    return found


def now(name: str) -> Any:
    """What a remembered name stands for now."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        if module is not None:
            value: Any = module
            for part in parts[length:]:
                value = vars(value).get(part) if isinstance(value, (type, types.ModuleType)) else None
            return value
    return None


def replaced(before: dict[str, tuple[Any, Any]]) -> list[str]:
    """The names that stand for something else than before."""
    out: list[str] = []
    for name, (value, code) in before.items():
        current = now(name)
        if current is not value or getattr(current, "__code__", None) is not code:
            out.append(name)
    return out


def fingerprint(code: Any) -> str:
    """What a function's code does, whatever file and line it is at."""
    digest = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, types.CodeType):
            for piece in (part.co_code, part.co_names, part.co_varnames, part.co_freevars):
                digest.update(repr(piece).encode())
            for constant in part.co_consts:
                add(constant)
        else:
            digest.update(repr(part).encode())

    add(code)
    return digest.hexdigest()[:16]


def code_of(test: Any) -> str:
    """The fingerprint of a test's function, or nothing where it has none in Python."""
    function = getattr(test, "__wrapped__", test)
    code = getattr(function, "__code__", None)
    return fingerprint(code) if code is not None else ""


class Report:
    """The lines of the report, each written as it happens."""

    def __init__(self, path: str, token: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        write, dumps = os.write, json.dumps

        def add(*parts: Any) -> None:
            write(fd, (dumps([token, *parts]) + "\n").encode())

        self.add: Callable[..., None] = add


class PytestPlugin:
    """Reports what pytest collected and how each test ended."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._codes: dict[str, Any] = {}

    def pytest_collection_finish(self, session: Any) -> None:
        """All tests are known."""
        for item in session.items:
            function = getattr(item, "function", None)
            self._codes[item.nodeid] = getattr(function, "__code__", None)
            self._report.add(
                "test", item.nodeid, code_of(function), str(getattr(item, "path", None) or item.fspath)
            )

    def pytest_collectreport(self, report: Any) -> None:
        """Something could not be collected."""
        if report.failed:
            self._report.add("uncollected", report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A phase of a test has ended."""
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if outcome == "skipped" else "xpassed"
        self._report.add("outcome", report.nodeid, report.when, outcome)

    def pytest_runtest_teardown(self, item: Any) -> None:
        """A test has run: what ran must be what was collected."""
        function = getattr(item, "function", None)
        if getattr(function, "__code__", None) is not self._codes.get(item.nodeid):
            self._report.add("exchanged", item.nodeid)


class Recording(unittest.TextTestResult):
    """Reports how each test of unittest ended."""

    report: Report | None = None

    def _add(self, test: Any, outcome: str) -> None:
        if self.report is not None:
            self.report.add("outcome", test.id(), "call", outcome)

    def startTest(self, test: Any) -> None:  # noqa: N802 - unittest's own names
        """A test begins."""
        super().startTest(test)
        method: Any = getattr(test, getattr(test, "_testMethodName", ""), None)
        path = getattr(sys.modules.get(type(test).__module__), "__file__", "") or ""
        if self.report is not None:
            self.report.add("test", test.id(), code_of(method), path)

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        """It passed."""
        super().addSuccess(test)
        self._add(test, "passed")

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        """An assertion failed."""
        super().addFailure(test, err)
        self._add(test, "failed")

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        """It raised."""
        super().addError(test, err)
        self._add(test, "failed")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        """It was skipped."""
        super().addSkip(test, reason)
        self._add(test, "skipped")

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        """It failed as expected."""
        super().addExpectedFailure(test, err)
        self._add(test, "xfailed")

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        """It passed though it was expected to fail."""
        super().addUnexpectedSuccess(test)
        self._add(test, "xpassed")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        """A part of a test ended."""
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._add(test, "failed")


class _Runner(unittest.TextTestRunner):
    def _makeResult(self) -> Any:  # noqa: N802 - unittest's own name
        return Recording(self.stream, self.descriptions, self.verbosity)


def watch_files(root: str) -> set[str]:
    """Note which of the project's files its tests open. Returns the set that they are put into."""
    opened: set[str] = set()
    prefix = root.rstrip("/") + "/"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not arguments or not isinstance(arguments[0], (str, bytes)):
            return
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if not path.startswith(prefix) or path.endswith((".py", ".pyc")):
            return
        current: Any = inspect.currentframe()
        while current is not None:
            name = current.f_code.co_filename
            if name.startswith(prefix):
                if os.path.basename(name).startswith(("test", "conftest")):
                    opened.add(path)
                return
            current = current.f_back

    if hasattr(sys, "addaudithook"):
        sys.addaudithook(hook)
    return opened


def run_pytest(asked: dict[str, Any], report: Report) -> int:
    """A session of pytest, without plugins but those of the base."""
    pytest = importlib.import_module("pytest")
    config = importlib.import_module("_pytest.config")
    for name in config.default_plugins:
        importlib.import_module("_pytest." + name)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = asked["plugins"]
    if plugins is None:
        metadata = importlib.import_module("importlib.metadata")
        points: Any = metadata.entry_points()
        if hasattr(points, "select"):
            chosen: Any = points.select(group="pytest11")
        else:  # before Python 3.10
            chosen = points.get("pytest11", [])
        plugins = sorted({p.value.split(":")[0] for p in chosen})
        report.add("plugins", plugins)
    for name in plugins:
        importlib.import_module(name)
    before = guarded(("_pytest", "pluggy", "unittest"))
    sys.path.insert(0, asked["root"])
    options = [o for name in plugins for o in ("-p", name)]
    status = int(
        pytest.main([*asked["argv"], "-p", "no:cacheprovider", *options], plugins=[PytestPlugin(report)])
    )
    report.add("replaced", replaced(before))
    return status


def run_unittest(asked: dict[str, Any], report: Report) -> int:
    """A session of unittest."""
    before = guarded(("unittest",))
    sys.path.insert(0, asked["root"])
    Recording.report = report
    made = unittest.TestProgram(
        module=None, argv=["python -m unittest", *asked["argv"]], testRunner=_Runner, exit=False
    )
    report.add("replaced", replaced(before))
    return 0 if made.result.wasSuccessful() else 1


def run_script(asked: dict[str, Any], report: Report) -> int:
    """A program, as ``python PROGRAM`` or ``python -m PROGRAM`` runs it."""
    before = guarded(())
    streams = (sys.stdout, sys.__stdout__)
    sys.path.insert(0, asked["root"])
    sys.argv = list(asked["argv"])
    status = 0
    left = ""
    try:
        if asked["module"]:
            runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as e:
        frames = traceback.extract_tb(e.__traceback__)
        left = frames[-1].filename if frames else ""
        if isinstance(e.code, int):
            status = e.code
        elif e.code is not None:
            print(e.code, file=sys.stderr)
            status = 1
    found = replaced(before)
    if (sys.stdout, sys.__stdout__) != streams:
        found.append("sys.stdout")
    report.add("replaced", found)
    report.add("left", left)
    return status


def main() -> int:
    """Run what is asked for on standard input."""
    asked: dict[str, Any] = json.loads(sys.stdin.readline())
    report = Report(sys.argv[1], asked.pop("token"))
    del sys.path[0]  # where this file lies
    sys.dont_write_bytecode = True
    opened: set[str] = watch_files(asked["root"]) if asked["kind"] != "script" else set()
    run = {"pytest": run_pytest, "unittest": run_unittest, "script": run_script}[asked["kind"]]
    status = run(asked, report)
    report.add("opened", sorted(opened))
    report.add("end", status)
    return status


if __name__ == "__main__":
    sys.exit(main())
