"""How a network's latency fell while it was tuned; kept beside a benchmark's figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter


@dataclass(frozen=True)
class Point:
    """At `at_s` seconds after the start, `trials` were done and the best known took `latency_s`.

    Of a network that is the sum over its tasks, known once every task has a schedule.
    """

    at_s: float
    trials: int
    latency_s: float


@dataclass(frozen=True)
class Curve:
    """One network's points, and latencies measured end to end; all in seconds."""

    network: str
    points: tuple[Point, ...]
    tuned_s: float
    untuned_s: float
    onnxruntime_s: float

    def settled(self, within: float = 0.1) -> Point | None:
        """The first point from which on the estimate stays at most `within` above the last one."""
        settled: Point | None = None
        for point in reversed(self.points):
            if point.latency_s > self.points[-1].latency_s * (1 + within):
                break
            settled = point
        return settled


_CURVE = TypeAdapter(Curve)


def beside(figures: Path) -> Path:
    """Where the curves of a file of figures are kept, one a line."""
    return figures.with_suffix(".curves.jsonl")


def write(curves: Sequence[Curve], path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(curve)) + "\n" for curve in curves))


def read(path: Path) -> tuple[Curve, ...]:
    """Empty where no file is. Raises ValueError when it holds anything else."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return tuple(map(_CURVE.validate_json, lines))
