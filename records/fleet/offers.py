"""What a worker is told of the trials that it gets: one statement, however many they are."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import Row, Select, bindparam, func, select

from records.jobs import trials
from records.jobs.fair_queue import Takes
from records.storage.statements import oldest_pending
from records.storage.tables import JobRow, RecordRow, TaskRow, TrialRow

# A trial's columns, the constants of its task, and the best latency of its workload.
Offer: TypeAlias = "Row[*tuple[Any, ...]]"


@cache
def waiting(takes: Takes) -> Select[*tuple[Any, ...]]:
    """Those that wait and no other transaction is taking, at most `together`, a parameter; see `offers`.

    Built once: that takes longer than to run it.
    """
    found = oldest_pending(offers()).limit(bindparam("together"))
    if takes is Takes.BUILT:
        found = found.where(TrialRow.library_sha.is_not(None))
    elif takes is Takes.UNBUILT:
        found = found.where(TrialRow.library_sha.is_(None))
    return found.with_for_update(skip_locked=True, of=TrialRow)


def offers() -> Select[*tuple[Any, ...]]:
    """Trials of the job `job_id`, a parameter, with what their worker has to know of them.

    Imported records don't count among the best: what they were measured under, nobody knows.
    """
    constants = select(TaskRow.constants).where(TaskRow.id == TrialRow.task_id).correlate(TrialRow)
    device_class = select(JobRow.device_class).where(JobRow.id == bindparam("job_id"))
    best_s = select(func.min(RecordRow.latency_s)).where(
        RecordRow.workload_hash == TrialRow.workload_hash,
        RecordRow.device_class == device_class.scalar_subquery(),
        RecordRow.source == "trial",
    )
    # Looked up for each row: with joins, PostgreSQL may choose to read all that waits.
    known = constants.scalar_subquery(), best_s.correlate(TrialRow).scalar_subquery()
    found = select(*trials.COLUMNS, known[0].label("constants"), known[1].label("best_s"))
    return found.where(TrialRow.job_id == bindparam("job_id"))
