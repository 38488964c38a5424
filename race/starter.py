"""What ``race init`` does: look at a project, and write a race file that runs as it stands.

The file's only active entry changes nothing, so the race needs no key and can be run at once, to see that the
base, the tests and the benchmark work. Entries with a model are in it as comments.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from race.errors import SpecError
from race.submission import printable
from race.toolchains.proposal import Proposal, propose

__all__ = ["FILE_NAME", "Proposal", "propose", "race_file", "write"]

FILE_NAME = "race.toml"
"""What the race file is called."""

_MODEL = "gpt-5.5-mini"
_WIDTH = 96
_HINTS = (
    ("algorithm", "Look for a better algorithm before anything else."),
    ("measure", "Profile first, and change only what takes the time."),
    ("simple", "Prefer the smallest change that does it."),
)


def write(folder: Path, *, force: bool = False) -> Path:
    """Write a race file for the project in a folder. Returns its path.

    Args:
        folder: the project.
        force: overwrite the one that is there.

    Raises:
        SpecError: as `propose`; or there is a race file already, or it cannot be written.
    """
    path = folder / FILE_NAME
    if not force and (path.exists() or path.is_symlink()):
        raise SpecError(f"{path}: is there already; edit it, or overwrite it with --force")
    text = race_file(propose(folder))
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as e:
        raise SpecError(f"{path}: is there already; edit it, or overwrite it with --force") from e
    except OSError as e:
        raise SpecError(f"{path}: cannot be written: {e.strerror}") from e
    return path


def race_file(proposal: Proposal) -> str:
    """The text of a race file. Lines with ``#`` and no space after it are settings to be uncommented."""
    parts = (_head(proposal), _task(proposal), _base(proposal), _gates(proposal), _metrics(proposal), _rest())
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _head(proposal: Proposal) -> list[str]:
    return [
        *_comment(
            f"A race on {proposal.name}: several attempts at one task at once, each in a sandbox of its own. "
            "What passes every check is measured, and the best is kept."
        ),
        "#",
        f"#     race run {FILE_NAME}       run it",
        "#     race doctor              see whether this machine can",
        "#",
        *_comment(
            "Paths are relative to this file. Lines that begin with '#' and no space are settings that wait."
        ),
    ]


def _task(proposal: Proposal) -> list[str]:
    lines = [
        "[task]",
        f"name = {_text(proposal.name)}",
        "",
        "# >>> EDIT THIS: what every agent is asked. Say what shall be better, and what must stay as it is.",
        'prompt = """',
        *(_text(line)[1:-1] for line in _prompt(proposal)),
        '"""',
        "",
    ]
    if not proposal.protected:
        lines += _comment(
            "Paths and patterns that must stay byte for byte as they are. No tests were found here."
        )
        return [*lines, '#protected = ["tests/"]']
    lines += _comment("Must stay byte for byte as it is: an attempt that touches any of it is out.")
    return [*lines, *_array("protected", proposal.protected)]


def _prompt(proposal: Proposal) -> list[str]:
    best = proposal.benchmark
    name = proposal.name
    if best is None:
        lines = [
            f"Find one real defect in {name}, such as a wrong result in an edge case or a needless slowness,",
            "and mend it with the smallest change that does.",
        ]
    elif not best.prints_number:
        lines = [f"Make {name} faster: `{best.command}` shall take less time."]
    else:
        unit = f" ({best.unit})" if best.unit else ""
        change = "smaller" if best.goal == "min" else "greater"
        lines = [f"Make {name} faster: the number{unit} that `{best.command}` prints shall be {change}."]
    stays = "What it computes must stay the same"
    lines.append(f"{stays}; `{proposal.test}` must pass." if proposal.test else f"{stays}.")
    return [*lines, *proposal.advice]


def _base(proposal: Proposal) -> list[str]:
    lines = [
        *_comment(
            "The sandbox that every attempt is forked from: this machine's programs, and the project in /app."
        ),
        "[base]",
        'image = "host"',
        'project = "."',
        'workdir = "/app"',
    ]
    if proposal.exclude:
        lines += ["# Does not go into the sandbox:", *_array("exclude", proposal.exclude)]
    lines += _comment("Runs once, in /app; the result is cached. Add what the tests and the benchmark need.")
    lines += _array("setup", proposal.setup) if proposal.setup else ["#setup = []"]
    if proposal.env:
        inside = ", ".join(f"{_key(k)} = {_text(v)}" for k, v in proposal.env.items())
        lines += [
            *_comment("The environment inside; nothing of this shell's gets there."),
            f"env = {{ {inside} }}",
        ]
    lines += ["", *_comment('Who may reach what: "full" or "none".')]
    return [*lines, "#[base.network]", '#agent = "full"', '#scoring = "none"']


def _gates(proposal: Proposal) -> list[str]:
    lines = _comment("Checks, in this order. That nothing protected was touched is always checked first.")
    for note in proposal.notes:
        lines += _comment(note)
    if proposal.test:
        lines += ["[[scorers]]", 'use = "tests"', f"run = {_text(proposal.test)}"]
    else:
        lines += _comment(
            "No tests were found here. Give a command that exits with 0 when all is well: without one, any "
            "change is as good as another."
        )
        lines += ["#[[scorers]]", '#use = "tests"', '#run = "make test"']
    for number, command in enumerate(proposal.other_tests, 2):
        lines += [
            "",
            *_comment("More tests were found; they need their programs in the sandbox."),
            "#[[scorers]]",
        ]
        lines += ['#use = "tests"', f'#name = "tests-{number}"', f"#run = {_text(command)}"]
    return lines


def _metrics(proposal: Proposal) -> list[str]:
    best = proposal.benchmark
    if best is None:
        lines = _comment(
            "No benchmark was found here. Without one, the smallest change that passes every check wins."
        )
        if proposal.test:
            lines += _comment("This one is the time that the tests take:")
            lines += ["#[[scorers]]", '#use = "command"', f"#run = {_text(proposal.test)}", ""]
        lines += _comment(
            "This one is a command that prints exactly one number, and nothing else, to standard output:"
        )
        lines += ["#[[scorers]]", '#use = "benchmark"', '#run = "./bench"', '#unit = "ms"', '#goal = "min"']
    elif best.prints_number:
        lines = _comment("What decides: the one number that the command prints. Check unit and goal.")
        lines += ["[[scorers]]", 'use = "benchmark"', f"run = {_text(best.command)}"]
        lines += [f"unit = {_text(best.unit)}", f"goal = {_text(best.goal)}  # or {_text(_other(best.goal))}"]
    else:
        lines = _comment("What decides: the time that this takes.")
        lines += ["[[scorers]]", 'use = "command"', f"run = {_text(best.command)}", ""]
        lines += _comment("If it prints exactly one number and nothing else, that number can decide instead:")
        lines += ["#[[scorers]]", '#use = "benchmark"', f"#run = {_text(best.command)}"]
        lines += ['#unit = "ms"', '#goal = "min"  # or "max"']
    for number, other in enumerate(proposal.benchmarks[1:4], 2):
        use = "benchmark" if other.prints_number else "command"
        lines += [
            "",
            *_comment("Found as well. Only the first metric decides; others are shown."),
            "#[[scorers]]",
        ]
        lines += [f'#use = "{use}"', f'#name = "{use}-{number}"', f"#run = {_text(other.command)}"]
    return lines


def _other(goal: str) -> str:
    return "max" if goal == "min" else "min"


def _rest() -> list[str]:
    lines = [
        *_comment("Ends all agents when it is reached; what they have done by then is judged."),
        "#[budget]",
        "#cost_usd = 5.0",
        "#seconds = 3600",
        "",
        *_comment("For every entry that does not say otherwise."),
        "[defaults]",
        "max_steps = 30",
        "time_limit = 1800  # seconds",
        "",
        *_comment(
            "Who races. This one changes nothing and so never wins: with it alone, a run shows that all of "
            "the above works. Keep it as a control, or remove it."
        ),
        "[[entries]]",
        'name = "nothing"',
        'agent = "nop"',
        "",
        *_comment("An entry without a model runs commands."),
        "#[[entries]]",
        '#name = "by-hand"',
        '#agent = "script"',
        "#commands = [\"sed -i 's/old/new/' FILE\"]",
        "",
        *_comment(
            "Entries with a model need OPENAI_API_KEY in the environment, and OPENAI_BASE_URL for another "
            "server than OpenAI's. Each hint is one way to go about the task; with count = 3 an entry has "
            "three attempts."
        ),
    ]
    for name, hint in _HINTS:
        lines += ["#[[entries]]", f'#name = "{name}"', '#agent = "openai"', f'#model = "{_MODEL}"']
        lines += [f"#hint = {_text(hint)}", ""]
    return lines[:-1]


def _array(key: str, values: Iterable[str]) -> list[str]:
    return [f"{key} = [", *(f"    {_text(v)}," for v in values), "]"]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(value: str) -> str:
    """A TOML string, in which what cannot be seen is written as an escape."""
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def _comment(sentences: str) -> list[str]:
    """Lines of a comment, whatever the text is made of."""
    return textwrap.wrap(
        printable(sentences), _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
