"""A job in the middle of its tuning, read from the database in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from records import devices, schedules, tasks, trials
from records.jobs import Job
from records.schedules import Record
from records.tasks import Task
from records.trials import Trial
from scheduler import journal
from search.device import Device

# Reading more takes longer than a plan should; the newest teach the most about what is searched now.
HISTORY_LIMIT = 5_000


@dataclass(frozen=True)
class Situation:
    """`tasks` are those the search covers, `trials` the job's own by task, `records` what any job measured of
    the tasks' workloads (and others), `history` the newest records of the device class, newest first."""

    job: Job
    device: Device
    tasks: tuple[Task, ...]
    trials: Mapping[int, Sequence[Trial]]
    records: Mapping[str, Sequence[Record]]
    history: Sequence[Record]
    round: int


def read(session: Session, job: Job) -> Situation:
    """Raises RuntimeError when the job has no device class yet."""
    if job.device_class is None:
        raise RuntimeError(f"job {job.id} is tuning without a device class")
    covered = tuple(task for task in tasks.for_job(session, job.id) if task.covered)
    history = schedules.history(session, job.device_class, HISTORY_LIMIT)
    best = schedules.successes(session, job.device_class, [task.workload_hash for task in covered])
    return Situation(
        job=job,
        device=devices.get_class(session, job.device_class),
        tasks=covered,
        trials={task.id: trials.for_task(session, task.id) for task in covered},
        records=_by_workload([*history, *best]),
        history=history,
        round=journal.read(session, job.id).rounds,
    )


def _by_workload(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Every record once."""
    found: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        found[record.workload_hash][record.trace] = record
    return {name: list(of_trace.values()) for name, of_trace in found.items()}
