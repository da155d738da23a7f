"""Imported records: schedules of other databases. They have no effect before they are measured here."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from records import devices
from records.jobs import tasks
from records.jobs.trials import NewTrial
from records.schedules.schedules import KEY, Record
from records.storage.statements import digest, insert_all_missing
from records.storage.tables import JobRow, RecordRow, TaskRow, TrialRow

# The most imported schedules of each task that a job tries, so that a large import doesn't use up its budget.
TRIED_PER_TASK = 4


def add(session: Session, records: Sequence[Record], now: float) -> int:
    """Store records of other databases, except those whose trace has a record already.

    Returns the number of records stored. Raises WorkloadNotFound, DeviceClassNotFound.
    """
    tasks.require_workloads(session, {record.workload_hash for record in records})
    for device_class in {record.device_class for record in records}:
        devices.get_class(session, device_class)
    rows = []
    for record in records:
        # asdict would copy the program's lists, which takes longer than writing them.
        row = {name: getattr(record, name) for name in Record.__dataclass_fields__}
        row |= {"run_s": list(record.run_s), "trace_sha": digest(record.trace)}
        rows.append(row | {"source": "import", "created_at": now})
    # In one order, so that two transactions that write the same rows can't deadlock.
    rows.sort(key=lambda row: tuple(row[name] for name in KEY))
    return insert_all_missing(session, RecordRow, rows, key=KEY)


def trials_of(session: Session, job_id: str) -> list[NewTrial]:
    """Return trials of the imported schedules of a job's tasks that its device class hasn't measured yet.

    A task's schedules that claim to be fastest come first. A job tries at most TRIED_PER_TASK of each task,
    counting the ones that it has issued already. The next job tries the next ones.
    """
    imported = (RecordRow.device_class == JobRow.device_class, RecordRow.source == "import")
    of_task = select(RecordRow.id).where(RecordRow.workload_hash == TaskRow.workload_hash, *imported)
    issued = select(func.count()).where(
        TrialRow.task_id == TaskRow.id, TrialRow.program.is_(None), TrialRow.repeat == 0
    )
    with_some = (
        select(TaskRow.id, TaskRow.workload_hash, issued.correlate(TaskRow).scalar_subquery().label("issued"))
        .join(JobRow, JobRow.id == TaskRow.job_id)
        .where(TaskRow.job_id == job_id, of_task.correlate(TaskRow, JobRow).exists())
        .order_by(TaskRow.id)
    )
    found = []
    for task in session.execute(with_some).all():
        known = (TrialRow.workload_hash == task.workload_hash, TrialRow.trace_sha == RecordRow.trace_sha)
        issued_before = select(TrialRow.id).where(TrialRow.job_id == job_id, *known)
        fastest = (
            select(RecordRow.trace, RecordRow.latency_s)
            .join(JobRow, JobRow.id == job_id)
            .where(RecordRow.workload_hash == task.workload_hash, *imported, ~issued_before.exists())
            .order_by(RecordRow.latency_s, RecordRow.id)
            .limit(max(TRIED_PER_TASK - task.issued, 0))
        )
        for trace, claimed_s in session.execute(fastest):
            found.append(NewTrial(task.id, task.workload_hash, None, trace, predicted_s=claimed_s or 0.0))
    return found


def drop(
    session: Session, device_class: str, workload_hash: str | None, after_id: int, limit: int
) -> list[int]:
    """Delete up to `limit` imported records of a device class, of one workload if it is given.

    Return their ids in ascending order. The next call starts after the last id.
    """
    imported = (RecordRow.device_class == device_class, RecordRow.source == "import")
    found = select(RecordRow.id).where(*imported, RecordRow.id > after_id).order_by(RecordRow.id).limit(limit)
    if workload_hash is not None:
        found = found.where(RecordRow.workload_hash == workload_hash)
    # A measurement is replacing the locked ones.
    ids = list(session.scalars(found.with_for_update(skip_locked=True)))
    session.execute(delete(RecordRow).where(RecordRow.id.in_(ids)))
    return ids
