"""How the best latency of an operator fell while it was searched; kept beside a benchmark's figures."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.results.curves import Point


@dataclass(frozen=True)
class Search:
    """`points` has one for every trial after which another latency was the best known: a lower one, or a
    higher one where a program was measured again. All `trials`, failures included, took `seconds`."""

    operator: str
    engine: str
    points: tuple[Point, ...]
    trials: int
    seconds: float

    @classmethod
    def of(cls, operator: str, engine: str, best_known: Iterable[tuple[float, float]]) -> Search:
        """From every trial's (seconds since the search began, best latency in seconds known then, or inf), in
        their order."""
        points: list[Point] = []
        trials, best_s, at_s = 0, math.inf, 0.0
        for trials, (at_s, latency_s) in enumerate(best_known, start=1):
            if latency_s != best_s:
                best_s = latency_s
                points.append(Point(round(at_s, 3), trials, latency_s))
        return cls(operator, engine, tuple(points), trials, round(at_s, 3))

    def best_after(self, trials: int) -> float | None:
        """Seconds of the fastest of the first `trials` as it was known then; None when all of them failed."""
        done = [point.latency_s for point in self.points if point.trials <= trials]
        return done[-1] if done else None

    def reached(self, latency_s: float) -> Point | None:
        """The first trial after which a program that takes no longer was known for good; None without one."""
        slower = sum(
            1 for _ in itertools.dropwhile(lambda p: p.latency_s <= latency_s, reversed(self.points))
        )
        return self.points[slower] if slower < len(self.points) else None

    @property
    def trials_per_s(self) -> float | None:
        """None where nothing was tried."""
        return self.trials / self.seconds if self.seconds else None


_SEARCH = TypeAdapter(Search)


def beside(figures: Path) -> Path:
    """Where the searches of a file of figures are kept, one a line."""
    return figures.with_suffix(".searches.jsonl")


def write(searches: Sequence[Search], path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(search)) + "\n" for search in searches))


def read(path: Path) -> tuple[Search, ...]:
    """Empty where no file is. Raises ValueError when it holds anything else."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return tuple(map(_SEARCH.validate_json, lines))
