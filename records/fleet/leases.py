"""Leases: the work that a worker's session holds. A lease ends with its last result (`report`), when its
worker returns it (`give_back`) or is evicted (`evict`), or when its time is up (`expire`). When a worker
starts a new session, the leases of its old session expire at once."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import Row, Select, Update, and_, bindparam, func, insert, or_, select, update
from sqlalchemy.orm import Session

from core.job import JobState
from core.measurement import Measurement, Outcome, noise
from core.worker import DesiredState
from records.clock import MAX_SKEW_S
from records.fleet import building, fair_queue, hardware, results, workers
from records.fleet.fair_queue import QueueEntry, TrialFilter
from records.fleet.module_runs import StoredModuleRun, module_run_of
from records.fleet.results import LeasedWork, LeaseResult, LiveLease, WorkKey
from records.fleet.workers import WorkerSession
from records.jobs import events, jobs
from records.schedules import schedules
from records.storage.statements import among, dialect_of, lock_job, oldest_pending, table_of
from records.storage.tables import (
    BlobRow,
    JobRow,
    LeaseRow,
    ModuleRunRow,
    QuantizedModelRow,
    RecordRow,
    TaskRow,
    TrialRow,
    WorkerRow,
)

Work = TypeVar("Work", TrialRow, ModuleRunRow)
# The columns of a LeasedTrial, the number of devices that were lost with it, its task's constants, the best
# latency of its workload, and the model's bytes.
CandidateRow: TypeAlias = "Row[*tuple[Any, ...]]"

# The scheduler may plan the next round each time that a lease has returned this many further results, and
# after half of a lease that left no trial pending.
_RESULTS_PER_WAKE = 32
# Work is given up after this many devices were lost while they held it.
MAX_ATTEMPTS = 2
# Lapsed leases that are closed in one transaction.
_CLOSE_BATCH = 50
# `trials_per_minute` looks back this far.
PACE_WINDOW_S = 300.0
WITHOUT_ONNX_RUNTIME = "its worker has no onnxruntime: install tunefarm[worker,verify] on the device"
WITHOUT_INFERENCE = "its worker is older than the service: update it with `tunefarm workers update`"
# The kind of the event of a lost device.
DEVICE_LOST = "device_lost"
_LOST = Measurement(Outcome.DEVICE_LOST, error="every device that held it was lost before it sent a result")
# Building a statement takes longer than executing it, so statements of frequent calls are built once. The
# connection executes them, because a session is slower.
_INSERT_LEASE = insert(table_of(LeaseRow))


class LeasedTrial(NamedTuple):
    """A trial that a worker measures or builds. `library_sha` names the library that a builder compiled."""

    id: int
    workload_hash: str
    trace: str
    library_sha: str | None


@dataclass(frozen=True)
class StoredLease:
    """The work of one job that a worker's session has leased until `expires_at`.

    It has trials to measure (with `build`, only to build), or module runs to time in turns. Those in `trials`
    and `module_runs` have no result yet.

    `attempt` is 1 plus the number of devices that were lost while they held the work. `constants` has the
    indices of each workload's arguments that are weights of the model. `best_s` has each workload's best
    latency on this device class. `trace_parent` is the job's. `model_bytes` is the size of the job's model
    file, which consists mostly of weights; 0 with module runs.
    """

    id: str
    worker_id: str
    session_id: str
    job_id: str
    attempt: int
    expires_at: float
    trials: tuple[LeasedTrial, ...]
    module_runs: tuple[StoredModuleRun, ...]
    constants: dict[str, tuple[int, ...]]
    best_s: dict[str, float]
    build: bool = False
    trace_parent: str = ""
    model_bytes: int = 0


@dataclass(frozen=True)
class HeldLease:
    """A lease that a worker holds."""

    id: str
    worker_id: str
    taken_at: float


@dataclass(frozen=True)
class ReportEffect:
    """The effect of a report: the number of new results, and whether they closed the lease.

    `job_id` is None if the lease is stale. `worth_planning`: the lease is still open, but enough results have
    arrived for the scheduler to plan the next round.
    """

    accepted: int
    job_id: str | None
    closed: bool
    worth_planning: bool = False


def acquire_lease(
    session: Session, lease_id: str, worker: WorkerSession, limit: int, now: float, ttl_s: float
) -> StoredLease | None:
    """Lease work of the first job in the fair queue with pending work: its module runs, else up to `limit` of
    its oldest pending trials.

    A builder, which has no device class, gets trials of any class that it builds for. A trial or a module run
    that a lost device held is leased alone. If this device is lost too, the trial or run is the cause.
    Timings in ONNX Runtime fail on a worker without it, and inferences on an older one. Raises HardwareInUse.
    """
    if limit <= 0:
        return None
    if worker.device_class is None:
        entries = fair_queue.entries_to_build(session, worker.worker_id)
    else:
        hardware.check_free(session, worker, now)
        entries = fair_queue.entries(session, worker.worker_id, worker.device_class, now)
    if not entries:
        return None
    quota = fair_queue.quota(session, worker.worker_id, worker.device_class, now)
    for entry in entries:
        runs = _pending_runs(session, entry.job_id, worker, now) if entry.has_module_run else []
        candidates: Sequence[CandidateRow] = []
        if not runs:
            candidates = _pending_candidates(session, entry, min(limit, quota.trials(entry.unfinished)))
        if not runs and not candidates:
            continue  # another server has leased them meanwhile
        first: Any = candidates[0] if candidates else runs[0]
        lease = {
            "id": lease_id,
            "worker_id": worker.worker_id,
            "session_id": worker.session_id,
            "build": entry.takes is TrialFilter.UNBUILT,
            "job_id": entry.job_id,
            "attempt": first.attempts + 1,
            "taken_at": now,
            "expires_at": now + ttl_s,
        }
        session.connection().execute(_INSERT_LEASE, lease)
        taken = _update_leased(dialect_of(session), TrialRow if candidates else ModuleRunRow)
        ids = [work.id for work in candidates or runs]
        session.connection().execute(taken, {"ids": ids, "lease": lease_id})
        if not lease["build"]:
            # This is the last statement, because no other transaction can charge the job until this one ends.
            fair_queue.charge(session, entry, len(runs) + len(candidates))
        return _stored_lease(LeaseRow(**lease), candidates, runs, entry.trace_parent)
    return None


def current(session: Session, worker_id: str, session_id: str, now: float) -> StoredLease | None:
    """Return the lease that this session holds, with the work that has no result yet."""
    values = {"worker": worker_id, "its_session": session_id, "now": now}
    lease = session.scalars(_select_current_lease(), values).first()
    if lease is None:
        return None
    found = _select_candidates().where(TrialRow.lease_id == lease.id, TrialRow.state == "leased")
    candidates = session.execute(found.order_by(TrialRow.id), {"job_id": lease.job_id}).all()
    runs = select(ModuleRunRow).where(ModuleRunRow.lease_id == lease.id, ModuleRunRow.state == "leased")
    trace_parent = session.scalar(select(JobRow.trace_parent).where(JobRow.id == lease.job_id)) or ""
    found_runs = session.scalars(runs.order_by(ModuleRunRow.id)).all()
    return _stored_lease(lease, candidates, found_runs, trace_parent)


def renew(session: Session, lease_id: str, session_id: str, now: float, ttl_s: float) -> bool:
    """Extend a lease to `now + ttl_s`. Return False if it is closed, has expired or belongs to another
    session."""
    values = {"lease": lease_id, "its_session": session_id, "now": now, "until": now + ttl_s}
    return session.connection().execute(_update_expiry(), values).rowcount == 1


def report(
    session: Session, lease_id: str, session_id: str, reported: Sequence[LeaseResult], now: float
) -> ReportEffect:
    """Store each result once. Repeated results, and results of a stale lease, change nothing.

    A lease is stale if it is closed, has expired or belongs to another session. A measurement also becomes a
    record, and appends a "progress" event. A trial that was built waits for a device. The last result closes
    the lease. The caller holds the worker's row lock.
    """
    values = {"lease": lease_id, "its_session": session_id, "now": now}
    rows = session.connection().execute(_select_live_lease(), values).all()
    if not rows:
        return ReportEffect(accepted=0, job_id=None, closed=False)
    lease = LiveLease(*rows[0][: len(LiveLease._fields)])
    held: dict[WorkKey, LeasedWork] = {
        (row.trial_id, None): LeasedWork(row.library_sha, row.repeat)
        for row in rows
        if row.trial_id is not None
    }
    if not held:
        runs = select(ModuleRunRow.id).where(
            ModuleRunRow.lease_id == lease_id, ModuleRunRow.state == "leased"
        )
        held = {(None, run_id): LeasedWork() for run_id in session.scalars(runs)}
    accepted = results.accept(lease, held, reported)
    if not accepted:
        return ReportEffect(accepted=0, job_id=lease.job_id, closed=False)
    is_last = len(accepted) == len(held)
    measured = list(accepted.trials)
    results.add_earlier_s(session, accepted, [one for one in measured if held[one, None].repeat])
    results.store(session, accepted, now)
    schedules.put_trials(session, measured, now)
    building.drop_libraries(session, [one for one in measured if held[one, None].library_sha])
    results.credit(session, lease, accepted, closed_at=now if is_last else None)
    num_trials = len(accepted.trials) + len(accepted.built)
    worth_planning = not is_last and _worth_planning(session, lease, len(held), num_trials)
    # The job is locked last, because all devices that work for it wait for one another from here on.
    issued, done = jobs.count(session, lease.job_id, done=len(measured))
    if accepted.trials or accepted.module_runs:
        events.append_locked(session, lease.job_id, events.PROGRESS, _progress(issued, done), now)
    return ReportEffect(len(accepted), lease.job_id, is_last, worth_planning)


def expire(
    session: Session, now: float, max_attempts: int | None = MAX_ATTEMPTS, limit: int = _CLOSE_BATCH
) -> list[str]:
    """Close up to `limit` leases whose time is up. Their devices count as lost. Return the ids of their jobs.

    Work without a result becomes pending again, or ends as DEVICE_LOST if `max_attempts` devices were lost
    while they held it. With `max_attempts` None, no device counts as lost, because the clock was set. Leases
    taken in the future are closed too. They would last until the clock reaches their time.
    """
    is_over = or_(LeaseRow.expires_at <= now, LeaseRow.taken_at > now + MAX_SKEW_S)
    overdue = select(LeaseRow).where(LeaseRow.closed_at.is_(None), is_over)
    # Ordered by job, so that two schedulers that do this at the same time can't deadlock.
    ordered = overdue.order_by(LeaseRow.job_id, LeaseRow.id).limit(limit)
    leases = session.scalars(ordered.with_for_update(skip_locked=True)).all()
    for lease in leases:
        _close_unfinished(session, lease, now, max_attempts)
    return list(dict.fromkeys(lease.job_id for lease in leases))


def give_back(session: Session, worker_id: str, session_id: str, now: float) -> list[str]:
    """Close this session's leases, because it can't or may not continue. Return the ids of their jobs.

    Work without a result is pending again, and no device counts as lost. The caller holds the worker's row
    lock.
    """
    held = select(LeaseRow).where(LeaseRow.worker_id == worker_id, LeaseRow.closed_at.is_(None))
    ordered = held.where(LeaseRow.session_id == session_id).order_by(LeaseRow.job_id, LeaseRow.id)
    # A lease that is locked is being expired.
    leases = session.scalars(ordered.with_for_update(skip_locked=True)).all()
    for lease in leases:
        _close_unfinished(session, lease, now, max_attempts=None)
    return list(dict.fromkeys(lease.job_id for lease in leases))


def evict(session: Session, worker_id: str, now: float) -> None:
    """Evict a worker: close its leases, and reject sessions under its name until it is resumed.

    Raises WorkerNotFound.
    """
    workers.set_desired_state(session, worker_id, DesiredState.EVICTED)
    holder = select(WorkerRow.session_id).where(WorkerRow.id == worker_id)
    give_back(session, worker_id, session.scalars(holder).one(), now)


def held(session: Session, now: float) -> list[HeldLease]:
    """Return the open leases whose time is not up, the oldest first."""
    live = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)
    leases = select(LeaseRow.id, LeaseRow.worker_id, LeaseRow.taken_at).where(*live)
    return [HeldLease(*row) for row in session.execute(leases.order_by(LeaseRow.taken_at, LeaseRow.id))]


def trials_per_minute(session: Session, now: float) -> dict[str, float]:
    """Return the trials per minute of each worker that had a lease in the last five minutes, averaged since
    its first lease in that time."""
    recent = or_(LeaseRow.closed_at.is_(None), LeaseRow.closed_at > now - PACE_WINDOW_S)
    sums = select(LeaseRow.worker_id, func.sum(LeaseRow.measured), func.min(LeaseRow.taken_at))
    rows = session.execute(sums.where(recent).group_by(LeaseRow.worker_id))
    return {
        worker_id: 60.0 * measured / max(now - max(first, now - PACE_WINDOW_S), 1.0)
        for worker_id, measured, first in rows
    }


def noise_of(session: Session, worker_id: str) -> float | None:
    """Return the noise of a worker's measurements: the median over the trials of its last finished lease;

    None without such trials.
    """
    finished = select(LeaseRow.id).where(
        LeaseRow.worker_id == worker_id, LeaseRow.closed_at.is_not(None), LeaseRow.measured > 0
    )
    last = finished.order_by(LeaseRow.closed_at.desc()).limit(1).scalar_subquery()
    timed = select(TrialRow.run_s).where(TrialRow.lease_id == last, TrialRow.outcome == Outcome.OK)
    known = [one for run_s in session.scalars(timed) if (one := noise(run_s or ())) is not None]
    return statistics.median(known) if known else None


def _pending_runs(session: Session, job_id: str, worker: WorkerSession, now: float) -> Sequence[ModuleRunRow]:
    """Return the job's pending module runs, oldest first, or only one that a lost device held."""
    pending = select(ModuleRunRow).where(ModuleRunRow.job_id == job_id, ModuleRunRow.state == "pending")
    # Runs are timed together. So a transaction that finds them locked waits, and then gets none.
    runs = session.scalars(pending.order_by(ModuleRunRow.id).with_for_update()).all()
    onnxruntime = worker.vitals.onnxruntime_version if worker.vitals is not None else ""
    for run in runs:
        problem = ""
        if run.kind == "onnxruntime":
            run.onnxruntime = onnxruntime
            problem = "" if onnxruntime else WITHOUT_ONNX_RUNTIME
        elif run.kind == "inference" and (worker.vitals is None or not worker.vitals.infers):
            problem = WITHOUT_INFERENCE
        if problem:
            run.state, run.outcome, run.finished_at, run.error = "done", Outcome.UNKNOWN, now, problem
    runs = [run for run in runs if run.state == "pending"]
    suspects = [run for run in runs if run.attempts]
    return suspects[:1] or runs


def _pending_candidates(session: Session, entry: QueueEntry, limit: int) -> Sequence[CandidateRow]:
    """Return the job's oldest pending trials that no other transaction has locked, or only the first if a
    lost device held it."""
    values = {"job_id": entry.job_id, "limit": limit}
    candidates = session.connection().execute(_select_pending_candidates(entry.takes), values).all()
    if candidates and candidates[0].attempts:
        return candidates[:1]
    return [candidate for candidate in candidates if not candidate.attempts]


@cache
def _select_pending_candidates(takes: TrialFilter) -> Select[*tuple[Any, ...]]:
    found = oldest_pending(_select_candidates()).limit(bindparam("limit"))
    if takes is TrialFilter.BUILT:
        found = found.where(TrialRow.library_sha.is_not(None))
    elif takes is TrialFilter.UNBUILT:
        found = found.where(TrialRow.library_sha.is_(None))
    return found.with_for_update(skip_locked=True, of=TrialRow)


def _select_candidates() -> Select[*tuple[Any, ...]]:
    """Select the CandidateRows of the job `job_id`, a parameter."""
    constants = select(TaskRow.constants).where(TaskRow.id == TrialRow.task_id).correlate(TrialRow)
    device_class = select(JobRow.device_class).where(JobRow.id == bindparam("job_id"))
    best_s = select(func.min(RecordRow.latency_s)).where(
        RecordRow.workload_hash == TrialRow.workload_hash,
        RecordRow.device_class == device_class.scalar_subquery(),
        # Imported records were measured under unknown conditions.
        RecordRow.source == "trial",
    )
    is_its_form = and_(
        QuantizedModelRow.model_sha == JobRow.model_sha,
        QuantizedModelRow.quantize == JobRow.quantize,
        QuantizedModelRow.calibration == func.coalesce(JobRow.calibration, ""),
    )
    model = select(func.coalesce(QuantizedModelRow.sha, JobRow.model_sha))
    model = model.select_from(JobRow).outerjoin(QuantizedModelRow, is_its_form)
    own_model = model.where(JobRow.id == bindparam("job_id")).scalar_subquery()
    model_bytes = select(BlobRow.size).where(BlobRow.sha == own_model)
    # Subqueries for each row: with joins, PostgreSQL may choose to read all pending trials.
    looked_up = (
        constants.scalar_subquery().label("constants"),
        best_s.correlate(TrialRow).scalar_subquery().label("best_s"),
        model_bytes.scalar_subquery().label("model_bytes"),
    )
    # Without the program, which workers don't need: decoding its JSON took a tenth of a busy server's time.
    columns = (getattr(TrialRow, name) for name in (*LeasedTrial._fields, "attempts"))
    return select(*columns, *looked_up).where(TrialRow.job_id == bindparam("job_id"))


@cache
def _update_leased(dialect: str, table: type[TrialRow | ModuleRunRow]) -> Update:
    work = table_of(table)
    values = {"state": "leased", "lease_id": bindparam("lease")}
    return update(work).where(among(dialect, work.c.id, "ids")).values(values)


@cache
def _select_current_lease() -> Select[LeaseRow]:
    """Select the newest live lease of a worker's session."""
    own = (LeaseRow.worker_id == bindparam("worker"), LeaseRow.session_id == bindparam("its_session"))
    live = select(LeaseRow).where(*own, LeaseRow.closed_at.is_(None), LeaseRow.expires_at > bindparam("now"))
    return live.order_by(LeaseRow.taken_at.desc(), LeaseRow.id).limit(1)


@cache
def _update_expiry() -> Update:
    live = _is_live(bindparam("lease"), bindparam("its_session"), bindparam("now"))
    return update(table_of(LeaseRow)).where(*live).values(expires_at=bindparam("until"))


@cache
def _select_live_lease() -> Select[*tuple[Any, ...]]:
    """Select and lock a lease. There is a row for each of its trials without a result, with the columns of a
    LiveLease and of the trial.

    PostgreSQL may read the trials before it locks the lease. The caller has locked the worker. So another
    transaction can end a trial only if it also closes the lease.
    """
    columns = (getattr(LeaseRow, name) for name in LiveLease._fields)
    leased = and_(TrialRow.lease_id == bindparam("lease"), TrialRow.state == "leased")
    found = select(*columns, TrialRow.id.label("trial_id"), TrialRow.library_sha, TrialRow.repeat)
    live = _is_live(bindparam("lease"), bindparam("its_session"), bindparam("now"))
    return found.outerjoin_from(LeaseRow, TrialRow, leased).where(*live).with_for_update(of=LeaseRow)


def _is_live(lease_id: Any, session_id: Any, now: Any) -> tuple[Any, ...]:
    own = (LeaseRow.id == lease_id, LeaseRow.session_id == session_id)
    return (*own, LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)


def _worth_planning(session: Session, lease: LiveLease, held: int, accepted: int) -> bool:
    """Return whether the scheduler may plan the next round while the lease continues. `lease.measured` counts
    the results before the `accepted` ones, and `held` all others.
    """
    new = range(lease.measured + 1, lease.measured + accepted + 1)
    if any(number % _RESULTS_PER_WAKE == 0 for number in new):
        return True
    if (lease.measured + held + 1) // 2 not in new:
        return False
    return session.connection().execute(_select_any_pending(), {"job_id": lease.job_id}).first() is None


@cache
def _select_any_pending() -> Select[int]:
    """Select the id of a pending trial of the job `job_id`, a parameter."""
    return oldest_pending(select(TrialRow.id).where(TrialRow.job_id == bindparam("job_id"))).limit(1)


def _progress(issued: int, done: int) -> dict[str, int]:
    return {"trials_done": done, "trials_issued": issued}


def _close_unfinished(session: Session, lease: LeaseRow, now: float, max_attempts: int | None) -> None:
    """Close a lease whose device was lost. With `max_attempts` None, no device was lost: the worker returned
    the lease, or the clock was set."""
    session.execute(update(LeaseRow).where(LeaseRow.id == lease.id).values(closed_at=now))
    state = lock_job(session, lease.job_id)
    given_up: Sequence[int] = ()
    if max_attempts is not None:
        _note_lost_device(session, lease, now)
        given_up = _count_attempt(session, TrialRow, lease.id, now, max_attempts)
        schedules.put_trials(session, given_up, now)
        building.drop_libraries(session, given_up)
        _count_attempt(session, ModuleRunRow, lease.id, now, max_attempts)
    for table in (TrialRow, ModuleRunRow):
        unreported = (table.lease_id == lease.id, table.state == "leased")
        session.execute(update(table).where(*unreported).values(state="pending", lease_id=None))
    if state is not None and JobState(state).finished:
        jobs.drop_pending_work(session, lease.job_id)
    issued, done = jobs.count(session, lease.job_id, done=len(given_up))
    events.append_locked(session, lease.job_id, events.PROGRESS, _progress(issued, done), now)


def _note_lost_device(session: Session, lease: LeaseRow, now: float) -> None:
    """If the lease has work without a result, append an event and set the job's message."""
    counts = [
        select(func.count()).where(table.lease_id == lease.id, table.state == "leased")
        for table in (TrialRow, ModuleRunRow)
    ]
    unreported = sum(session.scalar(count) or 0 for count in counts)
    if not unreported:
        return
    again = "candidates are built again" if lease.build else "measurements are made again"
    message = f"the worker {lease.worker_id} was lost: {unreported} of this job's {again}"
    data = {"worker": lease.worker_id, "held": unreported, "message": message}
    events.append(session, lease.job_id, DEVICE_LOST, data, now)
    jobs.set_message(session, lease.job_id, message)


def _count_attempt(
    session: Session, table: type[Work], lease_id: str, now: float, max_attempts: int
) -> Sequence[int]:
    """Count one more attempt of the work that the lease holds. Return the ids of work that is given up."""
    unreported = (table.lease_id == lease_id, table.state == "leased")
    session.execute(update(table).where(*unreported).values(attempts=table.attempts + 1))
    given_up = session.scalars(select(table.id).where(*unreported, table.attempts >= max_attempts)).all()
    session.execute(update(table).where(table.id.in_(given_up)).values(results.done_columns(_LOST, now)))
    return given_up


def _stored_lease(
    lease: LeaseRow, candidates: Sequence[CandidateRow], runs: Sequence[ModuleRunRow], trace_parent: str
) -> StoredLease:
    return StoredLease(
        id=lease.id,
        worker_id=lease.worker_id,
        session_id=lease.session_id,
        job_id=lease.job_id,
        attempt=lease.attempt,
        expires_at=lease.expires_at,
        trials=tuple(LeasedTrial(*row[: len(LeasedTrial._fields)]) for row in candidates),
        module_runs=tuple(replace(module_run_of(run), state="leased", lease_id=lease.id) for run in runs),
        constants={row.workload_hash: tuple(row.constants) for row in candidates},
        best_s={row.workload_hash: row.best_s for row in candidates if row.best_s is not None},
        build=lease.build,
        trace_parent=trace_parent,
        model_bytes=candidates[0].model_bytes if candidates else 0,
    )
