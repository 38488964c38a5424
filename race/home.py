"""Where state lives: ``$RACE_HOME``, or ``race/`` in the XDG state folder."""

from __future__ import annotations

import os
from pathlib import Path

from race.errors import MachineError


def home() -> Path:
    """The state folder, made if it is not there, and reachable for its owner only.

    Raises:
        MachineError: it cannot be made or written to.
    """
    named = os.environ.get("RACE_HOME")
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    path = Path(named).expanduser() if named else Path(state).expanduser() / "race"
    path = path.absolute()
    make(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise MachineError(f"the state folder {path} cannot be written to; set RACE_HOME to another")
    return path


def make(path: Path) -> None:
    """Make a state folder that is not there, reachable for its owner only.

    Raises:
        MachineError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as e:
        raise MachineError(
            f"the state folder {path} cannot be made: {e.strerror}; set RACE_HOME to another"
        ) from e
