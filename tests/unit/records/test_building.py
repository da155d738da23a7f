"""Candidates that are built on another machine than they are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import Session

from core.device import Device
from core.job import Build
from core.measurement import Built, Measurement, Outcome
from core.worker import LOST_AFTER_S, DesiredState, Vitals, WorkerState
from records import devices
from records.fleet import building, fair_queue, leases, module_runs, workers
from records.fleet.building import Builder
from records.fleet.leases import ReportEffect, StoredLease
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import events, jobs, trials
from records.schedules import schedules
from records.storage import blobs
from records.storage.database import Database
from records.storage.schema import alembic_config
from records.storage.tables import DeviceClassRow
from tests.devices import DEVICE, GPU
from tests.unit.records.farm import Farm, best, make_job, measured

BOARD = replace(DEVICE, name="a board", triple="aarch64-linux-gnu", cores=4)
X86 = Builder(("x86_64", "aarch64"), "x86_64", cores=2, toolchain=DEVICE.toolchain)
SHA, OTHER_SHA = "ab" * 32, "cd" * 32
LIBRARY = b"a library"
FAILED = Measurement(Outcome.BUILD_ERROR, error="no such loop")


def enrol(
    session: Session,
    builder: Builder = X86,
    name: str = "builder",
    state: WorkerState = WorkerState.READY,
    now: float = 19.0,
) -> None:
    workers.register(session, WorkerSession(name, "session", state, builder=builder, vitals=Vitals()), now)


def take(
    farm: Farm, lease_id: str, now: float = 20.0, limit: int = 8, name: str = "builder"
) -> StoredLease | None:
    """Take a lease like a builder."""
    return leases.acquire_lease(
        farm.session, lease_id, WorkerSession(name, "session", WorkerState.READY), limit, now, 60.0
    )


def leased(farm: Farm, lease_id: str, now: float = 20.0, limit: int = 8) -> StoredLease:
    lease = take(farm, lease_id, now, limit)
    assert lease is not None
    return lease


def report(
    farm: Farm, lease_id: str, ends: Sequence[tuple[int, Measurement | Built]], now: float = 25.0
) -> ReportEffect:
    results = [LeaseResult(end, trial_id) for trial_id, end in ends]
    return leases.report(farm.session, lease_id, "session", results, now)


def store(farm: Farm, lease_id: str, trial_id: int, sha: str = SHA) -> bool:
    return building.put_library(farm.session, lease_id, trial_id, sha, LIBRARY)


def build(farm: Farm, lease_id: str, now: float = 20.0) -> list[int]:
    """Build all waiting candidates successfully."""
    ids = [trial.id for trial in leased(farm, lease_id, now).trials]
    assert all(store(farm, lease_id, trial_id) for trial_id in ids)
    report(farm, lease_id, [(trial_id, Built(SHA, 0.25)) for trial_id in ids], now + 1.0)
    return ids


@pytest.fixture
def board(session: Session) -> Farm:
    return make_job(session, "job", BOARD)


def test_builders_are_stored_without_a_device_class(session: Session) -> None:
    enrol(session, replace(X86, cores=16))
    worker = workers.get(session, "builder")
    assert worker.builder == replace(X86, cores=16)
    assert (worker.device_class, worker.cores, worker.state) == (None, 16, WorkerState.READY)
    assert devices.classes(session) == []
    assert devices.resolve_class(session, "native", now=6.0) is None
    enrol(session, replace(X86, builds_for=("x86_64",)))
    assert workers.get(session, "builder").builder == replace(X86, builds_for=("x86_64",))
    workers.register(session, WorkerSession("builder", "session", WorkerState.READY, DEVICE), 20.0)
    worker = workers.get(session, "builder")
    assert (worker.builder, worker.device_class) == (None, DEVICE.key)


SMALL, EQUAL, LARGE = (replace(X86, cores=cores) for cores in (1, 2, 4))


class TestWhoBuilds:
    @pytest.mark.parametrize(
        ("build", "device", "builder", "elsewhere"),
        [
            (Build.AUTO, BOARD, SMALL, True),
            (Build.AUTO, DEVICE, EQUAL, False),
            (Build.AUTO, DEVICE, LARGE, True),
            (Build.AUTO, BOARD, replace(LARGE, builds_for=("x86_64",)), False),
            (Build.AUTO, BOARD, replace(LARGE, toolchain="llvm 21"), False),
            (Build.AUTO, GPU, replace(LARGE, cores=1000), False),
            (Build.AUTO, GPU, replace(SMALL, builds_for=(GPU.platform,)), True),
            (Build.DEVICE, BOARD, LARGE, False),
            (Build.BUILDER, DEVICE, SMALL, True),
        ],
    )
    def test_builders_or_devices_build_while_a_builder_is_there(
        self, session: Session, build: Build, device: Device, builder: Builder, elsewhere: bool
    ) -> None:
        farm = make_job(session, "job", device, build=build)
        ids = farm.issue("t1", "t2")
        enrol(session, builder)
        waiting = fair_queue.waiting(session, 20.0)
        assert (waiting.device_classes, waiting.has_unbuilt) == (
            set() if elsewhere else {device.key},
            elsewhere,
        )
        built = take(farm, "built")
        assert (built is not None) == elsewhere
        own = farm.take("own")
        assert (own is None) == elsewhere
        lease = built or own
        assert lease is not None
        assert (lease.build, [trial.id for trial in lease.trials]) == (elsewhere, ids)

    @pytest.mark.parametrize("build", list(Build))
    def test_devices_build_unless_the_job_requires_builders(self, session: Session, build: Build) -> None:
        farm = make_job(session, "job", BOARD, build=build)
        farm.issue("t1")
        waits = build is Build.BUILDER
        assert fair_queue.waiting(session, 20.0).device_classes == (set() if waits else {BOARD.key})
        assert (farm.take("own") is None) == waits
        assert building.has_builder(session, "job", 0.0) != waits

    def test_an_unsuitable_builder_gets_no_work_and_delays_no_device(self, session: Session) -> None:
        farm = make_job(session, "job", BOARD, build=Build.BUILDER)
        farm.issue("t1")
        enrol(session, replace(X86, builds_for=("x86_64",)))
        assert take(farm, "built") is None
        assert not fair_queue.waiting(session, 20.0).has_unbuilt
        assert not building.has_builder(session, "job", 0.0)

    def test_devices_build_when_the_last_builder_leaves(self, board: Farm) -> None:
        board.issue("t1", "t2", "t3", "t4", "t5")
        enrol(board.session)
        assert board.take("0", limit=1) is None
        assert board.take("1", limit=1, now=19.1 + LOST_AFTER_S) is not None
        workers.set_desired_state(board.session, "builder", DesiredState.DRAIN)
        assert board.take("2", limit=1) is not None
        workers.set_desired_state(board.session, "builder", DesiredState.WORK)
        for number, state in enumerate((WorkerState.DRAINING, WorkerState.PROBING), start=3):
            workers.heartbeat(board.session, WorkerSession("builder", "session", state), 19.0)
            assert board.take(str(number), limit=1) is not None
        workers.heartbeat(board.session, WorkerSession("builder", "session", WorkerState.BUSY), 19.0)
        assert board.take("5", limit=1) is None

    def test_module_runs_are_the_devices_alone(self, board: Farm) -> None:
        sha = blobs.put(board.session, b"artifact")
        module_runs.add(board.session, "job", "untuned", sha, now=10.0)
        enrol(board.session)
        assert take(board, "built") is None
        lease = board.take("own")
        assert lease is not None
        assert lease.module_runs


class TestBuilding:
    def test_the_library_of_a_measured_trial_is_deleted(self, board: Farm) -> None:
        ids = board.issue("t1", "t2")
        enrol(board.session)
        lease = leased(board, "built")
        assert (lease.build, lease.constants) == (True, {"w1": (1, 2)})
        assert building.target(board.session, lease.job_id) == BOARD.target
        assert store(board, "built", ids[0])
        assert report(board, "built", [(ids[0], Built(SHA, 0.25))]) == ReportEffect(1, "job", closed=False)
        first, second = board.trials()
        assert (first.state, first.library_sha, first.outcome) == ("pending", SHA, None)
        assert (second.state, second.library_sha) == ("leased", None)
        assert jobs.get(board.session, "job").trials_done == 0
        measuring = board.leased("measured", now=26.0)
        assert [(trial.id, trial.library_sha) for trial in measuring.trials] == [(ids[0], SHA)]
        assert (measuring.build, measuring.attempt) == (False, 1)
        assert building.library(board.session, SHA) == LIBRARY
        assert board.report("measured", ids[:1]) == ReportEffect(1, "job", closed=True)
        assert building.library(board.session, SHA) is None
        assert jobs.get(board.session, "job").trials_done == 1
        assert best(board.session, "w1", BOARD.key) is not None

    def test_a_library_that_another_trial_shares_is_kept(self, board: Farm) -> None:
        ids = board.issue("t1", "t2")
        enrol(board.session)
        assert build(board, "built") == ids
        board.leased("measured", limit=1, now=26.0)
        board.report("measured", ids[:1])
        assert building.library(board.session, SHA) == LIBRARY

    def test_a_trial_that_fails_to_build_is_done(self, board: Farm) -> None:
        [trial_id] = board.issue("t1")
        enrol(board.session)
        leased(board, "built")
        assert report(board, "built", [(trial_id, FAILED)]) == ReportEffect(1, "job", closed=True)
        [trial] = board.trials()
        assert (trial.state, trial.outcome, trial.error) == ("done", Outcome.BUILD_ERROR, "no such loop")
        [record] = schedules.history(board.session, BOARD.key)
        assert record.outcome is Outcome.BUILD_ERROR

    def test_a_result_counts_once(self, board: Farm) -> None:
        [trial_id, _] = board.issue("t1", "t2")
        enrol(board.session)
        leased(board, "built")
        store(board, "built", trial_id)
        again = [(trial_id, Built(SHA, 0.25))] * 2
        assert report(board, "built", again).accepted == 1
        assert report(board, "built", again).accepted == 0
        board.leased("measured", now=26.0)
        assert report(board, "built", again, now=27.0).accepted == 0
        assert board.trials()[0].state == "leased"

    @pytest.mark.parametrize(
        ("end", "says"),
        [
            (Built(OTHER_SHA, 0.25), "not stored"),
            (measured(1e-3), "only builds"),
        ],
    )
    def test_a_builder_that_lies_is_not_believed(
        self, board: Farm, end: Measurement | Built, says: str
    ) -> None:
        [trial_id] = board.issue("t1")
        enrol(board.session)
        leased(board, "built")
        store(board, "built", trial_id)
        assert report(board, "built", [(trial_id, end)]).closed
        [trial] = board.trials()
        assert (trial.state, trial.outcome) == ("done", Outcome.UNKNOWN)
        assert says in trial.error
        assert building.library(board.session, SHA) is None

    def test_a_built_result_from_a_device_is_rejected(self, board: Farm) -> None:
        [trial_id] = board.issue("t1")
        board.leased("own")
        assert report(board, "own", [(trial_id, Built(SHA, 0.25))]).closed
        assert board.trials()[0].outcome is Outcome.UNKNOWN

    def test_builders_share_the_queue_and_are_not_charged(self, board: Farm) -> None:
        workers.register(board.session, WorkerSession("worker", "session", WorkerState.READY, BOARD), 19.0)
        enrol(board.session)
        enrol(board.session, name="another")
        board.issue(*(f"t{number}" for number in range(8)))
        lease = leased(board, "built")
        assert len(lease.trials) == 4, "half of them, because there are two builders"
        assert fair_queue.quota(board.session, "worker", BOARD.key, 20.0).fraction == 1.0
        [entry] = fair_queue.entries_to_build(board.session, "another")
        assert entry.start_tag == 0.0, "a job pays for what is measured"

    def test_the_build_rate_is_known_after_a_lease(self, board: Farm) -> None:
        ids = board.issue("t1", "t2")
        enrol(board.session)
        leased(board, "built", now=20.0)
        for trial_id in ids:
            store(board, "built", trial_id)
        report(board, "built", [(trial_id, Built(SHA, 0.25)) for trial_id in ids], now=24.0)
        worker = workers.get(board.session, "builder")
        assert (worker.trial_s, worker.trials_done, worker.failures) == (2.0, 2, 0)


class TestLibraries:
    def test_only_libraries_of_the_held_lease_are_stored(self, board: Farm) -> None:
        ids = board.issue("t1", "t2")
        enrol(board.session)
        leased(board, "built", limit=1)
        assert not store(board, "built", ids[1])
        assert not store(board, "unknown", ids[0])
        assert store(board, "built", ids[0])
        assert store(board, "built", ids[0], OTHER_SHA), "again, with another content"
        assert building.library(board.session, SHA) is None
        assert board.trials()[0].library_sha == OTHER_SHA

    def test_the_machine_is_known_as_long_as_the_lease_lives(self, board: Farm) -> None:
        board.issue("t1", "t2")
        leased_by_device = board.leased("own", limit=1)
        enrol(board.session)
        lease = leased(board, "built", now=20.0)
        assert building.leased_platform(board.session, lease.id, "session", 21.0) == "aarch64"
        assert building.leased_platform(board.session, lease.id, "another", 21.0) is None
        assert building.leased_platform(board.session, lease.id, "session", 80.0) is None
        assert building.leased_platform(board.session, leased_by_device.id, "session", 21.0) is None

    def test_cancelling_a_job_deletes_its_libraries(self, board: Farm) -> None:
        board.issue("t1", "t2")
        enrol(board.session)
        build(board, "built")
        jobs.cancel(board.session, "job", now=30.0)
        assert building.library(board.session, SHA) is None

    def test_libraries_of_dropped_trials_are_deleted(self, board: Farm) -> None:
        board.issue("t1", "t2")
        enrol(board.session)
        build(board, "built")
        assert trials.drop_pending(board.session, "job") == 2
        assert building.library(board.session, SHA) is None


def test_a_migration_stores_the_platforms_of_device_classes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    engine = create_engine(url)
    with engine.begin() as old:
        config = alembic_config()
        config.attributes["connection"] = old
        command.upgrade(config, "0005")
        insert = "INSERT INTO device_classes (key, name, device, target) VALUES (:key, 'a', :device, '{}')"
        for device in (BOARD, GPU):
            old.execute(text(insert), {"key": device.key, "device": device.to_json()})
    engine.dispose()
    database = Database(url)
    database.migrate()
    with database.begin() as session:
        facts = select(DeviceClassRow.platform, DeviceClassRow.cores, DeviceClassRow.toolchain)
        known = session.execute(facts.order_by(DeviceClassRow.cores)).all()
        assert [tuple(row) for row in known] == [
            ("aarch64", BOARD.cores, BOARD.toolchain),
            (None, GPU.cores, GPU.toolchain),
        ]
    database.close()


class TestLostBuilders:
    def test_any_worker_may_rebuild_trials_of_a_lost_builder(self, board: Farm) -> None:
        ids = board.issue("t1", "t2")
        enrol(board.session)
        leased(board, "built", now=20.0)
        assert leases.expire(board.session, now=80.0) == ["job"]
        assert [(trial.state, trial.attempts) for trial in board.trials()] == [("pending", 1)] * 2
        last = [event for event in events.since(board.session, "job", 0, 100) if event.kind == "device_lost"]
        said = "the worker builder was lost: 2 of this job's candidates are built again"
        assert last[0].data["message"] == said
        assert [trial.id for trial in board.leased("own", now=81.0).trials] == ids[:1]

    def test_a_built_trial_has_no_attempts(self, board: Farm) -> None:
        [trial_id] = board.issue("t1")
        enrol(board.session)
        leased(board, "built", now=20.0)
        leases.expire(board.session, now=80.0)
        enrol(board.session, now=80.0)
        assert build(board, "again", now=81.0) == [trial_id]
        assert board.trials()[0].attempts == 0
        board.leased("own", now=85.0)
        leases.expire(board.session, now=145.0)
        assert [(trial.state, trial.attempts) for trial in board.trials()] == [("pending", 1)]

    def test_a_trial_that_two_builders_were_lost_with_is_given_up(self, board: Farm) -> None:
        board.issue("t1")
        for number in range(2):
            now = 20.0 + 100.0 * number
            enrol(board.session, now=now)
            leased(board, f"built {number}", now)
            leases.expire(board.session, now=now + 60.0)
        [trial] = board.trials()
        assert (trial.state, trial.outcome) == ("done", Outcome.DEVICE_LOST)

    def test_a_library_stored_before_the_loss_is_measured(self, board: Farm) -> None:
        ids = board.issue("t1", "t2")
        enrol(board.session)
        leased(board, "built", now=20.0)
        store(board, "built", ids[1])
        leases.expire(board.session, now=80.0)
        enrol(board.session, now=80.0)
        lease = board.leased("own", now=81.0)
        assert [(trial.id, trial.library_sha) for trial in lease.trials] == [(ids[1], SHA)]

    def test_a_builder_that_stops_returns_its_lease_without_counting_attempts(self, board: Farm) -> None:
        board.issue("t1", "t2")
        enrol(board.session)
        leased(board, "built")
        assert leases.give_back(board.session, "builder", "session", 21.0) == ["job"]
        assert [(trial.state, trial.attempts) for trial in board.trials()] == [("pending", 0)] * 2
