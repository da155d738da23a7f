"""The connection to the database: transactions, its clock, and migration."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, exc, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session

from records.storage import schema
from records.storage.failures import cause

if TYPE_CHECKING:
    from records.storage.blob_store import BlobStore

# Seconds between two readings of the server's clock.
_CLOCK_INTERVAL_S = 30.0
# A reading that took longer isn't used, because it may be wrong by as much.
_MAX_READING_S = 1.0
# A larger difference between the server's clock and this machine's is logged.
_SKEW_S = 5.0
# This clock runs while the machine sleeps, and can't be set.
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Any number that other programs on a PostgreSQL server are unlikely to lock.
_MIGRATION_LOCK = 7_305_822_146
# At most this many transactions of one process run at once; others wait.
_POOL_SIZE = 20
# Parameters in the URL override these. A server that vanished is noticed within a minute.
_POSTGRESQL_ARGUMENTS: dict[str, Any] = {
    "application_name": "tunefarm",
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 40_000,
}
# The server ends transactions of hanging processes, so that their rows don't stay locked.
_IDLE_LIMIT_S = 120.0
# PostgreSQL plans a prepared statement by the sizes of its tables, and keeps the plan until it next analyzes
# one of them, which may take minutes. A plan for empty tables reads them whole. At 2,000 records a second, a
# lease then took up to a minute. So plans are made anew after this time.
_PLANS_KEPT_S = 5.0
# These statements take milliseconds, but PostgreSQL may compile one, which takes a tenth of a second.
_WITHOUT_JIT = "-c jit=off"

# The key of the time at which a connection's plans were last discarded.
_PLANNED_AT = "tunefarm_planned_at"
# An execution option of ours for SQLite. SQLAlchemy's isolation levels would change the settings of a
# connection.
_WITHOUT_BEGIN = "tunefarm_without_begin"

log = logging.getLogger(__name__)


class StorageError(Exception):
    """The database can't be used. The message says why and what to do. `full`: its disk is full."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class NotFound(KeyError):
    """A key doesn't exist. The message names it."""

    def __str__(self) -> str:
        return str(self.args[0])


class Database:
    """One process's connections to the database. `name` is for messages, and contains no secret."""

    def __init__(
        self, url: str, *, busy_timeout_s: float = 30.0, blob_store: BlobStore | None = None
    ) -> None:
        """Take an SQLAlchemy URL; the first transaction connects. Raises StorageError for an unusable URL.

        A transaction waits `busy_timeout_s` for a lock or for a free connection. New blobs go to the
        `blob_store`, if there is one.
        """
        self.blob_store = blob_store
        # The messages leave out the URL and parsers' messages, because they may contain a password.
        try:
            self._engine = _engine(url, busy_timeout_s)
        except ImportError as error:
            driver = f"the driver of the database URL is missing ({error}): install tunefarm[postgresql]"
            raise StorageError(driver) from error
        except (exc.ArgumentError, ValueError) as error:
            is_port = type(error) is ValueError
            problem = "its port is no number (is the password percent-encoded?)" if is_port else error
            message = f"TUNEFARM_DATABASE_URL is not a database URL that can be used here: {problem}"
            raise StorageError(message) from error
        location = self._engine.url
        if location.get_backend_name() == "sqlite":
            self.name = location.database or ":memory:"
            self._reading_engine = self._engine.execution_options(**{_WITHOUT_BEGIN: True})
        else:
            host = location.host or location.query.get("host") or "this machine"
            self.name = f"{location.database} on {host}"
            self._reading_engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._is_current = False
        self._clock = _ServerClock() if location.get_backend_name() == "postgresql" else None

    def now(self) -> float:
        """Return epoch seconds by the clock of the database's server, so that times of several hosts can be
        compared.

        For SQLite, which has no server, and before the first transaction, it is this machine's clock.
        """
        return time.time() if self._clock is None else self._clock.now()

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """Begin a transaction. It commits at the end, and rolls back after any error. Raises StorageError."""
        with self._session(self._engine) as session:
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Read without a transaction: each statement sees the rows that are committed when it begins.

        That takes one round trip to PostgreSQL instead of three, and waits for no writer of SQLite. Raises
        StorageError.
        """
        with self._session(self._reading_engine) as session:
            yield session

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        # Rows are only changed by statements, so a session's copies of them may be stale.
        options = {"populate_existing": True, "synchronize_session": False}
        info = {"blob_store": self.blob_store}
        with (
            self._storage_errors(),
            Session(engine, expire_on_commit=False, execution_options=options, info=info) as session,
            session.begin(),
        ):
            connection = session.connection()  # so that an unavailable database is noticed at once
            if not self._is_current:
                self._refuse_newer(connection)
                if schema.current_revisions(connection) != {schema.known_revisions()[-1]}:
                    raise StorageError(
                        f"the database {self.name} is older than this tunefarm: migrate it first"
                    )
                self._is_current = True
            if self._clock is not None:
                self._clock.look(connection, self.name)
            yield session

    def ping(self) -> None:
        """Read one row to check that the database works. Raises StorageError."""
        with self.begin() as session:
            session.execute(text("SELECT version_num FROM alembic_version")).first()

    def migrate(self, to: str = "head") -> None:
        """Migrate the schema to the newest or to the given revision. Several processes may do so at once.

        Raises StorageError, and then leaves the database unchanged.
        """
        with self._storage_errors(migrating=True), self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
            self._refuse_newer(connection)
            try:
                schema.migrate(connection, to)
            except KeyError as error:
                raise StorageError(f"there is no revision {to!r} of the schema") from error
        self._is_current = False

    def close(self) -> None:
        """Close all connections. The next transaction opens a new one."""
        self._engine.dispose()

    def _refuse_newer(self, connection: Connection) -> None:
        if not schema.current_revisions(connection).issubset(schema.known_revisions()):
            raise StorageError(
                f"the database {self.name} belongs to a newer tunefarm: upgrade this one or choose another"
            )

    @contextmanager
    def _storage_errors(self, migrating: bool = False) -> Iterator[None]:
        try:
            yield
        except exc.TimeoutError as error:
            busy = f"all connections to the database {self.name} are in use: try again later"
            raise StorageError(busy) from error
        except exc.DBAPIError as error:
            why = cause(error)
            if why is None:
                raise
            undone = migrating and why.full
            what = "could not be migrated, and is unchanged" if undone else "failed"
            raise StorageError(f"the database {self.name} {what}: {why.words}", full=why.full) from error


class _ServerClock:
    """The clock of PostgreSQL's server. Between two readings, this machine's timer extends the last one.

    So `now` needs no statement, and setting this machine's clock doesn't change it.
    """

    def __init__(self) -> None:
        # Epoch seconds at which the timer was 0, and the timer at the last reading; None before the first
        # one.
        self._start: float | None = None
        self._looked_at = 0.0
        self._has_warned = False

    def now(self) -> float:
        start = self._start
        return time.time() if start is None else start + time.clock_gettime(_SINCE_BOOT)

    def look(self, connection: Connection, database: str) -> None:
        """Read the server's clock, unless the last reading is recent."""
        before = time.clock_gettime(_SINCE_BOOT)
        if self._start is not None and before < self._looked_at + _CLOCK_INTERVAL_S:
            return
        server_s = float(connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0.0)
        after = time.clock_gettime(_SINCE_BOOT)
        if self._start is not None and after - before > _MAX_READING_S:
            return
        self._looked_at, self._start = after, server_s - (before + after) / 2
        ahead_s = time.time() - server_s
        if abs(ahead_s) > _SKEW_S and not self._has_warned:
            self._has_warned = True
            side = "ahead of" if ahead_s > 0 else "behind"
            sentence = (
                "this machine's clock is %.0f s %s the clock of the database server (%s), which counts: "
                "set this machine's clock"
            )
            log.warning(sentence, abs(ahead_s), side, database)


def _engine(url: str, busy_timeout_s: float) -> Engine:
    # JSON has no NaN and infinity, so PostgreSQL and browsers refuse them.
    serializer = functools.partial(json.dumps, allow_nan=False)
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        limits_s = {"lock_timeout": busy_timeout_s, "idle_in_transaction_session_timeout": _IDLE_LIMIT_S}
        options = [f"-c {name}={round(1000 * limit_s)}" for name, limit_s in limits_s.items()]
        arguments = _POSTGRESQL_ARGUMENTS | {"options": " ".join([_WITHOUT_JIT, *options])}
        engine = create_engine(
            parsed,
            json_serializer=serializer,
            connect_args={name: value for name, value in arguments.items() if name not in parsed.query},
            pool_size=_POOL_SIZE,
            max_overflow=0,
            pool_timeout=busy_timeout_s,
            # The connection that was used last has the most prepared statements.
            pool_use_lifo=True,
        )
        event.listen(engine, "checkout", _replace_closed)
        event.listen(engine, "checkout", _discard_old_plans)
        return engine
    if parsed.get_backend_name() != "sqlite":
        raise exc.ArgumentError(f"tunefarm knows sqlite and postgresql, not {parsed.get_backend_name()}")
    engine = create_engine(parsed, json_serializer=serializer, connect_args={"timeout": busy_timeout_s})
    event.listen(engine, "do_connect", _make_private)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _replace_closed(connection: Any, _record: Any, _proxy: Any) -> None:
    """Let the pool replace a connection that the server has closed."""
    # On an idle connection, a server sends only its end. Polling takes microseconds, the pool's own check as
    # long as a statement.
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        raise exc.DisconnectionError


def _discard_old_plans(connection: Any, record: Any, _proxy: Any) -> None:
    """Let PostgreSQL plan a connection's prepared statements anew if its plans are old."""
    now_s = time.monotonic()
    if now_s - record.info.setdefault(_PLANNED_AT, now_s) > _PLANS_KEPT_S:
        record.info[_PLANNED_AT] = now_s
        # By libpq's connection, because psycopg's would begin a transaction.
        connection.pgconn.exec_(b"DISCARD PLANS")


def _make_private(_dialect: Any, _record: Any, arguments: Any, _parameters: Any) -> None:
    """Make a new database readable by its owner only. Its log gets the same mode."""
    file = Path(str(arguments[0]))
    if file.is_absolute() and not file.exists():
        with contextlib.suppress(OSError):  # the connection that follows reports the error
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))


def _set_up_sqlite(connection: DBAPIConnection, _record: Any) -> None:
    # Otherwise Python's driver begins transactions implicitly.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    # Acknowledged commits survive a power cut.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA journal_mode")
    if cursor.fetchone() != ("wal",):
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    if connection.get_execution_options().get(_WITHOUT_BEGIN):
        return
    # A deferred transaction that reads and then writes fails if another one has written in between. An
    # immediate one waits.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
