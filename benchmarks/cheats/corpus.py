"""The corpus: one small TOML file for each submission, with the verdict that it has to get.

    course = "primes"                # the race that it takes part in: a folder below courses/
    what = "Commit the tampered file"
    listed = 1                       # its number in the list of cheats that the project started from, if it is there
    commands = ['echo "print(0.01)" > bench.py']   # what the agent does; $BASE is the base's commit, $F a folder
    expect = "ineligible"            # it must not be eligible, and a reason must match
    reason = "bench.py is protected and was changed"   # a regular expression

``expect`` may also be ``"unearned"`` (it may stay, but must neither win nor be measured as faster than the base: the
cheat has no effect) and ``"honest"`` (it must stay eligible). With ``note`` one of the verdict's notes must match. With
``where = "fork"`` what it does is only seen in the fork; with ``needs = ["cc"]`` it is left out where a program is
missing.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent

PRELUDE = 'export BASE=$(git rev-list --max-parents=0 HEAD 2>/dev/null | tail -n1) F=/tmp/f; mkdir -p "$F"\n'
"""What every command begins with."""


@dataclass(frozen=True, slots=True)
class Case:
    """One submission and the verdict that it has to get."""

    name: str
    course: str
    what: str
    commands: tuple[str, ...]
    expect: Literal["ineligible", "unearned", "honest"]
    reason: str = ""
    note: str = ""
    listed: int | None = None
    needs: tuple[str, ...] = ()

    @property
    def script(self) -> list[str]:
        """Its commands as an entry of a race has them."""
        return [PRELUDE + c for c in self.commands]


def load(folder: Path = HERE / "cases") -> list[Case]:
    """All cases, by name.

    Raises:
        ValueError: a file is not as described above.
    """
    cases: list[Case] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            data = tomllib.loads(path.read_text("utf-8"))
            data = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
            case = Case(name=path.stem, **data)
            re.compile(case.reason)
        except (TypeError, ValueError, re.error) as e:
            raise ValueError(f"{path}: {e}") from e
        if (case.expect == "ineligible") != bool(case.reason):
            raise ValueError(
                f"{path}: a reason belongs to what is expected to be ineligible, and to nothing else"
            )
        cases.append(case)
    return cases
