"""What is known of a sandbox without talking to it."""

from __future__ import annotations

import math
import re

from pydantic import BaseModel, ConfigDict, Field

from race.errors import SandboxError
from race.sandbox import Limits, Network, SandboxSpec
from race.sandboxes.local.liveness import Init

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Mount(BaseModel):
    """One overlay of a sandbox's file tree: where it is, and the layers that its image brings."""

    model_config = ConfigDict(frozen=True)

    at: str
    image: tuple[str, ...]
    """Top first; a path that begins with ``/`` is the host's, any other is relative to home."""


class Layer(BaseModel):
    """A sealed layer: a folder, relative to home, and for which mounts it has a part."""

    model_config = ConfigDict(frozen=True)

    folder: str
    parts: tuple[int, ...]


class Record(BaseModel):
    """Everything that is known of a sandbox without talking to it."""

    model_config = ConfigDict(frozen=True)

    name: str
    image: str
    mounts: tuple[Mount, ...]
    image_env: dict[str, str]
    """What the image brings; the network's settings come on top, then ``env``."""
    env: dict[str, str]
    limits: Limits
    network: Network
    labels: dict[str, str]
    created: float
    parent: str | None = None
    ancestors: tuple[str, ...] = ()
    """What it descends from, the nearest first, also those that are deleted by now."""
    lifetime: float | None = None
    idle_lifetime: float | None = None
    inherited: tuple[Layer, ...] = ()
    """Layers of the sandboxes that it descends from, the top one first: what `changes` compares with."""
    own: tuple[Layer, ...] = ()
    """Layers that it has sealed itself, the top one first."""
    flat: Layer | None = None
    """A layer that shows the same as the lowest ``covered`` of those."""
    covered: int = 0
    sealed: int = 0
    """How many layers it has ever sealed, for their names."""
    cgroups: tuple[str, ...] = ()
    """Its control groups, which exist while it runs."""
    image_folder: str | None = None
    """The folder, relative to home, of what was prepared for the image, kept while a record names it."""

    # What follows is not in the record itself, but in files beside it that can change without rewriting it:
    # replacing a file costs more than a fork.
    init: Init | None = Field(default=None, exclude=True)
    """Its PID 1, if it was started and not stopped since. It may have ended."""
    frozen: bool = Field(default=False, exclude=True)
    complete: bool = Field(default=False, exclude=True)
    """Whether it came to life; if not, and nobody holds its lock, its maker was killed."""

    @property
    def lower(self) -> tuple[Layer, ...]:
        """The layers to mount, the top one first: no more than are needed to show all that it stands on."""
        layers = (*self.own, *self.inherited)
        return layers if self.flat is None else (*layers[: len(layers) - self.covered], self.flat)


def check_name(name: str, whose: str = "sandbox") -> None:
    """Refuse a name that cannot be a sandbox's.

    Args:
        name: any text.
        whose: what is to have the name.

    Raises:
        SandboxError: it has other characters, or too many.
    """
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise SandboxError(
            f"{name!r} cannot be a {whose}'s name: 1 to 100 letters, digits, '.', '_' or '-', not beginning with '.'"
        )


def check_lifetimes(spec: SandboxSpec) -> None:
    """Refuse lifetimes that are over before they begin.

    Raises:
        SandboxError: one is not a number of seconds above 0.
    """
    for what, value in (("lifetime", spec.lifetime), ("idle_lifetime", spec.idle_lifetime)):
        if value is not None and not 0 < value < math.inf:
            raise SandboxError(f"the {what} of a sandbox is a number of seconds above 0, not {value!r}")
