"""Store a worker's report and decide its lease."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from core.job import JobState
from core.lease import Candidate, Lease, LeaseId, Limits, ModuleRun
from core.worker import DesiredState, Role, WorkerState
from proto.messages import Result, SyncResponse, WorkerReport
from records.fleet import building, leases, module_runs, workers
from records.fleet.building import Builder
from records.fleet.hardware import HardwareInUse
from records.fleet.names import NameClaim
from records.fleet.results import LeaseResult
from records.fleet.workers import Instructions, SessionFenced, WorkerSession
from records.jobs import jobs
from records.storage import blobs
from server.fleet.plausibility import reject_implausible, reject_implausible_profile
from system import tracing

IDLE_S = 1.0
EVICTED_S = 5.0
_MAX_LEASE = 256
_LEASELESS_STATES = (WorkerState.PROBING, WorkerState.DRAINING, WorkerState.OFFLINE)

Wake = tuple[str, str]


@dataclass(frozen=True)
class Reconciliation:
    """The answer to a report, and the steps (name, job id) to wake once the transaction is committed.

    `may_lease`: the report closed a lease. The worker gets its next one in another transaction, because the
    report has locked the job.
    """

    response: SyncResponse
    wakes: tuple[Wake, ...] = ()
    may_lease: bool = False


@dataclass(frozen=True)
class WorkerCall:
    """A worker's report, and what the server knows about the call.

    `token_id` is the worker's token; None if names aren't bound to tokens. `registered`: the database has
    this session's device already. `lease_id` is the id of a new lease, if one is taken. A lease that the
    worker holds is valid for `lease_ttl_s` from `now`.
    """

    report: WorkerReport
    token_id: str | None
    registered: bool
    lease_id: str
    now: float
    lease_ttl_s: float

    @property
    def session(self) -> WorkerSession:
        """The worker's stored session."""
        report, device, builder = self.report, self.report.device, None
        if report.role is Role.BUILD and device is not None:
            builder = Builder(report.builds_for, device.arch, device.cores, device.toolchain)
            device = None
        return WorkerSession(
            report.worker_id,
            report.session_id,
            report.state,
            device,
            report.vitals,
            report.role,
            builder,
            report.calibrated,
            NameClaim(self.token_id, report.boot_id),
            report.hardware,
        )


def reconcile(session: Session, call: WorkerCall, version: str = "") -> Reconciliation:
    """Store a worker's report, and return the lease that it should hold, unless the report closed one.

    `version` is the service's version. The caller decides when a worker with a lease is to call again. Raises
    NameTaken, NameInUse.
    """
    report, now = call.report, call.now
    instructions = _note_call(session, call)
    if instructions is None:
        state = workers.desired_state(session, report.worker_id)
        return Reconciliation(SyncResponse(fenced=True, desired_state=state, call_again_after_s=EVICTED_S))
    if instructions.desired_state is DesiredState.UPDATE and report.vitals.tunefarm_version == version:
        workers.set_desired_state(session, report.worker_id, DesiredState.WORK)
        instructions = instructions._replace(desired_state=DesiredState.WORK)
    wakes, closed = _store_results(session, report, now)
    if report.state in _LEASELESS_STATES and report.held is None:
        leases.give_back(session, report.worker_id, report.session_id, now)
    if report.state is WorkerState.READY and not call.registered:
        # These jobs may have been waiting for a device of this class.
        wakes += [("intake", job.id) for job in jobs.unfinished(session) if job.state is JobState.QUEUED]
    keeps, lease, call_again_after_s, may_lease = report.held, None, IDLE_S, False
    if keeps is None or not leases.renew(session, keeps.id, report.session_id, now, call.lease_ttl_s):
        keeps = None
        may_lease = closed and instructions.desired_state is DesiredState.WORK
        if report.state is WorkerState.READY and not closed:
            # The worker may hold a lease that it doesn't name, because the response with the lease was lost.
            # If a lease was just closed, there is none, because a session holds at most one.
            unnamed = leases.current(session, report.worker_id, report.session_id, now)
            lease = None if unnamed is None else _lease_of(session, unnamed, report, now)
        if lease is None and not closed and instructions.desired_state is DesiredState.WORK:
            with suppress(HardwareInUse):
                lease = new_lease(session, call)
        # A worker that may wait does so in its next call, not between calls. But a worker that is asked to
        # calibrate and can't must not call in a loop.
        if wants_work(report) and report.wait_s > 0 and not instructions.calibrate:
            call_again_after_s = 0.0
    response = SyncResponse(
        keeps=keeps,
        lease=lease,
        acknowledged=tuple(result.number for result in report.results),
        call_again_after_s=call_again_after_s,
        desired_state=instructions.desired_state,
        calibrate=instructions.calibrate,
        service_version=version,
    )
    return Reconciliation(response, tuple(dict.fromkeys(wakes)), may_lease)


def wants_work(report: WorkerReport) -> bool:
    return report.state is WorkerState.READY and report.slots > 0


def new_lease(session: Session, call: WorkerCall) -> Lease | None:
    """Acquire a new lease for a worker; None if it wants no work or no work is pending.

    Raises HardwareInUse.
    """
    report = call.report
    if not wants_work(report) or report.device is None:
        return None
    slots = min(report.slots, _MAX_LEASE)
    lease = leases.acquire_lease(session, call.lease_id, call.session, slots, call.now, call.lease_ttl_s)
    return None if lease is None else _lease_of(session, lease, report, call.now)


def _note_call(session: Session, call: WorkerCall) -> Instructions | None:
    """Store the worker's call, and return its instructions.

    Return None if another session has replaced this one, or the worker was evicted. Raises NameTaken,
    NameInUse.
    """
    report = call.report
    is_new = report.starting or (report.device is not None and (report.calibrated or not call.registered))
    if not is_new:
        return workers.heartbeat(session, call.session, call.now)
    if workers.has_other_session(session, report.worker_id, report.session_id):
        return None
    if report.role is Role.MEASURE:
        call = replace(call, report=reject_implausible_profile(report))
    try:
        workers.register(session, call.session, call.now)
    except SessionFenced:
        return None
    return workers.instructions(session, report.worker_id)


def _store_results(session: Session, report: WorkerReport, now: float) -> tuple[list[Wake], bool]:
    """Store a report's results. Return the steps to wake, and whether a lease was closed."""
    by_lease: defaultdict[str, list[Result]] = defaultdict(list)
    for result in report.results:
        by_lease[result.lease.id].append(result)
    wakes, closed = [], False
    for lease_id, results in by_lease.items():
        plausible = [
            LeaseResult(result.measurement, result.trial_id, result.module_run_id)
            for result in map(reject_implausible, results)
        ]
        reported = leases.report(session, lease_id, report.session_id, plausible, now)
        closed |= reported.closed
        if reported.job_id is not None and (reported.closed or reported.worth_planning):
            is_timing = any(result.module_run_id is not None for result in results)
            wakes.append(("publish" if is_timing else "round", reported.job_id))
    return wakes, closed


def _lease_of(session: Session, stored: leases.StoredLease, report: WorkerReport, now: float) -> Lease:
    """Convert a stored lease to the lease that is sent to its worker."""
    assert report.device is not None, "a ready worker has a device"
    limits, runs = Limits(), []
    if stored.module_runs:
        sizes = [blobs.size(session, run.artifact_sha) or 0 for run in stored.module_runs]
        limits = Limits.for_module(max(sizes))
        failed = {run.kind for run in module_runs.of_job(session, stored.job_id) if run.failed}
        # The tuned model is compared with the untuned one, unless the untuned one is known to fail.
        compares = set() if "untuned" in failed else {"tuned"}
        shapes = json.dumps(jobs.get(session, stored.job_id).request.shapes)
        runs = [
            ModuleRun(
                run.id,
                run.kind,
                run.artifact_sha,
                run.kind in compares,
                shapes if run.kind == "onnxruntime" else "",
            )
            for run in stored.module_runs
        ]
    work = len(stored.trials) + len(stored.module_runs)
    ids = {"job": stored.job_id, "lease": stored.id, "worker": stored.worker_id}
    with tracing.span("lease", stored.trace_parent, **ids, work=work):
        trace_parent = tracing.current()
    return Lease(
        id=LeaseId(stored.id, stored.attempt),
        target=building.target(session, stored.job_id) if stored.build else report.device.target,
        limits=limits,
        expires_after_s=max(stored.expires_at - now, 1.0),
        candidates=tuple(
            Candidate(
                trial.id,
                trial.workload_hash,
                trial.trace,
                stored.constants.get(trial.workload_hash, ()),
                stored.best_s.get(trial.workload_hash),
                None if stored.build else trial.library_sha,
            )
            for trial in stored.trials
        ),
        module_runs=tuple(runs),
        build=stored.build,
        trace_parent=trace_parent,
        model_bytes=stored.model_bytes,
    )
