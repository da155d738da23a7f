"""Copies of the whole database in a file, and back: SQLite's own copies, PostgreSQL's archives by pg_dump."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import URL, make_url

from records.storage.database import StorageError

# How each kind of file begins.
_SQLITE, _POSTGRESQL = b"SQLite format 3\0", b"PGDMP"


def backup(url: str, file: Path) -> None:
    """Write a copy of the database, which may be in use, to a file. Raises StorageError, OSError."""
    location, fresh = make_url(url), file.with_name(f".{file.name}.new")
    try:
        if location.get_backend_name() == "sqlite":
            _copy(Path(location.database or ""), fresh)
        else:
            _run(["pg_dump", "--format=custom", "--file", str(fresh)], location)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def restore(url: str, file: Path) -> None:
    """Replace the database by what `backup` wrote. Nobody may use it meanwhile.

    Raises StorageError, OSError.
    """
    location = make_url(url)
    is_sqlite = location.get_backend_name() == "sqlite"
    with file.open("rb") as opened:
        head = opened.read(len(_SQLITE))
    if not head.startswith(_SQLITE if is_sqlite else _POSTGRESQL):
        kind = "SQLite" if is_sqlite else "PostgreSQL"
        raise StorageError(f"{file} is no backup of a {kind} database: nothing was changed")
    if is_sqlite:
        _copy(file, Path(location.database or ""))
    else:
        whole = ("--single-transaction", "--clean", "--if-exists", "--no-owner", "--exit-on-error")
        _run(["pg_restore", *whole, str(file)], location)


def _copy(source: Path, target: Path) -> None:
    if not source.exists():
        raise StorageError(f"there is no database {source}: check the folder")
    try:
        with (
            contextlib.closing(sqlite3.connect(source)) as database,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy)
    except sqlite3.Error as error:
        raise StorageError(f"{source} could not be copied to {target}: {error}") from error


def _run(command: Sequence[str], location: URL) -> None:
    """Run a program of PostgreSQL on the database. The password is not on its command line."""
    address = location.set(drivername="postgresql", password=None).render_as_string()
    environment = os.environ | ({"PGPASSWORD": str(location.password)} if location.password else {})
    try:
        done = subprocess.run(
            [*command, "--dbname", address], env=environment, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        missing = f"{command[0]} is not installed: apt-get install postgresql-client"
        raise StorageError(missing) from error
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise StorageError(f"{command[0]} failed: {last}")
