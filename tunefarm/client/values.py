"""What the service answers, as values. Fields it may add later are ignored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from core.access import Scope
from core.job import Build, JobState


@dataclass(frozen=True)
class StoredModel:
    """A stored model; `sha256` is what jobs call it by."""

    sha256: str
    name: str
    size: int


@dataclass(frozen=True)
class JobRequest:
    """What to tune: `shapes` fixes dynamic inputs, `minutes` is a budget of wall-clock minutes or None.

    `compile_only` asks for the model with the schedules known already and best guesses for the rest; its
    `trials` are 0. Where jobs share devices, those of higher `priority` go first; of equal priority, each
    gets trials in proportion to its `weight`. `build` says who compiles the candidates.
    """

    model: str
    trials: int
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    target: str = "native"
    minutes: float | None = None
    seed: int = 0
    compile_only: bool = False
    priority: int = 0
    weight: float = 1.0
    build: str = Build.AUTO.value


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
    priority: int = 0
    weight: float = 1.0
    build: str = Build.AUTO.value

    @property
    def trials_text(self) -> str:
        """Done of its budget, or of the first guesses that go beyond it."""
        return f"{self.trials_done}/{max(self.trials, self.trials_done)}"


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
class JobEvent:
    """Something that happened to a job; `id` is what a watcher continues after."""

    id: str
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Worker:
    """A device's agent, as it was last seen. None is what isn't known.

    `state` is what it said then, `wanted` what people want it to do: work, drain or be evicted. `connected`:
    it was seen lately. `load` is how many processes wanted to run, on average over a minute. `candidates` are
    those of the `lease` it holds. `uncontained` says what measured code isn't kept from there, if anything;
    `trouble` why it can't measure or build, in one line, if it can't. One whose `role` is build measures
    nothing; its trials are those that it built, for the machines in `builds_for`. `calibrate`: it is wanted
    to measure its device's profile again, which it hasn't yet.
    """

    id: str
    state: str
    device_class: str | None
    device_name: str | None
    last_seen_at: float
    trials_done: int
    failures: int
    wanted: str = "work"
    connected: bool = True
    cores: int | None = None
    last_seen_ago_s: float | None = None
    failures_by_kind: dict[str, int] = field(default_factory=dict)
    trials_per_minute: float | None = None
    load: float | None = None
    temperature_c: float | None = None
    memory_free_bytes: int | None = None
    tunefarm_version: str = ""
    tvm_version: str = ""
    lease: str | None = None
    candidates: int | None = None
    candidates_done: int | None = None
    uncontained: str = ""
    role: str = "measure"
    builds_for: tuple[str, ...] = ()
    trouble: str = ""
    calibrate: bool = False

    @property
    def unable(self) -> str:
        """What it can't do and why, as it goes on after its name; empty when it can."""
        does = "build" if self.role == "build" else "measure"
        return f"can't {does}: {self.trouble}" if self.trouble else ""


@dataclass(frozen=True)
class DeviceClass:
    """Devices of equal hardware and toolchain. The `profile` has the fields of core.profile's; None until
    one of them has been calibrated."""

    key: str
    name: str
    cores: int
    vector_bytes: int
    profile: dict[str, Any] | None = None


@dataclass(frozen=True)
class StoredToken:
    """A token without its secret; `state` is active, expired or revoked."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    state: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None


@dataclass(frozen=True)
class NewToken(StoredToken):
    """A token that was just made: `token` is the secret, which the service tells only now."""

    token: str = field(repr=False)


@dataclass(frozen=True)
class Accuracy:
    """How well a model predicts so many `records`; None where they can't tell. `r2` is of throughput relative
    to the task's best, `pairwise` the share of pairs in the right order, `recall` the share of the 30 fastest
    that are among the 30 predicted to be the fastest."""

    records: int
    r2: float | None
    pairwise: float | None
    recall: float | None


@dataclass(frozen=True)
class AccuracyComparison:
    """The learned model beside the analytic estimate, on the same records."""

    learned: Accuracy
    analytic: Accuracy


@dataclass(frozen=True)
class HeldOutAccuracy(AccuracyComparison):
    """On records held out of a model `trained_on` the others; `tasks` are by workload."""

    trained_on: int
    tasks: dict[str, AccuracyComparison]


@dataclass(frozen=True)
class CostModelReport:
    """A device class's cost model: `versions` trainings, the newest on so many `records`. `metrics` are the
    newest, None until there are enough records."""

    device_class: str
    device_name: str
    versions: int
    records: int
    created_at: float
    train_secs: float
    total_train_secs: float
    metrics: HeldOutAccuracy | None


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
class ScheduleDatabase:
    """Schedules on their way into or out of a service; every record's workload is among the workloads."""

    workloads: tuple[ExportedWorkload, ...]
    records: tuple[ExportedRecord, ...]


@dataclass(frozen=True)
class ImportResult:
    """How many records an import held, and how many were new."""

    device_class: str
    records: int
    added: int
