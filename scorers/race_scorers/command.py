"""``command``: a command's own wall time as a metric, or its exit status as a gate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from race.errors import Rejected
from race.scoring import Gate, Metric, Replay, Sample, Score, ScoreContext, scoring_seed, wait_share


class CommandOptions(BaseModel):
    """Its keys in the race file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run: Annotated[str, Field(min_length=1)]
    """The command."""
    measure: Literal["time", "status"] = "time"
    """``"time"``: its wall time in seconds is a metric. ``"status"``: it is a gate, passed with exit status 0."""
    timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds that one run may take."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to its environment."""


def command(options: CommandOptions) -> Gate | Metric:
    """The scorer that the options ask for."""
    return CommandTime(options) if options.measure == "time" else CommandStatus(options)


class Command:
    """The plugin: constructing it gives a metric or a gate."""

    Options = CommandOptions

    def __new__(cls, options: CommandOptions) -> Gate | Metric:  # type: ignore[misc]  # the options decide which it is
        """See `command`."""
        return command(options)


class CommandTime:
    """A metric: seconds from the command's start to its end, as seen from outside the sandbox."""

    unit = "s"
    goal: Literal["min", "max"] = "min"

    def __init__(self, options: CommandOptions) -> None:
        self._options = options

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        """Run the command once."""
        options = self._options
        env = {**scoring_seed(context), **options.env}
        done = await replay.must_run(options.run, timeout=options.timeout, env=env)
        return Sample(done.seconds, wait_share(done), done.seconds)


class CommandStatus:
    """A gate: the command exits with 0 within its time."""

    def __init__(self, options: CommandOptions) -> None:
        self._options = options

    async def score(self, replay: Replay, context: ScoreContext) -> Score:
        """Run the command once."""
        del context
        options = self._options
        try:
            await replay.must_run(options.run, timeout=options.timeout, env=options.env)
        except Rejected as e:
            return Score(passed=False, reason=str(e))
        return Score(passed=True)
