"""Records: the measurements of workloads on device classes, and the best schedules among them.

Imported records (`records.schedules.imports`) are stored in the same table, but their times were not measured
here. So they are never compared with measured records, and a measurement of the same trace replaces them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy import ColumnElement, Double, ScalarSelect, Select, bindparam, func, literal, or_, select
from sqlalchemy.orm import Session

from core import compatibility
from core.measurement import Outcome, is_noisy
from records import devices
from records.storage.statements import (
    ConflictInsert,
    among,
    dialect_of,
    insert_of,
    table_of,
)
from records.storage.tables import DeviceClassRow, JobRow, RecordRow, TrialRow, WorkloadRow

Source: TypeAlias = Literal["trial", "import"]

# A record is one trace of a workload on a device class.
KEY = ("workload_hash", "device_class", "trace_sha")
_VALUES = (
    *("trace", "program", "latency_s", "run_s", "registers", "spilled_bytes"),
    *("outcome", "target", "source", "created_at"),
)


@dataclass(frozen=True)
class Record:
    """The newest measurement of one trace of a workload on a device class, stored at `created_at`.

    `latency_s`, the median of `run_s`, is None unless `outcome` is OK. A record whose `source` is "import"
    isn't a measurement: its seconds come from the imported database. `registers` and `spilled_bytes` are
    fields of `core.measurement.Resources`, None where no compiler reported them.
    """

    workload_hash: str
    device_class: str
    trace: str
    program: dict[str, Any] | None
    latency_s: float | None
    run_s: tuple[float, ...]
    outcome: Outcome
    target: str
    source: Source
    created_at: float
    registers: int | None = None
    spilled_bytes: int | None = None

    def __post_init__(self) -> None:
        if (self.latency_s is None) == (self.outcome is Outcome.OK):
            raise ValueError("a record has a latency if and only if it succeeded")

    @cached_property
    def is_disturbed(self) -> bool:
        """Whether the repeats differ so much that the device must have been disturbed."""
        return is_noisy(self.run_s)

    @property
    def is_foreign(self) -> bool:
        """Whether the trace was imported from another search. It may have been measured here since."""
        return self.program is None


def best_many(session: Session, hashes: Collection[str], device_class: str) -> dict[str, Record]:
    """Return the fastest measured record of each workload, by hash; without one, the fastest imported record.

    Workloads without a successful or imported record are left out.
    """
    given = {"hashes": list(hashes), "device_class": device_class}
    rows = session.execute(_select_best(dialect_of(session)), given)
    return {row.workload_hash: _record(row) for row in rows}


def best_nearest(session: Session, hashes: Collection[str], device_class: str) -> dict[str, Record]:
    """Return the fastest measured record of each workload on the nearest other class that has one.

    Only classes whose schedules run on this class are considered. Raises DeviceClassNotFound.
    """
    asked = devices.get_class(session, device_class)
    found: dict[str, Record] = {}
    for other in compatibility.nearest(asked, devices.classes(session)):
        missing = [name for name in hashes if name not in found]
        if not missing:
            break
        best_there = best_many(session, missing, other.key)
        found |= {name: record for name, record in best_there.items() if record.source == "trial"}
    return found


@cache
def _select_best(dialect: str) -> Select[*tuple[Any, ...]]:
    # Select columns instead of RecordRow, because building ORM objects takes longer than the query.
    record, workload = table_of(RecordRow), table_of(WorkloadRow)
    of_class: ColumnElement[str] = bindparam("device_class")

    def fastest(source: Source) -> ScalarSelect[int]:
        one = record.alias()
        of_workload = (one.c.workload_hash == workload.c.hash, one.c.device_class == of_class)
        worked = (one.c.source == source, one.c.latency_s.is_not(None))
        first = select(one.c.id).where(*of_workload, *worked).order_by(one.c.latency_s, one.c.id).limit(1)
        return first.correlate(workload).scalar_subquery()

    best_id = func.coalesce(fastest("trial"), fastest("import"))
    found = select(*(record.c[name] for name in Record.__dataclass_fields__))
    found = found.select_from(workload).join(record, record.c.id == best_id)
    return found.where(among(dialect, workload.c.hash, "hashes"))


def successes(session: Session, device_class: str, hashes: Collection[str] | None = None) -> list[Record]:
    """Return the successful measured records, ordered by workload and latency. Without `hashes`, return those
    of all workloads."""
    query = _select_measured(device_class).where(RecordRow.latency_s.is_not(None))
    if hashes is not None:
        query = query.where(RecordRow.workload_hash.in_(hashes))
    return _records(session, query.order_by(RecordRow.workload_hash, RecordRow.latency_s, RecordRow.id))


def ids_of_workloads(
    session: Session, device_class: str, hashes: Collection[str], after: int = 0
) -> list[tuple[int, str]]:
    """Return the ids larger than `after` of the measured records of some workloads, of any outcome, each with
    its workload's hash.
    """
    given = {"device_class": device_class, "hashes": list(hashes), "after": after}
    return [(row.id, row.workload_hash) for row in session.execute(_select_ids(dialect_of(session)), given)]


@cache
def _select_ids(dialect: str) -> Select[int, str]:
    record = table_of(RecordRow).c
    of_class = (record.device_class == bindparam("device_class"), record.source == "trial")
    newer = (among(dialect, record.workload_hash, "hashes"), record.id > bindparam("after"))
    return select(record.id, record.workload_hash).where(*of_class, *newer)


def of_workloads(
    session: Session, device_class: str, hashes: Collection[str], after: int = 0
) -> list[Record]:
    """Return the measured records of some workloads, of any outcome, whose ids are larger than `after`,
    oldest first.
    """
    query = _select_measured(device_class).where(RecordRow.workload_hash.in_(hashes), RecordRow.id > after)
    return _records(session, query.order_by(RecordRow.id))


def fastest(session: Session, device_class: str, workload_hash: str, limit: int) -> list[Record]:
    """Return the fastest measured records of a workload that have a program, fastest first."""
    worked = (RecordRow.workload_hash == workload_hash, RecordRow.latency_s.is_not(None))
    programs = _select_measured(device_class).where(*worked, RecordRow.program.is_not(None))
    return _records(session, programs.order_by(RecordRow.latency_s, RecordRow.id).limit(limit))


def newest(session: Session, device_class: str) -> tuple[int, float]:
    """Return the id of the class's newest record and the time when it was stored, or zeros.

    Later records have larger ids, even if the clock was set back. But servers don't commit in the order of
    ids, so a record may become visible after one with a larger id.
    """
    last = select(RecordRow.id, RecordRow.created_at).where(RecordRow.device_class == device_class)
    found = session.execute(last.order_by(RecordRow.id.desc()).limit(1)).first()
    return (0, 0.0) if found is None else (found.id, found.created_at)


def last_until(session: Session, device_class: str, at: float) -> int:
    """Return the id of the class's last record stored until `at`, or 0."""
    until = (RecordRow.device_class == device_class, RecordRow.created_at <= at)
    return session.scalar(select(func.max(RecordRow.id)).where(*until)) or 0


def count_after(session: Session, device_class: str, record_id: int) -> int:
    """Return how many records of the class were stored after this one."""
    newer = (RecordRow.device_class == device_class, RecordRow.id > record_id)
    return session.scalar(select(func.count()).where(*newer)) or 0


def history(session: Session, device_class: str, limit: int = 20000) -> list[Record]:
    """Return the newest measured records of any outcome that have a program, newest first."""
    programs = _select_measured(device_class).where(RecordRow.program.is_not(None))
    return _records(session, programs.order_by(RecordRow.id.desc()).limit(limit))


def put_trials(session: Session, trial_ids: Sequence[int], now: float) -> None:
    """Store finished trials of one job as records. They replace older records of the same traces.

    No two of the trials have the same trace. A failure doesn't replace a success, except WRONG_RESULT, which
    shows that the success was wrong. Any result replaces an imported record. The rows are copied within the
    database.
    """
    if trial_ids:
        values = {"trials": list(trial_ids), "stored_at": now}
        session.connection().execute(_insert_trials(dialect_of(session)), values)


@cache
def _insert_trials(dialect: str) -> ConflictInsert:
    columns: dict[str, Any] = {
        "workload_hash": TrialRow.workload_hash,
        "device_class": DeviceClassRow.key,
        "trace": TrialRow.trace,
        "trace_sha": TrialRow.trace_sha,
        "program": TrialRow.program,
        "latency_s": TrialRow.latency_s,
        "run_s": TrialRow.run_s,
        "registers": TrialRow.registers,
        "spilled_bytes": TrialRow.spilled_bytes,
        "outcome": TrialRow.outcome,
        "target": DeviceClassRow.target,
        "source": literal("trial"),
        "created_at": bindparam("stored_at", type_=Double()),
    }
    measured = (
        select(*columns.values())
        .join_from(TrialRow, JobRow, JobRow.id == TrialRow.job_id)
        .join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
        .where(among(dialect, table_of(TrialRow).c.id, "trials"))
        .order_by(*(columns[name] for name in KEY))
    )
    insert = insert_of(dialect, table_of(RecordRow)).from_select(list(columns), measured)
    new = insert.excluded
    convincing = or_(new.outcome == Outcome.OK, new.outcome == Outcome.WRONG_RESULT)
    return insert.on_conflict_do_update(
        index_elements=list(KEY),
        # A new id, so that readers of new records find the record.
        set_={name: new[name] for name in ("id", *_VALUES)},
        where=or_(RecordRow.outcome != Outcome.OK, RecordRow.source == "import", convincing),
    )


def _select_measured(device_class: str) -> Select[*tuple[Any, ...]]:
    columns = (getattr(RecordRow, name) for name in Record.__dataclass_fields__)
    return select(*columns).where(RecordRow.device_class == device_class, RecordRow.source == "trial")


def _records(session: Session, query: Select[*tuple[Any, ...]]) -> list[Record]:
    return [_record(row) for row in session.execute(query)]


def _record(row: Any) -> Record:
    return Record(
        workload_hash=row.workload_hash,
        device_class=row.device_class,
        trace=row.trace,
        program=row.program,
        latency_s=row.latency_s,
        run_s=tuple(row.run_s),
        outcome=Outcome(row.outcome),
        target=row.target,
        source=cast("Source", row.source),
        created_at=row.created_at,
        registers=row.registers,
        spilled_bytes=row.spilled_bytes,
    )
