"""Parts for tests: a model server that plays scripts, and the conformance suite of sandbox providers.

``python -m race.testing --port 8080`` serves the same from a shell.
"""

from race.testing.conformance import CHECKS, Check, CheckResult, check_provider, checked
from race.testing.model import Request, ScriptedModel
from race.testing.script import Call, Fault, Script, Turn

__all__ = [
    "CHECKS",
    "Call",
    "Check",
    "CheckResult",
    "Fault",
    "Request",
    "Script",
    "ScriptedModel",
    "Turn",
    "check_provider",
    "checked",
]
