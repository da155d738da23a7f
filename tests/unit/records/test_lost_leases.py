"""Leases that expire or are returned, and jobs' events about lost devices."""

from __future__ import annotations

import pytest

from core.measurement import Outcome
from core.worker import WorkerState
from records.fleet import leases, module_runs, workers
from records.fleet.leases import DEVICE_LOST, ReportEffect
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import events, jobs
from records.jobs.events import Event
from records.schedules import schedules
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, measured


class TestExpire:
    def test_unreported_work_is_pending_again(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease", now=20.0)
        farm.report("lease", ids[:1])
        assert leases.expire(farm.session, now=79.9) == []
        assert leases.expire(farm.session, now=80.0) == ["job"]
        assert leases.expire(farm.session, now=80.0) == []
        assert [(trial.state, trial.attempts) for trial in farm.trials()] == [("done", 0), ("pending", 1)]

    def test_many_leases_expire_a_few_at_a_time(self, farm: Farm) -> None:
        for number in range(5):
            farm.issue(f"t{number}")
            farm.leased(f"lease {number}", now=20.0)
        closed = [leases.expire(farm.session, now=80.0, limit=2) for _ in range(4)]
        assert closed == [["job"], ["job"], ["job"], []]
        assert {trial.state for trial in farm.trials()} == {"pending"}

    def test_a_trial_that_lost_a_device_is_leased_alone(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease", now=20.0)
        leases.expire(farm.session, now=80.0)
        ids += farm.issue("t3", "t4")
        taken = [farm.leased(name, now=81.0) for name in ("one", "two", "three")]
        assert [[trial.id for trial in lease.trials] for lease in taken] == [ids[:1], ids[1:2], ids[2:]]
        assert [lease.attempt for lease in taken] == [2, 2, 1]

    def test_a_trial_that_lost_two_devices_is_quarantined(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease", now=20.0)
        leases.expire(farm.session, now=80.0)
        farm.leased("again", now=81.0)
        assert leases.expire(farm.session, now=141.0) == ["job"]
        bad, innocent = farm.trials()
        assert (bad.state, bad.outcome, bad.attempts) == ("done", Outcome.DEVICE_LOST, 2)
        assert "lost before it sent a result" in bad.error
        assert (innocent.state, innocent.attempts) == ("pending", 1)
        assert [record.trace for record in schedules.history(farm.session, DEVICE.key)] == ["t1"]
        assert [trial.id for trial in farm.leased("more", now=142.0).trials] == ids[1:]
        assert farm.report("more", ids[1:], now=143.0).closed

    def test_a_module_run_that_lost_two_devices_is_quarantined(self, farm: Farm) -> None:
        farm.add_run()
        for number, now in enumerate((20.0, 100.0)):
            farm.leased(f"lease {number}", now=now)
            leases.expire(farm.session, now=now + 60.0)
        [run] = module_runs.of_job(farm.session, "job")
        assert (run.state, run.outcome, run.attempts) == ("done", Outcome.DEVICE_LOST, 2)
        assert farm.take("again", now=200.0) is None

    def test_a_module_run_that_lost_a_device_is_leased_alone(self, farm: Farm) -> None:
        bad, good = farm.add_run(), farm.add_run("tuned")
        farm.leased("lease", now=20.0)
        leases.expire(farm.session, now=80.0)
        again = farm.leased("again", now=81.0)
        assert [run.id for run in again.module_runs] == [bad]
        leases.expire(farm.session, now=141.0)
        more = farm.leased("more", now=142.0)
        assert [run.id for run in more.module_runs] == [good]
        result = LeaseResult(measured(1e-2), module_run_id=good)
        assert leases.report(farm.session, "more", "session", [result], now=143.0).closed
        ends = [run.outcome for run in module_runs.of_job(farm.session, "job")]
        assert ends == [Outcome.DEVICE_LOST, Outcome.OK]


class TestGiveBack:
    def test_returned_work_is_pending_at_once_without_an_attempt(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("lease", now=20.0)
        farm.report("lease", ids[:1])
        assert leases.give_back(farm.session, "worker", "session", now=31.0) == ["job"]
        assert leases.give_back(farm.session, "worker", "session", now=31.0) == []
        states = [(trial.state, trial.attempts) for trial in farm.trials()]
        assert states == [("done", 0), ("pending", 0), ("pending", 0)]
        again = farm.leased("again", now=32.0)
        assert ([trial.id for trial in again.trials], again.attempt) == (ids[1:], 1)

    def test_late_results_change_nothing(self, farm: Farm) -> None:
        ids = farm.issue("t1")
        farm.leased("lease", now=20.0)
        leases.give_back(farm.session, "worker", "session", now=21.0)
        before = farm.snapshot()
        assert farm.report("lease", ids, now=22.0) == ReportEffect(0, None, closed=False)
        assert not leases.renew(farm.session, "lease", "session", now=22.0, ttl_s=60.0)
        assert farm.snapshot() == before

    def test_another_session_cannot_return_the_lease(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        assert leases.give_back(farm.session, "worker", "another", now=21.0) == []
        assert leases.give_back(farm.session, "other", "session", now=21.0) == []
        assert [trial.state for trial in farm.trials()] == ["leased"]

    def test_a_module_run_is_pending_again_without_an_attempt(self, farm: Farm) -> None:
        farm.add_run()
        farm.leased("lease", now=20.0)
        leases.give_back(farm.session, "worker", "session", now=21.0)
        [run] = module_runs.of_job(farm.session, "job")
        assert (run.state, run.attempts) == ("pending", 0)

    def test_work_of_a_finished_job_is_dropped(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        jobs.cancel(farm.session, "job", now=21.0)
        leases.give_back(farm.session, "worker", "session", now=22.0)
        assert farm.trials() == []

    def test_evicting_returns_the_workers_trials(self, farm: Farm) -> None:
        farm.register()
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        leases.evict(farm.session, "worker", now=21.0)
        assert [(trial.state, trial.attempts) for trial in farm.trials()] == [("pending", 0)]
        with pytest.raises(workers.WorkerNotFound, match="'x'"):
            leases.evict(farm.session, "x", now=21.0)


def loss_events(farm: Farm) -> list[Event]:
    return [event for event in events.since(farm.session, farm.job_id, 0, 100) if event.kind == DEVICE_LOST]


def test_the_event_of_a_lost_device_names_device_and_trials(farm: Farm) -> None:
    first, *_ = farm.issue("a", "b", "c")
    farm.leased("lease")
    farm.report("lease", [first])
    leases.expire(farm.session, now=100.0)
    (event,) = loss_events(farm)
    assert event.data["worker"] == "worker"
    assert event.data["held"] == 2
    assert jobs.get(farm.session, farm.job_id).message == event.data["message"]
    assert "the worker worker was lost" in event.data["message"]


def test_a_lost_device_without_unreported_work_has_no_event(farm: Farm) -> None:
    issued = farm.issue("a", "b")
    farm.leased("lease")
    farm.report("lease", issued)
    leases.expire(farm.session, now=100.0)
    assert loss_events(farm) == []


def test_returned_work_does_not_count_as_lost(farm: Farm) -> None:
    device, state = farm.device, WorkerState.READY
    workers.register(farm.session, WorkerSession("worker", "session", state, device), 10.0)
    farm.issue("a", "b")
    farm.leased("lease")
    leases.give_back(farm.session, "worker", "session", now=30.0)
    assert loss_events(farm) == []
