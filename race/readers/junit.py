"""JUnit XML: which test cases there were, and how each ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from xml.parsers import expat

from race.errors import Rejected
from race.readers.reading import bounded
from race.submission import printable

CaseOutcome: TypeAlias = Literal["passed", "failed", "skipped"]

MOST_CASES: Final = 200_000
_DEEPEST: Final = 100


@dataclass(frozen=True, slots=True)
class CaseReport:
    """How test cases ended.

    Attributes:
        cases: by name, which is that of the class, two colons, and that of the case. One that is there several times
            failed if any of them did.
    """

    cases: Mapping[str, CaseOutcome]

    def of(self, outcome: CaseOutcome) -> tuple[str, ...]:
        """The cases that ended so."""
        return tuple(name for name, how in self.cases.items() if how == outcome)

    @property
    def ran(self) -> int:
        """How many were not skipped."""
        return len(self.cases) - len(self.of("skipped"))


def junit(data: bytes) -> CaseReport:
    """Read a report as pytest, surefire, gradle, go-junit-report and many others write it.

    Raises:
        Rejected: it is larger than is read, not well-formed, declares a document type (which is how entities that grow
            without bound come in), has no test case, or too many.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _no_doctype
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    try:
        parser.Parse(bounded(data), True)  # noqa: FBT003 - expat takes it by position only
    except expat.ExpatError as e:
        raise Rejected(f"it is not well-formed XML: {printable(str(e))[:200]}") from e
    if not reader.cases:
        raise Rejected("there is no test case in it")
    return CaseReport(reader.cases)


def _no_doctype(*_: object) -> None:
    raise Rejected("it declares a document type, which is not read")


class _Reader:
    def __init__(self) -> None:
        self.cases: dict[str, CaseOutcome] = {}
        self._open: list[str] = []
        self._case: str | None = None
        self._outcome: CaseOutcome = "passed"

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._open.append(tag)
        if len(self._open) > _DEEPEST:
            raise Rejected("it is nested too deeply")
        if tag == "testcase":
            name, group = attributes.get("name", ""), attributes.get("classname", "")
            self._case, self._outcome = f"{group}::{name}" if group else name, "passed"
        elif self._case is not None and tag in ("failure", "error"):
            self._outcome = "failed"
        elif self._case is not None and tag == "skipped" and self._outcome == "passed":
            self._outcome = "skipped"

    def end(self, tag: str) -> None:
        self._open.pop()
        if tag != "testcase" or self._case is None:
            return
        if self.cases.get(self._case) != "failed":
            self.cases[self._case] = self._outcome
        self._case = None
        if len(self.cases) > MOST_CASES:
            raise Rejected(f"there are more than {MOST_CASES:,} test cases")
