"""Jobs that wait for builders which build nothing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from core.job import Build, JobState
from core.measurement import Built, Measurement, Outcome
from core.worker import LOST_AFTER_S, WorkerState
from records.fleet import builder_fallback, building, leases, workers
from records.fleet.builder_fallback import WaitingJob
from records.fleet.building import Builder
from records.fleet.leases import StoredLease
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import events, jobs
from records.jobs.jobs import IdempotencyConflict
from records.storage.database import Database
from records.storage.tables import TrialRow, WorkerRow
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, make_job, request

BOARD = replace(DEVICE, name="a board", triple="aarch64-linux-gnu", cores=4)
X86 = Builder(("aarch64",), "x86_64", cores=2, toolchain=DEVICE.toolchain)
SHA = "ab" * 32


def enrol(session: Session, name: str = "builder", now: float = 19.0) -> None:
    workers.register(session, WorkerSession(name, "session", WorkerState.READY, builder=X86), now)


def take(session: Session, lease_id: str = "built", name: str = "builder") -> StoredLease | None:
    return leases.acquire_lease(
        session, lease_id, WorkerSession(name, "session", WorkerState.READY), 8, 20.0, 60.0
    )


def build(session: Session, lease: StoredLease, trial_id: int) -> None:
    assert building.put_library(session, lease.id, trial_id, SHA, b"library")
    result = LeaseResult(Built(SHA, 0.25), trial_id)
    assert leases.report(session, lease.id, "session", [result], 25.0).accepted


@pytest.fixture
def board(session: Session) -> Farm:
    return make_job(session, "job", BOARD)


def end_builder_leases(session: Session, now: float) -> list[str]:
    return [
        job_id
        for holder in builder_fallback.holding_builders(session)
        for job_id in builder_fallback.end_builder_lease(session, *holder, now)
    ]


class TestWaitingJobs:
    def test_a_job_waits_while_a_builder_is_connected(self, board: Farm) -> None:
        assert builder_fallback.waiting_jobs(board.session, 20.0) == []
        board.issue("t1")
        assert builder_fallback.waiting_jobs(board.session, 20.0) == [], "no builder is there"
        enrol(board.session)
        assert builder_fallback.waiting_jobs(board.session, 20.0) == [WaitingJob("job", 0, 0, 0)]
        assert builder_fallback.waiting_jobs(board.session, 19.1 + LOST_AFTER_S) == []
        assert take(board.session) is not None
        assert builder_fallback.waiting_jobs(board.session, 20.0) == [WaitingJob("job", 0, 0, 0)], (
            "it holds it"
        )

    def test_every_trial_built_or_done_changes_the_counts(self, board: Farm) -> None:
        first, second = board.issue("t1", "t2")
        enrol(board.session)
        lease = take(board.session)
        assert lease is not None
        build(board.session, lease, first)
        assert builder_fallback.waiting_jobs(board.session, 20.0) == [WaitingJob("job", 0, 1, 0)]
        board.leased("own", now=26.0)
        board.report("own", [first])
        assert builder_fallback.waiting_jobs(board.session, 20.0) == [WaitingJob("job", 1, 0, 0)]
        build(board.session, lease, second)
        assert builder_fallback.waiting_jobs(board.session, 20.0) == [], "all that there is is built"

    def test_work_for_other_jobs_counts_while_candidates_are_pending(self, board: Farm) -> None:
        """Builders that work for other jobs count as progress."""
        board.issue("t1")
        enrol(board.session)
        other = make_job(board.session, "a heavier job", BOARD, priority=1)
        [trial_id] = other.issue("t1")
        lease = take(board.session)
        assert lease is not None
        assert lease.job_id == "a heavier job"
        build(board.session, lease, trial_id)
        assert builder_fallback.waiting_jobs(board.session, 20.0) == [WaitingJob("job", 0, 0, 1)]
        assert take(board.session, "another lease") is not None
        assert builder_fallback.waiting_jobs(board.session, 20.0) == [WaitingJob("job", 0, 0, 0)], (
            "now they hold it"
        )

    def test_work_of_builders_that_do_not_suit_the_job_does_not_count(self, board: Farm) -> None:
        board.issue("t1")
        enrol(board.session)
        strange = replace(X86, toolchain="another")
        workers.register(
            board.session, WorkerSession("strange", "s", WorkerState.READY, builder=strange), 19.0
        )
        worked = update(WorkerRow).where(WorkerRow.id == "strange").values(trials_done=7)
        board.session.execute(worked)
        assert builder_fallback.waiting_jobs(board.session, 20.0) == [WaitingJob("job", 0, 0, 0)]

    @pytest.mark.parametrize("build", [Build.DEVICE, Build.BUILDER])
    def test_jobs_with_a_chosen_builder_have_no_fallback(self, session: Session, build: Build) -> None:
        make_job(session, "job", BOARD, build=build).issue("t1")
        enrol(session)
        assert builder_fallback.waiting_jobs(session, 20.0) == []


class TestFallback:
    def test_devices_also_build_what_the_builders_held(self, board: Farm) -> None:
        ids = board.issue("t1", "t2")
        enrol(board.session)
        assert take(board.session) is not None
        assert board.take("own") is None
        builder_fallback.build_on_devices(board.session, "job", 180.0, now=30.0)
        assert end_builder_leases(board.session, now=30.0) == ["job"]
        assert [(trial.state, trial.attempts) for trial in board.trials()] == [("pending", 0)] * 2
        assert not leases.renew(board.session, "built", "session", 30.0, 60.0)
        assert take(board.session, "again") is None
        enrol(board.session, name="another name")
        assert take(board.session, "again", "another name") is None
        assert [trial.id for trial in board.leased("own", now=31.0).trials] == ids
        assert end_builder_leases(board.session, now=32.0) == []

    def test_a_builder_keeps_a_newer_lease(self, board: Farm) -> None:
        board.issue("t1")
        enrol(board.session)
        assert take(board.session) is not None
        assert builder_fallback.end_builder_lease(board.session, "builder", "session", now=30.0) == []
        assert leases.renew(board.session, "built", "session", 30.0, 60.0)

    def test_the_fallback_is_an_event_and_the_jobs_message(self, board: Farm) -> None:
        builder_fallback.build_on_devices(board.session, "job", 180.4, now=30.0)
        message = "builders built nothing for 180 s: this job's devices build for themselves"
        last = events.since(board.session, "job", 0, 100)[-1]
        assert (last.kind, last.data, last.at) == (builder_fallback.KIND, {"message": message}, 30.0)
        job = jobs.get(board.session, "job")
        assert (job.message, job.request.build) == (message, Build.DEVICE)

    def test_a_builder_keeps_its_work_for_other_jobs(self, board: Farm) -> None:
        board.issue("t1")
        enrol(board.session)
        assert take(board.session) is not None
        make_job(board.session, "another", BOARD)
        builder_fallback.build_on_devices(board.session, "another", 180.0, now=30.0)
        assert end_builder_leases(board.session, now=30.0) == []

    def test_a_finished_job_has_no_fallback(self, board: Farm) -> None:
        jobs.advance(board.session, "job", {JobState.TUNING}, JobState.DONE, now=29.0)
        builder_fallback.build_on_devices(board.session, "job", 180.0, now=30.0)
        assert jobs.get(board.session, "job").request.build is Build.AUTO

    def test_a_repeated_request_still_finds_the_job(self, session: Session) -> None:
        asked = request(session)
        jobs.create(session, "job", asked, jobs.Submission(1.0, "key"))
        builder_fallback.build_on_devices(session, "job", 180.0, now=30.0)
        assert jobs.create(session, "another", asked, jobs.Submission(31.0, "key")).id == "job"
        with pytest.raises(IdempotencyConflict):
            jobs.create(session, "another", replace(asked, build=Build.BUILDER), jobs.Submission(31.0, "key"))


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_reporting_builder_and_the_fallback_do_not_deadlock(
    database: Database,
) -> None:
    with database.begin() as session:
        farm = make_job(session, "job", BOARD)
        farm.issue("t1", "t2")
        for name in ("one", "two"):
            enrol(session, name)
            assert leases.acquire_lease(
                session, f"lease of {name}", WorkerSession(name, "session", WorkerState.READY), 1, 20.0, 60.0
            )
        builder_fallback.build_on_devices(session, "job", 180.0, now=30.0)
        holders = builder_fallback.holding_builders(session)
    assert [worker_id for worker_id, _ in holders] == ["one", "two"]

    def fall_back() -> None:
        for holder in holders:
            with database.begin() as session:
                builder_fallback.end_builder_lease(session, *holder, now=31.0)

    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with ThreadPoolExecutor() as pool:
        with database.begin() as session:
            assert (
                workers.heartbeat(session, WorkerSession("two", "session", WorkerState.READY), 31.0)
                is not None
            )
            falling_back = pool.submit(fall_back)
            while True:  # until the fallback waits for this worker's row
                with database.begin() as other:
                    if other.scalar(waiting):
                        break
                time.sleep(0.02)
            held = select(TrialRow.id).where(TrialRow.lease_id == "lease of two")
            trial_id = session.scalars(held).one()
            failed = LeaseResult(Measurement(Outcome.BUILD_ERROR, error="no"), trial_id)
            assert leases.report(session, "lease of two", "session", [failed], 31.0).accepted == 1
        falling_back.result()
    with database.begin() as session:
        assert leases.held(session, 32.0) == []
