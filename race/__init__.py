"""Best-of-N agent racing: fork one prepared sandbox N times, run an agent in each, keep the winner.

    import anyio, race
    verdict = anyio.run(race.run, race.load("benchmarks/primes/race.toml"))

Everything public is importable from here.
"""

from race.agent import Agent, AgentContext, ChecksFirst, Recorder, Step, TokenUsage, Trajectory
from race.bash import Bash, BashResult
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
from race.gateway import Gateway, GatewayAccount, Line, Record, Source, Upstream
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
from race.tools import BringsTools, Tool
from race.verdict import AttemptVerdict, Verdict

__all__ = [
    "Agent",
    "AgentContext",
    "AgentError",
    "AttemptError",
    "AttemptVerdict",
    "Bash",
    "BashResult",
    "BringsTools",
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
    "Gateway",
    "GatewayAccount",
    "LimitReached",
    "Limits",
    "Line",
    "Link",
    "MachineError",
    "Metric",
    "ModelError",
    "Package",
    "PathChange",
    "PluginError",
    "RaceError",
    "RaceSpec",
    "Record",
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
    "Source",
    "SpecError",
    "Standing",
    "Standings",
    "Step",
    "Store",
    "Submission",
    "Task",
    "Terminal",
    "TokenUsage",
    "Tool",
    "Trajectory",
    "Upstream",
    "Usage",
    "Verdict",
    "finals",
    "load",
    "run",
]
