from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from records import devices, events, jobs, leases
from records.devices import WorkerState
from search.device import Device
from tests.unit.records.farm import DEVICE, Farm, request

BIGGER = replace(DEVICE, name="eight cores", cores=8)


def register(
    session: Session,
    worker_id: str,
    session_id: str,
    device: Device | None = None,
    state: WorkerState = WorkerState.READY,
    now: float = 1.0,
) -> str | None:
    return devices.register(session, worker_id, session_id, device, state, now)


class TestClasses:
    def test_round_trip(self, session: Session) -> None:
        for device in (DEVICE, BIGGER, replace(DEVICE, name="a twin")):
            devices.put_class(session, device)
        assert devices.get_class(session, DEVICE.key) == DEVICE
        assert devices.classes(session) == [BIGGER, DEVICE]

    def test_an_unknown_key(self, session: Session) -> None:
        with pytest.raises(devices.DeviceClassNotFound, match="'feed'"):
            devices.get_class(session, "feed")


class TestResolve:
    def test_by_key_and_by_name(self, session: Session) -> None:
        devices.put_class(session, DEVICE)
        assert devices.resolve_class(session, DEVICE.key) == DEVICE
        assert devices.resolve_class(session, "two cores") == DEVICE
        assert devices.resolve_class(session, "three cores") is None

    def test_an_ambiguous_name_is_none(self, session: Session) -> None:
        devices.put_class(session, DEVICE)
        devices.put_class(session, replace(BIGGER, name=DEVICE.name))
        assert devices.resolve_class(session, DEVICE.name) is None

    def test_native_is_the_ready_worker_seen_last(self, session: Session) -> None:
        assert devices.resolve_class(session, "native") is None
        register(session, "a", "s", BIGGER, WorkerState.BUSY, now=1.0)
        register(session, "b", "s", DEVICE, WorkerState.READY, now=2.0)
        register(session, "c", "s", None, WorkerState.PROBING, now=3.0)
        assert devices.resolve_class(session, "native") == DEVICE
        devices.seen(session, "a", "s", WorkerState.READY, now=4.0)
        assert devices.resolve_class(session, "native") == BIGGER
        devices.seen(session, "a", "s", WorkerState.DRAINING, now=5.0)
        assert devices.resolve_class(session, "native") == DEVICE


class TestWorkers:
    def test_round_trip(self, session: Session) -> None:
        register(session, "b", "s1", None, WorkerState.PROBING, now=1.0)
        register(session, "a", "s2", DEVICE, WorkerState.READY, now=2.0)
        assert devices.workers(session) == [
            devices.WorkerInfo("a", "s2", DEVICE.key, "two cores", WorkerState.READY, 2.0, 0, 0),
            devices.WorkerInfo("b", "s1", None, None, WorkerState.PROBING, 1.0, 0, 0),
        ]

    def test_registering_again_updates(self, session: Session) -> None:
        register(session, "a", "s", None, WorkerState.PROBING, now=1.0)
        assert register(session, "a", "s", DEVICE, WorkerState.READY, now=2.0) is None
        assert register(session, "a", "s", None, WorkerState.BUSY, now=3.0) is None
        [worker] = devices.workers(session)
        assert (worker.device_class, worker.state, worker.last_seen_at) == (DEVICE.key, "busy", 3.0)

    def test_a_sign_of_life(self, session: Session) -> None:
        register(session, "a", "s", DEVICE)
        assert devices.seen(session, "a", "s", WorkerState.BUSY, now=9.0)
        assert not devices.seen(session, "a", "another", WorkerState.READY, now=10.0)
        assert not devices.seen(session, "unknown", "s", WorkerState.READY, now=10.0)
        [worker] = devices.workers(session)
        assert (worker.state, worker.last_seen_at) == ("busy", 9.0)

    def test_counts_what_it_reported(self, farm: Farm) -> None:
        register(farm.session, "worker", "session", DEVICE)
        ids = farm.issue("t1", "t2")
        farm.leased("lease")
        farm.report("lease", ids[:1])
        farm.report("lease", ids, secs=None)
        [worker] = devices.workers(farm.session)
        assert (worker.trials_done, worker.failures) == (2, 1)


class TestFencing:
    def test_a_new_session_fences_off_the_old_one(self, session: Session) -> None:
        register(session, "a", "old", DEVICE, now=1.0)
        assert register(session, "a", "new", None, WorkerState.PROBING, now=2.0) == "old"
        assert not devices.seen(session, "a", "old", WorkerState.READY, now=3.0)
        with pytest.raises(devices.SessionFenced, match="newer session than 'old'"):
            register(session, "a", "old", DEVICE, now=3.0)
        [worker] = devices.workers(session)
        assert (worker.session_id, worker.device_class, worker.last_seen_at) == ("new", None, 2.0)

    def test_the_old_lease_expires_at_once(self, farm: Farm) -> None:
        register(farm.session, "worker", "session", DEVICE)
        ids = farm.issue("t1")
        farm.leased("lease", now=20.0)
        register(farm.session, "worker", "new", DEVICE, now=21.0)
        assert leases.current(farm.session, "worker", "session", now=21.0) is None
        assert not leases.renew(farm.session, "lease", "session", now=21.0, ttl_s=60.0)
        assert farm.report("lease", ids, now=21.0).accepted == 0
        assert leases.expire(farm.session, now=21.0) == ["job"]
        assert [trial.state for trial in farm.trials()] == ["pending"]

    def test_other_workers_are_left_alone(self, farm: Farm) -> None:
        register(farm.session, "other", "old", DEVICE)
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        register(farm.session, "other", "new", DEVICE, now=21.0)
        assert leases.current(farm.session, "worker", "session", now=21.0) is not None


class TestEvents:
    def test_round_trip_in_order(self, session: Session) -> None:
        jobs.create(session, "job", request(session), None, now=1.0)
        jobs.create(session, "other", request(session), None, now=1.0)
        [created] = events.since(session, "job", 0, 100)
        for number in range(3):
            events.append(session, "job", "progress", {"trials_done": number}, now=2.0 + number)
            events.append(session, "other", "progress", {}, now=2.0)
        found = events.since(session, "job", created.id, 100)
        assert [event.data for event in found] == [{"trials_done": number} for number in range(3)]
        assert [event.at for event in found] == [2.0, 3.0, 4.0]
        assert found[0].kind == "progress"
        assert sorted(event.id for event in found) == [event.id for event in found]

    def test_reading_on_after_an_id(self, session: Session) -> None:
        jobs.create(session, "job", request(session), None, now=1.0)
        for number in range(4):
            events.append(session, "job", "progress", {"n": number}, now=2.0)
        first = events.since(session, "job", 0, 2)
        rest = events.since(session, "job", first[-1].id, 100)
        assert [event.data.get("n") for event in first + rest] == [None, 0, 1, 2, 3]
        assert events.since(session, "job", rest[-1].id, 100) == []
        assert events.since(session, "unknown", 0, 100) == []
