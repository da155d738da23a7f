"""Latencies of random programs of both engines, by operator."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results.sidecar import Sidecar


@dataclass(frozen=True)
class RandomPrograms:
    """Seconds of every random program that ran, fastest first."""

    operator: str
    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]


RANDOM_PROGRAMS = Sidecar(RandomPrograms, "random")
