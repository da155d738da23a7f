"""Workers that are reserved for the jobs of one token."""

from __future__ import annotations

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from core.tokens import Scope
from core.worker import WorkerState
from records import access, devices
from records.fleet import fair_queue, reservations, workers
from records.fleet.reservations import Reserved
from records.fleet.workers import Reservation, WorkerNotFound
from records.storage.tables import JobRow, ShareRow
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, make_job


@pytest.fixture
def ours(session: Session) -> Farm:
    """Our job, beside an older one of another token. Both have trials that wait."""
    for created_at, (job_id, token) in enumerate((("theirs", "t2"), ("ours", "t1"))):
        farm = make_job(session, job_id, now=created_at)
        session.execute(update(JobRow).where(JobRow.id == job_id).values(submitted_by=token))
        farm.issue("a", "b")
    farm.register()
    return farm


def test_a_reserved_worker_measures_its_holders_jobs_until_the_time_is_up(
    session: Session, ours: Farm
) -> None:
    access.add_token(session, access.Token("t1", "alice", frozenset({Scope.SUBMIT}), 1.0), "0" * 64)
    reservations.reserve(session, "worker", "t1", until=100.0, now=20.0)
    assert workers.get(session, "worker").reservation == Reservation("t1", "alice", 100.0)
    assert reservations.reserved_workers(session, 99.0) == ["worker"]
    assert ours.leased("1", now=20.0).job_id == "ours"
    assert ours.take("2", now=99.0) is None
    others = fair_queue.entries(session, "another worker", DEVICE.key, 99.0)
    assert [entry.job_id for entry in others] == ["theirs"]
    assert ours.leased("3", now=100.0).job_id == "theirs"
    assert reservations.reserved_workers(session, 100.0) == []


def test_a_released_worker_measures_all_jobs(session: Session, ours: Farm) -> None:
    reservations.reserve(session, "worker", "t3", until=100.0, now=20.0)
    assert ours.take("1") is None
    reservations.unreserve(session, "worker")
    reservations.unreserve(session, "worker")
    assert workers.get(session, "worker").reservation is None
    assert ours.leased("2").job_id == "theirs"


def test_only_the_holder_may_change_the_end_of_a_reservation(session: Session, ours: Farm) -> None:
    reservations.reserve(session, "worker", "t1", until=100.0, now=20.0)
    with pytest.raises(
        Reserved, match="reserved for t1 until 1970-01-01 00:01 UTC: `tunefarm workers unreserve"
    ):
        reservations.reserve(session, "worker", "t2", until=200.0, now=99.0)
    reservations.reserve(session, "worker", "t1", until=150.0, now=99.0)
    reservations.reserve(session, "worker", "t2", until=200.0, now=150.0)
    assert workers.get(session, "worker").reservation == Reservation("t2", "t2", 200.0)
    with pytest.raises(WorkerNotFound):
        reservations.reserve(session, "nobody", "t1", until=1.0, now=0.0)
    with pytest.raises(WorkerNotFound):
        reservations.unreserve(session, "nobody")


def test_jobs_that_may_not_use_a_worker_still_count_in_the_virtual_time(session: Session, ours: Farm) -> None:
    session.add(ShareRow(job_id="theirs", begun=7.0, ended=9.0))
    reservations.reserve(session, "worker", "t1", until=100.0, now=20.0)
    [entry] = fair_queue.entries(session, "worker", DEVICE.key, 20.0)
    assert (entry.job_id, entry.start_tag) == ("ours", 7.0)


def test_native_means_no_device_that_is_reserved_for_another_token(session: Session, ours: Farm) -> None:
    reservations.reserve(session, "worker", "t1", until=40.0, now=20.0)
    assert devices.resolve_class(session, "native", 20.0, "t1") == DEVICE
    assert devices.resolve_class(session, "native", 20.0, "t2") is None
    assert devices.resolve_class(session, "native", 40.0, "t2") == DEVICE
    assert devices.resolve_class(session, "native", 20.0) == DEVICE
    assert devices.resolve_class(session, DEVICE.key, 20.0, "t2") == DEVICE


def test_a_silent_worker_keeps_its_row_while_it_is_reserved(session: Session, ours: Farm) -> None:
    reservations.reserve(session, "worker", "t1", until=100.0, now=20.0)
    assert workers.drop_silent(session, before=100.0, limit=10) == 0
    assert workers.get(session, "worker").state is WorkerState.READY
    assert workers.drop_silent(session, before=100.1, limit=10) == 1
