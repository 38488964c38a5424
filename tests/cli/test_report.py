"""What a person reads at the end of a race."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest
from rich.console import Console

from race.cli import wording
from race.cli.patch_text import patch_size
from race.cli.report import listing, report, short_diff
from race.cli.standings_table import in_order
from race.store import RaceRow
from race.verdict import AttemptUsage, AttemptVerdict, BaseVerdict, MetricResult, Speedup, Verdict

HOSTILE = "a\x1b[2J\x1b]0;owned\x07[bold red]b[/] \u202ec\u200bd\ne\r\tf"
HOSTILE_CHARACTERS = "\x1b\x07\u202e\u200b\r"

PATCH = b"""\
diff --git a/primes.py b/primes.py
index 83db48f84ec878fbfb30b46d16630e944e34f205..1111111111111111111111111111111111111111 100644
--- a/primes.py
+++ b/primes.py
@@ -1,4 +1,4 @@ def first():
 import math
--- a comment that looks like a heading
-def count(n):
+++ another one
+\tdef count(n): \x1b[2J\xe2\x80\xae\xff[red]
\x20
diff --git a/with space.py b/with space.py
new file mode 100755
--- /dev/null
+++ b/with space.py\t
@@ -0,0 +1 @@
+x = 1
\\ No newline at end of file
diff --git a/old.py b/old.py
deleted file mode 100644
--- a/old.py
+++ /dev/null
@@ -1 +0,0 @@
-y = 2
diff --git a/run.sh b/run.sh
old mode 100644
new mode 100755
diff --git a/logo.png b/logo.png
index 1..2 100644
GIT binary patch
literal 10
zcmeAS@N?(olHy`uVBq

literal 0
HcmV?d00001

"""


def metric(value: float, spread: float = 0.02, unit: str = "ms") -> dict[str, MetricResult]:
    return {"benchmark": MetricResult(value=value, unit=unit, samples=(value,), spread=spread)}


def attempt(name: str, state: Any = "scored", **fields: Any) -> AttemptVerdict:
    return AttemptVerdict(name=name, entry=name, agent="openai", model="gpt-5.5-mini", state=state, **fields)


WINNER = attempt(
    "sieve",
    eligible=True,
    speedup=Speedup(vs_base=12.34, low=11.9, high=12.8),
    metrics=metric(10.0),
    steps=12,
    usage=AttemptUsage(input_tokens=41_234, output_tokens=3_876, cost_usd=0.1234),
    seconds=185,
    files_changed=("primes.py",),
    packages=("numpy==2.0",),
    message="I wrote a sieve.\n\nAll tests pass.\nIt is fast.\nVery fast.\n",
    patch="/home/me/.local/state/race/races/primes-1a2b3c4d/sieve.patch",
    sandbox="primes-1a2b3c4d-sieve-replay",
    sandbox_state="kept",
)
LOST = attempt(
    "slow",
    "eliminated",
    eligible=True,
    reasons=("beaten by sieve: 2.1 times as good",),
    speedup=Speedup(vs_base=5.9, low=5.5, high=6.3),
    metrics=metric(20.9),
    usage=AttemptUsage(input_tokens=900, output_tokens=50, cost_usd=0.004),
)
CHEAT = attempt(
    "cheat",
    "ineligible",
    reasons=("integrity: bench.py is protected and was changed",),
    files_changed=("bench.py",),
    patch="/x/cheat.patch",
)
BROKEN = attempt("broken", "failed", reasons=("the model cannot be reached: 401", "and a second reason"))


def verdict(*attempts: AttemptVerdict, **fields: Any) -> Verdict:
    given: dict[str, Any] = {
        "race": "primes-1a2b3c4d",
        "task": "primes",
        "status": "won",
        "winner": "sieve",
        "confidence": 0.983,
        "decided_by": "the measurements decide it",
        "base": BaseVerdict(metrics=metric(123.4)),
        "attempts": attempts or (CHEAT, BROKEN, LOST, WINNER),
        "seconds": 754.0,
    }
    return Verdict(**{**given, **fields})


def shown(value: Verdict, diff: bytes | str | None = None, *, width: int = 80, terminal: bool = False) -> str:
    out = io.StringIO()
    report(value, Console(file=out, width=width, force_terminal=terminal), diff=diff)
    return out.getvalue()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"{name}  "))
    return re.split(r"  +", line.strip())


def test_the_headline_says_who_won_by_how_much_and_how_surely() -> None:
    lines = shown(verdict(), width=120).splitlines()
    assert lines[0] == "sieve wins: 12.3 times as fast as the base (11.9 to 12.8), 98 % sure"
    assert lines[1] == "The measurements decide it."
    assert lines[2] == "primes-1a2b3c4d · 4 attempts · 12 min 34 s · $0.13"


def test_a_tie_and_a_metric_that_is_no_time() -> None:
    winner = WINNER.model_copy(update={"metrics": metric(10.0, unit="MB")})
    text = shown(verdict(winner, LOST, tied_with=("slow",)), width=120)
    assert text.startswith(
        "sieve wins a tie with slow: 12.3 times as good as the base (11.9 to 12.8), 98 % sure\n"
    )
    assert row(text, "slow")[1] == "tied"


def test_without_a_metric_no_number_is_claimed() -> None:
    winner = attempt("sieve", eligible=True, files_changed=("a.py",))
    text = shown(
        verdict(
            winner,
            base=BaseVerdict(),
            confidence=0.5,
            decided_by="the smallest change that passes every gate",
        )
    )
    assert text.startswith("sieve wins\nThe smallest change that passes every gate.\n")
    assert "sure" not in text
    assert "times" not in text
    assert "tokens" not in text


@pytest.mark.parametrize(
    ("status", "reason", "line"),
    [
        ("no_winner", "no attempt is eligible", "No winner: no attempt is eligible"),
        ("cancelled", "the race was interrupted", "The race was cancelled: the race was interrupted"),
        ("failed", "set-up\nfailed", "The race failed: set-up failed"),
    ],
)
def test_no_winner_and_why(status: str, reason: str, line: str) -> None:
    text = shown(verdict(CHEAT, BROKEN, status=status, winner=None, decided_by=reason))
    assert text.splitlines()[0] == line
    assert "Why nobody won\n  cheat: integrity: bench.py is protected and was changed\n" in text
    assert "  broken: the model cannot be reached: 401\n  broken: and a second reason\n" in text
    assert "race diff primes-1a2b3c4d cheat" in text
    assert "race apply" not in text


def test_a_row_for_every_attempt_the_winner_first() -> None:
    text = shown(verdict(), width=120)
    assert row(text, "attempt") == [
        *("attempt", "result", "times base", "benchmark", "files", "steps", "tokens", "cost", "time"),
    ]
    assert row(text, "sieve") == [
        *("sieve", "winner", "12.3 (11.9 to 12.8)", "10.0 ms ± 2 %", "1", "12", "45.1k", "$0.12", "3:05"),
    ]
    assert row(text, "slow") == [
        "slow",
        "beaten",
        "5.90 (5.50 to 6.30)",
        "20.9 ms ± 2 %",
        "0",
        "0",
        "950",
        "$0.0040",
        "0:00",
    ]
    assert row(text, "cheat")[:2] == ["cheat", "ineligible"]
    assert row(text, "broken")[:2] == ["broken", "failed"]
    assert row(text, "base") == ["base", "1", "123 ms ± 2 %"]
    places = [text.index(f"\n{name}  ") for name in ("sieve", "slow", "cheat", "broken", "base")]
    assert places == sorted(places)


def test_in_80_columns_intervals_get_lines_of_their_own() -> None:
    lines = shown(verdict(), width=80).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("sieve  "))
    assert re.split(r"  +", lines[at].strip()) == [
        "sieve",
        "winner",
        "12.3",
        "10.0 ms",
        "1",
        "12",
        "45.1k",
        "3:05",
    ]
    assert re.split(r"  +", lines[at + 1].strip()) == ["11.9-12.8", "± 2 %", "$0.12"]


def test_the_eligible_are_ordered_by_what_they_gained() -> None:
    def gained(name: str, times: float, state: str) -> AttemptVerdict:
        return attempt(name, state, speedup=Speedup(vs_base=times, low=times, high=times))

    value = verdict(
        gained("a", 2, "scored"), gained("b", 3, "eliminated"), gained("c", 4, "scored"), winner=None
    )
    assert [a.name for a in in_order(value)] == ["c", "b", "a"]


def test_an_unknown_cost_is_not_nothing() -> None:
    used = attempt("other", usage=AttemptUsage(input_tokens=5_000_000))
    text = shown(verdict(WINNER, used), width=120)
    assert "cost not known" in text
    assert row(text, "other")[-3:] == ["5.0M", "?", "0:00"]


def test_reasons_are_whole_and_attributed() -> None:
    reason = "tests: " + "a long reason " * 60
    text = shown(verdict(WINNER, attempt("other", "ineligible", reasons=(reason,))))
    assert f"  other: {reason.strip()}\n" in text
    on_terminal = plain(
        shown(verdict(WINNER, attempt("other", "ineligible", reasons=(reason,))), terminal=True)
    )
    assert " ".join(on_terminal.split()).count("a long reason") == 60
    assert max(map(len, on_terminal.splitlines())) <= 80


def test_one_that_is_out_without_a_reason_says_so() -> None:
    assert "  other: no reason was recorded" in shown(verdict(WINNER, attempt("other", "failed")))


def test_warnings_are_shown() -> None:
    assert "Warnings\n  other programs took 30 % of this machine\n" in shown(
        verdict(warnings=("other programs took 30 %\nof this machine",))
    )


def test_the_winner_is_quoted_and_its_change_counted() -> None:
    text = shown(verdict(), PATCH)
    assert (
        "sieve says\n  │ I wrote a sieve.\n  │ All tests pass.\n  │ It is fast.\n  │ … 1 more line\n" in text
    )
    assert "sieve changed 5 files  +3 -3  1 binary\n  and installed numpy==2.0\n  primes.py\n" in text


def test_a_winner_that_only_installed_something() -> None:
    assert "sieve changed no files\n  and installed numpy==2.0\n\npatch" in shown(verdict(), b"")


def test_where_things_are_and_what_to_type_next() -> None:
    text = shown(verdict())
    assert "patch    /home/me/.local/state/race/races/primes-1a2b3c4d/sieve.patch\n" in text
    assert "sandbox  primes-1a2b3c4d-sieve-replay\n" in text
    for command in (
        "race diff primes-1a2b3c4d",
        "race apply primes-1a2b3c4d --branch race/sieve",
        "race sandbox shell primes-1a2b3c4d-sieve-replay",
    ):
        assert re.search(rf"^{command}(?: +#|$)", text, re.MULTILINE)


def test_a_sandbox_that_was_deleted_is_not_offered() -> None:
    assert "sandbox" not in shown(verdict(WINNER.model_copy(update={"sandbox_state": "deleted"})))


@pytest.mark.parametrize("where", ["terminal", "pipe"])
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nothing_an_agent_wrote_acts_on_the_terminal(width: int, where: str) -> None:
    bad = WINNER.model_copy(
        update={
            "name": HOSTILE,
            "message": HOSTILE,
            "patch": HOSTILE,
            "sandbox": HOSTILE,
            "packages": (HOSTILE,),
        }
    )
    other = attempt(
        f"x{HOSTILE}", "failed", reasons=(HOSTILE,), metrics={HOSTILE: metric(1.0, unit=HOSTILE)["benchmark"]}
    )
    value = verdict(
        bad,
        other,
        winner=HOSTILE,
        tied_with=(HOSTILE,),
        decided_by=HOSTILE,
        warnings=(HOSTILE,),
        race=HOSTILE,
    )
    text = plain(shown(value, PATCH + HOSTILE.encode(), width=width, terminal=where == "terminal"))
    assert not set(HOSTILE_CHARACTERS) & set(text)
    assert r"\x1b[2J" in text
    assert "[bold red]b[/]" in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_on_a_terminal_the_report_fits(width: int) -> None:
    long = attempt("a" * 43, "failed", reasons=("b" * 500,))
    text = plain(shown(verdict(WINNER, LOST, long), PATCH, width=width, terminal=True))
    wide = [
        line for line in text.splitlines() if len(line) > width and not re.match(r"patch|race |sandbox", line)
    ]
    assert wide == []


def test_a_pipe_gets_no_colours_and_a_terminal_does() -> None:
    assert "\x1b" not in shown(verdict(), PATCH)
    on_terminal = shown(verdict(), PATCH, terminal=True)
    assert "\x1b[1;32msieve wins\x1b[0m" in on_terminal
    assert "\x1b[32m+x = 1\x1b[0m" in on_terminal
    assert "\x1b[31m-y = 2\x1b[0m" in on_terminal


def test_a_short_diff_has_a_heading_for_each_file_and_what_changed() -> None:
    assert short_diff(PATCH, 100).plain.splitlines() == [
        "primes.py",
        "@@ -1,4 +1,4 @@ def first():",
        " import math",
        "--- a comment that looks like a heading",
        "-def count(n):",
        "+++ another one",
        r"+   def count(n): \x1b[2J\u202e\xff[red]",
        " ",
        "with space.py",
        "new file mode 100755",
        "@@ -0,0 +1 @@",
        "+x = 1",
        r"\ No newline at end of file",
        "old.py",
        "deleted file mode 100644",
        "@@ -1 +0,0 @@",
        "-y = 2",
        "run.sh",
        "old mode 100644",
        "new mode 100755",
        "logo.png",
        "(binary content)",
    ]
    size = patch_size(PATCH)
    assert (size.files, size.added, size.removed, size.binary) == (5, 3, 3, 1)


def test_a_short_diff_is_short() -> None:
    assert short_diff(PATCH, 4).plain.splitlines()[-2:] == [
        "--- a comment that looks like a heading",
        "… 18 more lines",
    ]
    assert short_diff(PATCH, 21).plain.endswith("… 1 more line")
    assert short_diff(b"").plain == ""
    minified = (
        b"diff --git a/a.js b/a.js\n--- a/a.js\n+++ b/a.js\n@@ -1 +1 @@\n-a\n+" + b"x" * 5_000_000 + b"\n"
    )
    last = short_diff(minified).plain.splitlines()[-1]
    assert last.endswith("… (5,000,001 bytes in this line)")
    assert len(last) < 300


def test_a_patch_that_lies_about_its_hunks_hides_no_file() -> None:
    lying = b"diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,999 +1,999 @@\n-a\n+b\n"
    lying += b"diff --git a/evil b/evil\n--- a/evil\n+++ b/evil\n@@ -1 +1 @@\n-c\n+d\n"
    assert "evil" in short_diff(lying).plain.splitlines()
    assert patch_size(lying).files == 2


def rows() -> list[RaceRow]:
    then = time.time()
    return [
        RaceRow("primes-1a2b3c4d", "primes", "/home/me/race.toml", then, "won", False, verdict()),
        RaceRow(
            "fix-00000001",
            "fix",
            "/x",
            then,
            "no_winner",
            False,
            verdict(CHEAT, winner=None, status="no_winner"),
        ),
        RaceRow("fix-00000002", "fix", "/x", then, "running", True, None),
        RaceRow("fix-00000003", "fix", "/x", then, "interrupted", False, None),
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_of_races(width: int) -> None:
    out = io.StringIO()
    listing(rows(), Console(file=out, width=width))
    text = out.getvalue()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    assert row(text, "primes-1a2b3c4d")[1:3] == ["won by sieve", "12.3"]
    assert [row(text, f"fix-0000000{i}")[1] for i in (1, 2, 3)] == ["no winner", "running", "interrupted"]
    assert ("cost" in text) == (width == 120)


def test_the_list_of_no_races_says_how_to_start_one() -> None:
    out = io.StringIO()
    listing([], Console(file=out))
    assert out.getvalue() == "There is no race yet; 'race run FILE' starts one.\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (wording.duration(0), "0.0 s"),
        (wording.duration(9.96), "10 s"),
        (wording.duration(59.6), "1 min 00 s"),
        (wording.duration(3599.7), "1 h 00 min"),
        (wording.clock(3723), "1:02:03"),
        (wording.number(0.00012345), "0.000123"),
        (wording.number(0.9996), "1.00"),
        (wording.number(99.96), "100"),
        (wording.number(1234.5), "1,234"),
        (wording.number(3e-9), "3.00e-09"),
        (wording.number(-12.345), "-12.3"),
        (wording.tokens(999), "999"),
        (wording.tokens(999_700), "1.0M"),
        (wording.dollars(None), "?"),
        (wording.dollars(0.0042), "$0.0042"),
        (wording.dollars(0.00001), "<$0.0001"),
        (wording.percent(0.99999), "over 99.9 %"),
        (wording.percent(0.994), "99.4 %"),
        (wording.times(9.996), "10.0"),
        (wording.times(1.004), "1.00"),
        (wording.spread(0.0), ""),
        (wording.spread(0.004), "± <1 %"),
        (wording.count(0, "file"), "no files"),
        (wording.listed(["a", "b", "c"], most=2), "a and 2 more"),
        (wording.sentence("why?"), "Why?"),
        (wording.cut("日本語" * 20, 11), "日本語日本…"),
        (wording.command("cat <<E\n\n  x\nE", 80), "cat <<E ⏎ x ⏎ E"),
    ],
)
def test_numbers_and_words_for_people(given: str, expected: str) -> None:
    assert given == expected
