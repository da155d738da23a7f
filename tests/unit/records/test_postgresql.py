"""Failures of a database server: rejected or lost connections, restarts. Two jobs never block each other."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import bindparam, select, text
from sqlalchemy.exc import ProgrammingError

from core.job import JobState
from core.measurement import Measurement, Outcome
from core.worker import WorkerState
from records.fleet import leases, results
from records.fleet.results import Accepted, LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import jobs, tasks, trials
from records.schedules import schedules
from records.storage.database import Database, StorageError
from records.storage.tables import TokenRow
from tests.devices import DEVICE
from tests.services import PASSWORD, Emptied, Postgresql, free_port
from tests.unit.records.farm import MIGRATE, Farm, make_job, measured

RAISE = "DO $$ BEGIN RAISE EXCEPTION 'first line' USING ERRCODE = '{}', DETAIL = 'Key (secret)'; END $$"


@pytest.fixture
def server(postgresql: Postgresql) -> Postgresql:
    return postgresql


@pytest.fixture
def pg(emptied: Emptied) -> Iterator[Database]:
    emptied.empty()
    database = Database(emptied.url, busy_timeout_s=0.3)
    yield database
    database.close()


def failure(act: Callable[[], object]) -> StorageError:
    with pytest.raises(StorageError) as error:
        act()
    return error.value


def provoke(database: Database, state: str) -> StorageError:
    def run() -> None:
        with database.begin() as session:
            session.execute(text(RAISE.format(state)))

    return failure(run)


def look(database: Database) -> None:
    with database.begin() as session:
        assert jobs.unfinished(session) == []


def test_no_statement_is_compiled(pg: Database) -> None:
    with pg.begin() as session:
        assert session.scalar(text("SHOW jit")) == "off"


def test_finding_pending_trials_reads_no_finished_trials(pg: Database) -> None:
    with pg.begin() as session:
        farm = make_job(session, "job")
        ids = farm.issue(*(f"t{number}" for number in range(2000)))
        # PostgreSQL's statistics of the table are always slightly old.
        session.execute(text("ANALYZE trials"))
        session.execute(text(f"UPDATE trials SET state = 'done' WHERE id < {ids[1500]}"))
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'trials'"
    with pg.begin() as session:
        # Whoever comes first clears away what was pending before.
        Farm(session, "job", farm.task_id).leased("first")
    with pg.begin() as session:
        before = session.scalar(text(read)) or 0
        lease = Farm(session, "job", farm.task_id).leased("second")
        assert [trial.id for trial in lease.trials] == ids[1508:1516]
        assert (session.scalar(text(read)) or 0) - before < 100


@pytest.mark.parametrize(("kept_s", "read_whole"), [(-1.0, False), (3600.0, True)])
def test_plans_for_empty_tables_are_not_kept(
    pg: Database, server: Postgresql, monkeypatch: pytest.MonkeyPatch, kept_s: float, read_whole: bool
) -> None:
    """A service whose tables were vacuumed while they were empty has thousands of rows soon after."""
    monkeypatch.setattr("records.storage.database._PLANS_KEPT_S", kept_s)
    find = select(TokenRow.name).where(TokenRow.sha == bindparam("sha"))
    read = text("SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'tokens'")

    def scans() -> int:
        """Look a token up; return how often the whole table was read for it."""
        with pg.begin() as session:
            before = session.scalar(read) or 0
            session.execute(find, {"sha": "7"}).all()
            return (session.scalar(read) or 0) - before

    server.execute("VACUUM (FULL, ANALYZE) tokens", "emptied")
    # psycopg prepares a statement that it often sees, and PostgreSQL keeps the plan of one that is often
    # executed.
    assert all(scans() for _ in range(20))
    columns = "INSERT INTO tokens (id, name, sha, scopes, created_at)"
    server.execute(f"{columns} SELECT n, n, n, '[]', 0 FROM generate_series(1, 5000) AS n", "emptied")
    assert bool(scans()) is read_whole


class TestStorageError:
    @pytest.mark.parametrize(
        ("state", "words"),
        [
            ("53100", "disk of its server is full: free some space"),
            ("53300", "no connection free: raise max_connections"),
            ("40P01", "at that moment: try again"),
            ("25006", "primary server"),
            ("42501", "owner of the database"),
            ("57P03", "try again in a moment"),
            ("58P01", "its server says: .*first line: try again later, its log may say more"),
        ],
    )
    def test_an_error_names_the_cause_and_the_next_step(self, pg: Database, state: str, words: str) -> None:
        with pytest.raises(StorageError, match=words) as error, pg.begin() as session:
            session.execute(text(RAISE.format(state)))
        assert error.value.full == (state == "53100")
        assert "secret" not in str(error.value)
        look(pg)

    def test_a_wrong_statement_is_not_blamed_on_the_storage(self, pg: Database) -> None:
        with pytest.raises(ProgrammingError), pg.begin() as session:
            session.execute(text("SELECT nothing FROM nowhere"))

    def test_no_password_is_shown(self, server: Postgresql) -> None:
        assert "password" not in str(failure(Database(server.tcp_url("none")).migrate)).lower()
        wrong = server.tcp_url().replace("tunefarm:", "tunefarm:wrong")
        away = server.tcp_url().replace(f":{server.port}/", f":{free_port()}/")
        told = [str(failure(Database(url).migrate)) for url in (wrong, away)]
        assert "password authentication failed" in told[0]
        assert "check TUNEFARM_DATABASE_URL and that its server runs" in told[1]
        told.append(str(failure(lambda: Database("postgresql://user:w0rd@host:p4ss/db"))))
        for sentence in told:
            assert "\n" not in sentence
            assert PASSWORD not in sentence
            assert "p4ss" not in sentence

    def test_a_server_that_is_not_postgresql_is_rejected(self) -> None:
        assert "sqlite and postgresql" in str(failure(lambda: Database("mysql+pymysql://host/db")))

    def test_a_connection_that_is_lost_is_named_and_replaced(self, pg: Database, server: Postgresql) -> None:
        def lose() -> None:
            with pg.begin() as session:
                backend = session.scalar(text("SELECT pg_backend_pid()"))
                server.execute(f"SELECT pg_terminate_backend({backend})")
                session.execute(text("SELECT 1"))

        assert "try again in a moment" in str(failure(lose))
        look(pg)

    def test_connections_recover_after_a_server_restart(self, pg: Database, server: Postgresql) -> None:
        look(pg)
        server.stop()
        try:
            assert "that its server runs" in str(failure(lambda: look(pg)))
        finally:
            server.start()
        look(pg)

    def test_waiting_too_long_for_a_locked_row_is_named(self, pg: Database) -> None:
        with pg.begin() as session:
            make_job(session, "job")
        with pg.begin() as holder:
            assert jobs.cancel(holder, "job", 2.0)
            with pytest.raises(StorageError, match="keeps it locked"), pg.begin() as session:
                jobs.cancel(session, "job", 2.0)

    def test_too_many_transactions_at_once_are_refused(self, pg: Database) -> None:
        with ThreadPoolExecutor(20) as pool:
            ready, end = threading.Barrier(21), threading.Event()

            def hold() -> None:
                with pg.begin():
                    ready.wait(10)
                    end.wait(10)

            held = [pool.submit(hold) for _ in range(20)]
            ready.wait(10)
            try:
                assert "are in use: try again later" in str(failure(lambda: look(pg)))
            finally:
                end.set()
            for each in held:
                each.result()


def test_a_password_with_special_characters_is_taken(server: Postgresql) -> None:
    server.create("by_tcp")
    database = Database(server.tcp_url("by_tcp"))
    database.migrate()
    look(database)
    assert database.name == "by_tcp on 127.0.0.1"
    database.close()


@pytest.mark.slow
def test_processes_may_migrate_at_once(server: Postgresql) -> None:
    url = server.create("migrated_at_once")
    command = [sys.executable, "-c", MIGRATE, url]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    errors = [process.communicate()[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors
    database = Database(url)
    look(database)
    database.close()


@pytest.mark.parametrize("key", ["\x00", "a\x00b", "\ud800"])
def test_keys_that_databases_reject_are_not_found(database: Database, key: str) -> None:
    with database.begin() as session:
        with pytest.raises(jobs.JobNotFound):
            jobs.get(session, key)
        with pytest.raises(tasks.WorkloadNotFound):
            tasks.workload(session, key)
        assert jobs.unfinished(session) == []


class TestTwoJobsOfOneWorkload:
    """Their records are the same rows, so all transactions must write them in one order."""

    def test_concurrent_reports_of_two_workers_are_stored(self, database: Database) -> None:
        traces = [f"t{number}" for number in range(24)]
        with database.begin() as session:
            made = {"one": traces, "two": traces[::-1]}
            for job_id, ordered in made.items():
                make_job(session, job_id).issue(*ordered)
        held = [self._lease(database, f"lease {number}") for number in range(16)]
        with ThreadPoolExecutor(8) as pool:
            reported = [pool.submit(self._report, database, lease) for lease in held if lease is not None]
            assert all(each.result().closed for each in reported)
        with database.begin() as session:
            assert len(schedules.history(session, DEVICE.key)) == len(traces)
            assert all(trials.counts(session, job_id).leased == 0 for job_id in made)

    def test_concurrent_expiries_close_each_lease_once(self, database: Database) -> None:
        with database.begin() as session:
            for job_id in ("one", "two"):
                make_job(session, job_id).issue(*(f"t{number}" for number in range(40)))
        held = [self._lease(database, f"lease {number * 7 % 16}") for number in range(16)]
        assert None not in held
        with ThreadPoolExecutor(8) as pool:
            lapsed = [pool.submit(self._expire, database) for _ in range(8)]
            assert {job for each in lapsed for job in each.result()} == {"one", "two"}

    def _lease(self, database: Database, name: str) -> leases.StoredLease | None:
        with database.begin() as session:
            return leases.acquire_lease(
                session, name, WorkerSession(name, "s", WorkerState.READY, DEVICE), 4, now=20.0, ttl_s=60.0
            )

    def _report(self, database: Database, lease: leases.StoredLease) -> leases.ReportEffect:
        found = [LeaseResult(measured(1e-3), trial.id) for trial in lease.trials]
        with database.begin() as session:
            return leases.report(session, lease.id, "s", found, now=30.0)

    def _expire(self, database: Database) -> list[str]:
        with database.begin() as session:
            return leases.expire(session, now=1000.0)


def test_a_report_stores_many_results_in_the_order_given(farm: Farm) -> None:
    ids = farm.issue(*(f"t{number}" for number in range(8)))
    farm.leased("lease", limit=8)
    found = [
        LeaseResult(Measurement(Outcome.OK, run_s=(1e-3 * (place + 1),)), trial_id)
        for place, trial_id in enumerate(reversed(ids))
    ]
    strange = LeaseResult(measured(1e-3), 2**64 - 1)
    reported = leases.report(farm.session, "lease", "session", [strange, *found, *found], now=30.0)
    assert (reported.accepted, reported.closed) == (8, True)
    assert [trial.run_s for trial in reversed(farm.trials())] == [(1e-3 * (n + 1),) for n in range(8)]


def test_issuing_a_trial_again_does_not_wait_for_its_result(pg: Database) -> None:
    """A transaction that issues trials has locked their job, which a report locks last."""
    with pg.begin() as session:
        farm = make_job(session, "job")
        trial_id = farm.issue("t0")[0]
        farm.leased("lease")
    with pg.begin() as reporting:
        results.store(reporting, Accepted({trial_id: measured(1e-3)}), 30.0)
        with pg.begin() as issuing:
            assert len(replace(farm, session=issuing).issue("t0", "t1", "t1")) == 1


def test_a_locked_job_has_the_latest_state(emptied: Emptied, connect: Callable[[str], Database]) -> None:
    """A step that adds work to a job waits for a transaction that cancels the job."""
    emptied.empty()
    database = connect(emptied.url)
    with database.begin() as session:
        make_job(session, "job")

    def lock() -> JobState:
        with database.begin() as session:
            return jobs.lock(session, "job")

    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as session:
            jobs.cancel(session, "job", 40.0)
            locked = pool.submit(lock)
            while not session.scalar(text(waiting)):
                assert not locked.done()
                time.sleep(0.01)
        assert locked.result() is JobState.CANCELLED


class TestClock:
    """Hosts disagree about the time, so leases use the database server's clock."""

    @pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
    def test_a_host_with_a_wrong_clock_neither_ends_leases_nor_keeps_them(
        self,
        pg: Database,
        emptied: Emptied,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        ahead_s: float,
    ) -> None:
        with pg.begin() as session:
            farm = make_job(session, "job")
            farm.issue("t0", "t1")
            for name, ttl_s in (("long", 60.0), ("over", -1.0)):
                worker = WorkerSession("worker", "session", WorkerState.READY, DEVICE)
                assert leases.acquire_lease(session, name, worker, 1, now=pg.now(), ttl_s=ttl_s) is not None
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + ahead_s)
        other = Database(emptied.url)
        with other.begin() as session:
            leases.expire(session, other.now())
            assert [lease.id for lease in leases.held(session, other.now())] == ["long"]
        other.close()
        side = "ahead of" if ahead_s > 0 else "behind"
        assert f"this machine's clock is 3600 s {side} the clock of the database server" in caplog.text

    def test_setting_this_machines_clock_does_not_change_the_databases_time(
        self, pg: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pg.begin():
            before = pg.now()
        monkeypatch.setattr(time, "time", lambda: 0.0)
        assert before <= pg.now() < before + 60.0
