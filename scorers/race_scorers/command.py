"""``command``: what a command costs (time, memory, instructions) as a metric, or its exit status as a gate."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from race.errors import Rejected
from race.scoring import Gate, Metric, Replay, Sample, Score, ScoreContext, scoring_seed, unmet, wait_share


class CommandOptions(BaseModel):
    """Its keys in the race file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run: Annotated[str, Field(min_length=1)]
    """The command."""
    measure: Literal["time", "cpu", "memory", "instructions", "status"] = "time"
    """``"time"``, ``"cpu"``: its wall time, or the processor time of all its processes, in seconds. ``"memory"``: the
    most bytes that a process of it had. ``"instructions"``: those that it executed, counted by callgrind, for which the
    base needs valgrind, and which takes some fifty times as long. ``"status"``: a gate, passed with exit status 0.
    """
    timeout: Annotated[float, Field(gt=0)] = 600
    """Seconds that one run may take."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to its environment."""


def command(options: CommandOptions) -> Gate | Metric:
    """The scorer that the options ask for."""
    if options.measure == "status":
        return CommandStatus(options)
    if options.measure == "instructions":
        return CommandInstructions(options)
    return CommandCost(options)


class Command:
    """The plugin: constructing it gives a metric or a gate."""

    Options = CommandOptions

    def __new__(cls, options: CommandOptions) -> Gate | Metric:  # type: ignore[misc]  # the options decide which it is
        """See `command`."""
        return command(options)


class CommandCost:
    """A metric: what a run takes, as seen from outside the sandbox: seconds, or bytes."""

    goal: Literal["min", "max"] = "min"

    def __init__(self, options: CommandOptions) -> None:
        self._options = options
        self.unit = "bytes" if options.measure == "memory" else "s"

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        """Run the command once."""
        options = self._options
        env = {**scoring_seed(context), **options.env}
        done = await replay.must_run(options.run, timeout=options.timeout, env=env)
        usage = done.usage
        if options.measure == "memory":
            return Sample(float(usage.max_rss_bytes), 0.0, done.seconds, usage.cpu_seconds)
        if options.measure == "cpu":
            return Sample(max(usage.cpu_seconds, 1e-6), 0.0, done.seconds, usage.cpu_seconds)
        return Sample(done.seconds, wait_share(done), done.seconds, usage.cpu_seconds)


class CommandInstructions:
    """A metric: instructions that the command and all its processes execute, as callgrind counts them.

    It differs by thousandths from run to run, where times differ by hundredths, and says nothing of memory or waiting.
    """

    unit = "instructions"
    goal: Literal["min", "max"] = "min"

    def __init__(self, options: CommandOptions) -> None:
        self._options = options

    async def measure(self, replay: Replay, context: ScoreContext) -> Sample:
        """Run the command once under callgrind."""
        options = self._options
        env = {**scoring_seed(context), **options.env}
        log = "/tmp/race-callgrind"  # noqa: S108 - inside the replay
        command = [
            *("valgrind", "--tool=callgrind", "--trace-children=yes", "--callgrind-out-file=/dev/null"),
            *(f"--log-file={log}.%p", "sh", "-c", options.run),
        ]
        try:
            done = await replay.must_run(command, timeout=options.timeout, env=env)
        except Rejected as e:
            if "exit status 127" in str(e):
                raise Rejected(f"instructions are counted by valgrind, which the base lacks: {e}") from e
            raise
        logs = await replay.must_run(f"cat {log}.*", timeout=60)
        return Sample(float(counted(logs.stdout)), 0.0, done.seconds, done.usage.cpu_seconds)


def counted(logs: bytes) -> int:
    """The instructions in the logs of callgrind, of all processes together.

    Raises:
        Rejected: there are none in them.
    """
    total = sum(int(n) for n in re.findall(rb"^==[0-9]+== Collected : ([0-9]{1,18})$", logs, re.MULTILINE))
    if not total:
        raise Rejected("callgrind counted no instructions")
    return total


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
            return unmet(e)
        return Score(passed=True)
