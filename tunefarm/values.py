"""What the service answers, as values. Fields it may add later are ignored."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """A job runs through the first five in order; the last three are final."""

    QUEUED = "queued"
    IMPORTING = "importing"
    TUNING = "tuning"
    PUBLISHING = "publishing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True)
class Model:
    """A stored model; `sha256` is what jobs call it by."""

    sha256: str
    name: str
    size: int


@dataclass(frozen=True)
class JobRequest:
    """What to tune: `shapes` fixes dynamic inputs, `minutes` is a budget of wall-clock minutes or None.

    `compile_only` asks for the model with the schedules known already; its `trials` are 0.
    """

    model: str
    trials: int
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    target: str = "native"
    minutes: float | None = None
    seed: int = 0
    compile_only: bool = False


@dataclass(frozen=True)
class Job:
    """A job as the service sees it now. Times are seconds since the epoch.

    `untuned_latency_s` is the whole model as TVM compiles it by default, `tuned_latency_s` the same with
    its best schedules, both measured on the device.
    """

    id: str
    state: JobState
    model: str
    model_name: str
    shapes: dict[str, tuple[int, ...]]
    target: str
    trials: int
    minutes: float | None
    seed: int
    message: str
    error: str | None
    device_class: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    trials_done: int
    untuned_latency_s: float | None
    tuned_latency_s: float | None


@dataclass(frozen=True)
class Task:
    """A subgraph of a job's model that occurs `weight` times; `best_s` is its best latency so far."""

    workload: str
    name: str
    weight: int
    covered: bool
    reason: str
    trials: int
    best_s: float | None

    @property
    def network_s(self) -> float | None:
        """Its part of the whole model's seconds."""
        return None if self.best_s is None else self.weight * self.best_s


@dataclass(frozen=True)
class Event:
    """Something that happened to a job; `id` is what a watcher continues after."""

    id: str
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Worker:
    """A device's agent, as it was last seen."""

    id: str
    state: str
    device_class: str | None
    device_name: str | None
    last_seen_at: float
    trials_done: int
    failures: int


@dataclass(frozen=True)
class Schedule:
    """The best known schedule of a workload on a device class; `trace` is MetaSchedule's, as JSON text."""

    workload: str
    device_class: str
    trace: str
    latency_s: float
    run_secs: tuple[float, ...]
    target: str


@dataclass(frozen=True)
class ExportedWorkload:
    """A workload's module as TVM's JSON, under its structural hash."""

    hash: str
    module_json: str


@dataclass(frozen=True)
class ExportedRecord:
    """One measurement of a workload's schedule; `trace` and `target` are JSON, as in MetaSchedule's files."""

    workload: str
    trace: str
    run_secs: tuple[float, ...]
    target: str


@dataclass(frozen=True)
class Database:
    """Schedules on their way into or out of a service; every record's workload is among the workloads."""

    workloads: tuple[ExportedWorkload, ...]
    records: tuple[ExportedRecord, ...]


@dataclass(frozen=True)
class Imported:
    """How many records an import held, and how many were new."""

    device_class: str
    records: int
    added: int
