"""The outcomes of a run's cases, which are stored beside its figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from benchmarks.results.sidecar import Sidecar


class Outcome(StrEnum):
    """The outcome of a case. If an importer raises an exception, it has refused the case."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Verdict:
    """An outcome, and the message of the importer or the comparison."""

    outcome: Outcome
    why: str = ""


@dataclass(frozen=True)
class Tried:
    """A case and the verdicts of both importers; `left_out` is as in `Case`."""

    case: str
    operator: str
    left_out: str
    ours: Verdict
    tvms: Verdict


TRIED = Sidecar(Tried, "cases")


# Element types, in the order of the table's columns.
TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("int4", "uint4", "int2", "uint2", "float4_e2m1fn"),
)


@dataclass(frozen=True)
class TypedVerdict:
    """An operator with an element type, and the importer's verdict; None if nothing computes right
    outputs."""

    case: str
    operator: str
    dtype: str
    answer: Verdict | None


TYPED = Sidecar(TypedVerdict, "types")
