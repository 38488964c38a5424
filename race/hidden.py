"""Files that a scorer adds to a replay and that no agent ever sees.

They lie beside the race file, outside of the project (or are excluded from it), and are written into the replay just
before the scorer runs its command.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, ValidationInfo

from race.project import matching
from race.sandbox import Entry, File
from race.spec import RaceSpec


def _hidden_path(value: Path, info: ValidationInfo) -> Path:
    """A path of a race file, absolute, that no agent sees."""
    context: Any = info.context
    spec: Any = context["spec"] if context else None
    if not isinstance(spec, RaceSpec):
        return value.absolute()
    path = (spec.folder / value.expanduser()).resolve()
    if not path.exists():
        raise ValueError(f"{str(path)!r} is not there")
    project = (spec.folder / spec.base.project).resolve()
    if path.is_relative_to(project):
        inside = str(path.relative_to(project)).encode()
        if not matching(spec.base.exclude, [inside, inside + b"/x"]):
            raise ValueError(
                f"{str(value)!r} lies in the project, where every agent sees it; add it to base.exclude"
            )
    return path


HiddenPath: TypeAlias = Annotated[Path, AfterValidator(_hidden_path)]
"""A file or folder, relative to the race file, in the options of a scorer."""
HiddenFiles: TypeAlias = tuple[HiddenPath, ...]
"""Several of them."""


def hidden_entries(paths: Sequence[Path], workdir: str) -> list[Entry]:
    """What to write into a replay: each file, and what is in each folder, directly into the project's folder.

    A hidden ``tests/`` folder is named ``hidden = ["answers/tests"]`` and becomes ``tests/`` in the project.
    """
    root = Path(workdir)
    entries: list[Entry] = []
    for path in paths:
        found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in found:
            target = root / path.name / file.relative_to(path) if path.is_dir() else root / path.name
            mode = stat.S_IMODE(file.stat().st_mode) & 0o777
            entries.append(File(str(target).encode(), file, mode))
    return entries
