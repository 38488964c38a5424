"""What a command of a race file is: a Python program, a session of pytest or unittest, or something else."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["script", "pytest", "unittest"]

_SHELL = re.compile(r"[|&;<>()$`\n*?~{}#!\[\]]")
"""Characters that mean something to a shell: a command with one of them is the shell's business."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?")
_SWITCHES = frozenset({"-B", "-u", "-O", "-OO", "-E", "-s", "-S", "-I", "-P", "-b", "-bb", "-q", "-v"})


@dataclass(frozen=True, slots=True)
class Program:
    """A command that the framework can run in its own way.

    Attributes:
        kind: what it is.
        python: the interpreter with its switches; empty where it is that of an installed ``pytest``.
        argv: of the program: for ``"script"`` beginning with its path, or the name of its module.
        module: whether ``argv[0]`` is a module, as after ``-m``.
        env: what the command sets for itself.
    """

    kind: Kind
    python: tuple[str, ...]
    argv: tuple[str, ...]
    module: bool = False
    env: dict[str, str] = field(default_factory=dict[str, str])


def recognised(command: str) -> Program | None:
    """The Python program that a command runs, or None if it is anything else."""
    if _SHELL.search(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    env: dict[str, str] = {}
    while words and _ASSIGNMENT.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if not words:
        return None
    if words[0] in ("pytest", "py.test"):
        return Program("pytest", (), tuple(words[1:]), env=env)
    if not _PYTHON.fullmatch(words[0]):
        return None
    return _python_program(words, env)


def _python_program(words: list[str], env: dict[str, str]) -> Program | None:
    python = [words[0]]
    rest = words[1:]
    while rest and rest[0] in _SWITCHES:
        python.append(rest.pop(0))
    while len(rest) > 1 and rest[0] in ("-X", "-W"):
        python += [rest.pop(0), rest.pop(0)]
    if not rest:
        return None
    if rest[0] == "-m" and len(rest) > 1:
        if rest[1] in ("pytest", "unittest"):
            kind: Kind = "pytest" if rest[1] == "pytest" else "unittest"
            return Program(kind, tuple(python), tuple(rest[2:]), env=env)
        return Program("script", tuple(python), tuple(rest[1:]), module=True, env=env)
    if rest[0].startswith("-"):
        return None
    return Program("script", tuple(python), tuple(rest), env=env)
