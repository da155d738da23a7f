"""The state of a tuning job, read in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.device import Device
from records import devices
from records.jobs import events
from records.jobs.jobs import Job
from records.jobs.tasks import Task
from records.jobs.trials import Trial
from records.schedules.schedules import Record
from scheduler.planning.record_cache import RecordCache
from scheduler.planning.trial_cache import TrialCache

# The kind of event that ends a round.
ROUND = "round"


@dataclass(frozen=True)
class JobSnapshot:
    """The tasks to plan a round for, and their measurements.

    trials   the job's own trials, by the task's id
    records  what any job has measured on the device class, by workload hash
    round    number of rounds that have ended
    """

    job: Job
    device: Device
    tasks: Sequence[Task]
    trials: Mapping[int, Sequence[Trial]]
    records: Mapping[str, Sequence[Record]]
    round: int


def read_snapshot(
    session: Session, job: Job, tasks: Sequence[Task], record_cache: RecordCache, trial_cache: TrialCache
) -> JobSnapshot:
    """Read the snapshot of a job. Raises RuntimeError if the job has no device class yet."""
    if job.device_class is None:
        raise RuntimeError(f"job {job.id} is tuning without a device class")
    hashes = [task.workload_hash for task in tasks]
    trials = trial_cache.by_task(session, [task.job_id for task in tasks])
    return JobSnapshot(
        job=job,
        device=devices.get_class(session, job.device_class),
        tasks=tasks,
        trials={task.id: trials.get(task.id, []) for task in tasks},
        records=record_cache.records(session, job.device_class, hashes),
        round=next_round(session, job),
    )


def next_round(session: Session, job: Job) -> int:
    """Return the number of rounds that have ended."""
    last = events.last_of_kind(session, job.id, ROUND)
    return 0 if last is None else last.data["round"] + 1
