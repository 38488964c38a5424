"""Best-of-N agent racing: fork one prepared sandbox N times, run an agent in each, keep the winner.

    import anyio, race
    verdict = anyio.run(race.run, race.load("benchmarks/primes/race.toml"))

Everything public is importable from here.
"""

from race.agent import Agent, AgentContext, ChecksFirst, Recorder, Resumes, Step, TokenUsage, Trajectory
from race.background import Process, ProcessInfo
from race.bash import Bash, BashResult
from race.batch import cancel_batch, run_batch
from race.batch_result import BatchResult, Estimate, TaskResult, Totals, VariantResult
from race.batch_spec import BatchSpec, load_batch
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
from race.fleet import Answer, Fleet, FleetPolicy, FleetSpec, Member
from race.forks import ForkFailure, fork_many
from race.gateway import Gateway, GatewayAccount, Line, Record, Source, Upstream
from race.journal import Journal
from race.runner import resume, run
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
from race.scoring import Calibrated, Gate, Metric, Replay, Sample, Score, ScoreContext
from race.spec import RaceSpec, load
from race.store import Event, Store, StoreError, TakenOverError
from race.submission import MachineReport, Package, PathChange, Submission
from race.task import Task
from race.tools import BringsTools, Tool
from race.verdict import AttemptVerdict, Verdict
from race.watching import watch

__all__ = [
    "Agent",
    "AgentContext",
    "AgentError",
    "Answer",
    "AttemptError",
    "AttemptVerdict",
    "Bash",
    "BashResult",
    "BatchResult",
    "BatchSpec",
    "BringsTools",
    "Calibrated",
    "Capabilities",
    "Change",
    "ChecksFirst",
    "Directory",
    "Entrant",
    "Estimate",
    "Event",
    "ExecResult",
    "File",
    "Finding",
    "Fleet",
    "FleetPolicy",
    "FleetSpec",
    "ForkFailure",
    "Gate",
    "Gateway",
    "GatewayAccount",
    "Journal",
    "LimitReached",
    "Limits",
    "Line",
    "Link",
    "MachineError",
    "MachineReport",
    "Member",
    "Metric",
    "ModelError",
    "Package",
    "PathChange",
    "PluginError",
    "Process",
    "ProcessInfo",
    "RaceError",
    "RaceSpec",
    "Record",
    "Recorder",
    "Rejected",
    "Removed",
    "Replay",
    "Resumes",
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
    "StoreError",
    "Submission",
    "TakenOverError",
    "Task",
    "TaskResult",
    "Terminal",
    "TokenUsage",
    "Tool",
    "Totals",
    "Trajectory",
    "Upstream",
    "Usage",
    "VariantResult",
    "Verdict",
    "cancel_batch",
    "finals",
    "fork_many",
    "load",
    "load_batch",
    "resume",
    "run",
    "run_batch",
    "watch",
]
