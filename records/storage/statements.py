"""What statements need beyond SQLAlchemy: inserts that repeat harmlessly, rows that an update found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    CursorResult,
    Select,
    SQLColumnExpression,
    Table,
    any_,
    bindparam,
    column,
    func,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import Delete, Update

from records.storage.tables import Base, JobRow, Json, TrialRow, storable

Found = TypeVar("Found", bound=Select[*tuple[Any, ...]])
ConflictInsert = postgresql.Insert | sqlite.Insert


def insert_into(session: Session, table: type[Base]) -> ConflictInsert:
    """An INSERT of the session's dialect, for its ON CONFLICT clause."""
    return insert_of(dialect_of(session), table)


def insert_of(dialect: str, table: type[Base] | Table) -> ConflictInsert:
    """As `insert_into`."""
    if dialect == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def dialect_of(session: Session) -> str:
    """ "postgresql" or "sqlite"."""
    return session.get_bind().dialect.name


def table_of(rows: type[Base]) -> Table:
    """For statements that are built once and take parameters; those of classes take them as rows."""
    return cast("Table", rows.__table__)


def insert_missing(session: Session, table: type[Base], row: Mapping[str, Any], key: Sequence[str]) -> bool:
    """Insert a row unless one with the same `key` columns is there; whether it was inserted."""
    statement = insert_into(session, table).on_conflict_do_nothing(index_elements=list(key))
    # How many rows an insert reports differs between drivers; what it returns does not.
    inserted = session.execute(statement.values(row).returning(*(getattr(table, name) for name in key)))
    return inserted.first() is not None


def changed(session: Session, statement: Update | Delete) -> int:
    """Run a guarded statement; how many rows passed its guard."""
    return cast("CursorResult[Any]", session.execute(statement)).rowcount


def update_each(session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Update rows by their `id`, each to its own values of the same columns."""
    if dialect_of(session) == "postgresql":
        # One statement with one parameter: sixteen of them cost both sides several times as much.
        given = {"rows": [_storable(row) for row in rows]}
        session.execute(_update_each(table, tuple(rows[0])), given)
    else:
        session.execute(update(table), rows)


@cache
def _update_each(table: type[Base], names: Sequence[str]) -> Update:
    rows = table_of(table)
    given = (
        func.json_to_recordset(bindparam("rows", type_=Json))
        .table_valued(*(column(name, rows.c[name].type) for name in names))
        .render_derived(name="given", with_types=True)
    )
    values = {name: given.c[name] for name in names if name != "id"}
    return update(rows).where(rows.c.id == given.c.id).values(values)


def among(dialect: str, ids: SQLColumnExpression[int], name: str) -> ColumnElement[bool]:
    """Whether an id is one of those in the list that the parameter `name` is, however long."""
    if dialect == "postgresql":
        return ids == any_(bindparam(name, type_=ARRAY(BigInteger)))
    return ids.in_(bindparam(name, expanding=True))


def oldest_pending(found: Found) -> Found:
    """Of trials of one job, those that wait, the oldest first."""
    # "pending" as a range, by which can be ordered: there is one index in this order. Asked for the first by
    # id, PostgreSQL may read all that are done, by their ids, until it comes to one that waits.
    pending = found.where(TrialRow.state.between("pending", "pending"))
    return pending.order_by(TrialRow.state, TrialRow.id)


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: storable(value) if isinstance(value, str) else value for name, value in row.items()}


def lock_job(session: Session, job_id: str) -> str | None:
    """The job's state, which nobody else can change until this transaction ends; None for an unknown job."""
    # FOR NO KEY UPDATE: rows that refer to the job may still be added meanwhile.
    return session.scalar(select(JobRow.state).where(JobRow.id == job_id).with_for_update(key_share=True))


def digest(text: str) -> str:
    """SHA-256 in hex, to look a long text up by."""
    return hashlib.sha256(text.encode()).hexdigest()
