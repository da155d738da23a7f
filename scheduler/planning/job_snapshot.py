"""A job in the middle of its tuning, read from the database in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.device import Device
from records.fleet import devices
from records.jobs import tasks, trials
from records.jobs.jobs import Job
from records.jobs.tasks import Task
from records.jobs.trials import Trial
from records.schedules.schedules import Record
from scheduler.learning.record_cache import RecordCache
from scheduler.steps import attempts


@dataclass(frozen=True)
class JobSnapshot:
    """`tasks` are those the search covers, `trials` the job's own by task, `records` what any job measured of
    the tasks' workloads on the device class."""

    job: Job
    device: Device
    tasks: tuple[Task, ...]
    trials: Mapping[int, Sequence[Trial]]
    records: Mapping[str, Sequence[Record]]
    round: int


def read(session: Session, job: Job, memory: RecordCache) -> JobSnapshot:
    """Raises RuntimeError when the job has no device class yet."""
    if job.device_class is None:
        raise RuntimeError(f"job {job.id} is tuning without a device class")
    covered = tuple(task for task in tasks.for_job(session, job.id) if task.covered)
    hashes = [task.workload_hash for task in covered]
    return JobSnapshot(
        job=job,
        device=devices.get_class(session, job.device_class),
        tasks=covered,
        trials={task.id: trials.for_task(session, task.id) for task in covered},
        records=memory.records(session, job.device_class, hashes),
        round=attempts.read(session, job.id).rounds,
    )
