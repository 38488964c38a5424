"""``tests``: a command that runs tests, all of which have to pass as they do for the base."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from race.commandline import Program, recognised
from race.errors import Rejected
from race.hidden import HiddenFiles, hidden_entries
from race.sandbox import Entry, Removed
from race.scoring import FAILED, Replay, Score, ScoreContext, last_lines, must_have_worked, unmet
from race.settled import is_settled
from race.submission import printable
from race.witness import Seen, witnessed

SHOWN = 3
"""How many tests a reason names; the rest are counted."""
_FINE = {"passed": {"passed"}, "skipped": {"passed", "skipped"}, "xfailed": {"passed", "xfailed", "xpassed"}}
"""By how a test ended for the base: how it may end for a submission. Whatever else it was there, it has to pass."""


class TestsOptions(BaseModel):
    """Its keys in the race file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run: Annotated[str, Field(min_length=1)]
    """The command. Of pytest and unittest it is known which tests ran and how they ended; else only the status."""
    timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds that it may take."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to its environment."""
    hidden: HiddenFiles = ()
    """Files or folders, relative to the race file, that are put into the project for this scorer only."""


class Tests:
    """A gate: the tests of the base are all still there, and pass.

    For pytest and unittest the framework brings its own runner. The names of the tests, and what each of them does, are
    those of a run on the unchanged base. Files that belong to the tests (test modules, their data and their folders,
    settings of the runner) are put back from the base; if a submission changed any, its own have to pass as well. Any
    other command has to exit with 0.
    """

    __test__ = False  # no test class, whatever a collecting test runner makes of the name
    Options = TestsOptions

    def __init__(self, options: TestsOptions) -> None:
        self._options = options
        self._program = recognised(options.run)

    async def calibrate(self, replay: Replay, context: ScoreContext) -> Score:
        """Learn from the base which tests there are, and how each ends there."""
        del context
        if self._program is None:
            return Score(passed=True)
        seen = await self._session(replay, self._program, None)
        if seen.status is None:
            raise Rejected(f"{self._options.run!r} did not come to its end")
        if not seen.outcomes:
            raise Rejected(f"{self._options.run!r} found no test")
        root = replay.root + "/"
        own = {p.removeprefix(root) for p in (*seen.files.values(), *seen.opened) if p.startswith(root)}
        details = {
            "outcomes": json.dumps(dict(seen.outcomes)),
            "codes": json.dumps(dict(seen.codes)),
            "files": json.dumps({k: p.removeprefix(root) for k, p in seen.files.items()}),
            "own": json.dumps(sorted(own)),
            "replaced": json.dumps(list(seen.replaced)),
            "plugins": json.dumps(list(seen.plugins)),
        }
        return Score(seen.status == 0, f"{len(seen.outcomes)} tests", details)

    async def score(self, replay: Replay, context: ScoreContext) -> Score:
        """Run the tests of the base in the replay, and then those of the submission if they are others."""
        options = self._options
        base = context.baseline
        if self._program is None or not isinstance(base, Score) or "outcomes" not in base.details:
            await self._put_in(replay)
            try:
                done = await replay.must_run(options.run, timeout=options.timeout, env=options.env)
            except Rejected as e:
                return unmet(e)
            return Score(passed=True, details={"seconds": f"{done.seconds:.2f}"})
        try:
            return await self._compare(replay, self._program, _Base(base.details))
        except Rejected as e:
            return Score(passed=False, reason=str(e))

    async def _put_in(self, replay: Replay) -> None:
        if self._options.hidden:
            await replay.sandbox.write(hidden_entries(self._options.hidden, replay.task.workdir))

    async def _compare(self, replay: Replay, program: Program, base: _Base) -> Score:
        theirs = [c for c in replay.submission.changes if is_settled(c.path, base.own)]
        if theirs and replay.original is not None:
            root = replay.task.workdir.encode() + b"/"
            back: list[Entry] = [
                replay.original(c.path) if c.path in replay.paths else Removed(root + c.path) for c in theirs
            ]
            await replay.sandbox.write(back)
        seen = await self._session(replay, program, base.plugins)
        if problem := base.problem(seen, set()):
            return Score(passed=False, reason=problem, details=base.may_flake(seen, problem))
        if theirs:
            await replay.sandbox.write(replay.put(c.path for c in theirs))
            seen = await self._session(replay, program, base.plugins)
            changed = {c.path.decode("utf-8", "surrogateescape") for c in theirs}
            if problem := base.problem(seen, changed):
                names = ", ".join(c.shown for c in theirs[:SHOWN])
                reason = f"with its own {names}: {problem}"
                return Score(passed=False, reason=reason, details=base.may_flake(seen, problem))
        return Score(passed=True, details={"tests": str(len(seen.outcomes))})

    async def _session(self, replay: Replay, program: Program, plugins: Sequence[str] | None) -> Seen:
        options = self._options
        await self._put_in(replay)
        done, seen = await witnessed(
            replay, program, timeout=options.timeout, env=options.env, plugins=plugins
        )
        if done.timed_out:
            must_have_worked(done, options.run, options.timeout)
        if seen.status is None:
            how = f"exit status {done.exit_code}"
            raise Rejected(
                f"{options.run!r} did not come to its end: something ended the process ({how}): {last_lines(done)}"
            )
        return seen


class _Base:
    """What a run on the base has shown; see `Tests.calibrate`."""

    def __init__(self, details: Mapping[str, str]) -> None:
        self.outcomes: dict[str, str] = json.loads(details["outcomes"])
        self.codes: dict[str, str] = json.loads(details["codes"])
        self.files: dict[str, str] = json.loads(details["files"])
        self.own = frozenset[str](json.loads(details["own"]))
        self.replaced = frozenset[str](json.loads(details["replaced"]))
        self.plugins: list[str] = json.loads(details["plugins"])

    def problem(self, seen: Seen, changed: set[str]) -> str:
        """Why a run does not show what the base's did, or nothing.

        Args:
            seen: of the run.
            changed: files of tests that are the submission's own in it.
        """
        new = [name for name in seen.replaced if name not in self.replaced]
        if new:
            return f"the code under test replaced {_some(new)}"
        if seen.exchanged:
            return f"the code under test exchanged the code of {_some(seen.exchanged)}"
        return self._missing(seen) or self._not_fine(seen) or self._other_code(seen, changed)

    def may_flake(self, seen: Seen, problem: str) -> dict[str, str]:
        """The names of the tests that failed, if that is the whole problem; see `race.scoring.FAILED`."""
        failed = [t for t in self.outcomes if seen.outcomes.get(t) == "failed"]
        return {FAILED: json.dumps(failed)} if problem == f"failed: {_some(failed)}" else {}

    def _missing(self, seen: Seen) -> str:
        missing = [t for t in self.outcomes if not seen.outcomes.get(t)]
        if not missing:
            return ""
        why = f" ({_some(seen.uncollected)} could not be loaded)" if seen.uncollected else ""
        return f"of {len(self.outcomes)} tests of the base {len(missing)} did not run: {_some(missing)}{why}"

    def _not_fine(self, seen: Seen) -> str:
        bad: dict[str, list[str]] = {}
        for test, was in self.outcomes.items():
            became = seen.outcomes[test]
            if became not in _FINE.get(was, {"passed"}):
                bad.setdefault(became, []).append(test)
        return "; ".join(f"{_verb(how)}: {_some(tests)}" for how, tests in sorted(bad.items()))

    def _other_code(self, seen: Seen, changed: set[str]) -> str:
        other = [
            t
            for t, code in self.codes.items()
            if seen.codes.get(t) != code and posixpath.normpath(self.files.get(t, "")) not in changed
        ]
        if other:
            return f"the code of {_some(other)} is not that of the base, though its file is"
        failed = [t for t, outcome in seen.outcomes.items() if outcome == "failed" and t not in self.outcomes]
        if failed:
            return f"its own tests fail: {_some(failed)}"
        return ""


def _verb(outcome: str) -> str:
    return {"failed": "failed", "skipped": "skipped, which the base does not"}.get(outcome, outcome)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(printable(n) for n in names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
