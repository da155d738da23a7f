"""The cases of a run and what became of them, kept beside its figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from benchmarks.results.sidecar import Sidecar


class Outcome(StrEnum):
    """The result of a case. An importer that raised anything has refused it."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Answer:
    """An outcome, and what the importer or the comparison said of it."""

    outcome: Outcome
    why: str = ""


@dataclass(frozen=True)
class Tried:
    """A case and the answers of both importers to it; `left_out` is as in `Case`."""

    case: str
    operator: str
    left_out: str
    ours: Answer
    tvms: Answer


TRIED = Sidecar(Tried, "cases")
