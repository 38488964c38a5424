"""``tests``: a command that has to exit with 0."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from race.errors import Rejected
from race.scoring import Replay, Score, ScoreContext


class TestsOptions(BaseModel):
    """Its keys in the race file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run: Annotated[str, Field(min_length=1)]
    """The command."""
    timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds that it may take."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to its environment."""


class Tests:
    """A gate: the command exits with 0 within its time."""

    __test__ = False  # no test class, whatever a collecting test runner makes of the name
    repeatable = True
    Options = TestsOptions

    def __init__(self, options: TestsOptions) -> None:
        self._options = options

    async def score(self, replay: Replay, context: ScoreContext) -> Score:
        """Run the command in the replay."""
        del context
        options = self._options
        try:
            done = await replay.must_run(options.run, timeout=options.timeout, env=options.env)
        except Rejected as e:
            return Score(passed=False, reason=str(e))
        return Score(passed=True, details={"seconds": f"{done.seconds:.2f}"})
