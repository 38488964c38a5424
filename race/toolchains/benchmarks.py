"""Finding what a project measures itself with.

Nothing is run, so a script is read: only one that plainly prints one number and nothing else is taken for it.
Of any other the wall time is measured.
"""

from __future__ import annotations

import ast
import posixpath
import re
import warnings
from dataclasses import dataclass
from typing import Literal

from race.toolchains.compiled import MAKEFILES, has_target
from race.toolchains.javascript import script_command, scripts
from race.toolchains.python import PYTHON, import_path, is_test_file
from race.toolchains.tree import SourceTree, Toolchain, argument, pattern_of, typable

_SCRIPT = re.compile(r"(?:bench|[^/]*benchmark|perf(?=[._\d-]|ormance|test))[^/]*\.py", re.IGNORECASE)
_FOLDERS = frozenset(
    {"bench", "benches", "benchmark", "benchmarks", "perf", "performance", "scripts", "tools"}
)
_WHOLE_FOLDERS = _FOLDERS - {"scripts", "tools"}
_RATE = re.compile(
    r"per_?s(?:ec|econd)?\b|/ *(?:elapsed|seconds|duration|total|dt)\b|throughput|\b(?:ops|qps|rps|fps)\b"
)
_MILLISECONDS = re.compile(r"(?:\b|_)ms\b|milli_?sec|\* *(?:1000|1_000|1e3)\b")
_SECONDS = re.compile(r"\bperf_counter\(|\btime\.(?:time|monotonic|process_time)\(|\btimeit\b")
_NOT_A_NUMBER = re.compile(
    r"results|times|stats|statistics|report|table|summary|rows|lines|dumps|join|pformat|main"
)
_REPEATING = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class BenchmarkScript:
    """A command that measures the project.

    Attributes:
        command: how to run it.
        protected: patterns of what it is made of.
        prints_number: whether it is known to print one number and nothing else.
        unit: of the number, as far as the script tells; else empty.
        goal: whether less or more is better.
    """

    command: str
    protected: tuple[str, ...]
    prints_number: bool = False
    unit: str = ""
    goal: Literal["min", "max"] = "min"


def benchmarks(tree: SourceTree, toolchain: Toolchain | None) -> list[BenchmarkScript]:
    """What could measure the project, the most promising first.

    Args:
        tree: the project.
        toolchain: what its tests are run with; a Python script is run by its interpreter.
    """
    in_python = toolchain is not None and toolchain.language == "Python"
    found = [
        s
        for p in sorted(tree.own(), key=_rank)
        if _is_candidate(p) and (s := _script(tree, p, in_python=in_python)) is not None
    ]
    found.sort(key=lambda s: not s.prints_number)
    if "bench" in scripts(tree):
        found.append(BenchmarkScript(script_command(tree, "bench"), ("package.json",)))
    makefile = tree.first(*MAKEFILES)
    if makefile is not None and has_target(tree.text(makefile), "bench"):
        path = f"PATH={posixpath.dirname(PYTHON)}:$PATH " if in_python else ""
        found.append(BenchmarkScript(f"{path}make -s bench", (makefile,)))
    return found


def _is_candidate(path: str) -> bool:
    folder, name = posixpath.split(path)
    return (
        _SCRIPT.fullmatch(name) is not None
        and not is_test_file(path)
        and typable(path)
        and (not folder or folder in _FOLDERS)
    )


def _rank(path: str) -> tuple[int, bool, str]:
    name = posixpath.basename(path)
    return path.count("/"), name not in ("bench.py", "benchmark.py"), path


def _script(tree: SourceTree, path: str, *, in_python: bool) -> BenchmarkScript | None:
    text = tree.text(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # what Python thinks of the script's escapes is of no interest here
            module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not _does_something(module) or _needs_arguments(module):
        return None
    printed = _printed(module)
    number = len(printed) == 1 and _is_one_number(printed[0])
    shown = ast.unparse(printed[0]) if number else ""
    is_rate = number and _RATE.search(shown) is not None
    folder = posixpath.dirname(path)
    return BenchmarkScript(
        f"{import_path(tree, path)}{PYTHON if in_python else 'python3'} {argument(path)}",
        (pattern_of(folder, folder=True) if folder in _WHOLE_FOLDERS else pattern_of(path),),
        prints_number=number,
        unit=_unit(text, shown) if not is_rate else "1/s",
        goal="max" if is_rate else "min",
    )


def _unit(text: str, shown: str) -> str:
    """The unit of what is printed, from its own expression, or else from the rest of the script."""
    for where in (shown, text):
        if _MILLISECONDS.search(where):
            return "ms"
    return "s" if _SECONDS.search(text) else ""


def _does_something(module: ast.Module) -> bool:
    """Whether running it does more than defining things."""
    for node in module.body:
        if isinstance(node, ast.For | ast.While | ast.With):
            return True
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            return True
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            return True
    return False


def _needs_arguments(module: ast.Module) -> bool:
    """Whether it cannot be run without being told something."""
    optional_argv = any(
        ast.unparse(n) == "len(sys.argv)" for n in ast.walk(module) if isinstance(n, ast.Call)
    )
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Subscript)
            and ast.unparse(node).startswith("sys.argv[")
            and not optional_argv
        ):
            return True
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        first = node.args[0]
        keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
        if node.func.attr != "add_argument" or not (
            isinstance(first, ast.Constant) and isinstance(first.value, str)
        ):
            continue
        optional = first.value.startswith("-") or keywords.get("nargs") in ("'?'", "'*'")
        if not optional or keywords.get("required") == "True":
            return True
    return False


def _printed(module: ast.Module) -> list[ast.expr]:
    """What it prints to standard output, an expression each time; two ellipses stand for what is unclear."""
    found: list[ast.expr] = []
    unclear = ast.Constant(...)

    def look(node: ast.AST, *, repeated: bool) -> None:
        if isinstance(node, ast.Call) and (printed := _arguments(node)) is not None:
            found.extend([printed[0]] if len(printed) == 1 and not repeated else [unclear, unclear])
        again = repeated or isinstance(node, _REPEATING)
        for child in ast.iter_child_nodes(node):
            look(child, repeated=again)

    look(module, repeated=False)
    return found


def _arguments(call: ast.Call) -> list[ast.expr] | None:
    """What a call prints to standard output; None if it does not print there."""
    name = ast.unparse(call.func)
    if name in ("sys.stdout.write", "click.echo", "typer.echo"):
        return call.args
    if name not in ("print", "rich.print", "pprint", "pprint.pprint"):
        return None
    to = next((ast.unparse(k.value) for k in call.keywords if k.arg == "file"), "sys.stdout")
    return call.args if to == "sys.stdout" else None


def _is_one_number(node: ast.expr) -> bool:  # noqa: PLR0911 - one for each kind of expression
    """Whether an expression is, as far as it can be seen, one number or the text of one."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.JoinedStr(values=values):
            texts = [v.value for v in values if isinstance(v, ast.Constant)]
            fields = [v.value for v in values if isinstance(v, ast.FormattedValue)]
            return not "".join(map(str, texts)).strip() and len(fields) == 1 and _is_one_number(fields[0])
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return re.fullmatch(r"\s*%[-+ #0]*\d*(?:\.\d+)?[dfgeFGE]\s*", text) is not None
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return re.fullmatch(r"\s*\{[^{}]*\}\s*", text) is not None
        case ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript():
            named = node.func if isinstance(node, ast.Call) else node
            return not _NOT_A_NUMBER.fullmatch(ast.unparse(named).rpartition(".")[2])
        case ast.BinOp() | ast.UnaryOp() | ast.IfExp():
            return not any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node))
        case _:
            return False
