"""Back the whole database up to a file, and restore it. SQLite uses its backup API, PostgreSQL pg_dump and
psql."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import URL, create_engine, exc, inspect, make_url

from records.storage.database import StorageError
from records.storage.failures import cause
from records.storage.schema import VERSION_TABLE, known_revisions

# The first bytes of each kind of file.
_SQLITE, _POSTGRESQL = b"SQLite format 3\0", b"PGDMP"
# Tables that every revision of the schema has.
_TABLES = frozenset({"blobs", "jobs", "models", "records", "tasks", "trials", "workers", "workloads"})
_SIDE_FILES = ("-wal", "-shm")


def backup(url: str, file: Path) -> None:
    """Write a copy of the database, which may be in use, to a file. Raises StorageError, OSError."""
    location, fresh = make_url(url), file.with_name(f".{file.name}.new")
    try:
        if location.get_backend_name() == "sqlite":
            source = Path(location.database or "")
            if not source.exists():
                raise StorageError(f"there is no database {source}: check the folder")
            try:
                _copy(source, fresh)
            except sqlite3.Error as error:
                raise StorageError(f"{source} could not be copied to {file}: {error}") from error
        else:
            _run(["pg_dump", "--format=custom", "--file", str(fresh)], location)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def restore(url: str, file: Path) -> Path | None:
    """Replace the database with a file that `backup` wrote, after checking that the file is whole and its
    schema is known.

    No other process may use the database meanwhile. Returns the path where the replaced SQLite database is
    kept; None if there was none. PostgreSQL's tables are replaced in one transaction. Raises StorageError,
    OSError, and then leaves the database unchanged.
    """
    location = make_url(url)
    is_sqlite = location.get_backend_name() == "sqlite"
    with file.open("rb") as opened:
        head = opened.read(len(_SQLITE))
    if not head.startswith(_SQLITE if is_sqlite else _POSTGRESQL):
        kind = "SQLite" if is_sqlite else "PostgreSQL"
        raise StorageError(f"{file} is no backup of a {kind} database: nothing was changed")
    if is_sqlite:
        return _restore_sqlite(file, Path(location.database or ""))
    _restore_postgresql(file, location)
    return None


def _restore_sqlite(file: Path, target: Path) -> Path | None:
    fresh = target.with_name(f".{target.name}.restored")
    try:
        try:
            _copy(file, fresh)
            tables, revisions = _described_by_sqlite(fresh)
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target.parent)) from error
            damaged = f"{file} is damaged ({error}): nothing was changed, use another backup"
            raise StorageError(damaged) from error
        _check_schema(file, tables, revisions)
        return _swap(fresh, target)
    finally:
        for suffix in ("", *_SIDE_FILES, "-journal"):
            fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    """Copy a SQLite database that may be in use. Raises sqlite3.Error, OSError."""
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with (
        contextlib.closing(sqlite3.connect(source)) as database,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        database.backup(copy)


def _described_by_sqlite(copy: Path) -> tuple[set[str], set[str]]:
    """Return the tables of a database and its schema's revision. Raises sqlite3.Error if it is damaged."""
    with contextlib.closing(sqlite3.connect(copy)) as database:
        [fault] = database.execute("PRAGMA integrity_check(1)").fetchone()
        if fault != "ok":
            error = sqlite3.DatabaseError(str(fault).partition("\n")[0])
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        tables = {
            str(row[0]) for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        }
        if VERSION_TABLE not in tables:
            return tables, set()
        return tables, {str(row[0]) for row in database.execute(f"SELECT version_num FROM {VERSION_TABLE}")}


def _check_schema(file: Path, tables: set[str], revisions: set[str]) -> None:
    if not revisions or not tables >= _TABLES:
        raise StorageError(f"{file} is not a database of tunefarm: nothing was changed, name another file")
    if not revisions.issubset(known_revisions()):
        newer = f"{file} has the schema {', '.join(sorted(revisions))}, which this tunefarm doesn't know"
        raise StorageError(f"{newer}: nothing was changed, restore it with the release that wrote it")


def _swap(fresh: Path, target: Path) -> Path | None:
    """Replace the old database with the restored one. Return the path where the old one is kept."""
    kept = None
    if target.exists():
        kept = _unused(target.with_name(f"{target.name}.before-restore"))
        for suffix in ("", *_SIDE_FILES):
            old = target.with_name(target.name + suffix)
            if old.exists():
                os.link(old, kept.with_name(kept.name + suffix))
    # SQLite would write the old database's log into the new one.
    for suffix in _SIDE_FILES:
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    fresh.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return kept


def _unused(path: Path) -> Path:
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _restore_postgresql(file: Path, location: URL) -> None:
    with tempfile.TemporaryDirectory(prefix="tunefarm-restore-") as folder:
        version, script, drops = (Path(folder) / name for name in ("version", "script", "drops"))
        # Without a database, pg_restore only reads its file.
        unpack = ["pg_restore", "--no-owner", "--no-privileges"]
        _run([*unpack, "--data-only", f"--table={VERSION_TABLE}", "--file", str(version), str(file)])
        _run([*unpack, "--file", str(script), str(file)])
        tables, revisions = _described(version, script)
        _check_schema(file, tables, revisions)
        # Tables of a newer schema are dropped too. Otherwise its migrations would fail later.
        names = ", ".join(f'"{name}"' for name in _tables_of(location))
        drops.write_text(f"DROP TABLE IF EXISTS {names} CASCADE;\n" if names else "")
        once = ["--single-transaction", "--set=ON_ERROR_STOP=1", "--quiet", "--no-psqlrc"]
        _run(["psql", *once, "--file", str(drops), "--file", str(script)], location)


def _described(version: Path, script: Path) -> tuple[set[str], set[str]]:
    """Return the tables that a script of pg_restore makes, and the revision of their schema."""
    tables, revisions = set(), set()
    with script.open(errors="replace") as lines:
        for line in lines:
            if line.startswith("CREATE TABLE "):
                tables.add(line.split()[2].rpartition(".")[2].strip('"'))
    rows = version.read_text(errors="replace").splitlines()
    for number, line in enumerate(rows):
        if line.startswith("COPY ") and VERSION_TABLE in line:
            revisions = set(rows[number + 1 : rows.index("\\.", number)])
    return tables, revisions


def _tables_of(location: URL) -> list[str]:
    engine = create_engine(location)
    try:
        return inspect(engine).get_table_names()
    except exc.DBAPIError as error:
        why = cause(error)
        raise StorageError(f"the database failed: {why.words if why else error.orig}") from error
    finally:
        engine.dispose()


def _run(command: Sequence[str], location: URL | None = None) -> None:
    """Run a program of PostgreSQL, on the database if there is one. Raises StorageError.

    The password is passed by the environment, because other users may read command lines.
    """
    environment, address = dict(os.environ), []
    if location is not None:
        password = location.password or location.query.get("password")
        # URL.set ignores None, and would write the password as three asterisks.
        query = {name: value for name, value in location.query.items() if name != "password"}
        bare = location._replace(drivername="postgresql", password=None).set(query=query)
        address = ["--dbname", bare.render_as_string(hide_password=False)]
        if password:
            environment["PGPASSWORD"] = str(password)
    try:
        done = subprocess.run([*command, *address], env=environment, capture_output=True, text=True)
    except FileNotFoundError as error:
        missing = f"{command[0]} is not installed: apt-get install postgresql-client"
        raise StorageError(missing) from error
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise StorageError(f"{command[0]} failed, and changed nothing: {last}")
