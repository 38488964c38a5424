"""Every error that this package raises on purpose.

RaceError
├─ SpecError       the race file or the call is wrong; raised before any sandbox exists; exit status 2
├─ MachineError    this machine cannot do it; says what is missing and how to get it; exit status 3
├─ PluginError     an unknown or wrong-shaped plugin; lists the known names; exit status 2
└─ AttemptError    one attempt failed; recorded on the attempt, never cancels a sibling
   ├─ SandboxError   the sandbox broke, or was asked for something it cannot do
   ├─ ModelError     the model or its gateway broke
   ├─ AgentError     the agent broke
   └─ ScorerError    the scorer broke, which is not a failed score

Two more are outcomes rather than errors, and a plugin may raise them: `LimitReached` (a step, time or budget
limit ended an agent; the fork is scored as it stands) and `Rejected` (a metric says why a replay has no number).
"""


class RaceError(Exception):
    """Base of all errors raised on purpose by this package."""


class SpecError(RaceError):
    """The race file or the call is wrong. Raised before any sandbox exists."""


class MachineError(RaceError):
    """This machine cannot do what was asked. The text says what is missing and how to get it."""


class PluginError(RaceError):
    """A plugin is unknown or has the wrong shape. The text lists the known names."""


class AttemptError(RaceError):
    """One attempt failed. Recorded on that attempt; its siblings go on."""


class SandboxError(AttemptError):
    """The sandbox broke, or cannot do what was asked."""


class ModelError(AttemptError):
    """The model, or the way to it, broke."""


class AgentError(AttemptError):
    """The agent broke."""


class ScorerError(AttemptError):
    """The scorer broke. A score that is merely bad is a `Score`, not this."""


class LimitReached(Exception):  # noqa: N818 - an outcome, not an error: the fork is scored as it stands
    """A step, time or budget limit ended the agent.

    Args:
        limit: which one, as recorded in the verdict: ``"steps"``, ``"time"`` or ``"budget"``.
        detail: the sentence for people.
    """

    def __init__(self, limit: str, detail: str) -> None:
        super().__init__(detail)
        self.limit = limit


class Rejected(Exception):  # noqa: N818 - an outcome: the replay has no number, and this is why
    """A metric has no number for a replay; the text is the reason that the verdict shows."""
