"""Numbers, times and other people's words, as a person wants to read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from race.submission import printable

_MINUTE = 60
_HOUR = 3600
_TIMES = frozenset({"s", "sec", "seconds", "ms", "us", "µs", "ns", "min", "minutes"})


def duration(seconds: float) -> str:
    """Such as ``0.4 s``, ``12 s``, ``3 min 05 s``, ``1 h 02 min``."""
    if seconds < 9.95:  # noqa: PLR2004 - from here on a tenth is of no interest
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def clock(seconds: float) -> str:
    """A time that goes on, of constant width for as long as it can be: ``0:07``, ``12:34``, ``1:02:03``."""
    whole = max(int(seconds), 0)
    hours = f"{whole // 3600}:{whole % 3600 // 60:02}" if whole >= _HOUR else f"{whole // 60}"
    return f"{hours}:{whole % 60:02}"


def number(value: float) -> str:
    """Three significant digits, or all before the point, without an exponent where that can be read."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(float(f"{value:.2e}"))))
    if -4 <= size <= 8:  # noqa: PLR2004 - beyond, zeros would have to be counted
        return f"{value:,.{max(2 - size, 0)}f}"
    return f"{value:.2e}"


def quantity(value: float, unit: str) -> str:
    """A number and its unit, such as ``12.3 ms``."""
    return f"{number(value)} {printable(unit)}" if unit else number(value)


def spread(share: float) -> str:
    """Half an interquartile range over the median, such as ``± 2 %``; nothing for a single sample."""
    if share <= 0:
        return ""
    return f"± {share:.0%}".replace("%", " %") if share >= 0.01 else "± <1 %"  # noqa: PLR2004 - would be 0 %


def percent(probability: float) -> str:
    """A probability, which never rounds to certainty: ``98 %``, ``99.7 %``, ``over 99.9 %``."""
    if probability >= 0.9995:  # noqa: PLR2004 - would round to 100.0
        return "over 99.9 %"
    digits = 1 if probability >= 0.99 else 0  # noqa: PLR2004 - from here on a tenth is of interest
    return f"{probability * 100:.{digits}f} %"


def tokens(count: int) -> str:
    """Such as ``950``, ``12.3k``, ``1.2M``."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size * 0.9995:
            scaled = count / size
            return f"{scaled:.1f}{letter}" if scaled < 99.95 else f"{scaled:.0f}{letter}"  # noqa: PLR2004
    return str(count)


def dollars(cost: float | None) -> str:
    """Such as ``$0.0042``, ``$0.12``, ``$12.30``; a question mark for a cost that is not known."""
    if cost is None:
        return "?"
    if 0 < cost < 0.01:  # noqa: PLR2004 - less than a cent
        return f"${cost:.4f}" if cost >= 0.00005 else "<$0.0001"  # noqa: PLR2004 - would round to nothing
    return f"${cost:,.2f}"


def times(ratio: float) -> str:
    """How many times, such as ``1.04``, ``12.3``, ``1,230``. Close to one, the second digit counts."""
    return f"{ratio:.2f}" if 0.1 <= ratio < 9.995 else number(ratio)  # noqa: PLR2004


def comparison(unit: str) -> str:
    """What more of a speed-up means, for a metric of this unit."""
    return "as fast as" if unit.lower() in _TIMES else "as good as"


def count(n: int, one: str, many: str = "") -> str:
    """Such as ``1 file``, ``12 files``, ``no files``."""
    return f"{n:,} {one}" if n == 1 else f"{f'{n:,}' if n else 'no'} {many or one + 's'}"


def listed(words: Sequence[str], most: int = 6) -> str:
    """``a``, ``a and b``, ``a, b and c``; what is over is counted."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def sentence(text: str) -> str:
    """A capital at the beginning, a full stop at the end."""
    text = one_line(text)
    return f"{text[:1].upper()}{text[1:]}" + ("" if text[-1:] in (".", "!", "?", "…", "") else ".")


def one_line(text: str) -> str:
    """Somebody's text on one line, safe to show.

    White space of any kind becomes one space; what cannot be seen is escaped.
    """
    return printable(" ".join(text.split()))


def command(text: str, width: int) -> str:
    """Somebody's command in at most so many columns, with a sign for each new line."""
    return cut(
        "\n".join(filter(None, map(str.strip, text[: 8 * width].splitlines()))).replace("\n", " ⏎ "), width
    )


def cut(text: str, width: int) -> str:
    """Somebody's text on one line of at most so many columns."""
    # Far more than any line holds is not looked at: it may be megabytes.
    line = one_line(text[: 8 * width])
    if cell_len(line) <= width and len(text) <= 8 * width:
        return line
    shown = Text(line)
    shown.truncate(max(width - 1, 0))
    return f"{shown.plain.rstrip()}…"
