"""The disk fills up during a migration: separate small disks that are really full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic import command
from sqlalchemy import create_engine, exc, text

from records.jobs import jobs
from records.storage import failures
from records.storage.database import Database, StorageError
from records.storage.schema import alembic_config
from tests.services import Postgresql

DISK_BYTES = 16 << 20
OLD = "0004"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    options = f"size={DISK_BYTES},mode=777"
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True
    ).returncode:
        pytest.skip("this user may not mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def old_url(request: pytest.FixtureRequest, disk: Path) -> Iterator[str]:
    """A database on the small disk, with a job in it, as an older release left it."""
    if request.param == "sqlite":
        url = f"sqlite:///{disk}/tunefarm.db"
        prepare(url)
        yield url
    else:
        server: Postgresql = request.getfixturevalue("postgresql")
        for folder in disk.parents:  # pytest's folders are its user's alone
            if folder.stat().st_mode & 0o055 != 0o055:
                folder.chmod(0o755)
        os.chown(disk, Path(f"/proc/{server.pid}").stat().st_uid, -1)
        server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        server.execute("CREATE DATABASE small TABLESPACE small")
        try:
            url = server.url("small")
            prepare(url)
            server.settle("small")
            yield url
        finally:
            server.execute("DROP DATABASE small WITH (FORCE)")
            server.execute("DROP TABLESPACE small")


def prepare(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, OLD)
        columns = "id, model_sha, model_name, shapes, target, trials, seed, state, message, created_at"
        connection.execute(text("INSERT INTO blobs VALUES ('sha', 0)"))
        connection.execute(text("INSERT INTO models VALUES ('sha', 'net', 1.0)"))
        row = "'job', 'sha', 'net', '{}', 'native', 9, 0, 'tuning', '', 1.0"
        connection.execute(text(f"INSERT INTO jobs ({columns}) VALUES ({row})"))
    engine.dispose()


def fill(disk: Path, free_bytes: int) -> Path:
    """Fill the disk except for a number of bytes; return the file."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - free_bytes)
    return filler


@pytest.mark.parametrize("free_bytes", [0, 64 << 10])
def test_a_disk_that_is_full_during_a_migration_changes_nothing(
    old_url: str, disk: Path, free_bytes: int
) -> None:
    filler = fill(disk, free_bytes)
    database = Database(old_url)
    with pytest.raises(StorageError) as refused:
        database.migrate()
    assert refused.value.full
    assert "could not be migrated, and is unchanged" in str(refused.value)
    assert "is full: free some space" in str(refused.value)
    database.close()
    filler.unlink()
    engine = create_engine(old_url)
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == OLD
    engine.dispose()
    database = Database(old_url)
    database.migrate()
    with database.begin() as session:
        assert jobs.get(session, "job").request.model_name == "net"
    database.close()


@pytest.mark.parametrize(
    ("says", "full"),
    [
        ("FATAL:  could not write init file", True),
        ('FATAL:  could not write to file "pg_stat_tmp/1": No space left on device', True),
        ("FATAL:  the database system is in recovery mode", False),
    ],
)
def test_a_server_without_space_may_refuse_a_connection(says: str, full: bool) -> None:
    refused = psycopg.OperationalError(f"connection failed: connection to server failed: {says}")
    found = failures.cause(exc.OperationalError("", None, refused))
    assert found is not None
    assert found.full is full
    assert ("is full: free some space" in found.words) is full
