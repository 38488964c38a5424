"""A patch as text, safe and short enough to look at. An agent wrote it: nothing in it is trusted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from race.cli.wording import count
from race.submission import printable

LINE_WIDTH = 240
"""Characters that are shown of a line; minified files have lines of megabytes."""

_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_STYLES = {"+": "green", "-": "red", " ": "", "@": "dim", "file": "bold", "note": "dim"}
_SIGNS = (b"+", b"-", b" ", b"\\", b"")
_NOTES = (
    b"new file",
    b"deleted file",
    b"old mode",
    b"new mode",
    b"rename ",
    b"copy ",
    b"similarity ",
    b"Binary ",
)


@dataclass(frozen=True, slots=True)
class PatchSize:
    """How much a patch changes.

    Attributes:
        files: how many.
        added: lines.
        removed: lines.
        binary: how many of the files have no lines.
    """

    files: int
    added: int
    removed: int
    binary: int


def patch_size(patch: bytes) -> PatchSize:
    """Count what a patch changes."""
    kinds = [kind for kind, _ in _parsed(patch)]
    return PatchSize(kinds.count("diff"), kinds.count("+"), kinds.count("-"), kinds.count("binary"))


def short_diff(patch: bytes, lines: int = 30) -> Text:
    """The beginning of a patch: what is added green, what is removed red.

    Args:
        patch: as git writes it.
        lines: at most so many are shown, and the rest counted.
    """
    shown = list(_shown(patch))
    text = Text()
    for number, (kind, line) in enumerate(shown[:lines]):
        text.append("\n" if number else "").append(_safe(line), _STYLES[kind])
    if len(shown) > lines:
        text.append(f"\n… {count(len(shown) - lines, 'more line')}", "dim")
    return text


def _safe(line: bytes) -> str:
    cut = line[: 4 * LINE_WIDTH].expandtabs(4)
    text = printable(cut)
    if len(text) <= LINE_WIDTH and len(line) <= 4 * LINE_WIDTH:
        return text
    return f"{text[:LINE_WIDTH]}… ({len(line):,} bytes in this line)"


def _shown(patch: bytes) -> Iterator[tuple[str, bytes]]:
    """The lines that are worth a look: a heading for each file instead of git's own, and what changed."""
    heading = b""
    for kind, line in _parsed(patch):
        if kind == "diff":
            if heading:
                yield "file", heading
            heading = _both_sides(line.removeprefix(b"diff --git "))
        elif kind == "path":
            # git's "+++" names the file; of one that is gone, its "---" does.
            if line[4:] != b"/dev/null":
                heading = line[6:] if line[4:6] in (b"a/", b"b/") else line[4:]
        elif kind == "binary":
            yield "file", heading
            yield "note", b"(binary content)"
            heading = b""
        elif kind in _STYLES:
            if heading:
                yield "file", heading
                heading = b""
            yield kind, line
    if heading:
        yield "file", heading


def _both_sides(names: bytes) -> bytes:
    """The path in ``a/PATH b/PATH``, which is not told apart by a space alone."""
    half = (len(names) - 1) // 2
    before, after = names[:half], names[half + 1 :]
    same = before.startswith(b"a/") and after.startswith(b"b/") and before[2:] == after[2:]
    return before[2:] if same else names


def _parsed(patch: bytes) -> Iterator[tuple[str, bytes]]:
    """Each line with what it is. Hunks are counted out, so that no line of a file is taken for a heading."""
    old = new = 0
    notes: list[bytes] = []
    for line in patch.removesuffix(b"\n").split(b"\n") if patch else []:
        if (old > 0 or new > 0) and line[:1] in _SIGNS:
            sign = line[:1].decode("latin-1")
            if sign == "\\":
                yield "note", line
                continue
            old -= sign != "+"
            new -= sign != "-"
            yield (sign or " "), line
            continue
        old = new = 0
        if hunk := _HUNK.match(line):
            old, new = (int(n) if n is not None else 1 for n in hunk.groups())
            yield from (("note", note) for note in notes)
            notes = []
            yield "@", line
        elif line.startswith(b"diff --git "):
            yield from (("note", note) for note in notes)
            notes = []
            yield "diff", line
        elif line.startswith((b"--- ", b"+++ ")):
            yield "path", line.rstrip(b"\t")
        elif line == b"GIT binary patch":
            yield "binary", line
        elif line.startswith(b"\\"):
            yield "note", line
        elif line.startswith(_NOTES):
            notes.append(line)
    yield from (("note", note) for note in notes)
