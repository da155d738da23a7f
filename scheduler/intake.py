"""A job's first step: a device to tune on, the model as tasks, and its untuned timing."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from compiler.model import ExtractedTask
from compiler.subgraph import NotCovered, read_dag
from compiler.workload import from_json
from records import blobs, devices, jobs, leases, tasks
from records.jobs import Job, JobState
from records.tasks import TaskSpec
from scheduler import journal
from scheduler.artifacts import untuned_artifact
from scheduler.context import Context
from search.device import Device

OPEN = {JobState.QUEUED, JobState.IMPORTING}


def run(context: Context, job: Job) -> None:
    """Import the model and ask for its untuned timing; without a device of the target, wait for one.

    Raises ModelError.
    """
    device = _begin(context, job)
    if device is None:
        return
    prepared = context.models.prepare(context.database, job.request, device)
    specs = [_spec(job, task) for task in prepared.tasks]
    artifact = untuned_artifact(job, device, prepared, context.now())
    with context.database.begin() as session:
        sha = blobs.put(session, artifact)
    with context.database.begin() as session:
        _store(session, job, prepared.tasks, specs, context.now())
        _ask_for_timing(session, job, sha, context.now())


def _begin(context: Context, job: Job) -> Device | None:
    """The device class to tune for, None when there is none yet or it is too early to try again."""
    now = context.now()
    with context.database.begin() as session:
        device = _device(session, job)
        if device is None:
            _wait(session, job)
            return None
        jobs.set_device_class(session, job.id, device.key)
        jobs.advance(session, job.id, {JobState.QUEUED}, JobState.IMPORTING, now)
        is_due = journal.begin(session, job, "importing the model", now, context.settings.max_failures)
        return device if is_due else None


def _device(session: Session, job: Job) -> Device | None:
    if job.device_class is not None:
        return devices.get_class(session, job.device_class)
    return devices.resolve_class(session, job.request.target)


def _wait(session: Session, job: Job) -> None:
    which = "a device" if job.request.target == "native" else f"a device of class {job.request.target}"
    message = f"waiting for {which}: start a worker"
    if job.message != message:
        jobs.set_message(session, job.id, message)


def _spec(job: Job, task: ExtractedTask) -> TaskSpec:
    flops, reason = 0.0, ""
    try:
        flops = read_dag(from_json(task.module_json)).flops
    except NotCovered as error:
        reason = str(error) or "the search has no form for it"
    return TaskSpec(
        job_id=job.id,
        workload_hash=task.workload_hash,
        name=task.name,
        weight=task.weight,
        flops=flops,
        covered=not reason,
        reason=reason,
        constants=task.constants,
    )


def _store(
    session: Session, job: Job, extracted: Sequence[ExtractedTask], specs: Sequence[TaskSpec], now: float
) -> None:
    for task in extracted:
        tasks.put_workload(session, task.workload_hash, task.module_json)
    tasks.add_tasks(session, job.id, specs)
    num_covered = sum(spec.covered for spec in specs)
    to, message = JobState.TUNING, f"searching {num_covered} of {len(specs)} subgraphs"
    if job.request.trials == 0:
        to, message = JobState.PUBLISHING, "compiling the model with the schedules known"
    jobs.advance(session, job.id, OPEN, to, now, message=message)


def _ask_for_timing(session: Session, job: Job, artifact_sha: str, now: float) -> None:
    if jobs.set_artifacts(session, job.id, untuned_sha=artifact_sha):
        leases.add_module_run(session, job.id, "untuned", artifact_sha, now)
