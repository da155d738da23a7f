"""Building blocks of SQL statements: upserts, bulk updates, row locks, and conditions for both dialects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    CursorResult,
    Select,
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
    """Return an INSERT of the session's dialect, which supports ON CONFLICT."""
    return insert_of(dialect_of(session), table)


def insert_of(dialect: str, table: type[Base] | Table) -> ConflictInsert:
    """Return an INSERT of a dialect, which supports ON CONFLICT."""
    if dialect == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def dialect_of(session: Session) -> str:
    """Return "postgresql" or "sqlite"."""
    return session.get_bind().dialect.name


def table_of(rows: type[Base]) -> Table:
    """Return the table of a row class, for statements with bound parameters. Statements on the class take
    parameters as rows."""
    return cast("Table", rows.__table__)


def insert_missing(session: Session, table: type[Base], row: Mapping[str, Any], key: Sequence[str]) -> bool:
    """Insert a row unless a row with the same `key` columns exists. Return whether it was inserted."""
    statement = insert_into(session, table).on_conflict_do_nothing(index_elements=list(key))
    # Drivers disagree on the row count of an insert, but not on the rows that it returns.
    inserted = session.execute(statement.values(row).returning(*(getattr(table, name) for name in key)))
    return inserted.first() is not None


def insert_all_missing(
    session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> int:
    """Insert the rows whose `key` columns no stored row has, in one statement. Return their number."""
    if not rows:
        return 0
    columns = [getattr(table, name) for name in key]
    statement = insert_into(session, table).on_conflict_do_nothing(index_elements=list(key))
    return len(session.execute(statement.returning(*columns), rows).all())


def changed(session: Session, statement: Update | Delete, values: Mapping[str, Any] | None = None) -> int:
    """Execute a statement. Return the number of rows that matched its WHERE clause."""
    return cast("CursorResult[Any]", session.execute(statement, values)).rowcount


def update_each(session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Update the same columns of rows, given by `id`, with different values for each row."""
    if dialect_of(session) == "postgresql":
        # One statement takes all rows as one parameter. Sixteen statements cost several times as much.
        given = [
            {name: storable(value) if isinstance(value, str) else value for name, value in row.items()}
            for row in rows
        ]
        session.connection().execute(_update_from_json(table, tuple(rows[0])), {"rows": given})
    else:
        session.execute(update(table), rows)


@cache
def _update_from_json(table: type[Base], names: Sequence[str]) -> Update:
    rows = table_of(table)
    given = (
        func.json_to_recordset(bindparam("rows", type_=Json))
        .table_valued(*(column(name, rows.c[name].type) for name in names))
        .render_derived(name="given", with_types=True)
    )
    values = {name: given.c[name] for name in names if name != "id"}
    return update(rows).where(rows.c.id == given.c.id).values(values)


def among(dialect: str, keys: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """A condition: the key is in the list of any length that is bound to the parameter `name`."""
    if dialect == "postgresql":
        return keys == any_(bindparam(name, type_=ARRAY(keys.type)))
    return keys.in_(bindparam(name, expanding=True))


def oldest_pending(found: Found) -> Found:
    """Restrict a select of one job's trials to the pending ones, oldest first."""
    # A range, so that the ordering by state and id uses their index. When ordering by id alone, PostgreSQL
    # may read all finished trials before it finds a pending one.
    pending = found.where(TrialRow.state.between("pending", "pending"))
    return pending.order_by(TrialRow.state, TrialRow.id)


def lock_job(session: Session, job_id: str) -> str | None:
    """Lock a job until the transaction ends. Return its state; None for an unknown job."""
    # FOR NO KEY UPDATE: other transactions may still add rows that refer to the job.
    return session.scalar(select(JobRow.state).where(JobRow.id == job_id).with_for_update(key_share=True))


def digest(text: str) -> str:
    """Return the SHA-256 of a long text in hexadecimal, as its key."""
    return hashlib.sha256(text.encode()).hexdigest()
