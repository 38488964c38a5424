"""stub"""
from __future__ import annotations
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caution:
    kind: str
    entrant: str | None
    detail: str
    advice: str
