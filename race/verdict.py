"""What came of a race, as it is kept, shown, and printed as JSON. Keys may be added, never renamed."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

RaceStatus: TypeAlias = Literal["won", "no_winner", "cancelled", "failed"]
AttemptState: TypeAlias = Literal["scored", "ineligible", "failed", "cancelled", "eliminated"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class AttemptUsage(_Value):
    """What model calls used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    """None when it is not known."""


class GateResult(_Value):
    """What one gate said of one attempt."""

    passed: bool
    reason: str = ""
    usage: AttemptUsage | None = None
    """Of the models that it asked, such as judges; None if it asked none."""


class Circumstances(_Value):
    """What the machine did while one sample was taken."""

    wait: float = 0.0
    """Share of the sample's time that the measured processes waited for a processor."""
    cpu_seconds: float = 0.0
    """Processor time of the measured processes; 0 if unknown."""
    seconds: float = 0.0
    """Wall time as seen from outside."""
    load: float | None = None
    """Processes that ran or waited to, over the last minute, for each processor; None if it cannot be read."""
    mhz: float | None = None
    """Mean frequency of the processors; None where the machine does not say."""


class CaseCounts(_Value):
    """How many of the cases of a metric passed, and how that compares with the base."""

    passed: int
    total: int
    gained: int = 0
    """Cases that pass, and did not for the base."""
    lost: int = 0
    """Cases that passed for the base, and do not any more."""


class MetricResult(_Value):
    """What one metric measured of one candidate."""

    value: float
    """The median of the samples."""
    unit: str
    samples: tuple[float, ...]
    """In the order of the rounds; the warm-up is left out."""
    spread: float = 0.0
    """Half the width of the interquartile range over the median."""
    level: float | None = None
    """Its value on an undisturbed machine, as fitted; None for a metric that did not decide."""
    low: float | None = None
    high: float | None = None
    """The ends of the 95 % interval of the level; None when there were too few samples for one."""
    undisturbed: tuple[float, ...] = ()
    """The samples without the time that was spent waiting for a processor; of a metric that did not decide, none."""
    circumstances: tuple[Circumstances, ...] = ()
    """For each sample."""
    workloads: dict[str, float] = Field(default_factory=dict)
    """How many times better than the base each workload is, by name, when there are several."""
    details: dict[str, str] = Field(default_factory=dict)
    """What else the scorer found in the first sample: of ``function``, ``import_ms`` and ``first_call_ms``."""
    cases: CaseCounts | None = None
    """When the value is the share of cases that pass."""


class Speedup(_Value):
    """How many times better than the base; above 1 is better, whatever the metric's direction."""

    vs_base: float
    low: float
    high: float
    """The ends of the 95 % interval."""


class AttemptVerdict(_Value):
    """What came of one attempt."""

    name: str
    entry: str
    agent: str
    model: str | None = None
    hint: str = ""
    state: AttemptState
    eligible: bool = False
    outcome: str = ""
    """Why the agent ended: "done", or the limit that ended it."""
    reasons: tuple[str, ...] = ()
    gates: dict[str, GateResult] = Field(default_factory=dict)
    metrics: dict[str, MetricResult] = Field(default_factory=dict)
    speedup: Speedup | None = None
    confirmed: Speedup | None = None
    """Of the winner: measured once more, with fresh seeds, after it was known to win."""
    p_best: float | None = None
    """Probability that it is the best of all, as far as the samples tell."""
    steps: int = 0
    usage: AttemptUsage = AttemptUsage()
    message: str = ""
    """The agent's last words: data, not fact."""
    seconds: float = 0.0
    files_changed: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """Changed paths that are no part of the submission."""
    machine: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """What it touched outside of the project, by kind; see `race.MachineReport`."""
    notes: tuple[str, ...] = ()
    """What a reader of the change should know and the scores do not say."""
    patch: str | None = None
    """Path of the patch file."""
    sandbox: str | None = None
    sandbox_state: Literal["kept", "deleted"] = "deleted"


class Round(_Value):
    """One round of a race that has several."""

    number: int
    race: str
    """The race that the round was."""
    winner: str | None = None
    speedup: Speedup | None = None
    """Of its winner over the round before."""
    total: float = 1.0
    """All rounds so far together."""


class BaseVerdict(_Value):
    """What was measured of the base."""

    sandbox: str | None = None
    metrics: dict[str, MetricResult] = Field(default_factory=dict)


class Verdict(_Value):
    """What came of a race."""

    race: str
    task: str
    status: RaceStatus
    winner: str | None = None
    tied_with: tuple[str, ...] = ()
    confidence: float = 0.0
    """Probability, in [0, 1], that the winner is the best."""
    decided_by: str = ""
    """In a sentence: why this one, or why none."""
    base: BaseVerdict = BaseVerdict()
    attempts: tuple[AttemptVerdict, ...] = ()
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    pareto: tuple[str, ...] = ()
    """With several metrics: the attempts that no other one beats in one of them while it is as good in all others."""
    lineage: tuple[Round, ...] = ()
    """Of a race with several rounds."""

    def attempt(self, name: str) -> AttemptVerdict | None:
        """The attempt of a name, or None."""
        return next((a for a in self.attempts if a.name == name), None)
