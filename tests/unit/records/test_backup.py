"""Back up and restore the database, and downgrade and upgrade it through all revisions."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import make_url, text

from core.exit_code import ExitCode
from core.job import JobState
from core.worker import WorkerState
from records import access
from records.fleet import workers
from records.fleet.workers import WorkerSession
from records.jobs import jobs
from records.schedules import schedules
from records.storage import backup
from records.storage.database import Database, StorageError
from records.storage.tables import Base
from tests.devices import DEVICE
from tests.services import PASSWORD, Emptied
from tests.unit.records.farm import make_job
from tunefarm.cli.app import app, run


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/t.db"
        Database(made).migrate()
        return made
    emptied: Emptied = request.getfixturevalue("emptied")
    emptied.empty()
    return emptied.url


@pytest.fixture
def filled(url: str) -> Iterator[Database]:
    """A database with rows in most tables, and a job with two finished trials."""
    database = Database(url)
    with database.begin() as session:
        farm = make_job(session, "job")
        workers.register(session, WorkerSession("w1", "s1", WorkerState.READY, DEVICE), 1.0)
        ids = farm.issue("a", "b")
        session.execute(
            text("UPDATE trials SET state = 'done', outcome = 'ok', latency_s = 0.1, run_s = '[0.1]'")
        )
        jobs.count(session, "job", done=2)
        schedules.put_trials(session, ids, 2.0)
    yield database
    database.close()


def state(database: Database) -> tuple[JobState, int, int]:
    with database.begin() as session:
        job = jobs.get(session, "job")
        return job.state, job.trials_done, len(schedules.successes(session, DEVICE.key))


def test_a_backup_is_restored(filled: Database, url: str, tmp_path: Path) -> None:
    file = tmp_path / "copy"
    before = state(filled)
    backup.backup(url, file)
    with filled.begin() as session:
        jobs.cancel(session, "job", 5.0)
        session.execute(text("DELETE FROM records"))
    assert state(filled) == (JobState.CANCELLED, 2, 0)
    filled.close()
    backup.restore(url, file)
    assert state(filled) == before
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(StorageError, match="nothing was changed"):
        backup.restore(url, tmp_path / "other")
    assert state(filled) == before


def test_a_backup_of_an_older_schema_replaces_a_newer_database(
    filled: Database, url: str, tmp_path: Path
) -> None:
    before = state(filled)
    filled.migrate("0012")
    backup.backup(url, tmp_path / "old")
    filled.migrate()
    filled.close()
    backup.restore(url, tmp_path / "old")
    filled.migrate()
    assert state(filled) == before


def damaged(file: Path) -> None:
    """Overwrite the middle of a file."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(size // 3)
        opened.write(b"\xa5" * (size // 3))


def of_another_program(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")
    database.close()


def of_another_program_with_alembic(file: Path) -> None:
    of_another_program(file)
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('0001')")
    database.close()


def of_a_newer_release(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()


def cut_short(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (damaged, "damaged"),
        (cut_short, "damaged"),
        (of_another_program, "not a database of tunefarm"),
        (of_another_program_with_alembic, "not a database of tunefarm"),
        (of_a_newer_release, "9999"),
    ],
)
def test_an_invalid_backup_replaces_nothing(spoil: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path}/t.db", tmp_path / "copy"
    database = Database(url)
    database.migrate()
    with database.begin() as session:
        make_job(session, "job")
    backup.backup(url, copy)
    spoil(copy)
    database.close()
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(StorageError, match=f"{says}.*nothing was changed"):
        backup.restore(url, copy)
    assert {path.name for path in tmp_path.iterdir()} <= before
    with database.begin() as session:
        assert jobs.get(session, "job").id == "job"
    database.close()


@pytest.mark.parametrize("spoil", [damaged, cut_short])
def test_a_damaged_archive_of_postgresql_replaces_nothing(
    spoil: Callable[[Path], None], emptied: Emptied, tmp_path: Path
) -> None:
    emptied.empty()
    database = Database(emptied.url)
    with database.begin() as session:
        make_job(session, "job")
    backup.backup(emptied.url, tmp_path / "copy")
    spoil(tmp_path / "copy")
    with pytest.raises(StorageError):
        backup.restore(emptied.url, tmp_path / "copy")
    with database.begin() as session:
        assert jobs.get(session, "job").id == "job"
    database.close()


def test_the_database_that_is_replaced_is_kept(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path}/t.db", tmp_path / "copy"
    database = Database(url)
    database.migrate()
    backup.backup(url, copy)
    with database.begin() as session:
        make_job(session, "job")
    # The job is still in the write-ahead log, which a process that is killed leaves behind.
    for suffix in ("", "-wal"):
        (tmp_path / f"t.db{suffix}.saved").write_bytes((tmp_path / f"t.db{suffix}").read_bytes())
    database.close()
    for suffix in ("", "-wal"):
        (tmp_path / f"t.db{suffix}.saved").rename(tmp_path / f"t.db{suffix}")
    kept = [backup.restore(url, copy), backup.restore(url, copy)]
    assert kept == [tmp_path / "t.db.before-restore", tmp_path / "t.db.before-restore-2"]
    with database.begin() as session:
        assert jobs.list_jobs(session, 9, None) == []
    database.close()
    old = Database(f"sqlite:///{kept[0]}")
    with old.begin() as session:
        assert jobs.get(session, "job").id == "job"
    old.close()
    assert (tmp_path / "t.db").stat().st_mode & 0o077 == 0


def test_the_password_is_not_on_a_command_line(
    emptied: Emptied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = subprocess.run

    def run(command: Sequence[str], **given: Any) -> Any:
        seen.extend(command)
        return real(command, **given)

    monkeypatch.setattr(subprocess, "run", run)
    by_query = make_url(emptied.url)._replace(password=None).update_query_dict({"password": PASSWORD})
    for url in (emptied.url, by_query.render_as_string(hide_password=False)):
        backup.backup(url, tmp_path / "copy")
        backup.restore(url, tmp_path / "copy")
    assert "pg_dump" in seen
    assert not any(word in argument for argument in seen for word in (PASSWORD, quote(PASSWORD, safe="")))


def test_a_filled_database_downgrades_to_the_first_revision_and_upgrades(filled: Database, url: str) -> None:
    before = state(filled)
    filled.migrate("0001")
    filled.migrate()
    assert state(filled) == before
    with filled.begin() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        assert access.tokens(session) == []
        assert [worker.id for worker in workers.list_workers(session)] == ["w1"]


def test_the_commands_back_up_and_restore_an_unused_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUNEFARM_DATABASE_URL", raising=False)
    data, file = tmp_path / "data", tmp_path / "copy.db"
    at = ["--data", str(data)]
    assert run(app, ["backup", str(file), *at]) == ExitCode.LOCAL, "there is nothing yet"
    assert "there is no database" in capsys.readouterr().err
    assert run(app, ["migrate", *at]) == ExitCode.OK
    assert run(app, ["backup", str(file), *at]) == ExitCode.OK
    with sqlite3.connect(data / "tunefarm.db") as database:
        database.execute("DROP TABLE audit")
    database.close()
    assert run(app, ["restore", str(file), *at]) == ExitCode.OK
    assert run(app, ["migrate", "--to", "0011", *at]) == ExitCode.OK
    assert run(app, ["migrate", "--to", "nonsense", *at]) == ExitCode.LOCAL
    assert "no revision" in capsys.readouterr().err
