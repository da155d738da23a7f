"""What a job shows while it waits for a device, or for a worker that builds for it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from core.job import Build
from core.worker import Role, Wanted, WorkerState
from records.fleet import building, devices
from records.fleet.devices import LOST_AFTER_S, WorkerInfo
from records.jobs import jobs
from records.jobs.jobs import Job

# Workers report every few seconds; one silent for this long is away.
AWAY_AFTER_S = 30.0


def note_no_device(session: Session, job: Job, now: float) -> None:
    """Say so while it isn't known yet which device class a job is for."""
    native = job.request.target == "native"
    which = "a device" if native else f"a device of class {job.request.target}"
    known = [worker for worker in devices.workers(session) if worker.role is Role.MEASURE]
    classless = [worker for worker in known if worker.device_class is None]
    remedy = _remedy(known if native else [], classless, "start a worker", now)
    _say(session, job, f"waiting for {which}: {remedy}")


def note_missing_device(session: Session, job: Job, now: float) -> None:
    """Say so while no worker of the job's device class is there."""
    start = f"waiting for a device of class {job.device_class}: "
    known = [worker for worker in devices.workers(session) if worker.role is Role.MEASURE]
    mine = [worker for worker in known if worker.device_class == job.device_class]
    if any(_is_there(worker, now) for worker in mine):
        if job.message.startswith(start):
            jobs.set_message(session, job.id, "measuring")
        if job.request.build is Build.BUILDER:
            _note_missing_builder(session, job, now)
        return
    # One that was just started has no class until its device is checked.
    classless = [worker for worker in known if worker.device_class is None]
    _say(session, job, start + _remedy(mine, classless, "start a worker on it", now))


def _note_missing_builder(session: Session, job: Job, now: float) -> None:
    """Say so while nobody is there who may build for a job that wants nobody else to."""
    start = "waiting for a worker that builds "
    if building.has_builder(session, job.id, now - LOST_AFTER_S):
        if job.message.startswith(start):
            jobs.set_message(session, job.id, "measuring")
        return
    assert job.device_class is not None, "one of its devices is there"
    code = f"{devices.get_class(session, job.device_class).machine} code: "
    # Which machines a builder is for isn't known until it can build.
    probing = [
        one for one in devices.workers(session) if one.role is Role.BUILD and one.state is WorkerState.PROBING
    ]
    start_one = "start one of this tunefarm's version with `tunefarm worker --build`"
    _say(session, job, start + code + _remedy([], probing, start_one, now))


def _remedy(mine: Sequence[WorkerInfo], others: Sequence[WorkerInfo], otherwise: str, now: float) -> str:
    """What to wait for or to do while none of the workers `mine` is there; of `others`, one may turn out to
    be as good."""
    probing = [one for one in (*mine, *others) if _is_probing(one, now)]
    if hopeful := [one for one in probing if not one.unable]:
        return f"worker {hopeful[0].id} is probing its device"
    if held_back := [one for one in mine if _is_held_back(one, now)]:
        return f"`tunefarm workers resume {held_back[0].id}`"
    if not probing:
        return otherwise
    told = f"worker {probing[0].id} {probing[0].unable}"
    return told if probing[0] in mine else f"{otherwise}; {told}"


def _say(session: Session, job: Job, message: str) -> None:
    if job.message != message:
        jobs.set_message(session, job.id, message)


def _is_there(worker: WorkerInfo, now: float) -> bool:
    """Whether it measures, or will as soon as there is something for it."""
    return worker.state in (WorkerState.READY, WorkerState.BUSY) and _is_wanted(worker, now)


def _is_probing(worker: WorkerInfo, now: float) -> bool:
    return worker.state is WorkerState.PROBING and _is_wanted(worker, now)


def _is_wanted(worker: WorkerInfo, now: float) -> bool:
    return worker.wanted is Wanted.WORK and now - worker.last_seen_at < AWAY_AFTER_S


def _is_held_back(worker: WorkerInfo, now: float) -> bool:
    """Whether it would be there if people wanted it to; an evicted one isn't listened to, so it may be."""
    is_recent = now - worker.last_seen_at < AWAY_AFTER_S
    is_there = is_recent and not worker.has_left
    return worker.wanted is Wanted.EVICTED or (worker.wanted is Wanted.DRAIN and is_there)
