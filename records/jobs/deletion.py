"""Delete finished jobs, and models, datasets and blobs without references.

Workloads and records outlive the jobs that made them: other jobs use them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, delete, exists, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.job import JobState
from records.jobs import jobs, outlines, releases
from records.storage.statements import changed, table_of
from records.storage.tables import (
    BlobRow,
    ChunkRow,
    DatasetRow,
    EventRow,
    InferenceRow,
    JobRow,
    LeaseRow,
    ModelRow,
    ModuleRunRow,
    QuantizedModelRow,
    ShareRow,
    TaskRow,
    TrialRow,
)

# A model or a dataset without a job is kept this long after its last upload.
UPLOAD_GRACE_S = 7 * 86400.0
# The rows of a table that one transaction deletes. There are few, so that its locks are short.
ROWS = 5000
# The chunks of files that one transaction deletes. A chunk has up to 4 MiB.
CHUNKS = 16
# Rows are deleted before the rows that they refer to. Libraries are deleted with their trials.
_JOB_TABLES = (TrialRow, ModuleRunRow, LeaseRow, TaskRow, EventRow, ShareRow, InferenceRow)


class JobInUse(Exception):
    """The job is not finished, or a scheduler still runs one of its steps. The message is one sentence for
    the user."""


def delete_job(session: Session, job_id: str, now: float, limit: int = ROWS) -> bool:
    """Delete a finished job, its tasks, trials, module runs and events, up to `limit` rows of a table.

    Return whether nothing is left. Call it again, each time in a new transaction, until it returns True. A
    device that still holds a lease of the job loses it. Raises JobNotFound, JobInUse.
    """
    # Leases are always locked before their job. Afterwards, no row that refers to the job can be added.
    held = select(LeaseRow.id).where(LeaseRow.job_id == job_id, LeaseRow.closed_at.is_(None))
    session.execute(held.order_by(LeaseRow.id).with_for_update())
    row = session.scalars(select(JobRow).where(JobRow.id == job_id).with_for_update()).first()
    if row is None:
        raise jobs.JobNotFound(f"there is no job {job_id!r}")
    if not JobState(row.state).finished:
        raise JobInUse(f"Job {job_id} is {row.state}: cancel it first.")
    if row.holder is not None and (row.held_until or 0.0) > now:
        raise JobInUse(
            f"Job {job_id} is {row.state}, but a scheduler still runs one of its steps: try again soon."
        )
    if names := releases.of_job(session, job_id):
        raise JobInUse(
            f"The artifact of job {job_id} is released as {', '.join(names)}: move or delete that name first."
        )
    # Once the leases are closed, no more results can arrive.
    live = (LeaseRow.job_id == job_id, LeaseRow.closed_at.is_(None))
    session.execute(update(LeaseRow).where(*live).values(closed_at=now))
    for table in _JOB_TABLES:
        key = next(iter(table_of(table).primary_key))
        some = select(key).where(table.job_id == job_id).order_by(key).limit(limit)
        if changed(session, delete(table).where(key.in_(some))) == limit:
            return False
    session.execute(delete(JobRow).where(JobRow.id == job_id))
    return True


def drop_uploads(session: Session, now: float, limit: int) -> int:
    """Delete up to `limit` models and `limit` datasets without jobs that were uploaded long ago, and the
    quantized forms and outlines of the models. Return the number of deleted uploads."""
    models = _unused_uploads(session, ModelRow, [JobRow.model_sha], now, limit)
    session.execute(delete(QuantizedModelRow).where(QuantizedModelRow.model_sha.in_(models)))
    outlines.drop(session, models)
    session.execute(delete(ModelRow).where(ModelRow.sha.in_(models)))
    used = [JobRow.calibration, InferenceRow.inputs]
    datasets = _unused_uploads(session, DatasetRow, used, now, limit)
    session.execute(delete(DatasetRow).where(DatasetRow.sha.in_(datasets)))
    return len(models) + len(datasets)


def _unused_uploads(
    session: Session,
    table: type[ModelRow] | type[DatasetRow],
    used: Sequence[InstrumentedAttribute[Any]],
    now: float,
    limit: int,
) -> Sequence[str]:
    """Lock old rows whose sha isn't in any of the columns `used`. Return the shas."""
    unused = (
        table.created_at < now - UPLOAD_GRACE_S,
        *(~exists().where(column == table.sha) for column in used),
    )
    found = select(table.sha).where(*unused).order_by(table.sha).limit(limit)
    # Once they are locked, no job can refer to them. A job may have been created just before.
    locked = session.scalars(found.with_for_update(skip_locked=True)).all()
    return session.scalars(select(table.sha).where(table.sha.in_(locked), *unused)).all()


class DroppedFiles(NamedTuple):
    """The numbers of deleted blobs and chunks. Chunks count even if others of their blob are left."""

    blobs: int
    chunks: int


def drop_blobs(session: Session, limit: int, chunks: int = CHUNKS) -> DroppedFiles:
    """Delete up to `limit` blobs without references, and up to `chunks` of their chunks.

    A blob that is being written is safe, because its writer stores the reference in the same transaction. If
    some of its chunks were deleted, the writer writes them again.
    """
    found = select(BlobRow.sha).where(_unused()).order_by(BlobRow.sha).limit(limit)
    locked = session.scalars(found.with_for_update(skip_locked=True)).all()
    shas = session.scalars(select(BlobRow.sha).where(BlobRow.sha.in_(locked), _unused())).all()
    key = (ChunkRow.sha, ChunkRow.position)
    some = select(*key).where(ChunkRow.sha.in_(shas)).order_by(*key).limit(chunks)
    deleted = changed(session, delete(ChunkRow).where(tuple_(*key).in_(some)))
    left = select(ChunkRow.sha).where(ChunkRow.sha == BlobRow.sha)
    empty = (BlobRow.sha.in_(shas), ~left.exists())
    return DroppedFiles(changed(session, delete(BlobRow).where(*empty)), deleted)


def _unused() -> ColumnElement[bool]:
    """A condition on BlobRow: nothing refers to the blob."""
    # One set of all references, because the tables have no index on them.
    used = select(ModelRow.sha).union(
        select(DatasetRow.sha),
        select(QuantizedModelRow.sha),
        select(InferenceRow.outputs_sha).where(InferenceRow.outputs_sha.is_not(None)),
        select(ModuleRunRow.artifact_sha),
        select(JobRow.artifact_sha).where(JobRow.artifact_sha.is_not(None)),
        select(JobRow.untuned_artifact_sha).where(JobRow.untuned_artifact_sha.is_not(None)),
    )
    return BlobRow.sha.not_in(used)
