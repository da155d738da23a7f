"""The service's responses and the request for a job as dataclasses. Fields that a newer service adds are
ignored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from core.durations import times_text
from core.inference import Comparison
from core.job import MAX_TRIALS, EndReason, JobOptions, JobState
from core.tokens import Scope
from core.webhook import WebhookEvent

# The service takes 10,000 records and 16 MiB at a time; JSON writes many characters as two.
_PART_RECORDS, _PART_CHARS = 1000, 4 << 20


@dataclass(frozen=True)
class StoredModel:
    """A stored model; jobs name it by its `sha256`."""

    sha256: str
    name: str
    size: int


@dataclass(frozen=True)
class StoredDataset:
    """Stored inputs of a model, an .npz file; jobs name it by its `sha256`."""

    sha256: str
    name: str
    size: int


@dataclass(frozen=True)
class ModelRequest:
    """A model that shares a job's trials: its SHA-256, the shapes of its dynamic inputs, its weight in the
    objective, and its required latency.
    """

    model: str
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    model_weight: float = 1.0
    latency_s: float | None = None


@dataclass(frozen=True)
class JobRequest(JobOptions):
    """A model to tune, named by its SHA-256, with goals and options.

    The first goal that is reached ends the search. `trials` and `minutes` limit its trials and its time; the
    import before and the last compilation don't count. `latency_s` is the required latency of the model.
    `min_gain` is the smallest expected gain of the next minute, as a fraction of that latency. None leaves a
    goal out. `shapes` fixes the shapes of dynamic inputs.

    The models `others` share the trials. `objective` names what is minimized, in which a model counts with
    its `model_weight`. `compile_only` asks for the model compiled with the schedules known already and best
    guesses for the rest; its `trials` are 0.
    """

    model: str
    trials: int
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    target: str = "native"
    minutes: float | None = None
    compile_only: bool = False
    latency_s: float | None = None
    min_gain: float | None = None
    objective: str | None = None
    model_weight: float = 1.0
    others: tuple[ModelRequest, ...] = ()


@dataclass(frozen=True)
class OnnxRuntime:
    """The user's model in ONNX Runtime on the job's device, timed when the search begins, and again in turns
    with the compiled models.

    `ratio` is its latency divided by the published model's, None until then. Where it was not timed, `note`
    says why.
    """

    version: str = ""
    latency_s: float | None = None
    run_s: tuple[float, ...] = ()
    ratio: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Footprint:
    """What a published model takes besides time.

    `memory_bytes` is the memory that the model adds to a process that calls it. `energy_j` is the energy of a
    call; None if the device doesn't tell.
    """

    load_s: float
    memory_bytes: int
    energy_j: float | None = None


@dataclass(frozen=True)
class Job(JobOptions):
    """A job in its present state. Times are seconds since the epoch.

    Jobs that share their trials are listed in `members`. `end_reason` says what ended the search;
    `seconds_left` is an estimate, None while it is unknown.

    `estimated_latency_s` is what the best programs of all subgraphs take together, while the job is
    unfinished and each has been measured. `untuned_latency_s` is the latency of the whole model as TVM
    compiles it by default, except that slow loops get a plain parallel schedule. `tuned_latency_s` is its
    latency with the best schedules. Both are measured on the device. `tuned_interval_s` is the 95% confidence
    interval of the latter, None if there are too few repeats. In a `noisy` job, the device was disturbed:
    the model's repeats differ much, or the cores were slow. `onnxruntime` is None until the
    search has begun. An inference job runs the artifact of the job `infers`. `tags` and `notes` are written
    by users.
    """

    id: str
    state: JobState
    model: str
    model_name: str
    shapes: dict[str, tuple[int, ...]]
    target: str
    trials: int
    minutes: float | None
    message: str
    error: str | None
    device_class: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    trials_done: int
    untuned_latency_s: float | None
    tuned_latency_s: float | None
    tuned_interval_s: tuple[float, float] | None = None
    noisy: bool = False
    estimated_latency_s: float | None = None
    latency_s: float | None = None
    min_gain: float | None = None
    objective: str = "sum"
    model_weight: float = 1.0
    members: tuple[str, ...] = ()
    end_reason: EndReason | None = None
    seconds_left: float | None = None
    onnxruntime: OnnxRuntime | None = None
    footprint: Footprint | None = None
    artifact_version: int | None = None
    infers: str | None = None
    tags: tuple[str, ...] = ()
    notes: str = ""

    @property
    def published_latency_s(self) -> float | None:
        """The latency of the job's artifact; None if nothing was timed."""
        timed = (self.untuned_latency_s, self.tuned_latency_s)
        return min((secs for secs in timed if secs is not None), default=None)

    @property
    def onnxruntime_text(self) -> str:
        """How many times as fast as ONNX Runtime the model is: "1.31x", or "about 1.2x" by an estimate."""
        peer, estimate_s = self.onnxruntime, self.estimated_latency_s
        if peer is not None and peer.ratio is not None:
            return times_text(peer.ratio, "x")
        if peer is not None and peer.latency_s is not None and estimate_s is not None:
            return times_text(peer.latency_s / estimate_s, "x", estimated=True)
        return "-"

    @property
    def trials_text(self) -> str:
        """The finished trials and the budget, such as 3/100. First guesses may exceed the budget."""
        if self.trials == MAX_TRIALS:
            return str(self.trials_done)
        return f"{self.trials_done}/{max(self.trials, self.trials_done)}"


@dataclass(frozen=True)
class Inference:
    """An inference job: it ran the artifact of the job `infers` with the dataset `inputs`.

    `comparison` is None until the job is done.
    """

    infers: str
    inputs: str
    has_outputs: bool
    comparison: Comparison | None


@dataclass(frozen=True)
class Task:
    """A subgraph that occurs `weight` times in a job's model, first at the node `layer`; `best_s` is its best
    latency so far.

    It does `flops` operations on operands of `num_bytes` bytes; both are 0 if the search can't represent it.
    If it isn't `covered`, the search can't tune it, and `reason` says why. `verdict` compares its best
    latency with the device's limits.
    """

    workload: str
    name: str
    weight: int
    covered: bool
    reason: str
    trials: int
    best_s: float | None
    variant: str = ""
    variant_of: str = ""
    flops: float = 0.0
    num_bytes: float = 0.0
    layer: str = ""
    verdict: str = ""

    @property
    def label(self) -> str:
        """Its node's name, if it has one, and its operators with their shapes."""
        return f"{self.layer}: {self.name}" if self.layer else self.name

    @property
    def workload_hash(self) -> str:
        return self.workload

    @property
    def network_s(self) -> float | None:
        """The task's seconds in one run of the whole model."""
        return None if self.best_s is None else self.weight * self.best_s


@dataclass(frozen=True)
class PublishedTask:
    """A subgraph in an artifact's manifest. Its schedule is the `trace`; None without one.

    If a variant computes it, `workload` is the variant's. `latency_s` is None if no device has measured it.
    """

    workload: str
    name: str
    weight: int
    trace: str | None = None
    latency_s: float | None = None


@dataclass(frozen=True)
class Release:
    """A name and the artifact that it points to on a device class: the `version`-th of its model there.

    `sha256` is the artifact's digest; `set_at` is epoch seconds.
    """

    name: str
    device_class: str
    job: str
    model: str
    model_name: str
    version: int | None
    sha256: str
    latency_s: float | None
    set_at: float


@dataclass(frozen=True)
class StoredWebhook:
    """An address that gets messages about `events`; `created_at` is epoch seconds."""

    id: str
    url: str
    events: list[WebhookEvent]
    created_at: float


@dataclass(frozen=True)
class NewWebhook:
    """A new webhook. Its `secret` verifies the signatures of messages."""

    id: str
    url: str
    events: list[WebhookEvent]
    created_at: float
    secret: str


@dataclass(frozen=True)
class WebhookDelivery:
    """A message for a webhook: `state` is pending, delivered or failed.

    `due_at` is when the next attempt begins, None after the last one. `status` is the HTTP status of the last
    attempt, `error` why it failed. Times are epoch seconds.
    """

    id: str
    event: str
    state: str
    attempts: int
    created_at: float
    due_at: float | None
    status: int | None
    error: str
    body: str


@dataclass(frozen=True)
class JobEvent:
    """A change of a job. `Client.events` continues after the `id` of the last one received."""

    id: str
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Worker:
    """A worker as it was last seen. Unknown values are None.

    `state` is the last state that the worker reported. `desired_state` is what users asked for: work, drain,
    evicted or update. A `connected` worker was seen lately. `load` is the load average of one minute.
    `candidates` counts the candidates of the `lease` that it holds. `sandbox_gaps` says what the sandbox
    doesn't keep measured code from. `health_error` says why the worker can't measure or build. Both are empty
    if all is well. A worker whose `role` is build measures nothing: its trials are the ones that it built for
    the platforms in `builds_for`. `calibrate`: it was asked to calibrate its device and hasn't done so yet.
    `other_version`: it runs another version of tunefarm than the service. Until `reserved_until`, it measures
    only the jobs of the token that is called `reserved_for`. It measures in turns with the workers in
    `shares_with`, because they use the same cores or the same GPU.
    """

    id: str
    state: str
    device_class: str | None
    device_name: str | None
    last_seen_at: float
    trials_done: int
    failures: int
    desired_state: str = "work"
    connected: bool = True
    cores: int | None = None
    last_seen_ago_s: float | None = None
    failures_by_kind: dict[str, int] = field(default_factory=dict)
    trials_per_minute: float | None = None
    load: float | None = None
    temperature_c: float | None = None
    memory_free_bytes: int | None = None
    power_w: float | None = None
    driver: str = ""
    tunefarm_version: str = ""
    tvm_version: str = ""
    lease: str | None = None
    candidates: int | None = None
    candidates_done: int | None = None
    sandbox_gaps: str = ""
    role: str = "measure"
    builds_for: tuple[str, ...] = ()
    health_error: str = ""
    calibrate: bool = False
    other_version: bool = False
    reserved_for: str | None = None
    reserved_until: float | None = None
    shares_with: tuple[str, ...] = ()

    @property
    def unable(self) -> str:
        """A phrase that follows the worker's name, "can't measure: ..."; "" if it can."""
        does = "build" if self.role == "build" else "measure"
        return f"can't {does}: {self.health_error}" if self.health_error else ""


@dataclass(frozen=True)
class DeviceClass:
    """Devices of equal hardware and toolchain.

    `profile` has the fields of `core.profile.Profile`; it is None until one of the devices was calibrated.
    """

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
    """A new token with its secret, which the service shows only once."""

    token: str = field(repr=False)


@dataclass(frozen=True)
class Accuracy:
    """A cost model's accuracy on `records` records. A metric is None if there are too few.

    `r2` is of throughput relative to the task's best. `pairwise` is the fraction of pairs in the right order.
    `recall` is the fraction of the 30 fastest records that are among the 30 fastest predictions.
    """

    records: int
    r2: float | None
    pairwise: float | None
    recall: float | None


@dataclass(frozen=True)
class AccuracyComparison:
    """The accuracy of the learned model and of the analytic estimate on the same records."""

    learned: Accuracy
    analytic: Accuracy


@dataclass(frozen=True)
class HeldOutAccuracy(AccuracyComparison):
    """Accuracy on records held out of the training on `trained_on` others; `tasks` is by workload."""

    trained_on: int
    tasks: dict[str, AccuracyComparison]


@dataclass(frozen=True)
class CostModelReport:
    """A device class's cost model: the number of `versions` trained, and the `records` of the newest.

    `metrics` are None until there are enough records.
    """

    device_class: str
    device_name: str
    versions: int
    records: int
    created_at: float
    train_s: float
    total_train_s: float
    metrics: HeldOutAccuracy | None


@dataclass(frozen=True)
class Schedule:
    """The best known schedule of a workload on a device class; `trace` is MetaSchedule's, as JSON text.

    If its `source` is "import", no device of the class has measured it. The seconds are from the imported
    database, and its outputs may be wrong. `in_place_of` is the requested class, if it has no schedule and
    this one is of the nearest class whose code runs there. `noise` is the spread of `run_s` as a fraction of
    their median. `toolchain` has the versions of the compilers, `threads` the number of threads of a timed
    CPU.
    """

    workload: str
    device_class: str
    trace: str
    latency_s: float
    run_s: tuple[float, ...]
    target: str
    source: str = "trial"
    in_place_of: str | None = None
    noise: float | None = None
    toolchain: str = ""
    threads: int | None = None


@dataclass(frozen=True)
class BestSchedules:
    """Schedules by workload, and their ETag, with which a later call finds out whether they are current."""

    schedules: dict[str, Schedule]
    etag: str | None


@dataclass(frozen=True)
class ExportedWorkload:
    """A workload's module as TVM's JSON, under its structural hash."""

    hash: str
    module_json: str


@dataclass(frozen=True)
class ExportedRecord:
    """A schedule of a workload with its seconds. `trace` and `target` are JSON, as in MetaSchedule's
    files."""

    workload: str
    trace: str
    run_s: tuple[float, ...]
    target: str


@dataclass(frozen=True)
class ScheduleDatabase:
    """Schedules to import or as exported; every record's workload is among the workloads."""

    workloads: tuple[ExportedWorkload, ...]
    records: tuple[ExportedRecord, ...]

    def parts(self) -> Iterator[ScheduleDatabase]:
        """Divide the records among databases that each fit into one request. Yield at least one."""
        modules = {workload.hash: workload for workload in self.workloads}
        missing = dict.fromkeys(modules)
        chosen: dict[str, ExportedWorkload] = {}
        records: list[ExportedRecord] = []
        num_chars = 0
        for record in sorted(self.records, key=lambda record: record.workload):
            workload = modules.get(record.workload)
            missing.pop(record.workload, None)
            chars = len(record.trace) + len(record.target) + 25 * len(record.run_s) + 200
            more = len(workload.module_json) if workload and record.workload not in chosen else 0
            if records and (num_chars + chars + more > _PART_CHARS or len(records) == _PART_RECORDS):
                yield ScheduleDatabase(tuple(chosen.values()), tuple(records))
                chosen, records, num_chars = {}, [], 0
                more = len(workload.module_json) if workload else 0
            if workload is not None:
                chosen[workload.hash] = workload
            records.append(record)
            num_chars += chars + more
        # Workloads without a record are sent in the last part.
        chosen |= {name: modules[name] for name in missing}
        yield ScheduleDatabase(tuple(chosen.values()), tuple(records))


@dataclass(frozen=True)
class ImportResult:
    """The number of records in an import, and of those that the service didn't have."""

    device_class: str
    records: int
    added: int


@dataclass(frozen=True)
class ImportsDeleted:
    """The number of imported records that were deleted."""

    device_class: str
    deleted: int
