"""Recorded jobs: the measurements of whole networks' trials, for replay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.results.figures import FiguresError
from benchmarks.results.sidecar import Sidecar


@dataclass(frozen=True)
class RecordedTask:
    """A task. `base_workload` is the model's workload that it computes, directly or as a variant.

    `seconds` has the latencies of its trials in the order of measurement, None for a failed trial.
    Tasks of one `tag` are similar.
    """

    name: str
    workload: str
    base_workload: str
    weight: int
    flops: float
    tag: str
    covered: bool
    seconds: tuple[float | None, ...]


@dataclass(frozen=True)
class RecordedTrial:
    """A trial of the task at this index that ended `at_s` after the search began. `latency_s` is None if it
    failed."""

    task: int
    at_s: float
    latency_s: float | None


@dataclass(frozen=True)
class Recording:
    """One job. Importing the model took `importing_s`, the search `search_s`, and publishing
    `publishing_s`."""

    network: str
    device: str
    importing_s: float
    search_s: float
    publishing_s: float
    tasks: tuple[RecordedTask, ...]
    trials: tuple[RecordedTrial, ...]


RECORDINGS = Sidecar(Recording, "recordings")


def read_recordings(path: Path) -> tuple[Recording, ...]:
    """Return the recordings of a file, at least one. Raises FiguresError."""
    recordings = RECORDINGS.read_file(path)
    if not recordings:
        raise FiguresError(f"{path} has no recordings: make some with benchmarks.recording")
    return recordings
