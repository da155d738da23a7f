"""Tuning curves: a network's latency over the time and the trials of its tuning."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results.sidecar import Sidecar


@dataclass(frozen=True)
class Point:
    """A point of a curve: `at_s` seconds after the start, `trials` were done and the best known latency was
    `latency_s`.

    A network's latency is the sum over its tasks. It is known once every task has a schedule.
    """

    at_s: float
    trials: int
    latency_s: float


@dataclass(frozen=True)
class Curve:
    """One network's points, and the latencies of whole models in seconds."""

    network: str
    points: tuple[Point, ...]
    tuned_s: float
    untuned_s: float
    onnxruntime_s: float

    def settled(self, within: float = 0.1) -> Point | None:
        """Return the first point after which the latency stays at most `within` above the last one."""
        settled: Point | None = None
        for point in reversed(self.points):
            if point.latency_s > self.points[-1].latency_s * (1 + within):
                break
            settled = point
        return settled


CURVES = Sidecar(Curve, "curves")
