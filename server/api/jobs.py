"""`/v1/jobs`: submitting, watching, cancelling and deleting jobs, and fetching the tuned model.

Times are epoch seconds, durations seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    FailFast,
    Field,
    field_validator,
    model_validator,
)
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from core.job import (
    MAX_MODELS,
    MAX_TRIALS,
    MAX_WEIGHT,
    MIN_WEIGHT,
    OBJECTIVE_NAMES,
    Budget,
    EndReason,
    JobOptions,
    JobState,
    options_of,
)
from core.measurement import confidence_interval, is_noisy, is_slowed
from core.roofline import Limits, verdict
from records import devices
from records.fleet import module_runs
from records.jobs import deletion, jobs, models, tasks, trials
from records.jobs.deletion import JobInUse
from records.jobs.jobs import Job, JobNotFound, JobRequest, OnnxRuntime
from records.jobs.models import DatasetNotFound, ModelNotFound, UploadKind
from records.jobs.tasks import Task, WorkloadNotFound
from records.jobs.trials import Failures, MeasuredTrial
from records.schedules import schedules, tvmscripts
from records.schedules.schedules import Record
from records.schedules.tvmscripts import UNSCHEDULED, Tvmscript
from records.storage.statements import digest
from server.api.artifacts import TAR_ANSWER, Bundled, artifact_answer
from server.api.fields import Name, RequestBody, Sha256
from server.api.ids import JobId, Workload
from server.api.job_options import with_job_options
from server.api.targets import NATIVE, device_class
from server.conditional import NOT_MODIFIED
from server.context import ContextDep, ServerContext
from server.problems import Problem, problems
from system import plugins, tracing

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_MAX_DIMENSION = 2**31 - 1
_MAX_FAILURES = 100
_SHOWN_PROGRAMS = 10


def _few_shapes(shapes: object) -> object:
    if isinstance(shapes, dict) and len(shapes) > 256:
        raise ValueError(f"shapes are given for {len(shapes)} inputs, and 256 are allowed")
    return shapes


def _checked_shapes(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    for name, shape in shapes.items():
        if len(shape) > 16 or not all(1 <= extent <= _MAX_DIMENSION for extent in shape):
            raise ValueError(f"the shape of {name} must be up to 16 positive whole numbers, not {shape[:17]}")
    return shapes


Shapes = Annotated[
    dict[Name, Annotated[list[int], FailFast()]],
    BeforeValidator(_few_shapes),
    AfterValidator(_checked_shapes),
]


class JobModelBody(RequestBody):
    """A model of a job. `model` is the sha256 of its upload, `shapes` has the shapes of its dynamic inputs,
    `model_weight` is its weight in the objective, and `latency_s` its required latency.
    """

    model: Sha256
    shapes: Shapes = Field(default={})
    model_weight: float = Field(default=1.0, ge=MIN_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)
    latency_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


@with_job_options(required=False)
class JobRequestBody(JobModelBody):
    """A model to tune: `model` is the sha256 of an uploaded model, `shapes` has the shapes of its dynamic
    inputs.

    `target` is "native" (the class of any worker that is ready) or a device class's key or unique name.

    The first goal that is reached ends the search. `trials` and `minutes` limit its trials and its time; the
    import before and the last compilation don't count. `latency_s` is the required latency of the model,
    estimated as the sum over its subgraphs. `min_gain` is the smallest expected gain of the next minute, as a
    fraction of that latency. At least one is needed. A subgraph without a known schedule gets one trial,
    whatever the goals are. With `compile_only` there are no other trials and no goals. The model is compiled
    with known schedules and these first guesses, and timed as a whole.

    With `others`, several models share the trials and their common subgraphs. Each model becomes a job of its
    own with its own artifact. The response lists these jobs as `members`. One model in several sizes is
    several models with equal `model` and different `shapes`. `objective` names what is minimized. "sum" is
    the sum of the latencies, weighted by `model_weight`. "requirements" is the same until each model meets
    its `latency_s`; it is the default if a model has one. "speedup" is the geometric mean. "early-stopping"
    is the sum, without subgraphs whose latest trials gained nothing. A plug-in of the scheduler may add
    others.

    With `quantize`, the service first quantizes a float ONNX model. "int8" with `calibration`, the sha256 of
    an uploaded dataset, quantizes weights and activations. "int8" without it, and "int4", quantize only the
    weights of matrix products. Layers that would lose too much accuracy stay in float32.

    `build` says who compiles the candidates. "device": the devices that measure them. "builder": workers that
    only build; the job waits for them. "auto": a builder that isn't of the device's kind or has at least
    twice its cores, otherwise the device.
    """

    target: Name = NATIVE
    trials: int = 0
    compile_only: bool = False
    minutes: float | None = None
    min_gain: float | None = Field(default=None, gt=0, lt=1)
    objective: Name | None = None
    others: Annotated[list[JobModelBody], FailFast()] = Field(default=[], max_length=MAX_MODELS - 1)

    @model_validator(mode="after")
    def _some_goal_unless_compile_only(self) -> JobRequestBody:
        latencies = [self.latency_s, *(other.latency_s for other in self.others)]
        JobOptions(**options_of(self))  # raises ValueError for options that exclude each other
        if self.compile_only and self.trials != 0:
            raise ValueError(f"compile_only spends no trials: leave trials out, not {self.trials}")
        if self.compile_only and (self.min_gain or any(latencies)):
            raise ValueError("compile_only searches nothing: leave min_gain and latency_s out")
        if not self.compile_only and not 1 <= self.trials <= MAX_TRIALS:
            if "trials" in self.model_fields_set or not (self.minutes or self.min_gain or all(latencies)):
                raise ValueError(f"trials must be at least 1 and at most {MAX_TRIALS}, not {self.trials}")
            self.trials = MAX_TRIALS
        if self.objective == "requirements" and not all(latencies):
            raise ValueError("the objective requirements needs latency_s of every model")
        return self

    @field_validator("minutes")
    @classmethod
    def _minutes_of_a_budget(cls, minutes: float | None) -> float | None:
        return Budget(0, minutes).minutes


class OnnxRuntimeBody(BaseModel):
    """The user's model in ONNX Runtime on the job's device, timed when the search begins, and again in turns
    with the compiled models.

    `ratio` is its latency divided by the published model's: 1.31 means that the published model is 1.31 times
    as fast. It is null until then. Where ONNX Runtime was not timed, `note` says why.
    """

    version: str
    latency_s: float | None
    run_s: list[float]
    ratio: float | None
    note: str

    @classmethod
    def of(cls, timing: OnnxRuntime) -> OnnxRuntimeBody:
        return cls(
            version=timing.version,
            latency_s=statistics.median(timing.run_s) if timing.run_s else None,
            run_s=list(timing.run_s),
            ratio=timing.ratio,
            note=timing.note,
        )


class FootprintBody(BaseModel):
    """What the published model takes on the job's device besides time.

    `memory_bytes` is the memory that the model adds to a process that calls it: weights, activations and
    code. `energy_j` is the energy of a call, of the processor's packages or the whole board; null where the
    machine doesn't tell.
    """

    load_s: float
    memory_bytes: int
    energy_j: float | None


@with_job_options(required=True)
class JobBody(BaseModel):
    """A job. `message` says what it is doing or waiting for, `error` why it failed.

    `end_reason` says which goal ended the search: trials, minutes, latency, gain, or exhausted if nothing was
    left to try. `seconds_left` is an estimate, null while it is unknown. Jobs that share their trials are
    listed in `members`, which is empty for a single job. `onnxruntime` is null until the search has begun,
    and its `ratio` until a model is published. `footprint` is null until then, and if an older worker timed
    it. `estimated_latency_s` is what the best programs of all subgraphs take together; null until each has
    been measured, and once the job is finished.
    `published_before_s` are the repeats of the model's earlier artifact, timed in turns with the others.
    `artifact_version` counts the artifacts of the model on the device class. An inference job runs the
    artifact of the job `infers`. `tags` and `notes` are written by users.
    """

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
    latency_s: float | None
    min_gain: float | None
    objective: str
    model_weight: float
    members: list[str]
    end_reason: EndReason | None
    seconds_left: float | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    trials_issued: int
    trials_done: int
    untuned_latency_s: float | None
    tuned_latency_s: float | None
    untuned_s: list[float]
    tuned_s: list[float]
    tuned_interval_s: tuple[float, float] | None
    noisy: bool
    estimated_latency_s: float | None
    published_before_s: list[float]
    onnxruntime: OnnxRuntimeBody | None
    footprint: FootprintBody | None
    artifact_version: int | None
    infers: str | None
    tags: list[str]
    notes: str

    @classmethod
    def of(
        cls,
        job: Job,
        now: float,
        members: Sequence[str] = (),
        published_before_s: Sequence[float] = (),
        estimated_s: float | None = None,
    ) -> JobBody:
        request, expected_at = job.request, job.expected_end_at
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
            latency_s=request.budget.latency_s,
            min_gain=request.budget.min_gain,
            objective=request.objective,
            model_weight=request.model_weight,
            members=list(members),
            end_reason=job.end_reason,
            seconds_left=None if expected_at is None else round(max(expected_at - now, 0.0), 1),
            created_at=job.created_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            trials_issued=job.trials_issued,
            trials_done=job.trials_done,
            untuned_latency_s=statistics.median(job.untuned_s) if job.untuned_s else None,
            tuned_latency_s=statistics.median(job.tuned_s) if job.tuned_s else None,
            untuned_s=list(job.untuned_s or ()),
            tuned_s=list(job.tuned_s or ()),
            tuned_interval_s=confidence_interval(job.tuned_s or ()),
            noisy=is_noisy(job.tuned_s or job.untuned_s or ()) or is_slowed(job.speed),
            estimated_latency_s=estimated_s,
            published_before_s=list(published_before_s),
            artifact_version=job.artifact_version,
            infers=request.infers,
            tags=list(job.tags),
            notes=job.notes,
            **options_of(request),
            onnxruntime=None if job.onnxruntime is None else OnnxRuntimeBody.of(job.onnxruntime),
            footprint=None if job.footprint is None else FootprintBody(**asdict(job.footprint)),
        )


Tag = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z._:/-]{0,49}$")]


class JobChangesBody(RequestBody):
    """New tags and notes of a job. A field that is null or left out stays unchanged."""

    tags: list[Tag] | None = Field(default=None, max_length=20)
    notes: str | None = Field(default=None, max_length=4000)

    @field_validator("tags")
    @classmethod
    def _each_once(cls, tags: list[str] | None) -> list[str] | None:
        return None if tags is None else list(dict.fromkeys(tags))

    @field_validator("notes")
    @classmethod
    def _printable(cls, notes: str | None) -> str | None:
        if notes is not None and not "".join(notes.split()).isprintable():
            raise ValueError("the notes have characters that can't be printed")
        return notes


class JobsBody(BaseModel):
    """Jobs, newest first. `next` is the `before` of the next page, null on the last one."""

    items: list[JobBody]
    next: str | None


class TaskBody(BaseModel):
    """A subgraph of a job. If it isn't `covered`, it keeps its fallback schedule, and `reason` says why.

    `layer` names the model's node at which it first occurs; "" if the node has no name. It occurs `weight`
    times. A task with a `variant` may replace the workload `variant_of`; the fastest is compiled in.
    `best_s` is the best latency that any job has measured on the device class, `known_s` the best one from
    before the job; the job may have replaced it by measuring the same program again.
    `signature` has the types and shapes of its operands, and `num_bytes` is their total size. Both are empty
    if the search can't represent the subgraph. `verdict` compares its best latency with the device's limits;
    it is empty while either is unknown.
    """

    id: int
    name: str
    layer: str
    workload: str
    weight: int
    flops: float
    covered: bool
    reason: str
    trials: int
    best_s: float | None
    known_s: float | None
    variant: str
    variant_of: str
    signature: str
    num_bytes: float
    verdict: str

    @classmethod
    def of(cls, task: Task, known_s: float | None, limits: Limits | None) -> TaskBody:
        return cls(
            id=task.id,
            name=task.name,
            layer=task.layer,
            workload=task.workload_hash,
            weight=task.weight,
            flops=task.flops,
            covered=task.covered,
            reason=task.reason,
            trials=task.trials,
            best_s=task.best_s,
            known_s=known_s,
            variant=task.variant,
            variant_of=task.variant_of,
            signature=task.signature,
            num_bytes=task.num_bytes,
            verdict=verdict(limits, task.flops, task.num_bytes, task.signature, task.best_s),
        )


class TasksBody(BaseModel):
    items: list[TaskBody]


class ProgramBody(BaseModel):
    """A measured program: `latency_s` is the median of `run_s`, `trace` the TVM trace that schedules it.

    Only the best programs of a job have a `tvmscript` and the `decisions` of their sketch; others have null.
    `registers` and `spilled_bytes` of a thread are what the compiler reported of a GPU's kernels; null if it
    reported nothing.
    """

    latency_s: float
    run_s: list[float]
    created_at: float
    trace: str
    tvmscript: str | None
    decisions: str | None
    registers: int | None
    spilled_bytes: int | None

    @classmethod
    def of(cls, record: Record, tvmscript: Tvmscript | None) -> ProgramBody:
        assert record.latency_s is not None, "only successful records are among the fastest"
        return cls(
            latency_s=record.latency_s,
            run_s=list(record.run_s),
            created_at=record.created_at,
            trace=record.trace,
            tvmscript=None if tvmscript is None else tvmscript.text,
            decisions=None if tvmscript is None else tvmscript.decisions,
            registers=record.registers,
            spilled_bytes=record.spilled_bytes,
        )


class PredictionsBody(BaseModel):
    """A task's successful trials, fastest first, as columns of equal length, in seconds with four digits.

    The cost model predicted `predicted_s` before `latency_s` was measured. Its analytic part predicted
    `estimated_s`, which is null if it wasn't stored.
    """

    latency_s: list[float]
    predicted_s: list[float]
    estimated_s: list[float | None]


class SubgraphBody(BaseModel):
    """A task with its unscheduled TVMScript, its programs and the predictions of the job's trials.

    `tvmscript` is null until a round has stored it. `programs` are the fastest ones known on the job's device
    class, fastest first.
    """

    task: TaskBody
    tvmscript: str | None
    programs: list[ProgramBody]
    predictions: PredictionsBody


class FailuresBody(BaseModel):
    """The number of trials that failed alike: with this outcome and message."""

    outcome: str
    message: str
    trials: int


class TrialsBody(BaseModel):
    """A job's finished trials in the order of their ends, as columns of equal length. A list of 10,000
    objects would be five times as long. Latencies have four digits.

    `task` has the ids of tasks, `at_s` the seconds from the job's creation to the trial's end. `latency_s` is
    the median of the trial's repeats, null if it failed. `failures` are the most frequent ones.
    """

    task: list[int]
    at_s: list[float]
    latency_s: list[float | None]
    failures: list[FailuresBody]

    @classmethod
    def of(
        cls, created_at: float, measured: Sequence[MeasuredTrial], failures: Sequence[Failures]
    ) -> TrialsBody:
        return cls(
            task=[trial.task_id for trial in measured],
            at_s=[round(trial.finished_at - created_at, 2) for trial in measured],
            latency_s=[None if trial.latency_s is None else _short(trial.latency_s) for trial in measured],
            failures=[
                FailuresBody(outcome=one.outcome, message=one.message, trials=one.trials) for one in failures
            ],
        )


@router.post("", status_code=202, responses=problems(400, 409))
def create(
    body: JobRequestBody,
    request: Request,
    response: Response,
    context: ContextDep,
    idempotency_key: Annotated[Name | None, Header()] = None,
) -> JobBody:
    """Start a job. The same Idempotency-Key with the same request returns the job that it started before.

    Each token has keys of its own.
    """
    idempotency_key = own_key(request, idempotency_key)
    with context.database.begin() as session:
        wanted = _job_requests(session, body, context.now())
        who = request.state.caller.who
        submission = jobs.Submission(context.now(), idempotency_key, tracing.current(), who)
        job = jobs.create_group(session, context.new_id(), wanted, submission)[0]
        [answer] = _bodies(session, [job], context.now())
    if job.state is JobState.QUEUED:
        context.wake("intake", job.id)
    request.state.audited = job.id
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return answer


@router.get("")
def list_jobs(
    context: ContextDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[Name | None, Query(description="the `next` of the page before")] = None,
    starts_with: Annotated[Name | None, Query(description="how the ids of the jobs start")] = None,
    words: Annotated[
        str, Query(max_length=256, description="words in the name of a job's model, its tags or notes")
    ] = "",
    state: Annotated[JobState | None, Query()] = None,
    device_class: Annotated[Name | None, Query(description="the key of a device class")] = None,
    tag: Annotated[Tag | None, Query()] = None,
) -> JobsBody:
    """Return a page of jobs, newest first."""
    chosen = jobs.JobFilter(starts_with or "", words.split(), state, device_class, tag)
    with context.database.begin() as session:
        try:
            found = jobs.list_jobs(session, limit + 1, before, chosen)
        except JobNotFound as error:
            raise Problem(
                422, "unknown-cursor", f"No job has the id {before!r}: start without it."
            ) from error
        page = found[:limit]
        bodies = _bodies(session, page, context.now())
    return JobsBody(items=bodies, next=page[-1].id if found[limit:] else None)


@router.get("/{job_id}", responses=problems(404))
def show(job_id: JobId, context: ContextDep) -> JobBody:
    """Return a job."""
    with context.database.begin() as session:
        return _bodies(session, [jobs.get(session, job_id)], context.now())[0]


@router.patch("/{job_id}", responses=problems(400, 404))
def annotate(job_id: JobId, body: JobChangesBody, context: ContextDep) -> JobBody:
    """Change the tags and notes of a job."""
    with context.database.begin() as session:
        job = jobs.annotate(session, job_id, tags=body.tags, notes=body.notes)
        return _bodies(session, [job], context.now())[0]


@router.post("/{job_id}:cancel", responses=problems(404, 409))
def cancel(job_id: JobId, context: ContextDep) -> JobBody:
    """Cancel an unfinished job, and those that share its trials. Cancelling it again changes nothing."""
    with context.database.begin() as session:
        job = jobs.cancel(session, job_id, context.now())
        [answer] = _bodies(session, [job], context.now())
    if job.state is not JobState.CANCELLED:
        raise Problem(
            409, "job-finished", f"Job {job.id} is {job.state} already: there is nothing to cancel."
        )
    return answer


@router.delete("/{job_id}", status_code=204, responses=problems(404, 409))
def delete(job_id: JobId, context: ContextDep) -> None:
    """Delete a finished job with its artifact and its events. The measurements made for it stay."""
    is_gone = False
    while not is_gone:
        with context.database.begin() as session:
            try:
                is_gone = deletion.delete_job(session, job_id, context.now())
            except JobInUse as error:
                raise Problem(409, "job-in-use", str(error)) from error


@router.get("/{job_id}/tasks", responses=problems(404))
def show_tasks(job_id: JobId, context: ContextDep) -> TasksBody:
    """Return the job's subgraphs, with the best latency known of each."""
    with context.database.begin() as session:
        limits = _limits(session, jobs.get(session, job_id))
        found = tasks.for_job(session, job_id)
        known = tasks.known_before(session, job_id)
    return TasksBody(items=[TaskBody.of(task, known.get(task.id), limits) for task in found])


@router.get("/{job_id}/tasks/{workload}", responses=problems(404))
def show_task(job_id: JobId, workload: Workload, context: ContextDep) -> SubgraphBody:
    """Return a subgraph of the job with the fastest programs known of it, whichever job has measured them."""
    with context.database.begin() as session:
        job = jobs.get(session, job_id)
        device_class, limits = job.device_class, _limits(session, job)
        found = [task for task in tasks.for_job(session, job_id) if task.workload_hash == workload]
        if not found or device_class is None:
            raise WorkloadNotFound(f"job {job_id} has no workload {workload!r}")
        fastest = schedules.fastest(session, device_class, workload, _SHOWN_PROGRAMS)
        texts = tvmscripts.of_workload(session, workload)
        predictions = trials.predictions(session, found[0].id)
        known = tasks.known_before(session, job_id)
    unscheduled = texts.get(UNSCHEDULED)
    return SubgraphBody(
        task=TaskBody.of(found[0], known.get(found[0].id), limits),
        tvmscript=None if unscheduled is None else unscheduled.text,
        programs=[ProgramBody.of(record, texts.get(digest(record.trace))) for record in fastest],
        predictions=PredictionsBody(
            latency_s=[_short(trial.latency_s) for trial in predictions],
            predicted_s=[_short(trial.predicted_s) for trial in predictions],
            estimated_s=[None if one.estimated_s is None else _short(one.estimated_s) for one in predictions],
        ),
    )


@router.get("/{job_id}/trials", responses=problems(404))
def show_trials(job_id: JobId, context: ContextDep) -> TrialsBody:
    """Return what the job's trials measured, and how they failed."""
    with context.database.begin() as session:
        job = jobs.get(session, job_id)
        measured = trials.measured(session, job_id)
        failures = trials.failures(session, job_id, _MAX_FAILURES)
    return TrialsBody.of(job.created_at, measured, failures)


@router.get(
    "/{job_id}/artifact",
    response_class=StreamingResponse,
    responses={200: TAR_ANSWER, **NOT_MODIFIED, **problems(404, 409)},
)
async def artifact(job_id: JobId, request: Request, context: ContextDep, bundle: Bundled = False) -> Response:
    """Return the tuned model as a tar file of `model.so` and `manifest.json`.

    Repr-Digest has the SHA-256 of the tar file.
    """
    job = await run_in_threadpool(published_job, context, job_id)
    return await artifact_answer(context, job, request, bundle)


def published_job(context: ServerContext, job_id: str) -> Job:
    """Return a job that has published an artifact. Raises JobNotFound and Problem."""
    with context.database.begin() as session:
        job = jobs.get(session, job_id)
    if job.state is not JobState.DONE or job.artifact_sha is None:
        if job.state.finished:
            why = f"and made no tuned model: {job.error or 'start a new job'}."
            detail = f"Job {job.id} is {job.state} {why}"
        else:
            detail = f"Job {job.id} is {job.state}: its tuned model can be fetched when it is done."
        raise Problem(409, "no-artifact", detail, state=job.state.value)
    return job


def own_key(request: Request, idempotency_key: str | None) -> str | None:
    """Return the idempotency key to store, which differs for each token."""
    token_id = request.state.caller.token_id
    if idempotency_key is None or token_id is None:
        return idempotency_key
    return f"{token_id} {idempotency_key}"


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def _limits(session: Session, job: Job) -> Limits | None:
    """Return the limits of the job's device class; None while it is unknown or wasn't calibrated."""
    if job.device_class is None:
        return None
    device = devices.get_class(session, job.device_class)
    return Limits.of(device.profile, device.vector_bytes, device.cores)


def _bodies(session: Session, found: Sequence[Job], now: float) -> list[JobBody]:
    members = jobs.groups(session, {job.group for job in found if job.group is not None})
    before = module_runs.published_before(session, [job.id for job in found])
    measured = [job.id for job in found if job.state in (JobState.TUNING, JobState.PUBLISHING)]
    estimates = tasks.estimates(session, measured)
    return [
        JobBody.of(
            job,
            now,
            members[job.group] if job.group else (),
            before.get(job.id, ()),
            estimates.get(job.id),
        )
        for job in found
    ]


def _job_requests(session: Session, body: JobRequestBody, now: float) -> list[JobRequest]:
    """Return the request of each model, the job's own first."""
    asked: list[JobModelBody] = [body, *body.others]
    stored = []
    for one in asked:
        try:
            stored.append(models.get(session, one.model))
        except ModelNotFound as error:
            raise Problem(
                422, "unknown-model", f"No model is stored as {one.model}: upload it first."
            ) from error
    if (calibration := options_of(body)["calibration"]) is not None:
        try:
            models.get(session, calibration, UploadKind.DATASET)
        except DatasetNotFound as error:
            detail = f"No dataset is stored as {calibration}: upload it first."
            raise Problem(422, "unknown-dataset", detail) from error
    if body.target != NATIVE:
        device_class(session, body.target, now)  # raises a Problem for an unknown one
    has_latencies = all(one.latency_s for one in asked)
    # Together they get as much of the devices as one job.
    weight = max(options_of(body)["weight"] / len(asked), MIN_WEIGHT)
    options = options_of(body) | {"weight": weight}
    objective = body.objective or ("requirements" if has_latencies else "sum")
    known = {*OBJECTIVE_NAMES, *(one.name for one in plugins.extensions(plugins.OBJECTIVES))}
    if objective not in known:
        detail = f"There is no objective {objective!r}: choose one of {', '.join(sorted(known))}."
        raise Problem(
            422, "unknown-objective", f"{detail} A plug-in's objective is installed beside the server too."
        )
    return [
        JobRequest(
            model_sha=model.sha,
            model_name=model.name,
            shapes={name: tuple(shape) for name, shape in one.shapes.items()},
            target=body.target,
            budget=Budget(body.trials, body.minutes, one.latency_s, body.min_gain),
            objective=objective,
            model_weight=one.model_weight,
            **options,
        )
        for one, model in zip(asked, stored, strict=True)
    ]
