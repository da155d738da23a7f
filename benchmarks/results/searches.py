"""Search curves: how an operator's best latency fell while it was searched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.results.curves import Point
from benchmarks.results.sidecar import Sidecar


@dataclass(frozen=True)
class Search:
    """One search of an operator: `trials`, failures included, in `seconds`.

    `points` has one point for every trial that changed the best known latency. The latency falls when a
    faster program is found, and may rise when a program is measured again.
    """

    operator: str
    engine: str
    points: tuple[Point, ...]
    trials: int
    seconds: float

    @classmethod
    def of(cls, operator: str, engine: str, best_known: Iterable[tuple[float, float]]) -> Search:
        """Make a search of `best_known`. For every trial in order, it has the seconds since the search began
        and the best latency so far in seconds. The latency is inf while all trials have failed."""
        points: list[Point] = []
        trials, best_s, at_s = 0, math.inf, 0.0
        for trials, (at_s, latency_s) in enumerate(best_known, start=1):
            if latency_s != best_s:
                best_s = latency_s
                points.append(Point(round(at_s, 3), trials, latency_s))
        return cls(operator, engine, tuple(points), trials, round(at_s, 3))

    def best_after(self, trials: int) -> float | None:
        """Return the best latency known after `trials`, in seconds; None when all of them failed."""
        done = [point.latency_s for point in self.points if point.trials <= trials]
        return done[-1] if done else None

    def reached(self, latency_s: float) -> Point | None:
        """Return the first point from which on the best known latency stays at or below `latency_s`, or
        None."""
        slower = sum(
            1 for _ in itertools.dropwhile(lambda p: p.latency_s <= latency_s, reversed(self.points))
        )
        return self.points[slower] if slower < len(self.points) else None

    @property
    def trials_per_s(self) -> float | None:
        """Trials a second; None without trials."""
        return self.trials / self.seconds if self.seconds else None


SEARCHES = Sidecar(Search, "searches")
