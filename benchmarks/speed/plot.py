"""Draws the medians of `benchmarks.speed` as bars on a logarithmic scale."""

import math
from html import escape

WIDTH, LABELS, BAR, GAP = 760, 230, 16, 22
COLOURS = {"race": "#1b6ca8", "system calls in C": "#7a7a7a"}
OTHERS = "#c9b27c"
LEAST = 0.1
"""Milliseconds at the left end."""


def svg(result: dict) -> str:
    """A picture: a group of bars for each step over the small base, and the machine below."""
    medians = [each for each in result["medians in ms"] if each["base"] == "small"]
    steps = list(dict.fromkeys(each["step"] for each in medians))
    most = max(each["ms"] for each in medians)
    decades = math.ceil(math.log10(most / LEAST))
    scale = (WIDTH - LABELS - 70) / decades
    parts: list[str] = []
    top = 30

    def text(x: float, y: float, what: str, more: str = "") -> None:
        parts.append(f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(what)}</text>')

    for step in steps:
        text(8, top + 12, step, 'font-weight="bold"')
        top += GAP
        for each in sorted((e for e in medians if e["step"] == step), key=lambda e: e["ms"]):
            length = max(scale * math.log10(each["ms"] / LEAST), 1)
            colour = COLOURS.get(each["who"], OTHERS)
            text(LABELS - 8, top + 12, each["who"], 'text-anchor="end"')
            parts.append(
                f'<rect x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>'
            )
            text(LABELS + length + 6, top + 12, f"{each['ms']:.2f} ms")
            top += GAP
        top += GAP // 2
    for decade in range(decades + 1):
        x = LABELS + scale * decade
        parts.insert(0, f'<line x1="{x:.0f}" y1="24" x2="{x:.0f}" y2="{top}" stroke="#ddd"/>')
        text(x, 18, f"{LEAST * 10**decade:g}", 'text-anchor="middle" fill="#777"')
    about = result["machine"]
    text(
        8,
        top + 20,
        f"{about['processor']} x {about['processors']}, Linux {about['kernel']}, load {about['load'][0]}",
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 36}"'
    return f'{head} font-family="sans-serif" font-size="13">\n' + "\n".join(parts) + "\n</svg>\n"
