"""Trajectories as spans of OpenTelemetry, with its own exporter in memory."""

from __future__ import annotations

import pytest

from race.agent import Step, TokenUsage, Trajectory
from race.bash import BashResult
from race.trajectories import Told, record, span

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is an extra")


def test_spans_have_their_times_their_parents_and_the_names_of_the_conventions() -> None:
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: PLC0415 - an extra
        InMemorySpanExporter,
    )

    ran = BashResult("ls", 0, "x\n", timed_out=False, seconds=0.5, timeout=10)
    used = TokenUsage(10, 5, 2, 0.01)
    steps = (Step(1, "look", (ran,), used, 100.0), Step(2, "done", (), used, 102.0))
    told = Told(
        "r1", "a", "codex", "m", "Do it.", Trajectory(steps, "done", "done", TokenUsage(20, 10, 4, 0.02))
    )
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    assert record(provider, span(told)) == 4
    provider.shutdown()
    spans = {s.name: s for s in exporter.get_finished_spans() if s.name != "chat m"}
    chats = [s for s in exporter.get_finished_spans() if s.name == "chat m"]
    agent, tool = spans["invoke_agent codex"], spans["execute_tool bash"]
    assert agent.attributes is not None
    assert agent.attributes["gen_ai.usage.input_tokens"] == 20
    assert {c.parent.span_id for c in chats if c.parent} == {agent.context.span_id}
    assert tool.parent is not None
    assert tool.parent.span_id in {c.context.span_id for c in chats}
    assert (agent.start_time, agent.end_time) == (100 * 10**9, 102 * 10**9)
    assert (tool.end_time or 0) - (tool.start_time or 0) == 5 * 10**8
