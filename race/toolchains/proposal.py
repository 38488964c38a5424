"""What a race on a project could be: everything that the project's files tell, put together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from race.errors import SpecError
from race.toolchains.benchmarks import BenchmarkScript, benchmarks
from race.toolchains.compiled import cargo, go, make
from race.toolchains.javascript import javascript
from race.toolchains.python import PYTHON, python
from race.toolchains.tree import SourceTree, Toolchain


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a race on a project could be.

    Attributes:
        name: of the task.
        language: what the project is made with, for people; empty if nothing was recognized.
        test: the command that runs its tests, or None.
        benchmarks: what could measure it, the best first.
        protected: patterns of what must stay as it is.
        exclude: patterns of what had better stay out of the sandbox.
        setup: commands that prepare the base.
        env: environment of the base.
        advice: sentences for the agents.
        notes: sentences for whoever edits the file.
        other_tests: test commands of other parts of the project.
    """

    name: str
    language: str = ""
    test: str | None = None
    benchmarks: tuple[BenchmarkScript, ...] = ()
    protected: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    other_tests: tuple[str, ...] = ()

    @property
    def benchmark(self) -> BenchmarkScript | None:
        """What shall measure it."""
        return self.benchmarks[0] if self.benchmarks else None


def propose(folder: Path) -> Proposal:
    """Look at a project. Nothing of it is run.

    Args:
        folder: the project; it may be a part of a repository, or in none.

    Raises:
        SpecError: it is no folder, has no files, or its repository has no commit.
    """
    folder = folder.absolute()
    if not folder.is_dir():
        raise SpecError(f"{folder}: there is no such folder")
    tree = SourceTree.of(folder)
    found = [
        t for t in (recognize(tree) for recognize in (python, cargo, go, javascript, make)) if t is not None
    ]
    tested = [t for t in found if t.test]
    main = next(iter(tested or found), None)
    if main is not None and main.language == "make" and found[0].language == "Python":
        main = _through_make(main, found[0])
    scripts = benchmarks(tree, main)
    protected = [*(main.protected if main else ()), *(p for s in scripts for p in s.protected)]
    return Proposal(
        name=_task_name(main.name if main else "") or tree.name,
        language=main.language if main else "",
        test=main.test if main else None,
        benchmarks=tuple(scripts),
        protected=tuple(dict.fromkeys(protected)),
        exclude=tree.exclude,
        setup=main.setup if main else (),
        env=main.env if main else {},
        advice=main.advice if main else (),
        notes=main.notes if main else (),
        other_tests=tuple(t.test for t in tested[1:] if t.test and main and t.test not in (main.test or "")),
    )


def _through_make(made: Toolchain, found: Toolchain) -> Toolchain:
    """A Python project that only its makefile can test, with the virtual environment first on PATH."""
    folder = PYTHON.rpartition("/")[0]
    return Toolchain(
        "Python",
        f"PATH={folder}:$PATH {made.test}",
        name=found.name,
        setup=found.setup,
        env=found.env,
        protected=(*found.protected, *made.protected),
        advice=found.advice,
        notes=found.notes,
    )


def _task_name(name: str) -> str:
    """What a project calls itself, as the name of a task."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:40]
