"""What one worker's report changes in the database, and what the worker is told: one transaction each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.job import JobState
from core.lease import Candidate, Lease, LeaseId, Limits, ModuleRun
from core.worker import Role, Wanted, WorkerState
from proto.messages import Answer, Result, WorkerReport
from records.fleet import building, devices, leases, module_runs
from records.fleet.building import Builder
from records.fleet.devices import Instructions, SessionFenced
from records.fleet.results import LeaseResult
from records.jobs import jobs
from records.storage import blobs
from server.fleet.plausibility import reject_implausible, reject_implausible_profile

IDLE_S = 1.0
EVICTED_S = 5.0
_MAX_LEASE = 256
_GIVES_BACK = (WorkerState.PROBING, WorkerState.DRAINING, WorkerState.OFFLINE)

Wake = tuple[str, str]


@dataclass(frozen=True)
class Reconciliation:
    """An answer, and the steps (name, job id) to wake once the transaction is done."""

    answer: Answer
    wakes: tuple[Wake, ...] = ()


def reconcile(
    session: Session, report: WorkerReport, announced: bool, lease_id: str, now: float, ttl_s: float
) -> Reconciliation:
    """Brings the database up to the report and decides what the worker should hold. How soon one that holds
    something is to call again, the caller decides.

    `announced`: this session's device is known already. `lease_id` names a new lease, if one is given. What
    the worker holds is its for `ttl_s` from now.
    """
    asked = _present(session, report, announced, now)
    if asked is None:
        why = Wanted(devices.wanted(session, report.worker_id).value)
        return Reconciliation(Answer(fenced=True, wanted=why, call_again_after_s=EVICTED_S))
    wakes, closed = _store_results(session, report, now)
    if report.state in _GIVES_BACK and report.held is None:
        leases.give_back(session, report.worker_id, report.session_id, now)
    if report.state is WorkerState.READY and not announced:
        wakes += _waiting_jobs(session)
    # A session holds one lease at most: if that has just been closed, there is none to look for.
    lost = None if closed else _lost_on_the_way(session, report, now)
    answer = _decide(session, report, asked, lost, lease_id, now, ttl_s)
    return Reconciliation(answer, tuple(dict.fromkeys(wakes)))


def wants_work(report: WorkerReport) -> bool:
    return report.state is WorkerState.READY and report.slots > 0


def take(session: Session, report: WorkerReport, lease_id: str, now: float, ttl_s: float) -> Lease | None:
    """A new lease for a worker that is ready for one."""
    if not wants_work(report) or report.device is None:
        return None
    slots = min(report.slots, _MAX_LEASE)
    worker = report.worker_id, report.session_id
    device_class = None if report.role is Role.BUILD else report.device.key
    lease = leases.take(session, lease_id, *worker, device_class, slots, now, ttl_s)
    return None if lease is None else _described(session, lease, report, now)


def _present(session: Session, report: WorkerReport, announced: bool, now: float) -> Instructions | None:
    """Notes that the worker is there; what people ask of it. None when another session has taken its place,
    or it was evicted."""
    worker_id, session_id = report.worker_id, report.session_id
    state = WorkerState(report.state.value)
    known = (announced and not report.calibrated) or report.device is None
    if known and not report.starting:
        return devices.heartbeat(session, worker_id, session_id, state, now, report.vitals, report.role)
    builder = _builder(report)
    device = None if builder else reject_implausible_profile(report).device
    who = session, worker_id, session_id
    try:
        devices.register(
            *who, device, state, now, report.vitals, report.role, builder, calibrated=report.calibrated
        )
    except SessionFenced:
        return None
    return devices.instructions(session, worker_id)


def _builder(report: WorkerReport) -> Builder | None:
    """What the worker builds for, if that is its role and it has probed its device."""
    device = report.device
    if report.role is not Role.BUILD or device is None:
        return None
    return Builder(report.builds_for, device.machine, device.cores, device.toolchain)


def _store_results(session: Session, report: WorkerReport, now: float) -> tuple[list[Wake], bool]:
    """The steps to wake, and whether a lease is closed: then a batch is wanted, or a timing is in."""
    by_lease: defaultdict[str, list[Result]] = defaultdict(list)
    for result in report.results:
        by_lease[result.lease.id].append(result)
    wakes, closed = [], False
    for lease_id, results in by_lease.items():
        news = [
            LeaseResult(result.measurement, result.trial_id, result.module_run_id)
            for result in map(reject_implausible, results)
        ]
        reported = leases.report(session, lease_id, report.session_id, news, now)
        closed |= reported.closed
        if reported.job_id is not None and (reported.closed or reported.worth_planning):
            timed = any(result.module_run_id is not None for result in results)
            wakes.append(("publish" if timed else "plan", reported.job_id))
    return wakes, closed


def _waiting_jobs(session: Session) -> list[Wake]:
    """The jobs that may have waited for a device to be there."""
    return [("intake", job.id) for job in jobs.unfinished(session) if job.state is JobState.QUEUED]


def _decide(
    session: Session,
    report: WorkerReport,
    asked: Instructions,
    lost: Lease | None,
    lease_id: str,
    now: float,
    ttl_s: float,
) -> Answer:
    acknowledged = tuple(result.number for result in report.results)
    wanted, calibrate = Wanted(asked.wanted.value), asked.calibrate
    if report.held is not None and leases.renew(session, report.held.id, report.session_id, now, ttl_s):
        return Answer(keeps=report.held, acknowledged=acknowledged, wanted=wanted, calibrate=calibrate)
    lease = lost
    if lease is None and wanted is Wanted.WORK:
        lease = take(session, report, lease_id, now, ttl_s)
    # A worker that is willing to wait does so in its next call, not between calls. One that doesn't know how
    # to calibrate must not call in a loop.
    waits = wants_work(report) and report.wait_s > 0 and not calibrate
    again_s = 0.0 if waits else IDLE_S
    return Answer(
        lease=lease,
        acknowledged=acknowledged,
        call_again_after_s=again_s,
        wanted=wanted,
        calibrate=calibrate,
    )


def _lost_on_the_way(session: Session, report: WorkerReport, now: float) -> Lease | None:
    """The lease that the session holds by our books but not by its own: its answer never arrived."""
    if report.state is not WorkerState.READY:
        return None
    lease = leases.current(session, report.worker_id, report.session_id, now)
    return None if lease is None else _described(session, lease, report, now)


def _described(session: Session, lease: leases.StoredLease, report: WorkerReport, now: float) -> Lease:
    assert report.device is not None, "a ready worker has a device"
    return Lease(
        id=LeaseId(lease.id, lease.attempt),
        target=building.target(session, lease.job_id) if lease.build else report.device.target,
        limits=_limits(session, lease),
        expires_after_s=max(lease.expires_at - now, 1.0),
        candidates=tuple(
            Candidate(
                trial.id,
                trial.workload_hash,
                trial.trace,
                lease.constants.get(trial.workload_hash, ()),
                lease.best_s.get(trial.workload_hash),
                None if lease.build else trial.library_sha,
            )
            for trial in lease.trials
        ),
        module_runs=_module_runs(session, lease),
        build=lease.build,
    )


def _limits(session: Session, lease: leases.StoredLease) -> Limits:
    sizes = [blobs.size(session, run.artifact_sha) or 0 for run in lease.module_runs]
    return Limits.for_module(max(sizes)) if sizes else Limits()


def _module_runs(session: Session, lease: leases.StoredLease) -> tuple[ModuleRun, ...]:
    """The tuned model is compared with the untuned one, unless that is known not to run."""
    if not lease.module_runs:
        return ()
    failed = {run.kind for run in module_runs.of_job(session, lease.job_id) if run.failed}
    return tuple(
        ModuleRun(run.id, run.kind, run.artifact_sha, run.kind == "tuned" and "untuned" not in failed)
        for run in lease.module_runs
    )
