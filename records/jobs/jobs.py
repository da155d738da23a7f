"""Jobs: their requests, their states, and the claims of schedulers. Only the scheduler that claims a job runs
its steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple

from sqlalchemy import Select, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from core.job import (
    MAX_WEIGHT,
    MIN_WEIGHT,
    TF32,
    UNFINISHED,
    Budget,
    Build,
    EndReason,
    JobOptions,
    JobState,
    Quantize,
    options_of,
)
from core.measurement import Footprint
from core.webhook import WebhookEvent
from records import devices, webhooks
from records.jobs import events, models
from records.jobs.models import UploadKind
from records.storage.database import NotFound
from records.storage.ids import only_id
from records.storage.statements import among, changed, dialect_of, insert_into, lock_job, table_of
from records.storage.tables import ArtifactCountRow, JobRow, ModuleRunRow, TaskRow, TrialRow

_STOPPED = (JobState.FAILED, JobState.CANCELLED)


class JobNotFound(NotFound):
    """No job has this id."""


class IdempotencyConflict(Exception):
    """The idempotency key was already used for another request."""


@dataclass(frozen=True)
class JobRequest(JobOptions):
    """A request for a job, as stored. Clients send it as `tunefarm.client.values.JobRequest`.

    `objective` names the function to minimize. `model_weight` is the model's weight in it, relative to the
    models of the other jobs of its group. An inference job runs the artifact of the job `infers`.
    """

    model_sha: str
    model_name: str
    shapes: dict[str, tuple[int, ...]]
    target: str
    budget: Budget
    objective: str = "sum"
    model_weight: float = 1.0
    infers: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not MIN_WEIGHT <= self.model_weight <= MAX_WEIGHT:
            bounds = f"{MIN_WEIGHT} and {MAX_WEIGHT:g}"
            raise ValueError(f"a model's weight must be between {bounds}, not {self.model_weight}")
        for name, shape in self.shapes.items():
            if any(extent < 1 for extent in shape):
                raise ValueError(f"the extents of the shape of {name!r} must be positive, not {shape}")


@dataclass(frozen=True)
class OnnxRuntime:
    """The user's model in ONNX Runtime on the job's device, timed when the search begins, and again in turns
    with the compiled models.

    `ratio` is its latency divided by the published model's, None until then. If it was not timed, there are
    no `run_s`, and `note` says why.
    """

    version: str = ""
    run_s: tuple[float, ...] = ()
    ratio: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Job:
    """A job as stored. Clients get it as `tunefarm.client.values.Job`.

    `message` says what the job is doing or waiting for. `untuned_s` and `tuned_s` are the seconds of each
    repeat of the whole model. `onnxruntime` is None until the search has begun. `footprint` is the published
    model's, None if an older worker timed it. `speed` is the speed of the device during that timing, as
    a share of its fastest speed. Jobs of one `group` share their trials; it is the id of the first of
    them, None for a job alone. `end_reason` says what ended the tuning. The job is expected to be
    finished at `expected_end_at`, None if unknown. Its spans have the parent `trace_parent`, "" if it isn't
    traced. `artifact_version` counts the artifacts of its model on its device class. `tags` and `notes` are
    written by users. `submitted_by` is a token's id, "bootstrap" or "loopback".
    """

    id: str
    request: JobRequest
    state: JobState
    error: str | None
    device_class: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    trials_done: int
    trials_issued: int
    untuned_s: tuple[float, ...] | None
    tuned_s: tuple[float, ...] | None
    artifact_sha: str | None
    untuned_artifact_sha: str | None
    message: str
    group: str | None
    end_reason: EndReason | None
    expected_end_at: float | None
    trace_parent: str
    artifact_version: int | None
    onnxruntime: OnnxRuntime | None = None
    footprint: Footprint | None = None
    speed: float | None = None
    tags: tuple[str, ...] = ()
    notes: str = ""
    submitted_by: str = ""


@dataclass(frozen=True)
class Submission:
    """The submission of a request at the time `now`. Another one with the same `idempotency_key` and an equal
    request returns the same jobs. `trace_parent` and `submitted_by` are as in `Job`.
    """

    now: float
    idempotency_key: str | None = None
    trace_parent: str = ""
    submitted_by: str = ""


@dataclass(frozen=True)
class JobFilter:
    """Which jobs to list. Their ids start with `starts_with`. Each of the words is in the model name, tags
    or notes, whatever its case.
    """

    starts_with: str = ""
    words: Sequence[str] = ()
    state: JobState | None = None
    device_class: str | None = None
    tag: str | None = None


ALL_JOBS = JobFilter()


def create_group(
    session: Session, first_id: str, requests: Sequence[JobRequest], submission: Submission
) -> list[Job]:
    """Store new jobs that share their trials, or return the jobs of equal requests with the same key.

    The first job has the id `first_id`; the others append -2, -3, ... to it. One job isn't a group. Raises
    ModelNotFound, DatasetNotFound and IdempotencyConflict.
    """
    group_id = first_id if len(requests) > 1 else None
    first = create(session, first_id, requests[0], submission, group_id)
    if first.id != first_id:
        found = group(session, first)
        if len(found) != len(requests) or not all(map(_is_same_request, found[1:], requests[1:])):
            raise _conflict(submission.idempotency_key)
        return found
    others = enumerate(requests[1:], start=2)
    keyless = replace(submission, idempotency_key=None)
    made = [create(session, f"{first_id}-{n}", asked, keyless, group_id) for n, asked in others]
    return [first, *made]


def create(
    session: Session,
    job_id: str,
    request: JobRequest,
    submission: Submission,
    group_id: str | None = None,
) -> Job:
    """Store a new job, or return the job of an equal request with the same key.

    Raises ModelNotFound, DatasetNotFound, and IdempotencyConflict when the key was used with another request.
    """
    models.get(session, request.model_sha)
    if request.calibration is not None:
        models.get(session, request.calibration, UploadKind.DATASET)
    row = asdict(request)
    submitted = asdict(submission)
    now, idempotency_key = submitted.pop("now"), submission.idempotency_key
    row |= {**row.pop("budget"), **submitted, "id": job_id, "created_at": now}
    row |= {"group_id": group_id, "end_reason": ""}
    statement = insert_into(session, JobRow).on_conflict_do_nothing(index_elements=["idempotency_key"])
    created = session.scalar(
        statement.values(row | {"state": JobState.QUEUED, "message": ""}).returning(JobRow.id)
    )
    if created is not None:
        events.append(session, job_id, events.STATE, _state_data(JobState.QUEUED, None, ""), now)
        return get(session, job_id)
    [job] = _jobs(session, select(JobRow).where(JobRow.idempotency_key == idempotency_key))
    if not _is_same_request(job, request) or (job.group is None) != (group_id is None):
        raise _conflict(idempotency_key)
    return job


def _is_same_request(job: Job, request: JobRequest) -> bool:
    """Return whether the job was made by an equal request."""
    # The builder fallback may have changed the job's `build` from AUTO to its devices.
    asked = replace(request, build=job.request.build) if request.build is Build.AUTO else request
    if request.batch is not None and request.shapes.items() <= job.request.shapes.items():
        asked = replace(asked, shapes=job.request.shapes)
    return job.request == asked


def _conflict(idempotency_key: str | None) -> IdempotencyConflict:
    return IdempotencyConflict(
        f"the idempotency key {idempotency_key!r} belongs to another request: use a new key"
    )


def group(session: Session, job: Job) -> list[Job]:
    """Return the jobs of a job's group, including the job, in the order of the request."""
    if job.group is None:
        return [get(session, job.id)]
    return _jobs(
        session,
        select(JobRow).where(JobRow.group_id == job.group).order_by(func.length(JobRow.id), JobRow.id),
    )


def groups(session: Session, group_ids: Collection[str]) -> dict[str, list[str]]:
    """Return the ids of each group's jobs, in the order of the requests."""
    found: dict[str, list[str]] = {}
    rows = (
        select(JobRow.group_id, JobRow.id)
        .where(JobRow.group_id.in_(group_ids))
        .order_by(func.length(JobRow.id), JobRow.id)
    )
    for group_id, job_id in session.execute(rows):
        found.setdefault(str(group_id), []).append(job_id)
    return found


def get(session: Session, job_id: str) -> Job:
    """Return a job. Raises JobNotFound."""
    found = _jobs(session, select(JobRow).where(JobRow.id == job_id))
    if not found:
        raise JobNotFound(f"there is no job {job_id!r}")
    return found[0]


def full_id(session: Session, start: str) -> str:
    """Return the only id that begins with `start`, or `start` if none does. Raises JobNotFound if several
    do."""
    return only_id(session, JobRow.id, start, JobNotFound)


def lock(session: Session, job_id: str) -> JobState:
    """Lock a job until this transaction ends, so that its state stays the same; return the state.

    Raises JobNotFound.
    """
    state = lock_job(session, job_id)
    if state is None:
        raise JobNotFound(f"there is no job {job_id!r}")
    return JobState(state)


def by_id(session: Session, ids: Select[str]) -> dict[str, Job]:
    """Return the jobs whose ids a query selects, by id."""
    return {job.id: job for job in _jobs(session, select(JobRow).where(JobRow.id.in_(ids)))}


def list_jobs(
    session: Session,
    limit: int,
    before: str | None,
    chosen: JobFilter = ALL_JOBS,
) -> list[Job]:
    """Return jobs, newest first, from the job after `before` on. Raises JobNotFound if that is unknown."""
    query = select(JobRow).order_by(JobRow.created_at.desc(), JobRow.id.desc()).limit(limit)
    if chosen.starts_with:
        query = query.where(JobRow.id.startswith(chosen.starts_with, autoescape=True))
    if chosen.state is not None:
        query = query.where(JobRow.state == chosen.state)
    if chosen.device_class is not None:
        query = query.where(JobRow.device_class == chosen.device_class)
    if chosen.tag is not None:
        query = query.where(JobRow.tags.contains(f" {chosen.tag} ", autoescape=True))
    texts = JobRow.model_name + JobRow.tags + " " + JobRow.notes
    query = query.where(*(texts.icontains(word, autoescape=True) for word in chosen.words))
    if before is not None:
        last = get(session, before)
        same_time = and_(JobRow.created_at == last.created_at, JobRow.id < last.id)
        query = query.where(or_(JobRow.created_at < last.created_at, same_time))
    return _jobs(session, query)


def unfinished(session: Session) -> list[Job]:
    """Return the unfinished jobs, oldest first."""
    query = select(JobRow).where(JobRow.state.in_(UNFINISHED))
    return _jobs(session, query.order_by(JobRow.created_at, JobRow.id))


class OpenTrials(NamedTuple):
    """The number of trials that wait for a device, and of those that a device holds."""

    pending: int
    leased: int

    @property
    def total(self) -> int:
        return self.pending + self.leased


@dataclass(frozen=True)
class Queue:
    """The unfinished jobs in one state on one device class (None while it is unknown). The oldest was created
    at `oldest_at`. `open_trials` counts their issued trials that aren't done."""

    state: JobState
    device_class: str | None
    jobs: int
    oldest_at: float
    open_trials: int


def queues(session: Session) -> list[Queue]:
    """Return the unfinished jobs, counted by state and device class."""
    open_trials = func.sum(JobRow.trials_issued - JobRow.trials_done)
    counts = (func.count(), func.min(JobRow.created_at), open_trials)
    query = select(JobRow.state, JobRow.device_class, *counts).where(JobRow.state.in_(UNFINISHED))
    rows = session.execute(query.group_by(JobRow.state, JobRow.device_class))
    return [Queue(JobState(row[0]), *row[1:]) for row in rows]


def recent_waits(session: Session, since: float) -> list[float]:
    """Return how many seconds jobs waited that were started since then, of the 200 newest jobs."""
    newest = select(JobRow.created_at, JobRow.started_at).order_by(JobRow.created_at.desc(), JobRow.id.desc())
    found = session.execute(newest.limit(200))
    return [started_at - created_at for created_at, started_at in found if started_at and started_at >= since]


def newest_artifacts(session: Session, limit: int) -> list[Job]:
    """Return the job that published the newest artifact of each model name and device class, newest first.

    Looks at the newest `limit` jobs that published one.
    """
    done = (JobRow.state == JobState.DONE, JobRow.artifact_sha.is_not(None))
    query = select(JobRow).where(*done).order_by(JobRow.finished_at.desc(), JobRow.id.desc())
    found: dict[tuple[str, str | None], Job] = {}
    for job in _jobs(session, query.limit(limit)):
        found.setdefault((job.request.model_name, job.device_class), job)
    return list(found.values())


def published(
    session: Session,
    model_sha: str,
    device_class: str,
    *,
    exact: bool = False,
    tf32: bool = False,
    quantize: Quantize = Quantize.NONE,
) -> list[Job]:
    """Return the jobs of a model that published an artifact for a device class, newest first.

    With `exact`, only jobs without variants are returned. Jobs that may compute in TF32 are returned only
    with `tf32`. Jobs that quantized the model are returned only for the same `quantize`.
    """
    of_model = (JobRow.model_sha == model_sha, JobRow.device_class == device_class)
    form = JobRow.quantize == quantize
    done = (JobRow.state == JobState.DONE, JobRow.artifact_sha.is_not(None))
    query = select(JobRow).where(*of_model, form, *done)
    if exact:
        query = query.where(JobRow.exact)
    if not tf32:
        in_tf32 = select(TaskRow.id).where(TaskRow.job_id == JobRow.id, TaskRow.variant == TF32)
        query = query.where(~in_tf32.exists())
    return _jobs(session, query.order_by(JobRow.finished_at.desc(), JobRow.id.desc()))


def published_before(session: Session, job: Job) -> str | None:
    """Return the artifact of the last other job that is DONE with the same model, quantization, shapes and
    device class.
    """
    request = job.request
    assert job.device_class is not None, "the job has been tuned on a device"
    found = published(
        session,
        request.model_sha,
        job.device_class,
        exact=request.exact,
        tf32=request.tf32,
        quantize=request.quantize,
    )
    alike = (request.shapes, request.calibration)
    for other in found:
        if other.id != job.id and (other.request.shapes, other.request.calibration) == alike:
            return other.artifact_sha
    return None


def claim_job(session: Session, job_id: str, holder: str, now: float, ttl_s: float) -> bool:
    """Let only `holder` run this job's steps for `ttl_s` seconds. Return False if another holder may, or if
    the job has ended."""
    free = or_(JobRow.holder.is_(None), JobRow.holder == holder, JobRow.held_until <= now)
    statement = update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(UNFINISHED), free)
    return changed(session, statement.values(holder=holder, held_until=now + ttl_s)) == 1


def renew_claim(session: Session, job_id: str, holder: str, now: float, ttl_s: float) -> bool:
    """Extend a claim to `now + ttl_s`. Return False if `holder` has none."""
    held = update(JobRow).where(JobRow.id == job_id, JobRow.holder == holder)
    return changed(session, held.values(held_until=now + ttl_s)) == 1


def release_claim(session: Session, job_id: str, holder: str) -> None:
    """End a claim, unless another holder has it now."""
    held = update(JobRow).where(JobRow.id == job_id, JobRow.holder == holder)
    session.execute(held.values(holder=None, held_until=None))


def advance(
    session: Session,
    job_id: str,
    expected: Collection[JobState],
    to: JobState,
    now: float,
    *,
    error: str | None = None,
    message: str = "",
    end_reason: EndReason | None = None,
) -> bool:
    """Move a job from one of the `expected` states. If it is in another state, change nothing and return
    False.

    `end_reason` says why the tuning ended, if it did. Appends a "state" event. A final state deletes pending
    trials, pending module runs and all but the last "progress" event, and stores webhook messages.
    """
    values: dict[str, Any] = {"state": to, "error": error, "message": message}
    if to is not JobState.QUEUED:
        values["started_at"] = func.coalesce(JobRow.started_at, now)
    if end_reason is not None:
        values["end_reason"] = end_reason
    if to.finished:
        values |= {"finished_at": now, "expected_end_at": None}
    moved = update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(expected)).values(values)
    if changed(session, moved) == 0:
        return False
    if to.finished:
        drop_pending_work(session, job_id)
        events.drop_old_progress(session, [job_id])
    events.append(session, job_id, events.STATE, _state_data(to, error, message), now)
    if to.finished:
        webhooks.emit(session, WebhookEvent.JOB_FINISHED, webhook_data(session, get(session, job_id)), now)
    return True


def webhook_data(session: Session, job: Job) -> dict[str, Any]:
    """Return a job's data for webhook messages."""
    device = None if job.device_class is None else devices.get_class(session, job.device_class)
    return {
        "job": job.id,
        "state": job.state.value,
        "error": job.error,
        "message": job.message,
        "model": job.request.model_sha,
        "model_name": job.request.model_name,
        "device_class": job.device_class,
        "device_name": None if device is None else device.name,
        "artifact_sha256": job.artifact_sha,
        "artifact_version": job.artifact_version,
    }


def cancel(session: Session, job_id: str, now: float) -> Job:
    """Cancel the unfinished jobs of a job's group. Leases of their trials run to their end. Raises
    JobNotFound."""
    for one in group(session, get(session, job_id)):
        advance(session, one.id, UNFINISHED, JobState.CANCELLED, now, message="cancelled")
    return get(session, job_id)


def drop_pending_work(session: Session, job_id: str) -> None:
    """Delete the job's pending trials and module runs. The caller holds the job's lock."""
    drop_pending_trials(session, job_id)
    runs = delete(ModuleRunRow).where(ModuleRunRow.job_id == job_id, ModuleRunRow.state == "pending")
    session.execute(runs)


def drop_pending_trials(
    session: Session, job_id: str, *, keep_repeats: bool = False, issued_before: float | None = None
) -> int:
    """Delete the job's pending trials as `records.jobs.trials.drop_pending` does. Return their number. The
    caller holds the job's lock.
    """
    pending = delete(TrialRow).where(TrialRow.job_id == job_id, TrialRow.state == "pending")
    if keep_repeats:
        pending = pending.where(TrialRow.repeat == 0)
    if issued_before is not None:
        pending = pending.where(TrialRow.created_at < issued_before)
    dropped = changed(session, pending)
    if dropped:
        count(session, job_id, issued=-dropped)
    return dropped


def count(session: Session, job_id: str, issued: int = 0, done: int = 0) -> tuple[int, int]:
    """Add to the job's counts of issued and finished trials. Return the new counts. Locks the job."""
    values = {"job": job_id, "more_issued": issued, "more_done": done}
    row = session.connection().execute(_update_counts(), values).one()
    return row.trials_issued, row.trials_done


def count_open(session: Session, job_ids: Sequence[str]) -> OpenTrials:
    """Return how many trials of some jobs are pending, and how many are leased."""
    row = session.execute(_select_open(dialect_of(session)), {"jobs": list(job_ids)}).one()
    return OpenTrials(row.pending, (row.total or 0) - row.pending)


@cache
def _select_open(dialect: str) -> Select[int | None, int]:
    job, trial = table_of(JobRow).c, table_of(TrialRow).c
    waiting = select(func.count()).where(among(dialect, trial.job_id, "jobs"), trial.state == "pending")
    total = func.sum(job.trials_issued - job.trials_done).label("total")
    statement = select(total, waiting.scalar_subquery().label("pending"))
    return statement.where(among(dialect, job.id, "jobs"))


@cache
def _update_counts() -> ReturningUpdate[int, int]:
    job = table_of(JobRow)
    issued = job.c.trials_issued + bindparam("more_issued")
    counted = update(job).values(trials_issued=issued, trials_done=job.c.trials_done + bindparam("more_done"))
    return counted.where(job.c.id == bindparam("job")).returning(job.c.trials_issued, job.c.trials_done)


def set_device_class(session: Session, job_id: str, device_class: str) -> bool:
    """Store the class that the job is tuned for. Return False if the job is cancelled or failed.

    Raises DeviceClassNotFound.
    """
    devices.get_class(session, device_class)
    return _set(session, job_id, device_class=device_class)


def set_shapes(session: Session, job_id: str, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Store the shapes of the inputs, with the batch size filled in. Return False if the job is cancelled or
    failed."""
    return _set(session, job_id, shapes={name: list(shape) for name, shape in shapes.items()})


def set_expected_end(session: Session, job_id: str, at: float | None) -> bool:
    """Store when the job is expected to end. Return False if the job is cancelled or failed."""
    return _set(session, job_id, expected_end_at=at)


def set_message(session: Session, job_id: str, message: str) -> bool:
    """Store the job's message. Return False if the job is cancelled or failed."""
    return _set(session, job_id, message=message)


def set_artifacts(
    session: Session, job_id: str, untuned_sha: str | None = None, tuned_sha: str | None = None
) -> bool:
    """Store the blobs of the compiled models; None keeps the stored one. Return False if the job is cancelled
    or failed.

    A tuned model gets the next version of the job's model on its device class.
    """
    version = None if tuned_sha is None else _next_version(session, job_id)
    return _set(
        session,
        job_id,
        untuned_artifact_sha=func.coalesce(untuned_sha, JobRow.untuned_artifact_sha),
        artifact_sha=func.coalesce(tuned_sha, JobRow.artifact_sha),
        artifact_version=func.coalesce(version, JobRow.artifact_version),
    )


def _next_version(session: Session, job_id: str) -> int | None:
    """Return the next version of an artifact of the job's model on its device class."""
    row = session.execute(select(JobRow.model_sha, JobRow.device_class).where(JobRow.id == job_id)).first()
    if row is None:
        return None
    counted = insert_into(session, ArtifactCountRow).values(
        model_sha=row.model_sha, device_class=row.device_class or "", last_version=1
    )
    counted = counted.on_conflict_do_update(
        index_elements=["model_sha", "device_class"], set_={"last_version": ArtifactCountRow.last_version + 1}
    )
    return session.scalar(counted.returning(ArtifactCountRow.last_version))


def set_end_to_end(
    session: Session, job_id: str, kind: Literal["untuned", "tuned"], secs: Sequence[float]
) -> bool:
    """Store the seconds of each repeat of the whole model. Return False if the job is cancelled or failed."""
    return _set(session, job_id, **{f"{kind}_s": list(secs)})


def set_onnxruntime(session: Session, job_id: str, timing: OnnxRuntime) -> bool:
    """Store the model's timing in ONNX Runtime. Return False if the job is cancelled or failed."""
    return _set(session, job_id, onnxruntime=asdict(timing))


def set_footprint(session: Session, job_id: str, footprint: Footprint) -> bool:
    """Store the published model's footprint. Return False if the job is cancelled or failed."""
    return _set(session, job_id, footprint=asdict(footprint))


def set_speed(session: Session, job_id: str, speed: float | None) -> bool:
    """Store the speed of the device that timed the published model. Return False if the job is cancelled or
    failed.
    """
    return _set(session, job_id, speed=speed)


def annotate(
    session: Session, job_id: str, *, tags: Sequence[str] | None = None, notes: str | None = None
) -> Job:
    """Store a job's tags and notes; None leaves them unchanged. Tags have no spaces. Raises JobNotFound."""
    values: dict[str, str] = {}
    if tags is not None:
        values["tags"] = "".join(f" {tag}" for tag in tags) + " " * bool(tags)
    if notes is not None:
        values["notes"] = notes
    if values:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(values))
    return get(session, job_id)


def _set(session: Session, job_id: str, **values: Any) -> bool:
    running = update(JobRow).where(JobRow.id == job_id, JobRow.state.not_in(_STOPPED))
    return changed(session, running.values(values)) == 1


def _state_data(state: JobState, error: str | None, message: str) -> dict[str, Any]:
    return {"state": state, "error": error, "message": message}


def _jobs(session: Session, query: Select[JobRow]) -> list[Job]:
    return [
        Job(
            id=row.id,
            request=JobRequest(
                model_sha=row.model_sha,
                model_name=row.model_name,
                shapes=_shapes(row.shapes),
                target=row.target,
                budget=Budget(row.trials, row.minutes, row.latency_s, row.min_gain),
                objective=row.objective,
                model_weight=row.model_weight,
                infers=row.infers,
                **options_of(row),
            ),
            state=JobState(row.state),
            error=row.error,
            device_class=row.device_class,
            created_at=row.created_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            trials_done=row.trials_done,
            trials_issued=row.trials_issued,
            untuned_s=None if row.untuned_s is None else tuple(row.untuned_s),
            tuned_s=None if row.tuned_s is None else tuple(row.tuned_s),
            artifact_sha=row.artifact_sha,
            untuned_artifact_sha=row.untuned_artifact_sha,
            message=row.message,
            group=row.group_id,
            end_reason=EndReason(row.end_reason) if row.end_reason else None,
            expected_end_at=row.expected_end_at,
            trace_parent=row.trace_parent,
            onnxruntime=None if row.onnxruntime is None else _onnxruntime(row.onnxruntime),
            footprint=None if row.footprint is None else Footprint(**row.footprint),
            speed=row.speed,
            artifact_version=row.artifact_version,
            tags=tuple(row.tags.split()),
            notes=row.notes,
            submitted_by=row.submitted_by,
        )
        for row in session.scalars(query)
    ]


def _onnxruntime(stored: dict[str, Any]) -> OnnxRuntime:
    return OnnxRuntime(**stored | {"run_s": tuple(stored["run_s"])})


def _shapes(stored: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in stored.items()}
