"""An agent that does nothing: a control, which must never win."""

from __future__ import annotations

from typing import TYPE_CHECKING

from race.agent import TokenUsage, Trajectory

if TYPE_CHECKING:
    from race.agent import AgentContext
    from race.bash import Bash
    from race.task import Task


class Nop:
    """Ends at once, leaving the fork as it is."""

    async def run(self, task: Task, bash: Bash, context: AgentContext) -> Trajectory:  # noqa: ARG002 - the contract
        """Do nothing, for nothing."""
        return Trajectory(message="did nothing", usage=TokenUsage(cost_usd=0.0))
