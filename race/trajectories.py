"""Keeping trajectories, and writing them in the forms that others read.

Kept is a file of JSON for each attempt, below the race's folder. From it are made: ATIF 1.7 (Harbor's trajectory
format), lines of JSON, and OpenTelemetry spans with the names of the GenAI conventions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from race.agent import Step, TokenUsage, Trajectory
from race.atomic import write_atomically
from race.errors import SpecError

ATIF = "ATIF-v1.7"
"""The version of the format; 1.8 adds only sounds."""


@dataclass(frozen=True, slots=True)
class Told:
    """A trajectory with what it is a trajectory of.

    Attributes:
        race: id of the race.
        attempt: name of the attempt.
        agent: the plugin.
        model: its model, or None.
        prompt: what it was asked.
        trajectory: what it did.
    """

    race: str
    attempt: str
    agent: str
    model: str | None
    prompt: str
    trajectory: Trajectory


_TOLD = TypeAdapter(Told)
_FOLDER = "trajectories"


def keep(folder: Path, told: Told) -> None:
    """Keep a trajectory.

    Args:
        folder: of the race.
        told: the trajectory.
    """
    place = folder / _FOLDER
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(place / f"{told.attempt}.json", _TOLD.dump_json(told).decode())


def kept(folder: Path, attempt: str) -> Told | None:
    """A trajectory that was kept; None if it is not there or cannot be read."""
    try:
        return _TOLD.validate_json((folder / _FOLDER / f"{attempt}.json").read_bytes())
    except (OSError, ValueError):
        return None


def attempts(folder: Path) -> list[str]:
    """The attempts of a race whose trajectories were kept, sorted."""
    return sorted(p.stem for p in (folder / _FOLDER).glob("*.json"))


def jsonl(told: Told) -> Iterator[str]:
    """A line of JSON for each step, with the race and the attempt in it."""
    for step in told.trajectory.steps:
        yield json.dumps({"race": told.race, "attempt": told.attempt, "model": told.model, **asdict(step)})


def atif(told: Told) -> dict[str, Any]:
    """A trajectory as a document of ATIF."""
    made = told.trajectory
    agent: dict[str, Any] = {"name": told.agent, "version": version("forkrace")}
    if told.model:
        agent["model_name"] = told.model
    began = made.steps[0].started if made.steps else 0.0
    asked = {"step_id": 1, "timestamp": _time(began), "source": "user", "message": told.prompt}
    steps = [asked, *(_atif_step(s, n) for n, s in enumerate(made.steps, 2))]
    used = made.usage
    final: dict[str, Any] = {
        "total_prompt_tokens": used.input_tokens,
        "total_completion_tokens": used.output_tokens,
        "total_cached_tokens": used.cached_tokens,
        "total_steps": len(steps),
    }
    if used.cost_usd is not None:
        final["total_cost_usd"] = used.cost_usd
    return {
        "schema_version": ATIF,
        "session_id": f"{told.race}/{told.attempt}",
        "agent": agent,
        "steps": steps,
        "notes": f"{made.outcome}: {made.message}",
        "final_metrics": final,
    }


def _atif_step(step: Step, number: int) -> dict[str, Any]:
    used = step.usage
    made: dict[str, Any] = {
        "step_id": number,
        "timestamp": _time(step.started),
        "source": "agent",
        "message": step.text,
    }
    if step.commands:
        calls = [(f"call-{number}-{i}", c) for i, c in enumerate(step.commands, 1)]
        made["tool_calls"] = [
            {"tool_call_id": i, "function_name": "bash", "arguments": {"command": c.command}}
            for i, c in calls
        ]
        made["observation"] = {"results": [{"source_call_id": i, "content": c.text} for i, c in calls]}
    if used.input_tokens or used.output_tokens:
        metrics: dict[str, Any] = {
            "prompt_tokens": used.input_tokens,
            "completion_tokens": used.output_tokens,
            "cached_tokens": used.cached_tokens,
        }
        if used.cost_usd is not None:
            metrics["cost_usd"] = used.cost_usd
        made["metrics"] = metrics
    return made


@dataclass(frozen=True, slots=True)
class Span:
    """A span as OpenTelemetry knows it, before any exporter has it.

    Attributes:
        name: of the span.
        started: seconds since the epoch.
        ended: likewise.
        attributes: by the names of the GenAI conventions.
        children: in order.
    """

    name: str
    started: float
    ended: float
    attributes: dict[str, str | int | float | list[str]]
    children: tuple[Span, ...] = ()


def span(told: Told) -> Span:
    """A trajectory as a tree of spans: the agent, its turns, its commands."""
    made = told.trajectory
    turns: list[Span] = []
    after = [s.started for s in made.steps[1:]]
    for step, ended in zip(made.steps, [*after, None], strict=True):
        took = sum(c.seconds for c in step.commands)
        turns.append(_turn(told, step, max(ended or 0.0, step.started + took)))
    began = turns[0].started if turns else 0.0
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": told.agent,
        "gen_ai.conversation.id": f"{told.race}/{told.attempt}",
        **_used(told, made.usage),
    }
    return Span(
        f"invoke_agent {told.agent}", began, turns[-1].ended if turns else began, attributes, tuple(turns)
    )


def _turn(told: Told, step: Step, ended: float) -> Span:
    began = ended - sum(c.seconds for c in step.commands)
    tools: list[Span] = []
    for command in step.commands:
        attributes: dict[str, str | int | float | list[str]] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "bash",
            "gen_ai.tool.call.arguments": json.dumps({"command": command.command}),
            "gen_ai.tool.call.result": command.text,
        }
        tools.append(Span("execute_tool bash", began, began + command.seconds, attributes))
        began += command.seconds
    attributes = {"gen_ai.operation.name": "chat", **_used(told, step.usage)}
    return Span(f"chat {told.model or ''}".strip(), step.started, ended, attributes, tuple(tools))


def _used(told: Told, usage: TokenUsage) -> dict[str, str | int | float | list[str]]:
    found: dict[str, str | int | float | list[str]] = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
    }
    if told.model:
        found["gen_ai.request.model"] = told.model
    if usage.cost_usd is not None:
        found["race.cost_usd"] = usage.cost_usd
    return found


def send(spans: Iterable[Span]) -> int:
    """Send spans to where the environment says (``OTEL_EXPORTER_OTLP_ENDPOINT``). Returns how many.

    Raises:
        SpecError: the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra
    except ImportError as e:
        raise SpecError(
            "OpenTelemetry is not installed; install it with: pip install 'forkrace[otel]'"
        ) from e
    provider = TracerProvider(resource=Resource.create({"service.name": "forkrace"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    count = sum(record(provider, s) for s in spans)
    provider.shutdown()
    return count


def record(provider: Any, tree: Span) -> int:
    """Give a tree of spans to a tracer provider of OpenTelemetry. Returns how many there are."""
    from opentelemetry import trace  # noqa: PLC0415 - an extra

    tracer = provider.get_tracer("forkrace")

    def give(one: Span, parent: Any) -> int:
        made = tracer.start_span(
            one.name, context=parent, start_time=int(one.started * 1e9), attributes=one.attributes
        )
        count = 1 + sum(give(c, trace.set_span_in_context(made)) for c in one.children)
        made.end(end_time=int(one.ended * 1e9))
        return count

    return give(tree, None)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
