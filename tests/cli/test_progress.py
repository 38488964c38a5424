"""What is shown of a race while it runs."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from rich.console import Console

from race.cli.progress import Progress
from race.cli.race_state import RaceState
from race.store import Event

HOSTILE = "echo \x1b[2J\x1b]0;owned\x07 [bold red]x[/bold red] \u202e\u200b\nrm -rf /"
ESCAPED = r"echo \x1b[2J\x1b]0;owned\x07 [bold red]x[/bold red] \u202e\u200b"


@pytest.fixture
def event() -> Callable[..., Event]:
    """Make events of one race with ascending numbers."""
    numbers: Iterator[int] = iter(range(1, 10_000))

    def make(at: float, kind: str, attempt: str = "", **data: Any) -> Event:
        return Event(next(numbers), "primes-1a2b", 1000.0 + at, kind, attempt, data)

    return make


def usage(read: int, wrote: int, cost: float | None) -> Mapping[str, Any]:
    return {"input_tokens": read, "output_tokens": wrote, "cached_tokens": 0, "cost_usd": cost}


def race(event: Callable[..., Event]) -> list[Event]:
    """The events of a small race, up to the middle of its finals."""
    events = [
        event(0, "race.started", task="primes", attempts=["sieve", "cheat", "late"]),
        event(0.2, "base.progress", text="setup: python3 -m venv /opt/venv"),
        event(
            9, "base.ready", sandbox="b", cached=True, metrics={"benchmark": {"value": 123.4, "unit": "ms"}}
        ),
        event(9, "attempt.started", "sieve", sandbox="s", agent="openai", model="gpt-5.5-mini"),
        event(9, "attempt.started", "cheat", sandbox="c", agent="script", model=None),
        event(10, "attempt.command", "sieve", step=1, command="cat primes.py\nls"),
        event(
            11,
            "attempt.result",
            "sieve",
            step=1,
            exit_code=1,
            timed_out=False,
            usage=usage(12_345, 987, 0.0412),
        ),
        event(12, "attempt.command", "cheat", step=1, command=HOSTILE),
        event(
            13,
            "attempt.result",
            "cheat",
            step=1,
            command=HOSTILE,
            exit_code=None,
            timed_out=True,
            seconds=120.0,
        ),
        event(14, "attempt.ended", "cheat", outcome="done", message=HOSTILE, steps=1, usage=usage(0, 0, 0.0)),
        event(14, "attempt.submitted", "cheat", files=["bench.py"], packages=[], problems=[], bytes=9),
        event(14, "attempt.gate", "cheat", gate="integrity", passed=False, reason="bench.py is protected"),
        event(
            14,
            "attempt.done",
            "cheat",
            state="ineligible",
            reasons=["integrity: bench.py is protected"],
            eligible=False,
        ),
        event(
            20,
            "attempt.ended",
            "sieve",
            outcome="steps",
            message="",
            steps=7,
            usage=usage(20_000, 1_000, None),
        ),
        event(
            20,
            "attempt.submitted",
            "sieve",
            files=["primes.py"],
            packages=["numpy==2.0"],
            problems=[],
            bytes=9,
        ),
        event(21, "attempt.gate", "sieve", gate="tests", passed=True, reason=""),
        event(21, "attempt.done", "sieve", state="eligible", reasons=[], eligible=True),
        event(22, "lane.waiting"),
        event(23, "finals.started", scorer="benchmark", entrants=["base", "sieve"], goal="min", unit="ms"),
    ]
    for number, (base, sieve) in enumerate([(500.0, 400.0), (120.0, 10.0), (124.0, 10.2)]):
        for name, value in (("", base), ("sieve", sieve)):
            events.append(
                event(
                    24 + number,
                    "finals.sample",
                    name,
                    scorer="benchmark",
                    base=not name,
                    round=number,
                    value=value,
                )
            )
    return events


def shown(events: list[Event], *, width: int = 100, height: int = 25, at: float = 1030.0) -> str:
    """The picture on a terminal after some events, without its colours."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height)
    progress = Progress(console, now=lambda: at)
    for each in events:
        progress(each)
    assert out.getvalue() == "", "on a terminal nothing is printed line by line"
    console.print(progress)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    return text


def printed(events: list[Event]) -> list[str]:
    """The lines where there is no terminal."""
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=False, width=80)) as progress:
        for each in events:
            progress(each)
    return out.getvalue().splitlines()


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def test_the_lines_tell_what_matters_and_when(event: Callable[..., Event]) -> None:
    assert printed([*race(event), event(60, "race.ended", status="won", winner="sieve", error="")]) == [
        "  0:00  race primes-1a2b: 3 attempts (sieve, cheat and late)",
        "  0:00  base: setup: python3 -m venv /opt/venv",
        "  0:09  base: ready, from the cache (benchmark 123 ms)",
        "  0:09  sieve: started (openai gpt-5.5-mini)",
        "  0:09  cheat: started (script)",
        "  0:10  sieve: step 1 $ cat primes.py ⏎ ls",
        f"  0:12  cheat: step 1 $ {ESCAPED} ⏎ rm -rf /",
        "  0:13  cheat: step 1 timed out after 2 min 00 s",
        f'  0:14  cheat: ended: it was done (1 step); it says: "{ESCAPED} rm -rf /"',
        "  0:14  cheat: handed in 1 changed file (bench.py)",
        "  0:14  cheat: ineligible: integrity: bench.py is protected",
        "  0:20  sieve: ended: out of steps (7 steps, 21.0k tokens, cost not known)",
        "  0:20  sieve: handed in 1 changed file and 1 package (primes.py and numpy==2.0)",
        "  0:21  sieve: tests passed",
        "  0:21  sieve: eligible",
        "  0:22  waiting for another race to end its measuring",
        "  0:23  finals: measuring base and sieve with benchmark",
        "  0:26  finals: round 1, sieve leads with 12.0 times the base",
        "  1:00  won by sieve",
    ]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"status": "no_winner", "winner": None, "error": ""}, "ended without a winner"),
        (
            {"status": "failed", "winner": None, "error": "setup failed\n\x1b[31mno pip"},
            "failed",  # the command itself says why, once
        ),
        ({"status": "cancelled", "winner": None, "error": ""}, "cancelled"),
    ],
)
def test_how_a_race_ended(data: dict[str, Any], line: str, event: Callable[..., Event]) -> None:
    assert printed([event(0, "race.ended", **data)]) == [f"  0:00  {line}"]


def test_long_words_are_cut(event: Callable[..., Event]) -> None:
    said = printed(
        [event(0, "attempt.command", "a", step=1, command="x" * 1_000_000), event(0, "race.cancelling")]
    )
    assert said[0].endswith("x…")
    assert len(said[0]) < 130
    assert said[1] == "  0:00  interrupted; cleaning up"


def test_the_picture_has_a_line_for_every_attempt(event: Callable[..., Event]) -> None:
    text = shown(race(event)[:8], at=1015.0)
    head = text.splitlines()[0]
    assert head.startswith("primes-1a2b  base: ready, from the cache (benchmark 123 ms)")
    assert head.rstrip().endswith("0:15")
    assert re.fullmatch(r"sieve +step 1 +\$ +exit 1 +12\.3k/987 +\$0\.04 +0:06", row(text, "sieve").rstrip())
    assert re.search(r"cheat +step 1 +\$ echo \\x1b\[2J\\x1b\]0;owned\\x07 \[bold red\]x", row(text, "cheat"))
    assert re.fullmatch(r"late +waiting", row(text, "late").rstrip())


def test_the_picture_says_why_somebody_is_out_and_how_the_finals_stand(event: Callable[..., Event]) -> None:
    text = shown(race(event))
    assert re.search(r"cheat +ineligible +integrity: bench\.py is protected .* 0:05", row(text, "cheat"))
    assert re.search(r"sieve +measuring +10\.1 ms +20\.0k/1\.0k +\? +0:12", row(text, "sieve"))
    assert text.splitlines()[-1] == "finals (benchmark): round 2, sieve leads with 12.1 times the base"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_picture_fits_its_terminal(width: int, event: Callable[..., Event]) -> None:
    text = shown(race(event), width=width)
    assert len(text.splitlines()) == 5  # the head, three attempts, the finals: none is wrapped
    assert "sieve" in text


def test_where_more_is_better_the_greatest_leads(event: Callable[..., Event]) -> None:
    state = RaceState()
    state.apply(event(0, "race.started", attempts=["a", "b"]))
    state.apply(event(0, "finals.started", scorer="rate", entrants=["base", "a", "b"], goal="max"))
    for name, value in (("", 10.0), ("a", 20.0), ("b", 40.0)):
        state.apply(event(1, "finals.sample", name, scorer="rate", base=not name, round=1, value=value))
    leader = state.leader()
    assert leader is not None
    assert (leader[0].name, leader[1]) == ("b", 4.0)


def test_nobody_leads_while_the_direction_is_not_known(event: Callable[..., Event]) -> None:
    events = [e for e in race(event) if e.kind != "finals.started"]
    events.insert(-6, event(23, "finals.started", scorer="benchmark", entrants=["base", "sieve"]))
    assert shown(events).splitlines()[-1] == "finals (benchmark): round 2"


def test_a_race_of_many_shows_those_at_work_and_counts_the_rest(event: Callable[..., Event]) -> None:
    names = [f"a{i}" for i in range(100)]
    events = [event(0, "race.started", attempts=names)]
    events += [event(1, "attempt.started", n, agent="nop", model=None) for n in names[:60]]
    events += [event(2, "attempt.done", n, state="failed", reasons=["x"], eligible=False) for n in names[:50]]
    text = shown(events, height=20)
    assert len(text.splitlines()) < 20
    assert all(re.search(rf"^{n} +starting", text, re.MULTILINE) for n in names[50:60])
    assert re.search(r"^and \d+ more: \d+ waiting, \d+ out$", text, re.MULTILINE)


def test_unknown_events_change_nothing(event: Callable[..., Event]) -> None:
    events = race(event)
    more = [
        event(30, kind, "sieve", thing=1)
        for kind in ("attempt.slept", "finals.dance", "base.jump", "moon.rose", "x")
    ]
    assert shown([*events, *more]) == shown(events)
    assert printed([*events, *more]) == printed(events)


def test_on_a_terminal_the_picture_comes_and_goes(event: Callable[..., Event]) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=25)
    threads = threading.active_count()
    with Progress(console) as progress:
        for each in race(event):
            progress(each)
        deadline = time.monotonic() + 5
        while "sieve leads" not in out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    text = out.getvalue()
    assert "sieve leads" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden, and comes back"
    assert text.rindex("\x1b[2K") > text.rindex("sieve leads"), "the picture is wiped away at the end"
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == threads


def test_an_error_leaves_the_picture(event: Callable[..., Event]) -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=True, width=80, height=25))
    events = race(event)

    def fail() -> None:
        with progress:
            for each in events:
                progress(each)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    text = out.getvalue()
    assert text.endswith("\x1b[?25h")
    assert text.rindex("sieve leads") > text.rfind("\x1b[2K")


def test_a_terminal_that_can_do_nothing_gets_lines(event: Callable[..., Event]) -> None:
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=True, _environ={"TERM": "dumb"})) as progress:
        progress(event(0, "race.started", attempts=["a"]))
    assert out.getvalue() == "  0:00  race primes-1a2b: 1 attempt (a)\n"


class _Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_file_that_cannot_hold_every_sign_gets_escapes(event: Callable[..., Event]) -> None:
    raw = io.BytesIO()
    with Progress(
        Console(file=io.TextIOWrapper(raw, "ascii", write_through=True), force_terminal=False)
    ) as progress:
        progress(event(0, "attempt.command", "a", step=1, command="echo ü\nls"))
    assert raw.getvalue() == b"  0:00  a: step 1 $ echo \\xfc \\u23ce ls\n"


@pytest.mark.parametrize("where", ["terminal", "pipe"])
def test_the_race_goes_on_when_whoever_watched_has_gone(where: str, event: Callable[..., Event]) -> None:
    with Progress(Console(file=_Gone(), force_terminal=where == "terminal")) as progress:
        for each in race(event):
            progress(each)
    assert progress.state.round == 2
