"""The database goes into a file and comes back, and goes back through all revisions and forward again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from core.exit_code import ExitCode
from core.job import JobState
from core.worker import WorkerState
from records import access
from records.fleet import devices
from records.jobs import jobs
from records.schedules import schedules
from records.storage import backup
from records.storage.database import Database, StorageError
from records.storage.tables import Base
from tests.devices import DEVICE
from tests.services import Emptied
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
    """A database with something in most tables, two trials of a job done."""
    database = Database(url)
    with database.begin() as session:
        farm = make_job(session, "job")
        devices.register(session, "w1", "s1", DEVICE, WorkerState.READY, now=1.0)
        ids = farm.issue("a", "b")
        session.execute(
            text("UPDATE trials SET state = 'done', outcome = 'ok', latency_s = 0.1, run_secs = '[0.1]'")
        )
        jobs.count(session, "job", done=2)
        schedules.put_trials(session, ids, 2.0)
    yield database
    database.close()


def state(database: Database) -> tuple[JobState, int, int]:
    with database.begin() as session:
        job = jobs.get(session, "job")
        return job.state, job.trials_done, len(schedules.successes(session, DEVICE.key))


def test_what_was_backed_up_comes_back(filled: Database, url: str, tmp_path: Path) -> None:
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


def test_a_filled_database_goes_back_to_the_first_revision_and_forward(filled: Database, url: str) -> None:
    before = state(filled)
    filled.migrate("0001")
    filled.migrate()
    assert state(filled) == before
    with filled.begin() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        assert access.tokens(session) == []
        assert [worker.id for worker in devices.workers(session)] == ["w1"]


def test_the_commands_do_so_for_a_folder_that_nobody_uses(
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
