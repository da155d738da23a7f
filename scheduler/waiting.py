"""What a job shows while it waits for a device, or for a worker that builds for it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from records import building, devices, jobs
from records.devices import LOST_AFTER_S, Wanted, WorkerState
from records.jobs import Build, Job

# Workers report every few seconds; one silent for this long is away.
AWAY_AFTER_S = 30.0


def note_missing_device(session: Session, job: Job, now: float) -> None:
    """Say so while no worker of the job's device class is there."""
    start = f"waiting for a device of class {job.device_class}: "
    mine = [worker for worker in devices.workers(session) if worker.device_class == job.device_class]
    if any(_is_there(worker, now) for worker in mine):
        if job.message.startswith(start):
            jobs.set_message(session, job.id, "measuring")
        if job.request.build is Build.BUILDER:
            _note_missing_builder(session, job, now)
        return
    held_back = [worker.id for worker in mine if _is_held_back(worker, now)]
    remedy = f"`tunefarm workers resume {held_back[0]}`" if held_back else "start a worker on it"
    if job.message != start + remedy:
        jobs.set_message(session, job.id, start + remedy)


def _note_missing_builder(session: Session, job: Job, now: float) -> None:
    """Say so while nobody is there who may build for a job that wants nobody else to."""
    start = "waiting for a worker that builds "
    if building.has_builder(session, job.id, now - LOST_AFTER_S):
        if job.message.startswith(start):
            jobs.set_message(session, job.id, "measuring")
        return
    assert job.device_class is not None, "one of its devices is there"
    code = f"{devices.get_class(session, job.device_class).machine} code: "
    message = f"{start}{code}start one of this tunefarm's version with `tunefarm worker --build`"
    if job.message != message:
        jobs.set_message(session, job.id, message)


def _is_there(worker: devices.WorkerInfo, now: float) -> bool:
    is_recent = now - worker.last_seen_at < AWAY_AFTER_S
    leaves = worker.state is WorkerState.DRAINING or worker.has_left
    return not leaves and worker.wanted is Wanted.WORK and is_recent


def _is_held_back(worker: devices.WorkerInfo, now: float) -> bool:
    """Whether it would be there if people wanted it to; an evicted one isn't listened to, so it may be."""
    is_recent = now - worker.last_seen_at < AWAY_AFTER_S
    is_there = is_recent and not worker.has_left
    return worker.wanted is Wanted.EVICTED or (worker.wanted is Wanted.DRAIN and is_there)
