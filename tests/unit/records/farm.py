"""Jobs, devices and results to fill a database with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from core.device import Device
from core.job import Budget, JobState
from core.lease import ModuleKind
from core.measurement import Measurement, Outcome
from core.worker import WorkerState
from records import devices
from records.fleet import leases, module_runs, workers
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import events, jobs, models, tasks, trials
from records.schedules import schedules
from records.schedules.schedules import Record
from records.storage import blobs
from records.storage.statements import digest
from records.storage.tables import JobRow, TrialRow
from tests.devices import DEVICE


@dataclass(frozen=True)
class Farm:
    """A job that is being tuned on one device class, with one task."""

    session: Session
    job_id: str
    task_id: int
    device: Device = DEVICE

    def issue(self, *traces: str) -> list[int]:
        new = [trials.NewTrial(self.task_id, "w1", {"trace": trace}, trace, 1e-3) for trace in traces]
        return trials.add(self.session, self.job_id, 0, new, now=10.0)

    def take(self, lease_id: str, limit: int = 8, now: float = 20.0) -> leases.StoredLease | None:
        return leases.acquire_lease(
            self.session,
            lease_id,
            WorkerSession("worker", "session", WorkerState.READY, self.device),
            limit,
            now=now,
            ttl_s=60.0,
        )

    def leased(self, lease_id: str, limit: int = 8, now: float = 20.0) -> leases.StoredLease:
        lease = self.take(lease_id, limit, now)
        assert lease is not None
        return lease

    def report(
        self, lease_id: str, trial_ids: Sequence[int], secs: float | None = 1e-3, now: float = 30.0
    ) -> leases.ReportEffect:
        results = [LeaseResult(measured(secs), trial_id) for trial_id in trial_ids]
        return leases.report(self.session, lease_id, "session", results, now=now)

    def trials(self) -> list[trials.Trial]:
        return trials.for_task(self.session, self.task_id)

    def add_run(self, kind: ModuleKind = "untuned") -> int:
        sha = blobs.put(self.session, b"artifact")
        return module_runs.add(self.session, self.job_id, kind, sha, now=10.0)

    def register(self) -> None:
        workers.register(
            self.session, WorkerSession("worker", "session", WorkerState.READY, self.device), 19.0
        )

    def snapshot(self) -> object:
        """Return all rows that a report may change."""
        return (
            self.trials(),
            module_runs.of_job(self.session, self.job_id),
            schedules.history(self.session, self.device.key),
            events.since(self.session, self.job_id, 0, 1000),
        )


def measured(secs: float | None) -> Measurement:
    """Return a success of `secs` seconds, or a failure if they are None."""
    if secs is None:
        return Measurement(Outcome.BUILD_ERROR, error="no such intrinsic")
    return Measurement(Outcome.OK, run_s=(secs, 2 * secs, 3 * secs), build_s=0.1)


def request(session: Session, **changes: object) -> jobs.JobRequest:
    sha = blobs.put(session, b"a model")
    models.add(session, sha, "resnet", now=1.0)
    plain = jobs.JobRequest(sha, "resnet", {"data": (1, 3, 224, 224)}, "native", Budget(100))
    return replace(plain, **changes)  # type: ignore[arg-type]


def make_job(
    session: Session, job_id: str, device: Device = DEVICE, now: float = 1.0, **changes: object
) -> Farm:
    devices.put_class(session, device)
    jobs.create(session, job_id, request(session, **changes), jobs.Submission(now))
    jobs.set_device_class(session, job_id, device.key)
    jobs.advance(session, job_id, {JobState.QUEUED}, JobState.TUNING, now=now)
    tasks.put_workload(session, "w1", "{}")
    tasks.add_tasks(session, job_id, [task_spec(job_id)])
    [task] = tasks.for_job(session, job_id)
    return Farm(session, job_id, task.id, device)


def put_measured(session: Session, *records: schedules.Record) -> None:
    """Store records as finished trials, in order."""
    for each in records:
        job_id = f"of {each.device_class}"
        if session.get(JobRow, job_id) is None:
            jobs.create(session, job_id, request(session), jobs.Submission(1.0))
            jobs.set_device_class(session, job_id, each.device_class)
            jobs.advance(session, job_id, {JobState.QUEUED}, JobState.DONE, now=1.0)
        tasks.add_tasks(session, job_id, [task_spec(job_id, each.workload_hash)])
        [task] = [task for task in tasks.for_job(session, job_id) if task.workload_hash == each.workload_hash]
        trial = _trial(each, task, repeat=len(trials.for_task(session, task.id)))
        session.add(trial)
        session.flush()
        schedules.put_trials(session, [trial.id], each.created_at)


def _trial(record: schedules.Record, task: tasks.Task, repeat: int) -> TrialRow:
    return TrialRow(
        job_id=task.job_id,
        task_id=task.id,
        workload_hash=record.workload_hash,
        round=0,
        program=record.program,
        trace=record.trace,
        trace_sha=digest(record.trace),
        repeat=repeat,
        predicted_s=1e-3,
        state="done",
        attempts=1,
        outcome=record.outcome,
        run_s=list(record.run_s),
        latency_s=record.latency_s,
        build_s=0.1,
        error="",
        created_at=record.created_at,
        finished_at=record.created_at,
    )


def task_spec(job_id: str, workload_hash: str = "w1") -> tasks.TaskSpec:
    return tasks.TaskSpec(job_id, workload_hash, "conv2d", 3, 2.5e8, True, "", (1, 2))


def all_at_once(acts: Sequence[Callable[[], object]]) -> None:
    """Run each in its own thread. After all ended, raise the first error."""
    with ThreadPoolExecutor(len(acts)) as pool:
        started = [pool.submit(act) for act in acts]
    for each in started:
        each.result()


def best(session: Session, workload: str, device_class: str) -> schedules.Record | None:
    return schedules.best_many(session, [workload], device_class).get(workload)


def record(trace: str, latency_s: float | None = None, **changes: object) -> Record:
    outcome = Outcome.RUN_ERROR if latency_s is None else Outcome.OK
    secs = () if latency_s is None else (latency_s,)
    target = DEVICE.target
    plain = Record(
        "w1", DEVICE.key, trace, {"p": 1}, latency_s, secs, outcome, target, "trial", created_at=5.0
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


MIGRATE = "import sys; from records.storage.database import Database; Database(sys.argv[1]).migrate()"
