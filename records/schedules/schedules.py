"""Records: the measurements of workloads on device classes, and the best schedules among them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy import Double, Select, bindparam, func, literal, or_, select
from sqlalchemy.orm import Session

from core.measurement import Outcome
from records.fleet import devices
from records.jobs import tasks
from records.storage.statements import (
    ConflictInsert,
    among,
    dialect_of,
    digest,
    insert_missing,
    insert_of,
    table_of,
)
from records.storage.tables import DeviceClassRow, JobRow, RecordRow, TrialRow, WorkloadRow

Source: TypeAlias = Literal["trial", "import"]

_KEY = ("workload_hash", "device_class", "trace_sha")
_VALUES = ("trace", "program", "latency_s", "run_secs", "outcome", "target", "source", "created_at")


@dataclass(frozen=True)
class Record:
    """The newest measurement of one trace of a workload on a device class, stored at `created_at`.

    `latency_s`, the median of `run_secs`, is None unless `outcome` is OK.
    """

    workload_hash: str
    device_class: str
    trace: str
    program: dict[str, Any] | None
    latency_s: float | None
    run_secs: tuple[float, ...]
    outcome: Outcome
    target: str
    source: Source
    created_at: float

    def __post_init__(self) -> None:
        if (self.latency_s is None) == (self.outcome is Outcome.OK):
            raise ValueError("exactly the records that went well have a latency")


def best(session: Session, workload_hash: str, device_class: str) -> Record | None:
    """Return the fastest record of a workload, None if none went well."""
    return best_many(session, [workload_hash], device_class).get(workload_hash)


def best_many(session: Session, hashes: Collection[str], device_class: str) -> dict[str, Record]:
    """Return the fastest record of each workload that has one, by hash."""
    fastest = (
        select(RecordRow.id)
        .where(RecordRow.workload_hash == WorkloadRow.hash, RecordRow.device_class == device_class)
        .where(RecordRow.latency_s.is_not(None))
        .order_by(RecordRow.latency_s, RecordRow.id)
        .limit(1)
        .correlate(WorkloadRow)
        .scalar_subquery()
    )
    ids = select(fastest).select_from(WorkloadRow).where(WorkloadRow.hash.in_(hashes))
    found = _records(session, select(RecordRow).where(RecordRow.id.in_(ids)))
    return {record.workload_hash: record for record in found}


def successes(session: Session, device_class: str, hashes: Collection[str] | None = None) -> list[Record]:
    """Return the records that went well, by workload and latency; of all workloads if none are given."""
    query = select(RecordRow).where(RecordRow.device_class == device_class, RecordRow.latency_s.is_not(None))
    if hashes is not None:
        query = query.where(RecordRow.workload_hash.in_(hashes))
    return _records(session, query.order_by(RecordRow.workload_hash, RecordRow.latency_s, RecordRow.id))


def of_workloads(session: Session, device_class: str, hashes: Collection[str]) -> list[Record]:
    """Return all records of some workloads, of any outcome."""
    query = select(RecordRow).where(RecordRow.device_class == device_class)
    return _records(session, query.where(RecordRow.workload_hash.in_(hashes)).order_by(RecordRow.id))


def after(session: Session, device_class: str, record_id: int) -> list[Record]:
    """Return the records of any outcome that were stored after this one, oldest first."""
    query = select(RecordRow).where(RecordRow.device_class == device_class, RecordRow.id > record_id)
    return _records(session, query.order_by(RecordRow.id))


def fastest(session: Session, device_class: str, workload_hash: str, limit: int) -> list[Record]:
    """Return the fastest records of a workload that have a program, fastest first."""
    worked = (RecordRow.device_class == device_class, RecordRow.latency_s.is_not(None))
    query = select(RecordRow).where(RecordRow.workload_hash == workload_hash, *worked)
    programs = query.where(RecordRow.program.is_not(None))
    return _records(session, programs.order_by(RecordRow.latency_s, RecordRow.id).limit(limit))


def newest(session: Session, device_class: str) -> tuple[int, float]:
    """Return the id of the class's newest record and the time when it was stored; zeros if there is none.

    Ids grow even if clocks don't. But a record may become visible a little later than one with a larger id,
    because servers don't commit in the order in which they drew the ids.
    """
    last = select(RecordRow.id, RecordRow.created_at).where(RecordRow.device_class == device_class)
    found = session.execute(last.order_by(RecordRow.id.desc()).limit(1)).first()
    return (0, 0.0) if found is None else (found.id, found.created_at)


def last_until(session: Session, device_class: str, at: float) -> int:
    """Return the id of the class's last record stored until `at`; 0 if there is none."""
    until = (RecordRow.device_class == device_class, RecordRow.created_at <= at)
    return session.scalar(select(func.max(RecordRow.id)).where(*until)) or 0


def count_after(session: Session, device_class: str, record_id: int) -> int:
    """Return how many records of the class were stored after this one."""
    newer = (RecordRow.device_class == device_class, RecordRow.id > record_id)
    return session.scalar(select(func.count()).where(*newer)) or 0


def history(session: Session, device_class: str, limit: int = 20000) -> list[Record]:
    """Return the newest records of any outcome that have a program, newest first."""
    programs = select(RecordRow).where(RecordRow.device_class == device_class, RecordRow.program.is_not(None))
    return _records(session, programs.order_by(RecordRow.id.desc()).limit(limit))


def put_trials(session: Session, trial_ids: Sequence[int], now: float) -> None:
    """Store trials of one job that are done as records, which replace older ones of the same traces.

    No two of the trials have the same trace. A failure doesn't replace a success, except WRONG_RESULT: then
    the success never was one. The rows are copied within the database.
    """
    if trial_ids:
        session.execute(_insert_trials(dialect_of(session)), {"trials": list(trial_ids), "stored_at": now})


@cache
def _insert_trials(dialect: str) -> ConflictInsert:
    columns: dict[str, Any] = {
        "workload_hash": TrialRow.workload_hash,
        "device_class": DeviceClassRow.key,
        "trace": TrialRow.trace,
        "trace_sha": TrialRow.trace_sha,
        "program": TrialRow.program,
        "latency_s": TrialRow.latency_s,
        "run_secs": TrialRow.run_secs,
        "outcome": TrialRow.outcome,
        "target": DeviceClassRow.target,
        "source": literal("trial"),
        "created_at": bindparam("stored_at", type_=Double()),
    }
    measured = (
        select(*columns.values())
        .join_from(TrialRow, JobRow, JobRow.id == TrialRow.job_id)
        .join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
        .where(among(dialect, TrialRow.id, "trials"))
        .order_by(*(columns[name] for name in _KEY))
    )
    insert = insert_of(dialect, table_of(RecordRow)).from_select(list(columns), measured)
    new = insert.excluded
    convincing = or_(new.outcome == Outcome.OK, new.outcome == Outcome.WRONG_RESULT)
    return insert.on_conflict_do_update(
        index_elements=list(_KEY),
        # The id as well, so that the record is found among the new ones.
        set_={name: new[name] for name in ("id", *_VALUES)},
        where=or_(RecordRow.outcome != Outcome.OK, convincing),
    )


def add_imported(session: Session, records: Sequence[Record], now: float) -> int:
    """Store records of other databases, `created_at` now, except those of traces that have a record.

    Returns the number of records stored. Raises WorkloadNotFound, DeviceClassNotFound.
    """
    tasks.require_workloads(session, {record.workload_hash for record in records})
    for device_class in {record.device_class for record in records}:
        devices.get_class(session, device_class)
    rows = []
    for record in records:
        # asdict would copy the program's lists, which takes longer than writing them.
        row = {name: getattr(record, name) for name in Record.__dataclass_fields__}
        row |= {"run_secs": list(record.run_secs), "trace_sha": digest(record.trace)}
        rows.append(row | {"source": "import", "created_at": now})
    # In one order, so that two transactions that write the same rows never wait for each other.
    rows.sort(key=lambda row: tuple(row[name] for name in _KEY))
    return sum(insert_missing(session, RecordRow, row, key=_KEY) for row in rows)


def _records(session: Session, query: Select[RecordRow]) -> list[Record]:
    return [
        Record(
            workload_hash=row.workload_hash,
            device_class=row.device_class,
            trace=row.trace,
            program=row.program,
            latency_s=row.latency_s,
            run_secs=tuple(row.run_secs),
            outcome=Outcome(row.outcome),
            target=row.target,
            source=cast("Source", row.source),
            created_at=row.created_at,
        )
        for row in session.scalars(query)
    ]
