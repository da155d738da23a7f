from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.device import Device
from core.profile import Profile
from core.worker import LOST_AFTER_S, DesiredState, Role, Vitals, WorkerState
from records import devices
from records.fleet import leases, workers
from records.fleet.building import Builder
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import events, jobs
from records.storage.tables import WorkerRow
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, measured, request

BIGGER = replace(DEVICE, name="eight cores", cores=8)


def register(
    session: Session,
    worker_id: str,
    session_id: str,
    device: Device | None = None,
    state: WorkerState = WorkerState.READY,
    now: float = 1.0,
) -> str | None:
    return workers.register(session, WorkerSession(worker_id, session_id, state, device), now)


class TestClasses:
    def test_a_stored_value_survives_a_round_trip(self, session: Session) -> None:
        for device in (DEVICE, BIGGER, replace(DEVICE, name="a twin")):
            devices.put_class(session, device)
        assert devices.get_class(session, DEVICE.key) == DEVICE
        assert devices.classes(session) == [BIGGER, DEVICE]

    def test_an_unknown_key_is_not_found(self, session: Session) -> None:
        with pytest.raises(devices.DeviceClassNotFound, match="'feed'"):
            devices.get_class(session, "feed")


class TestProfiles:
    FAST, SLOW = (replace(DEVICE.speeds, hertz=hertz, derived=()) for hertz in (4e9, 2e9))

    def profile(self, session: Session) -> Profile | None:
        return devices.get_class(session, DEVICE.key).profile

    def test_a_class_has_no_profile_until_a_worker_reports_one(self, session: Session) -> None:
        devices.put_class(session, DEVICE)
        assert self.profile(session) is None
        devices.put_class(session, replace(DEVICE, profile=self.FAST))
        assert self.profile(session) == self.FAST
        devices.put_class(session, DEVICE)
        assert self.profile(session) == self.FAST, "a worker without one takes nothing away"

    def test_the_latest_calibration_holds(self, session: Session) -> None:
        devices.put_class(session, replace(DEVICE, profile=self.SLOW))
        devices.put_class(session, replace(DEVICE, profile=self.FAST))
        assert self.profile(session) == self.SLOW, "what was measured at some time is not newer"
        devices.put_class(session, replace(DEVICE, profile=self.FAST), calibrated=True)
        assert self.profile(session) == self.FAST

    def test_every_lookup_of_a_class_returns_its_profile(self, session: Session) -> None:
        device = replace(DEVICE, profile=self.FAST)
        register(session, "a", "s", device)
        names = (DEVICE.key, DEVICE.name, "native")
        found = [devices.resolve_class(session, name, now=6.0) for name in names]
        assert [one.profile for one in [*found, *devices.classes(session)] if one] == [self.FAST] * 4

    def test_the_calibration_request_lasts_until_the_worker_calibrated(self, session: Session) -> None:
        device = replace(DEVICE, profile=self.SLOW)
        register(session, "a", "s", device)
        register(session, "b", "s", device)
        workers.request_calibration(session, "a")
        workers.request_calibration(session, "a")
        assert workers.not_taking_work(session) == ["a"]
        assert workers.get(session, "a").calibrate
        for seen in range(2):
            assert workers.heartbeat(session, WorkerSession("a", "s", WorkerState.READY), 2.0 + seen) == (
                DesiredState.WORK,
                True,
            )
        assert workers.instructions(session, "b") == (DesiredState.WORK, False)
        register(session, "a", "s", device)
        assert workers.instructions(session, "a").calibrate
        again = replace(DEVICE, profile=self.FAST)
        workers.register(session, WorkerSession("a", "s", WorkerState.READY, again, calibrated=True), 5.0)
        assert workers.instructions(session, "a") == (DesiredState.WORK, False)
        assert self.profile(session) == self.FAST

    def test_an_unknown_worker_is_not_found(self, session: Session) -> None:
        with pytest.raises(workers.WorkerNotFound, match="there is no worker 'x'"):
            workers.request_calibration(session, "x")


class TestSilentWorkers:
    def test_workers_and_sessions_are_forgotten_a_few_at_a_time(self, session: Session) -> None:
        for number in range(3):
            register(session, f"old {number}", "s", DEVICE, now=1.0)
        for known in ("drained", "evicted", "new"):
            register(session, known, "s", DEVICE, now=1.0)
        workers.set_desired_state(session, "drained", DesiredState.DRAIN)
        workers.set_desired_state(session, "evicted", DesiredState.EVICTED)
        register(session, "new", "next", DEVICE, now=50.0)
        register(session, "new", "last", DEVICE, now=100.0)
        assert [workers.drop_silent(session, 100.0, limit=2) for _ in range(3)] == [3, 1, 0]
        assert [worker.id for worker in workers.list_workers(session)] == ["drained", "evicted", "new"]
        with pytest.raises(workers.SessionFenced):
            register(session, "new", "next", DEVICE, now=101.0)
        register(session, "old 0", "another", DEVICE, now=102.0)

    def test_a_worker_with_many_sessions_is_forgotten_a_few_at_a_time(self, session: Session) -> None:
        for number in range(6):
            register(session, "restless", str(number), DEVICE, now=float(number))
        assert [workers.drop_silent(session, 100.0, limit=2) for _ in range(5)] == [2, 2, 2, 0, 0]
        assert workers.list_workers(session) == []

    def test_a_silent_builder_is_deleted(self, session: Session) -> None:
        builder = Builder(("aarch64",), "x86_64", cores=2, toolchain="llvm 20")
        workers.register(session, WorkerSession("builder", "s", WorkerState.READY, builder=builder), 1.0)
        assert workers.drop_silent(session, 2.0, limit=9) == 1
        assert workers.list_workers(session) == []


class TestResolve:
    def test_a_class_is_found_by_key_and_by_name(self, session: Session) -> None:
        devices.put_class(session, DEVICE)
        assert devices.resolve_class(session, DEVICE.key, now=6.0) == DEVICE
        assert devices.resolve_class(session, "two cores", now=6.0) == DEVICE
        assert devices.resolve_class(session, "three cores", now=6.0) is None

    def test_an_ambiguous_device_class_name_is_not_found(self, session: Session) -> None:
        devices.put_class(session, DEVICE)
        devices.put_class(session, replace(BIGGER, name=DEVICE.name))
        assert devices.resolve_class(session, DEVICE.name, now=6.0) is None

    def test_native_is_the_ready_worker_seen_last(self, session: Session) -> None:
        assert devices.resolve_class(session, "native", now=6.0) is None
        register(session, "a", "s", BIGGER, WorkerState.BUSY, now=1.0)
        register(session, "b", "s", DEVICE, WorkerState.READY, now=2.0)
        register(session, "c", "s", None, WorkerState.PROBING, now=3.0)
        assert devices.resolve_class(session, "native", now=6.0) == DEVICE
        workers.heartbeat(session, WorkerSession("a", "s", WorkerState.READY), 4.0)
        assert devices.resolve_class(session, "native", now=6.0) == BIGGER
        workers.heartbeat(session, WorkerSession("a", "s", WorkerState.DRAINING), 5.0)
        assert devices.resolve_class(session, "native", now=6.0) == DEVICE


class TestWorkers:
    def test_a_stored_value_survives_a_round_trip(self, session: Session) -> None:
        register(session, "b", "s1", None, WorkerState.PROBING, now=1.0)
        register(session, "a", "s2", DEVICE, WorkerState.READY, now=2.0)
        first, second = workers.list_workers(session)
        assert first == workers.WorkerInfo(
            id="a",
            session_id="s2",
            device_class=DEVICE.key,
            device_name="two cores",
            cores=2,
            state=WorkerState.READY,
            desired_state=DesiredState.WORK,
            last_seen_at=2.0,
            trials_done=0,
            failures=0,
            failures_by_kind={},
            vitals=Vitals(),
            trial_s=None,
        )
        assert (second.id, second.session_id, second.state) == ("b", "s1", WorkerState.PROBING)
        assert (second.device_class, second.device_name, second.cores) == (None, None, None)
        assert workers.get(session, "a") == first

    def test_an_unknown_worker_is_not_found(self, session: Session) -> None:
        with pytest.raises(workers.WorkerNotFound, match="there is no worker 'x'"):
            workers.get(session, "x")

    def test_vitals_are_kept_until_a_heartbeat_brings_new_vitals(self, session: Session) -> None:
        warm = Vitals("0.1", "0.27", 1.5, 61.0, 1 << 30, 16, 3)
        workers.register(session, WorkerSession("a", "s", WorkerState.BUSY, DEVICE, vitals=warm), 1.0)
        assert workers.get(session, "a").vitals == warm
        workers.heartbeat(session, WorkerSession("a", "s", WorkerState.BUSY), 2.0)
        assert workers.get(session, "a").vitals == warm
        workers.heartbeat(session, WorkerSession("a", "s", WorkerState.BUSY, vitals=Vitals(load=0.5)), 3.0)
        assert workers.get(session, "a").vitals == Vitals(load=0.5)

    def test_vitals_of_an_older_service_are_read(self, session: Session) -> None:
        register(session, "a", "s", None, WorkerState.PROBING, now=1.0)
        old = {"tunefarm_version": "0.1", "load": 0.5, "sandbox_gaps": ""}
        session.execute(update(WorkerRow).values(vitals=old))
        found = workers.get(session, "a")
        assert found.vitals == Vitals("0.1", load=0.5)
        assert (found.unable, found.role) == ("", Role.MEASURE)

    def test_the_role_is_stored_with_the_vitals_and_known_before_the_worker_can_build(
        self, session: Session
    ) -> None:
        broken = Vitals(health_error="no linker")
        workers.register(
            session, WorkerSession("a", "s", WorkerState.PROBING, vitals=broken, role=Role.BUILD), 1.0
        )
        found = workers.get(session, "a")
        assert (found.role, found.builder, found.unable) == (Role.BUILD, None, "can't build: no linker")
        assert session.scalar(select(WorkerRow.vitals)) == {**asdict(broken), "builds": True}
        workers.heartbeat(session, WorkerSession("a", "s", WorkerState.PROBING), 2.0)
        assert workers.get(session, "a").role is Role.BUILD
        workers.heartbeat(session, WorkerSession("a", "s", WorkerState.PROBING, vitals=broken), 3.0)
        assert workers.get(session, "a").unable == "can't measure: no linker"

    def test_a_worker_that_is_silent_for_too_long_is_lost(self, session: Session) -> None:
        register(session, "a", "s", DEVICE, now=100.0)
        assert not workers.get(session, "a").is_lost(100.0 + LOST_AFTER_S)
        assert workers.get(session, "a").is_lost(100.1 + LOST_AFTER_S)
        assert LOST_AFTER_S > 30.0

    def test_a_worker_that_went_offline_is_not_lost(self, session: Session) -> None:
        register(session, "a", "s", DEVICE, now=100.0)
        assert not workers.get(session, "a").has_left
        workers.heartbeat(session, WorkerSession("a", "s", WorkerState.OFFLINE), 101.0)
        left = workers.get(session, "a")
        assert (left.has_left, left.is_lost(1e9)) == (True, False)

    def test_registering_again_updates_the_worker(self, session: Session) -> None:
        register(session, "a", "s", None, WorkerState.PROBING, now=1.0)
        assert register(session, "a", "s", DEVICE, WorkerState.READY, now=2.0) is None
        assert register(session, "a", "s", None, WorkerState.BUSY, now=3.0) is None
        [worker] = workers.list_workers(session)
        assert (worker.device_class, worker.state, worker.last_seen_at) == (DEVICE.key, "busy", 3.0)

    def test_a_heartbeat_updates_the_worker(self, session: Session) -> None:
        register(session, "a", "s", DEVICE)
        assert workers.heartbeat(session, WorkerSession("a", "s", WorkerState.BUSY), 9.0)
        assert not workers.heartbeat(session, WorkerSession("a", "another", WorkerState.READY), 10.0)
        assert not workers.heartbeat(session, WorkerSession("unknown", "s", WorkerState.READY), 10.0)
        [worker] = workers.list_workers(session)
        assert (worker.state, worker.last_seen_at) == ("busy", 9.0)

    def test_a_workers_results_are_counted(self, farm: Farm) -> None:
        register(farm.session, "worker", "session", DEVICE)
        ids = farm.issue("t1", "t2")
        farm.leased("lease")
        farm.report("lease", ids[:1])
        farm.report("lease", ids, secs=None)
        [worker] = workers.list_workers(farm.session)
        assert (worker.trials_done, worker.failures) == (2, 1)
        assert worker.failures_by_kind == {"build_error": 1}

    def test_module_runs_are_not_counted_as_trials(self, farm: Farm) -> None:
        register(farm.session, "worker", "session", DEVICE)
        run_id = farm.add_run()
        farm.leased("lease")
        failed = LeaseResult(measured(None), module_run_id=run_id)
        leases.report(farm.session, "lease", "session", [failed], now=30.0)
        [worker] = workers.list_workers(farm.session)
        assert (worker.trials_done, worker.failures) == (0, 1)


class TestFencing:
    def test_a_new_session_fences_off_the_old_one(self, session: Session) -> None:
        register(session, "a", "old", DEVICE, now=1.0)
        assert register(session, "a", "new", None, WorkerState.PROBING, now=2.0) == "old"
        assert not workers.heartbeat(session, WorkerSession("a", "old", WorkerState.READY), 3.0)
        with pytest.raises(workers.SessionFenced, match="newer session than 'old'"):
            register(session, "a", "old", DEVICE, now=3.0)
        [worker] = workers.list_workers(session)
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

    def test_other_workers_are_unaffected(self, farm: Farm) -> None:
        register(farm.session, "other", "old", DEVICE)
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        register(farm.session, "other", "new", DEVICE, now=21.0)
        assert leases.current(farm.session, "worker", "session", now=21.0) is not None


class TestWanted:
    def test_a_desired_state_lasts_until_the_next_change(self, session: Session) -> None:
        register(session, "a", "s", DEVICE)
        assert workers.desired_state(session, "a") is DesiredState.WORK
        assert workers.may_lease(session, "a", "s")
        workers.set_desired_state(session, "a", DesiredState.DRAIN)
        register(session, "a", "another", DEVICE, now=2.0)
        assert workers.desired_state(session, "a") is DesiredState.DRAIN
        assert workers.not_taking_work(session) == ["a"]
        assert not workers.may_lease(session, "a", "another")
        workers.set_desired_state(session, "a", DesiredState.WORK)
        assert workers.not_taking_work(session) == []
        assert workers.may_lease(session, "a", "another")

    def test_an_unknown_worker_is_not_found(self, session: Session) -> None:
        with pytest.raises(workers.WorkerNotFound, match="'x'"):
            workers.set_desired_state(session, "x", DesiredState.DRAIN)
        assert workers.desired_state(session, "x") is DesiredState.WORK
        assert not workers.may_lease(session, "x", "s")

    def test_only_a_ready_session_may_lease(self, session: Session) -> None:
        register(session, "a", "s", DEVICE)
        assert not workers.may_lease(session, "a", "another")
        workers.heartbeat(session, WorkerSession("a", "s", WorkerState.DRAINING), 2.0)
        assert not workers.may_lease(session, "a", "s")

    def test_sessions_of_an_evicted_name_are_rejected_until_resumed(self, session: Session) -> None:
        register(session, "a", "s", DEVICE)
        leases.evict(session, "a", now=2.0)
        assert not workers.heartbeat(session, WorkerSession("a", "s", WorkerState.READY), 3.0)
        for session_id in ("s", "new"):
            with pytest.raises(workers.SessionFenced, match="evicted"):
                register(session, "a", session_id, DEVICE, now=3.0)
        assert workers.get(session, "a").state is WorkerState.DRAINING
        workers.set_desired_state(session, "a", DesiredState.WORK)
        assert workers.heartbeat(session, WorkerSession("a", "s", WorkerState.READY), 4.0)

    def test_native_excludes_drained_and_evicted_workers(self, session: Session) -> None:
        register(session, "a", "s", DEVICE, now=1.0)
        workers.set_desired_state(session, "a", DesiredState.DRAIN)
        assert devices.resolve_class(session, "native", now=6.0) is None

    def test_native_excludes_silent_workers(self, session: Session) -> None:
        register(session, "a", "s", DEVICE, now=1.0)
        assert devices.resolve_class(session, "native", now=1.0 + LOST_AFTER_S) == DEVICE
        assert devices.resolve_class(session, "native", now=1.1 + LOST_AFTER_S) is None
        assert devices.resolve_class(session, DEVICE.key, now=1e6) == DEVICE


class TestEvents:
    def test_events_are_read_in_order(self, session: Session) -> None:
        jobs.create(session, "job", request(session), jobs.Submission(1.0))
        jobs.create(session, "other", request(session), jobs.Submission(1.0))
        [created] = events.since(session, "job", 0, 100)
        for number in range(3):
            events.append(session, "job", "progress", {"trials_done": number}, now=2.0 + number)
            events.append(session, "other", "progress", {}, now=2.0)
        found = events.since(session, "job", created.id, 100)
        assert [event.data for event in found] == [{"trials_done": number} for number in range(3)]
        assert [event.at for event in found] == [2.0, 3.0, 4.0]
        assert found[0].kind == "progress"
        assert sorted(event.id for event in found) == [event.id for event in found]

    def test_reading_continues_after_an_id(self, session: Session) -> None:
        jobs.create(session, "job", request(session), jobs.Submission(1.0))
        for number in range(4):
            events.append(session, "job", "progress", {"n": number}, now=2.0)
        first = events.since(session, "job", 0, 2)
        rest = events.since(session, "job", first[-1].id, 100)
        assert [event.data.get("n") for event in first + rest] == [None, 0, 1, 2, 3]
        assert events.since(session, "job", rest[-1].id, 100) == []
        assert events.since(session, "unknown", 0, 100) == []
