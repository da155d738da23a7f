"""What a job shows while it waits for a device."""

from __future__ import annotations

from sqlalchemy.orm import Session

from records import devices, jobs, leases
from records.devices import WorkerState
from records.jobs import Job
from records.leases import ModuleRun
from search.measurement import Outcome

# Workers report every few seconds; one silent for this long is away.
AWAY_AFTER_S = 30.0


def note_end_to_end(session: Session, job: Job) -> None:
    """Keep the whole model's timings with the job as soon as they are in."""
    for run in leases.module_runs(session, job.id):
        if run.outcome is Outcome.OK and run.run_secs != _noted(job, run):
            jobs.set_end_to_end(session, job.id, run.kind, run.run_secs)


def note_missing_device(session: Session, job: Job, now: float) -> None:
    """Say so while no worker of the job's device class is there."""
    message = f"waiting for a device of class {job.device_class}: start a worker on it"
    is_away = not any(_is_there(worker, job, now) for worker in devices.workers(session))
    if is_away and job.message != message:
        jobs.set_message(session, job.id, message)
    if not is_away and job.message == message:
        jobs.set_message(session, job.id, "measuring")


def _noted(job: Job, run: ModuleRun) -> tuple[float, ...] | None:
    return job.untuned_secs if run.kind == "untuned" else job.tuned_secs


def _is_there(worker: devices.WorkerInfo, job: Job, now: float) -> bool:
    is_recent = now - worker.last_seen_at < AWAY_AFTER_S
    return worker.device_class == job.device_class and worker.state is not WorkerState.DRAINING and is_recent
