"""Several rounds of one race: the winner of each is the base of the next, whose agents are told what was tried.

Each round is a race of its own below the one that was asked for. It ends early when a round brings nothing that can be
told from noise.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from race.atomic import write_atomically
from race.errors import RaceError
from race.repository import ProjectRepository, TreeEntry
from race.runner import OnEvent, Terms, resume_in, run_in
from race.spec import RaceSpec
from race.store import Store, StoreError, TakenOverError
from race.submission import printable
from race.verdict import AttemptVerdict, Round, Verdict

_GONE = "000000"


async def run_rounds(store: Store, spec: RaceSpec, terms: Terms, on_event: OnEvent | None = None) -> Verdict:
    """Run a race of several rounds; errors are those of `race.run`."""
    race = terms.race or f"{spec.task.name[:20]}-{secrets.token_hex(4)}"
    store.begin(
        race,
        spec.task.name,
        str(spec.path),
        spec=spec.model_dump_json(),
        parent=terms.parent,
        replay=terms.replayed,
    )
    return await _run(store, race, spec, terms, on_event)


async def resume_rounds(store: Store, race: str, terms: Terms, on_event: OnEvent | None = None) -> Verdict:
    """Go on with one whose process is gone."""
    row = store.claim(race)
    return await _run(store, race, RaceSpec.model_validate_json(row.spec or ""), terms, on_event)


async def _run(store: Store, race: str, spec: RaceSpec, terms: Terms, on_event: OnEvent | None) -> Verdict:
    verdicts: list[Verdict] = []
    try:
        for number in range(1, spec.rounds + 1):
            if verdicts and verdicts[-1].winner is None:
                break
            verdicts.append(await _round(store, race, _spec(spec, race, verdicts), number, terms, on_event))
        verdict = await anyio.to_thread.run_sync(_whole, store, race, verdicts)
    except anyio.get_cancelled_exc_class():
        if terms.leaves():
            store.release(race)
            raise
        ended = Verdict(
            race=race, task=spec.task.name, status="cancelled", decided_by="the race was interrupted"
        )
        store.finish(ended.model_copy(update={"lineage": lineage(verdicts)}))
        raise
    except TakenOverError:
        raise
    except StoreError:
        store.release(race)
        raise
    except RaceError as e:
        ended = Verdict(race=race, task=spec.task.name, status="failed", decided_by=str(e))
        store.finish(ended.model_copy(update={"lineage": lineage(verdicts)}), str(e))
        raise
    event = store.finish(verdict)
    if on_event is not None:
        on_event(event)
    return verdict


async def _round(
    store: Store, race: str, spec: RaceSpec, number: int, terms: Terms, on_event: OnEvent | None
) -> Verdict:
    """One round, from wherever it stands."""
    own = replace(terms, race=round_id(race, number), parent=race)
    known = next((r for r in store.races(race) if r.id == own.race), None)
    if known is not None and known.verdict is not None:
        return known.verdict
    event = store.append(race, "round.started", round=number, race=own.race)
    if on_event is not None:
        on_event(event)
    if known is None:
        return await run_in(store, spec, own, on_event)
    return await resume_in(store, known.id, own, on_event)


def round_id(race: str, number: int) -> str:
    """The id of the race that a round is."""
    return f"{race}-r{number}"


def _spec(spec: RaceSpec, race: str, before: Sequence[Verdict]) -> RaceSpec:
    """The race file of the next round."""
    keep = spec.keep.model_copy(update={"winner": "replay"})
    spec = spec.model_copy(update={"rounds": 1, "keep": keep})
    if not before:
        return spec
    base = spec.base.model_copy(
        update={"project": f"race:{round_id(race, len(before))}", "ref": None, "setup": (), "exclude": ()}
    )
    task = spec.task.model_copy(update={"prompt": f"{spec.task.prompt.rstrip()}\n\n{tried(before)}"})
    finals = spec.finals.model_copy(update={"require_improvement": True})
    return spec.model_copy(update={"base": base, "task": task, "finals": finals})


def tried(before: Sequence[Verdict]) -> str:
    """What has been tried and measured, for the agents of the next round. Nothing in it is in another agent's words."""
    lines = [
        "This is a later round. The project holds the winning change of the round before; make it better still.",
        "What has been tried so far, and how many times as good as its base it was measured to be:",
    ]
    for number, verdict in enumerate(before, 1):
        lines += [f"- round {number}, {a.name}: {_outcome(a, verdict)}" for a in verdict.attempts]
    return "\n".join(lines)


def _outcome(attempt: AttemptVerdict, verdict: Verdict) -> str:
    won = "won, " if attempt.name == verdict.winner else ""
    if attempt.speedup is not None:
        s = attempt.speedup
        how = f"{s.vs_base:.3g} times ({s.low:.3g} to {s.high:.3g})"
    else:
        reason = printable(" ".join(attempt.reasons[0].split()))[:200] if attempt.reasons else "not measured"
        how = "eligible" if attempt.eligible else f"not eligible: {reason}"
    files = ", ".join(attempt.files_changed[:8])
    return f"{won}{how}" + (f"; changed {files}" if files else "")


def lineage(verdicts: Sequence[Verdict]) -> tuple[Round, ...]:
    """Who won which round, and how much that is in all."""
    rounds: list[Round] = []
    total = 1.0
    for number, verdict in enumerate(verdicts, 1):
        winner = verdict.attempt(verdict.winner) if verdict.winner else None
        speedup = winner.speedup if winner else None
        total *= speedup.vs_base if speedup else 1.0
        rounds.append(
            Round(number=number, race=verdict.race, winner=verdict.winner, speedup=speedup, total=total)
        )
    return tuple(rounds)


def _whole(store: Store, race: str, verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict over all rounds: that of the last one that was won, with the changes of all of them."""
    won = [v for v in verdicts if v.winner is not None]
    last = won[-1] if won else verdicts[-1]
    update: dict[str, object] = {
        "race": race,
        "lineage": lineage(verdicts),
        "seconds": sum(v.seconds for v in verdicts),
        "warnings": tuple(w for v in verdicts for w in v.warnings),
    }
    if won:
        paths, patch = _compose(store, race, won)
        update["attempts"] = tuple(
            a.model_copy(update={"patch": str(patch), "files_changed": paths}) if a.name == last.winner else a
            for a in last.attempts
        )
    verdict = last.model_copy(update=update)
    write_atomically(store.folder(race) / "verdict.json", verdict.model_dump_json(indent=2) + "\n")
    return verdict


def _compose(store: Store, race: str, won: Sequence[Verdict]) -> tuple[tuple[str, ...], Path]:
    """Keep the changes of all rounds as one submission, of the last winner's name."""
    folder = store.folder(race)
    place = folder / "objects.git"
    objects = ProjectRepository(place) if place.is_dir() else ProjectRepository.create(place)
    changes: dict[str, dict[str, str]] = {}
    for verdict in won:
        source = store.folder(verdict.race)
        kept = ProjectRepository(source / "objects.git") if (source / "objects.git").is_dir() else None
        made: list[dict[str, str]] = json.loads((source / f"{verdict.winner}.changes.json").read_text())
        for change in made:
            for mode, blob in (("old_mode", "old_blob"), ("new_mode", "new_blob")):
                if change[mode] != _GONE and kept is not None:
                    objects.store(kept.content(change[blob]))
            before = changes.get(change["path"], change)
            changes[change["path"]] = {
                **change,
                "old_mode": before["old_mode"],
                "old_blob": before["old_blob"],
            }
    real = [
        c
        for _, c in sorted(changes.items())
        if (c["old_mode"], c["old_blob"]) != (c["new_mode"], c["new_blob"])
    ]
    winner = won[-1].winner
    write_atomically(folder / f"{winner}.changes.json", json.dumps(real))
    before_tree = objects.tree({}, _side(real, "old"))
    patch = folder / f"{winner}.patch"
    patch.write_bytes(objects.patch(before_tree, objects.tree({}, _side(real, "new"))))
    return tuple(printable(bytes.fromhex(c["path"])) for c in real), patch


def _side(changes: Sequence[dict[str, str]], side: str) -> dict[bytes, TreeEntry | None]:
    return {
        bytes.fromhex(c["path"]): TreeEntry(c[f"{side}_mode"], c[f"{side}_blob"])
        for c in changes
        if c[f"{side}_mode"] != _GONE
    }
