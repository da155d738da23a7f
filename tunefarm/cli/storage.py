"""`tunefarm backup`, `restore` and `migrate`: commands for the service's whole database."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from core.exit_code import ExitCode
from system.command import CommandError
from tunefarm.cli.options import AsJson, Data, print_json, print_plain
from tunefarm.embedded.folder import DataFolder
from tunefarm.settings import load

VARIABLE = "TUNEFARM_DATABASE_URL"
STORE_VARIABLE = "TUNEFARM_BLOB_STORE"

BackupFile = Annotated[Path, typer.Argument(metavar="FILE")]


def backup(file: BackupFile, data: Data = None, as_json: AsJson = False) -> None:
    """Write a copy of the service's database to a file. The service may keep running.

    TUNEFARM_DATABASE_URL names the database; by default, it is the data folder's.
    """
    with _failures() as storage:
        storage.backup(os.environ.get(VARIABLE) or _folder(data).database_url, file)
    size, store = file.stat().st_size, os.environ.get(STORE_VARIABLE)
    if as_json:
        print_json({"file": str(file), "bytes": size, "blob_store": store})
        return
    print_plain(f"{file} is a copy of the database ({size >> 10} KiB)")
    if store:
        print_plain(f"models and artifacts are in {store}: now copy that too")


def restore(file: BackupFile, data: Data = None, as_json: AsJson = False) -> None:
    """Replace the database with a copy that `backup` wrote. Stop servers and schedulers first.

    The copy is checked first. A replaced SQLite database is kept beside the new one.
    """
    with _failures() as storage, _owned(data) as url:
        kept = storage.restore(url, file)
    if as_json:
        print_json({"file": str(file), "replaced": kept and str(kept)})
        return
    if kept is not None:
        print_plain(f"the database that was replaced is {kept}: delete it when you no longer need it")
    print_plain(f"the database was restored from {file}: start the service, which brings it up to date")


def migrate(
    to: Annotated[str, typer.Option(metavar="REVISION", help="An older one before a downgrade.")] = "head",
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Bring the database to the schema of this release, or to an older one. Stop the service first.

    Servers and schedulers bring it up to date by themselves when they start.
    """
    with _failures(), _owned(data) as url:
        from records.storage.database import Database

        database = Database(url)
        try:
            database.migrate(to)
        finally:
            database.close()
    if as_json:
        print_json({"schema": to})
    else:
        print_plain("the database has the schema of this release" if to == "head" else f"the schema is {to}")


def _folder(data: Path | None) -> DataFolder:
    return DataFolder(load(data=data).data.expanduser().resolve())


@contextlib.contextmanager
def _owned(data: Path | None) -> Iterator[str]:
    """Yield the database's URL, with the data folder locked if it exists. Raises StackError."""
    url = os.environ.get(VARIABLE)
    if url:
        yield url
        return
    folder = _folder(data)
    folder.prepare()
    with folder.locked():
        yield folder.database_url


@contextlib.contextmanager
def _failures() -> Iterator[ModuleType]:
    """Yield the module `records.storage.backup`. Convert its errors to CommandError."""
    try:
        from records.storage import backup as storage
        from records.storage.database import StorageError
    except ImportError as error:
        missing = f"this needs a server's libraries ({error}): pip install 'tunefarm[server]'"
        raise CommandError(missing, ExitCode.LOCAL) from error
    try:
        yield storage
    except StorageError as error:
        raise CommandError(str(error), ExitCode.LOCAL) from error
    except OSError as error:
        raise CommandError(f"{error.filename or 'the file'}: {error.strerror}", ExitCode.LOCAL) from error
