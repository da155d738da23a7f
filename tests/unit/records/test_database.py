from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError, OperationalError

from records.jobs import events, jobs, trials
from records.storage import blobs
from records.storage.database import Database, StorageError
from records.storage.schema import alembic_config, known_revisions
from records.storage.tables import Base
from tests import services
from tests.unit.records.farm import MIGRATE, request


def sqlite(path: Path, busy_timeout_s: float = 10.0) -> Database:
    return Database(f"sqlite:///{path}", busy_timeout_s=busy_timeout_s)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tunefarm.db"
    services.sqlite(path)
    return path


class TestTransactions:
    def test_the_next_transaction_reads_a_committed_row(self, database: Database) -> None:
        with database.begin() as session:
            sha = blobs.put(session, b"data")
        with database.begin() as session:
            assert blobs.get(session, sha) == b"data"

    def test_an_error_rolls_back_everything(self, database: Database) -> None:
        def store_and_fail() -> None:
            with database.begin() as session:
                blobs.put(session, b"data")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store_and_fail()
        with database.begin() as session:
            assert session.scalar(text("SELECT count(*) FROM blobs")) == 0

    def test_foreign_keys_are_enforced(self, database: Database) -> None:
        with pytest.raises(IntegrityError), database.begin() as session:
            session.execute(text("INSERT INTO models (sha, name, created_at) VALUES ('x', 'x', 1.0)"))

    def test_a_wrong_statement_is_not_blamed_on_the_storage(self, file: Path) -> None:
        with pytest.raises(OperationalError), sqlite(file).begin() as session:
            session.execute(text("SELECT nothing FROM nowhere"))

    def test_infinity_cannot_be_stored_as_json(self, database: Database) -> None:
        with database.begin() as session:
            jobs.create(session, "job", request(session), jobs.Submission(1.0))
        with pytest.raises(Exception, match="JSON compliant"), database.begin() as session:
            events.append(session, "job", "progress", {"best": float("inf")}, now=1.0)

    def test_characters_that_databases_refuse_are_replaced(self, database: Database) -> None:
        with database.begin() as session:
            jobs.create(session, "job", request(session), jobs.Submission(1.0))
            jobs.set_message(session, "job", "nul \x00 and half a pair \ud800")
            assert jobs.get(session, "job").message == "nul \ufffd and half a pair ?"

    def test_characters_that_terminals_obey_are_replaced(self, database: Database) -> None:
        hostile = "a\x1b]0;title\x07 \x9b31m\r\tb\nc"
        with database.begin() as session:
            jobs.create(session, "job", request(session), jobs.Submission(1.0))
            jobs.set_message(session, "job", hostile)
            events.append(session, "job", "note", {"message": hostile}, now=1.0)
            said = [jobs.get(session, "job").message, events.latest(session, "job", 1)[0].data["message"]]
        assert said == ["a\ufffd]0;title\ufffd \ufffd31m\ufffd\tb\nc"] * 2


class TestMigration:
    def test_migrations_make_the_schema_of_the_tables(self, url: str) -> None:
        database = Database(url)
        with database.begin() as session:
            context = MigrationContext.configure(session.connection(), opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []
        database.close()

    def test_a_migration_counts_existing_trials(self, tmp_path: Path) -> None:
        path = tmp_path / "old.db"
        with sqlite3.connect(path) as connection:
            engine = create_engine(f"sqlite:///{path}")
            with engine.begin() as old:
                config = alembic_config()
                config.attributes["connection"] = old
                command.upgrade(config, "0004")
            engine.dispose()
            row = "'job', 'sha', 'net', '{}', 'native', 9, 0, 'tuning', '', 1.0"
            columns = "id, model_sha, model_name, shapes, target, trials, seed, state, message, created_at"
            connection.execute(f"INSERT INTO jobs ({columns}) VALUES ({row})")
            columns = "id, job_id, workload_hash, name, weight, flops, covered, reason, constants"
            connection.execute(
                f"INSERT INTO tasks ({columns}) VALUES (1, 'job', 'w', 'conv', 1, 1.0, 1, '', '[]')"
            )
            columns = "job_id, task_id, workload_hash, round, trace, trace_sha, predicted_s, state, attempts"
            for number, state in enumerate(("done", "done", "leased", "pending")):
                trial = f"'job', 1, 'w', 0, 't', '{number}', 0.0, '{state}', 0"
                connection.execute(
                    f"INSERT INTO trials ({columns}, error, created_at) VALUES ({trial}, '', 1.0)"
                )
            connection.execute("DELETE FROM trials WHERE state = 'pending'")
        connection.close()
        database = sqlite(path)
        database.migrate()
        with database.begin() as session:
            migrated = jobs.get(session, "job")
            assert (migrated.trials_issued, migrated.trials_done) == (3, 2)
            assert [trial.id for trial in trials.for_task(session, 1)] == [1, 2, 3]
            # The id of a deleted trial is not assigned again.
            new = trials.NewTrial(1, "w", None, "t", 0.0)
            assert trials.add(session, "job", 0, [new], now=2.0) == [5]
        database.close()

    def test_a_migration_numbers_existing_artifacts(self, tmp_path: Path) -> None:
        path = tmp_path / "old.db"
        with sqlite3.connect(path) as connection:
            engine = create_engine(f"sqlite:///{path}")
            with engine.begin() as old:
                config = alembic_config()
                config.attributes["connection"] = old
                command.upgrade(config, "0022")
            engine.dispose()
            columns = "id, model_sha, model_name, shapes, target, trials, seed, state, message, created_at"
            columns += ", device_class, finished_at, artifact_sha"
            published = [("b", "m", "x", 2.0, "1"), ("a", "m", "x", 3.0, "2"), ("c", "m", "y", 1.0, "3")]
            for job_id, model, key, at, sha in [*published, ("d", "m", "x", 4.0, None)]:
                row = (job_id, model, "net", "{}", "native", 9, 0, "done", "", 1.0, key, at, sha)
                connection.execute(f"INSERT INTO jobs ({columns}) VALUES ({', '.join('?' * 13)})", row)
        connection.close()
        database = sqlite(path)
        database.migrate()
        with database.begin() as session:
            versions = {job: jobs.get(session, job).artifact_version for job in "abcd"}
            assert versions == {"a": 2, "b": 1, "c": 1, "d": None}
            counted = session.execute(text("SELECT * FROM artifact_counts ORDER BY device_class")).all()
            assert counted == [("m", "x", 2), ("m", "y", 1)]
        database.close()

    def test_a_migration_keeps_quantized_models_for_all_devices(self, tmp_path: Path) -> None:
        path = tmp_path / "old.db"
        engine = create_engine(f"sqlite:///{path}")
        config = alembic_config()
        with engine.begin() as old:
            config.attributes["connection"] = old
            command.upgrade(config, "0034")
            columns = "model_sha, quantize, calibration, sha, accuracy"
            for kind, calibration in (("int8", "data"), ("int8", ""), ("int4", "data")):
                old.execute(
                    text(
                        f"INSERT INTO quantized_models ({columns}) VALUES ('m', :kind, :data, :kind, '{{}}')"
                    ),
                    {"kind": kind, "data": calibration},
                )
            command.upgrade(config, "0035")
            narrow = text("SELECT sha, calibration FROM quantized_models WHERE narrow")
            assert old.execute(narrow).all() == [("int8", "data")]
            command.downgrade(config, "0034")
            assert old.scalar(text("SELECT count(*) FROM quantized_models")) == 3
        engine.dispose()

    def test_migration_files_are_named_by_revision(self) -> None:
        newest_first = ScriptDirectory.from_config(alembic_config()).walk_revisions()
        assert [script.revision for script in newest_first] == list(reversed(known_revisions()))

    def test_only_a_migration_imports_alembic(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/tunefarm.db"
        command = [sys.executable, "-c", f"{MIGRATE}; print('alembic' in sys.modules)", url]
        told = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
        assert told == ["True\n", "False\n"]

    def test_a_migration_is_safe_to_repeat(self, database: Database) -> None:
        with database.begin() as session:
            sha = blobs.put(session, b"data")
        database.migrate()
        with database.begin() as session:
            assert blobs.get(session, sha) == b"data"

    def test_processes_may_migrate_at_once(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'new.db'}"
        command = [sys.executable, "-c", MIGRATE, url]
        processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
        errors = [process.communicate()[1].decode() for process in processes]
        assert [process.returncode for process in processes] == [0] * 4, errors
        with Database(url).begin() as session:
            assert jobs.unfinished(session) == []

    def test_a_path_may_hold_any_character(self, tmp_path: Path) -> None:
        folder = tmp_path / "50% off, ünïcode"
        folder.mkdir()
        database = sqlite(folder / "tunefarm.db")
        database.migrate()
        with database.begin() as session:
            assert jobs.unfinished(session) == []


class TestStorageError:
    def test_an_invalid_database_url_is_rejected(self) -> None:
        with pytest.raises(StorageError, match="not a database URL"):
            Database("my data")

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="check that its folder exists and is writable"):
            sqlite(tmp_path / "missing" / "tunefarm.db").migrate()

    def test_a_file_in_place_of_the_folder_is_named(self, file: Path) -> None:
        with pytest.raises(StorageError, match="check that its folder exists"):
            sqlite(file / "tunefarm.db").migrate()

    def test_a_file_without_write_permission_is_named(self, file: Path) -> None:
        database = Database(f"sqlite:///file:{file}?mode=ro&uri=true")
        with pytest.raises(StorageError, match="check the permissions"), database.begin() as session:
            blobs.put(session, b"data")

    def test_an_unmigrated_database_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="older than this tunefarm"), sqlite(tmp_path / "new").begin():
            pytest.fail("the transaction began")

    def test_a_newer_schema_is_refused(self, file: Path) -> None:
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.close()
        with pytest.raises(StorageError, match="newer tunefarm"):
            sqlite(file).migrate()
        with pytest.raises(StorageError, match="newer tunefarm"), sqlite(file).begin():
            pytest.fail("the transaction began")

    def test_a_locked_database_is_named(self, file: Path) -> None:
        with sqlite(file).begin(), pytest.raises(StorageError, match="keeps it locked"):
            sqlite(file, busy_timeout_s=0.05).migrate()
        with (
            sqlite(file).begin(),
            pytest.raises(StorageError, match="keeps it locked"),
            sqlite(file, busy_timeout_s=0.05).begin(),
        ):
            pytest.fail("the transaction began")

    def test_an_empty_transaction_notices_a_locked_database(self, file: Path) -> None:
        database = sqlite(file, busy_timeout_s=0.05)
        with database.begin():
            pass
        with sqlite(file).begin(), pytest.raises(StorageError, match="keeps it locked"), database.begin():
            pytest.fail("the transaction began")

    def test_a_file_that_is_not_a_database_is_rejected(self, file: Path) -> None:
        file.write_bytes(b"these are not the bytes of a database " * 100)
        with pytest.raises(StorageError, match="not a database"):
            sqlite(file).migrate()

    def test_a_damaged_file_is_named(self, file: Path) -> None:
        pages = bytearray(file.read_bytes())
        pages[4096:] = b"\xff" * (len(pages) - 4096)
        file.write_bytes(pages)
        with pytest.raises(StorageError, match="damaged"), sqlite(file).begin() as session:
            request(session)

    def test_a_full_disk_rolls_the_transaction_back(self, file: Path) -> None:
        database = sqlite(file)
        with pytest.raises(StorageError, match="the disk is full"):
            fill_the_disk(database)
        with database.begin() as session:
            assert session.scalar(text("SELECT count(*) FROM blobs")) == 0
            assert session.scalar(text("SELECT count(*) FROM blob_chunks")) == 0

    def test_the_database_works_on_after_a_full_disk(self, file: Path) -> None:
        database = sqlite(file)
        with pytest.raises(StorageError):
            fill_the_disk(database)
        with database.begin() as session:
            assert blobs.get(session, blobs.put(session, b"small")) == b"small"


def fill_the_disk(database: Database) -> None:
    with database.begin() as session:
        pages = session.scalar(text("PRAGMA page_count"))
        session.execute(text(f"PRAGMA max_page_count = {pages + 200}"))
        blobs.put(session, b"small")
        blobs.put(session, bytes(8_000_000))


def test_sqlite_syncs_each_commit(tmp_path: Path) -> None:
    """An acknowledgement outlives a power cut: each commit is synced, not only each checkpoint."""
    database = Database(f"sqlite:///{tmp_path}/t.db")
    database.migrate()
    for begin in (database.begin, database.reading):
        with begin() as session:
            assert session.scalar(text("PRAGMA synchronous")) == 2
    database.close()
