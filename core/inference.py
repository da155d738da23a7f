"""The differences between a compiled model's outputs on a device and a reference's outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.plain_text import without_controls

MAX_OUTPUTS = 4096
_MAX_CHARS = 200
_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True)
class OutputDifference:
    """The difference of one output. `differing` of its `elements` are not equal.

    `largest` is the largest absolute difference; None if an element is NaN or infinite in only one of the
    two. `db` is the signal-to-noise ratio in decibels; None if all elements are equal.
    """

    name: str
    elements: int
    differing: int
    largest: float | None
    db: float | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", without_controls(self.name)[:_MAX_CHARS])
        if not 0 <= self.differing <= self.elements <= _MAX_INT64:
            raise ValueError(f"{self.differing} of {self.elements} elements can't differ")
        if self.differing and self.db is None:
            raise ValueError(f"elements of {self.name} differ, so there is a ratio of signal to noise")
        if any(number is not None and not math.isfinite(number) for number in (self.largest, self.db)):
            raise ValueError(f"the difference of {self.name} must be finite")


@dataclass(frozen=True)
class Comparison:
    """The differences of all outputs. If they were not compared, `note` says why."""

    outputs: tuple[OutputDifference, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "note", without_controls(self.note)[:8192])
        if len(self.outputs) > MAX_OUTPUTS:
            raise ValueError(f"{len(self.outputs)} outputs are more than {MAX_OUTPUTS}")

    @property
    def text(self) -> str:
        """Summarize the comparison in one clause."""
        if self.note:
            return f"the outputs were not compared: {self.note}"
        if not any(one.differing for one in self.outputs):
            return "the outputs equal ONNX Runtime's for the original model"
        worst = min((one for one in self.outputs if one.db is not None), key=lambda one: one.db or 0.0)
        largest = "NaN or infinite" if worst.largest is None else f"at most {worst.largest:.2g}"
        return (
            f"the outputs differ from ONNX Runtime's for the original model by {largest} "
            f"({worst.db:.1f} dB signal to noise, output '{worst.name}')"
        )
