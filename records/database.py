"""Opening the database, its transactions and its migration."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, exc, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session

_SQLITE_CAUSES = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space and try again",
    sqlite3.SQLITE_IOERR: "the disk can't be read or written: check its space and its health",
    sqlite3.SQLITE_BUSY: "another process keeps it locked: stop that process or try again later",
    sqlite3.SQLITE_LOCKED: "another process keeps it locked: stop that process or try again later",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened: check that its folder exists and may be written",
    sqlite3.SQLITE_READONLY: "it may not be written: check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "it may not be written: check the permissions of the file and its folder",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup or move it away",
    sqlite3.SQLITE_NOTADB: "the file is not a database: move it away or choose another folder",
}
# Any number that other programs on a PostgreSQL server are unlikely to lock.
_MIGRATION_LOCK = 7_305_822_146


class StorageError(Exception):
    """The database can't be used; the message says why and what to do. `full`: its disk has no space left."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class NotFound(KeyError):
    """Nothing is stored under this key; the message says what was looked for."""

    def __str__(self) -> str:
        return str(self.args[0])


class Database:
    """One process's connections to the database at an SQLAlchemy `url`."""

    def __init__(self, url: str, *, busy_timeout_s: float = 30.0) -> None:
        """Opens nothing yet. Raises StorageError when `url` is not a database URL."""
        try:
            self._engine = _engine(url, busy_timeout_s)
        except (exc.ArgumentError, ImportError) as error:
            raise StorageError(f"{url!r} is not a database URL that can be used here: {error}") from error
        self._name = self._engine.url.database or self._engine.url.render_as_string()
        self._checked = False

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """One transaction: committed on success, rolled back on any error. Raises StorageError."""
        # Rows are only ever changed by statements, so what a session remembers of them is never trusted.
        options = {"populate_existing": True, "synchronize_session": False}
        with (
            self._storage_errors(),
            Session(self._engine, expire_on_commit=False, execution_options=options) as session,
            session.begin(),
        ):
            self._check(session.connection())
            yield session

    def migrate(self) -> None:
        """Bring the schema up to this code's; any number of processes may call it at once.

        Raises StorageError.
        """
        config = _alembic()
        with self._storage_errors(), self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
            self._refuse_newer(connection)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def close(self) -> None:
        """Close every connection; the next transaction opens a new one."""
        self._engine.dispose()

    def _check(self, connection: Connection) -> None:
        if self._checked:
            return
        self._refuse_newer(connection)
        if _revisions(connection) != set(_scripts().get_heads()):
            raise StorageError(f"the database {self._name} is older than this tunefarm: migrate it first")
        self._checked = True

    def _refuse_newer(self, connection: Connection) -> None:
        known = {script.revision for script in _scripts().walk_revisions()}
        if not _revisions(connection) <= known:
            raise StorageError(
                f"the database {self._name} is of a newer tunefarm: upgrade this one or use another database"
            )

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except exc.TimeoutError as error:
            raise StorageError(
                f"the database {self._name} has no connection free: try again later"
            ) from error
        except exc.DBAPIError as error:
            cause = _cause(error)
            if cause is None:
                raise
            full = cause == _SQLITE_CAUSES[sqlite3.SQLITE_FULL]
            raise StorageError(f"the database {self._name} failed: {cause}", full=full) from error


def _engine(url: str, busy_timeout_s: float) -> Engine:
    # NaN and infinity are no JSON: PostgreSQL and browsers refuse them, so they must not get in.
    serializer = functools.partial(json.dumps, allow_nan=False)
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, json_serializer=serializer, pool_pre_ping=True)
    engine = create_engine(url, json_serializer=serializer, connect_args={"timeout": busy_timeout_s})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: DBAPIConnection, _record: Any) -> None:
    # Without this, Python's driver decides by itself when a transaction begins.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA journal_mode")
    if cursor.fetchone() != ("wal",):
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails when another writes in between; this one waits.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _alembic() -> Config:
    config = Config()
    location = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", location.replace("%", "%%"))
    return config


@functools.cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_alembic())


def _revisions(connection: Connection) -> set[str]:
    return set(MigrationContext.configure(connection).get_current_heads())


def _cause(error: exc.DBAPIError) -> str | None:
    """Why the storage failed and what to do; None when it is the statement that was wrong."""
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        # The low byte is the kind of error, the rest its details.
        return _SQLITE_CAUSES.get(code & 0xFF)
    if isinstance(error, exc.OperationalError | exc.InternalError | exc.InterfaceError):
        return f"{error.orig}".strip()
    return None
