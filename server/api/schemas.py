"""The bodies of requests and answers. Times are epoch seconds, durations seconds, sizes bytes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from core.job import MAX_PRIORITY, MAX_TRIALS, MAX_WEIGHT, MIN_WEIGHT, Budget
from records.jobs.jobs import Job
from records.jobs.models import ModelInfo
from records.jobs.tasks import Task
from records.schedules.cost_models import Version, evaluated
from records.schedules.schedules import Record
from server.fleet.plausibility import LONGEST_S

_MAX_DIMENSION = 2**31 - 1


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"a name has characters that can't be printed: {text!r}")
    return text


def _json(text: str) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a text that should be JSON is not: {error}") from error
    return text


Name = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_printable)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
WorkloadHash = Annotated[str, Field(pattern="^[0-9A-Za-z_-]{1,128}$")]
JsonText = Annotated[str, AfterValidator(_json)]
RunSecs = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]


class _Request(BaseModel):
    # A misspelt field is refused rather than ignored: it is a budget that would not be kept.
    model_config = ConfigDict(extra="forbid", strict=True)


class ModelBody(BaseModel):
    sha256: str
    name: str
    size: int

    @classmethod
    def of(cls, model: ModelInfo) -> ModelBody:
        return cls(sha256=model.sha, name=model.name, size=model.size)


class JobRequestBody(_Request):
    """What to tune: `model` is the sha256 of an uploaded model, `shapes` its dynamic inputs' shapes.

    `target` is "native" (whatever worker is ready) or a device class's key or unique name. The job ends
    when its budget of `trials` or of `minutes` is spent; every subgraph of which nothing is known gets one
    trial whatever the budget. With `compile_only` that is all, besides the whole model's timing: it is
    compiled with the schedules known already and these best guesses, and `trials` is left out.

    Where jobs share devices, those of higher `priority` go first; of equal priority, each gets trials in
    proportion to its `weight`.

    `build` says who compiles the candidates: "device", the devices that measure them; "builder", workers that
    only build, for which the job waits; "auto", such a worker if one is there that is of another kind than
    the device or has at least twice its cores, and otherwise the device.
    """

    model: Sha256
    shapes: dict[Name, list[int]] = {}
    target: Name = "native"
    trials: int = 0
    compile_only: bool = False
    minutes: float | None = None
    seed: int = Field(default=0, ge=0, lt=2**63)
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    weight: float = Field(default=1.0, ge=MIN_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)
    build: Literal["auto", "device", "builder"] = "auto"

    @model_validator(mode="after")
    def _trials_unless_compile_only(self) -> JobRequestBody:
        if self.compile_only and self.trials != 0:
            raise ValueError(f"compile_only spends no trials: leave trials out, not {self.trials}")
        if not self.compile_only and not 1 <= self.trials <= MAX_TRIALS:
            raise ValueError(f"trials must be at least 1 and at most {MAX_TRIALS}, not {self.trials}")
        return self

    @field_validator("minutes")
    @classmethod
    def _minutes_of_a_budget(cls, minutes: float | None) -> float | None:
        return Budget(0, minutes).minutes

    @field_validator("shapes")
    @classmethod
    def _whole_shapes(cls, shapes: dict[str, list[int]]) -> dict[str, list[int]]:
        if len(shapes) > 256:
            raise ValueError(f"shapes are given for {len(shapes)} inputs, and 256 are allowed")
        for name, shape in shapes.items():
            if len(shape) > 16 or not all(1 <= extent <= _MAX_DIMENSION for extent in shape):
                raise ValueError(f"the shape of {name} must be up to 16 positive whole numbers, not {shape}")
        return shapes


class JobBody(BaseModel):
    """A job; `message` says what it is doing or waiting for, `error` why it failed."""

    id: str
    state: str
    finished: bool
    message: str
    error: str | None
    model: str
    model_name: str
    shapes: dict[str, list[int]]
    target: str
    device_class: str | None
    trials: int
    minutes: float | None
    seed: int
    priority: int
    weight: float
    build: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    trials_issued: int
    trials_done: int
    untuned_latency_s: float | None
    tuned_latency_s: float | None
    untuned_secs: list[float]
    tuned_secs: list[float]

    @classmethod
    def of(cls, job: Job) -> JobBody:
        request = job.request
        return cls(
            id=job.id,
            state=job.state.value,
            finished=job.state.finished,
            message=job.message,
            error=job.error,
            model=request.model_sha,
            model_name=request.model_name,
            shapes={name: list(shape) for name, shape in request.shapes.items()},
            target=request.target,
            device_class=job.device_class,
            trials=request.budget.trials,
            minutes=request.budget.minutes,
            seed=request.seed,
            priority=request.priority,
            weight=request.weight,
            build=request.build.value,
            created_at=job.created_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            trials_issued=job.trials_issued,
            trials_done=job.trials_done,
            untuned_latency_s=_median(job.untuned_secs),
            tuned_latency_s=_median(job.tuned_secs),
            untuned_secs=list(job.untuned_secs or ()),
            tuned_secs=list(job.tuned_secs or ()),
        )


class JobsBody(BaseModel):
    """Newest first. `next` is the `before` of the next page, null on the last one."""

    items: list[JobBody]
    next: str | None


class TaskBody(BaseModel):
    """One subgraph of a job. One that is not `covered` keeps its fallback schedule: `reason` says why."""

    id: int
    name: str
    workload: str
    weight: int
    flops: float
    covered: bool
    reason: str
    trials: int
    best_s: float | None

    @classmethod
    def of(cls, task: Task) -> TaskBody:
        return cls(
            id=task.id,
            name=task.name,
            workload=task.workload_hash,
            weight=task.weight,
            flops=task.flops,
            covered=task.covered,
            reason=task.reason,
            trials=task.trials,
            best_s=task.best_s,
        )


class TasksBody(BaseModel):
    items: list[TaskBody]


class ScheduleBody(BaseModel):
    """A workload's fastest known schedule on a device class: a TVM trace to replay on the workload."""

    workload: str
    device_class: str
    trace: str
    target: str
    latency_s: float
    run_secs: list[float]
    source: Literal["trial", "import"]
    created_at: float

    @classmethod
    def of(cls, record: Record) -> ScheduleBody:
        assert record.latency_s is not None, "only records that went well are schedules"
        return cls(
            workload=record.workload_hash,
            device_class=record.device_class,
            trace=record.trace,
            target=record.target,
            latency_s=record.latency_s,
            run_secs=list(record.run_secs),
            source=record.source,
            created_at=record.created_at,
        )


class MetricsBody(BaseModel):
    """How well a model predicts so many `records`' throughput, relative to the best of their task; null where
    they can't tell. `pairwise`: share of pairs in the right order; `recall`: share of the 30 fastest that are
    among the 30 predicted to be the fastest."""

    records: int
    r2: float | None
    pairwise: float | None
    recall: float | None


class ComparedBody(BaseModel):
    """The metrics of the learned model and of the analytic estimate on the same records."""

    learned: MetricsBody
    analytic: MetricsBody


class HeldOutBody(ComparedBody):
    """On records held out of a model `trained_on` the others; `tasks` are by workload."""

    trained_on: int
    tasks: dict[str, ComparedBody]


class CostModelBody(BaseModel):
    """A device class's cost model: `versions` trainings, the newest on so many `records`. `train_secs` is
    what that took, `total_train_secs` what all of them took. `metrics` are the newest, of the version that
    was trained at `metrics_at`; null until there are enough records."""

    device_class: str
    device_name: str
    versions: int
    records: int
    newest_record_at: float
    created_at: float
    train_secs: float
    total_train_secs: float
    metrics_at: float | None
    metrics: HeldOutBody | None

    @classmethod
    def of(cls, device_name: str, versions: Sequence[Version]) -> CostModelBody:
        newest, measured = versions[0], evaluated(versions)
        return cls(
            device_class=newest.device_class,
            device_name=device_name,
            versions=len(versions),
            records=newest.records,
            newest_record_at=newest.newest_record_at,
            created_at=newest.created_at,
            train_secs=newest.train_secs,
            total_train_secs=sum(version.train_secs for version in versions),
            metrics_at=measured.created_at if measured else None,
            metrics=HeldOutBody.model_validate(measured.metrics) if measured else None,
        )


class CostModelsBody(BaseModel):
    """By device class."""

    items: list[CostModelBody]


class ScheduleQueryBody(_Request):
    target: Name = "native"
    workloads: list[WorkloadHash] = Field(max_length=10_000)


class SchedulesBody(BaseModel):
    """By workload; null for one without a schedule."""

    device_class: str
    schedules: dict[str, ScheduleBody | None]


class ExportedWorkload(_Request):
    hash: WorkloadHash
    module_json: JsonText = Field(min_length=2, max_length=64 << 20)


class ExportedRecord(_Request):
    """`trace` and `target` are JSON, as in MetaSchedule's files."""

    workload: WorkloadHash
    trace: JsonText = Field(min_length=2, max_length=4 << 20)
    run_secs: list[RunSecs] = Field(min_length=1, max_length=10_000)
    target: JsonText = Field(min_length=2, max_length=65536)


class ExportBody(_Request):
    """What export gives and import takes; every record's workload is among the workloads."""

    workloads: list[ExportedWorkload]
    records: list[ExportedRecord]


class ImportedBody(BaseModel):
    device_class: str
    records: int
    added: int


def _median(secs: Sequence[float] | None) -> float | None:
    return statistics.median(secs) if secs else None
