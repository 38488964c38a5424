"""Entries as a product of models and hints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from race.errors import SpecError
from race.spec import RaceSpec, from_data


def spec(*entries: dict[str, Any], **more: Any) -> RaceSpec:
    return from_data({"task": {"prompt": "Faster."}, "entries": list(entries), **more}, Path("race.toml"))


def test_every_model_with_every_hint_named_after_them() -> None:
    entry = {
        "models": ["a/m-1", "b/m-2"],
        "hints": {"plain": "", "deep": "Think first."},
        "count": 2,
        "max_steps": 5,
    }
    made = spec(entry, {"name": "control", "agent": "nop"})
    assert [(e.name, e.model, e.hint, e.count, e.max_steps) for e in made.entries[:4]] == [
        ("m-1-plain", "a/m-1", "", 2, 5),
        ("m-1-deep", "a/m-1", "Think first.", 2, 5),
        ("m-2-plain", "b/m-2", "", 2, 5),
        ("m-2-deep", "b/m-2", "Think first.", 2, 5),
    ]
    assert made.entries[0].attempt_names() == ["m-1-plain-1", "m-1-plain-2"]
    assert made.entries[4].name == "control"


def test_names_are_made_of_words_and_stay_unique() -> None:
    made = spec({"name": "x", "hints": ["Use numpy, if you like it.", "Use numpy, if you must.", ""]})
    assert [e.name for e in made.entries] == ["x-use-numpy-if", "x-use-numpy-if-2", "x-plain"]
    long = spec({"models": ["m" * 60, "m" * 70]})
    assert [len(e.name) for e in long.entries] == [40, 40]


def test_a_seed_fixes_the_order() -> None:
    entry = {"models": [f"m{n}" for n in range(9)]}
    orders = [[e.name for e in spec(entry, seed=seed).entries] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == [f"m{n}" for n in range(9)]


@pytest.mark.parametrize(
    ("entry", "more", "said"),
    [
        ({"models": []}, {}, "entries[1].models: must be a list of texts"),
        ({"models": ["a", 1]}, {}, "entries[1].models: must be a list of texts"),
        ({"models": ["a"], "model": "b"}, {}, "entries[1]: has both model and models; keep one"),
        ({"name": "a"}, {"seed": "x"}, "seed: must be a whole number (it is 'x')"),
    ],
)
def test_what_is_refused(entry: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(entry, **more)
    assert said in str(caught.value)
