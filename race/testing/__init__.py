"""Parts for the tests of agents, and of everything around them: a model server that plays scripts.

``python -m race.testing --port 8080`` serves the same from a shell.
"""

from race.testing.model import Request, ScriptedModel
from race.testing.script import Call, Fault, Script, Turn

__all__ = ["Call", "Fault", "Request", "Script", "ScriptedModel", "Turn"]
