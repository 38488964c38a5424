"""Best-of-N agent racing: fork one prepared sandbox N times, run an agent in each, keep the winner.

    import anyio, race
    verdict = anyio.run(race.run, race.load("benchmarks/primes/race.toml"))

Everything public is importable from here.
"""

from race.agent import Agent, AgentContext, ChecksFirst, Recorder, Step, TokenUsage, Trajectory
from race.bash import Bash, BashResult
from race.comparison import Method, compare
from race.errors import (
    AgentError,
    AttemptError,
    LimitReached,
    MachineError,
    ModelError,
    PluginError,
    RaceError,
    Rejected,
    SandboxError,
    ScorerError,
    SpecError,
)
from race.finals import Entrant, Rule, Standing, Standings, finals
from race.runner import run
from race.sandbox import (
    Capabilities,
    Change,
    Directory,
    ExecResult,
    File,
    Finding,
    Limits,
    Link,
    Removed,
    Sandbox,
    SandboxInfo,
    SandboxProvider,
    SandboxSpec,
    Terminal,
    Usage,
)
from race.scoring import Gate, Metric, Replay, Sample, Score, ScoreContext
from race.spec import RaceSpec, load
from race.store import Event, Store
from race.submission import Package, PathChange, Submission
from race.task import Task
from race.verdict import AttemptVerdict, Verdict

__all__ = [
    "Agent",
    "AgentContext",
    "AgentError",
    "AttemptError",
    "AttemptVerdict",
    "Bash",
    "BashResult",
    "Capabilities",
    "Change",
    "ChecksFirst",
    "Directory",
    "Entrant",
    "Event",
    "ExecResult",
    "File",
    "Finding",
    "Gate",
    "LimitReached",
    "Limits",
    "Link",
    "MachineError",
    "Method",
    "Metric",
    "ModelError",
    "Package",
    "PathChange",
    "PluginError",
    "RaceError",
    "RaceSpec",
    "Recorder",
    "Rejected",
    "Removed",
    "Replay",
    "Rule",
    "Sample",
    "Sandbox",
    "SandboxError",
    "SandboxInfo",
    "SandboxProvider",
    "SandboxSpec",
    "Score",
    "ScoreContext",
    "ScorerError",
    "SpecError",
    "Standing",
    "Standings",
    "Step",
    "Store",
    "Submission",
    "Task",
    "Terminal",
    "TokenUsage",
    "Trajectory",
    "Usage",
    "Verdict",
    "compare",
    "finals",
    "load",
    "run",
]
