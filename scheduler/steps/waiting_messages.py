"""The messages of jobs that wait for a device or a builder."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from core.job import Build
from core.worker import LOST_AFTER_S, DesiredState, Role, WorkerState
from records import devices
from records.fleet import building, workers
from records.fleet.reservations import utc
from records.fleet.workers import Reservation, WorkerInfo
from records.jobs import jobs
from records.jobs.jobs import Job

# A worker that is silent for this long is disconnected. Workers report every few seconds.
AWAY_AFTER_S = 30.0
# The messages of jobs whose device class is known begin like this.
_WAITING = "waiting for a device of class"


def note_no_device(session: Session, job: Job, now: float, *, has_local_worker: bool) -> None:
    """Set the message of a job whose device class isn't known yet. `has_local_worker` means that a worker
    starts together with this scheduler, so the user needn't start one.
    """
    native = job.request.target == "native"
    measuring = [worker for worker in workers.list_workers(session) if worker.role is Role.MEASURE]
    classless = [worker for worker in measuring if worker.device_class is None]
    is_starting = native and has_local_worker and not classless
    otherwise = "the worker on this machine is starting" if is_starting else "start a worker"
    remedy = _remedy(job, measuring if native else [], classless, otherwise, now)
    start = "waiting for a device" if native else f"{_WAITING} {job.request.target}"
    _set_message(session, job, f"{start}: {remedy}")


def note_missing_device(session: Session, job: Job, now: float) -> None:
    """Set the message of a job while no worker of its device class is connected, and clear it afterwards. Do
    the same for builders if only builders may build for the job.
    """
    assert job.device_class is not None, "it is tuning"
    is_told = job.message.startswith(_WAITING) or job.request.build is Build.BUILDER
    if not is_told and workers.count_able(session, job.device_class, now, AWAY_AFTER_S):
        return
    measuring = [worker for worker in workers.list_workers(session) if worker.role is Role.MEASURE]
    of_class = [worker for worker in measuring if worker.device_class == job.device_class]
    able = (WorkerState.READY, WorkerState.BUSY)
    free = [worker for worker in of_class if _reservation(worker, job, now) is None]
    if any(worker.state in able and _takes_work(worker, now) for worker in free):
        if job.message.startswith(_WAITING):
            jobs.set_message(session, job.id, "measuring")
        if job.request.build is Build.BUILDER:
            _note_missing_builder(session, job, now)
        return
    # A new worker has no device class until its device is checked.
    classless = [worker for worker in measuring if worker.device_class is None]
    device = devices.get_class(session, job.device_class)
    remedy = _remedy(job, of_class, classless, "start a worker on it", now)
    _set_message(session, job, f"{_WAITING} {device.title}: {remedy}")


def _note_missing_builder(session: Session, job: Job, now: float) -> None:
    start = "waiting for a worker that builds "
    if building.has_builder(session, job.id, now - LOST_AFTER_S):
        if job.message.startswith(start):
            jobs.set_message(session, job.id, "measuring")
        return
    assert job.device_class is not None, "one of its devices is there"
    code = f"{devices.get_class(session, job.device_class).platform} code: "
    # A builder reports its platforms once it can build.
    probing = [
        worker
        for worker in workers.list_workers(session)
        if worker.role is Role.BUILD and worker.state is WorkerState.PROBING
    ]
    start_one = "start one of this tunefarm's version with `tunefarm worker --build`"
    _set_message(session, job, start + code + _remedy(job, [], probing, start_one, now))


def _remedy(
    job: Job, suitable: Sequence[WorkerInfo], classless: Sequence[WorkerInfo], otherwise: str, now: float
) -> str:
    """Return what the job waits for, or what the user should do, if no `suitable` worker takes work. A probe
    may show that a `classless` worker is suitable.
    """
    for worker in suitable:
        held = _reservation(worker, job, now)
        if held is not None and _takes_work(worker, now):
            return (
                f"worker {worker.id} is reserved for {held.name} until {utc(held.until)}, "
                f"or until `tunefarm workers unreserve {worker.id}`"
            )
    probing = [
        worker
        for worker in (*suitable, *classless)
        if worker.state is WorkerState.PROBING and _takes_work(worker, now)
    ]
    for worker in probing:
        if not worker.unable:
            return f"worker {worker.id} is probing its device"
    for worker in suitable:
        is_there = _was_seen(worker, now) and not worker.has_left
        # An evicted worker's calls are rejected, so it may be running without being seen.
        if worker.desired_state is DesiredState.EVICTED or (
            worker.desired_state in (DesiredState.DRAIN, DesiredState.UPDATE) and is_there
        ):
            return f"`tunefarm workers resume {worker.id}`"
    if not probing:
        return otherwise
    problem = f"worker {probing[0].id} {probing[0].unable}"
    return problem if probing[0] in suitable else f"{otherwise}; {problem}"


def _set_message(session: Session, job: Job, message: str) -> None:
    if job.message != message:
        jobs.set_message(session, job.id, message)


def _reservation(worker: WorkerInfo, job: Job, now: float) -> Reservation | None:
    """Return the reservation of a worker that keeps it from measuring this job now."""
    held = worker.reservation
    return None if held is None or held.until <= now or held.holder == job.submitted_by else held


def _takes_work(worker: WorkerInfo, now: float) -> bool:
    return worker.desired_state is DesiredState.WORK and _was_seen(worker, now)


def _was_seen(worker: WorkerInfo, now: float) -> bool:
    return now - worker.last_seen_at < AWAY_AFTER_S
