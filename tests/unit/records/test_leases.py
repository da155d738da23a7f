"""Acquire, repeat and renew leases, and derive the speed of workers."""

from __future__ import annotations

from dataclasses import replace

from core.job import JobState
from core.measurement import Outcome
from records.fleet import leases, workers
from records.fleet.leases import HeldLease
from records.fleet.results import LeaseResult
from records.jobs import jobs, tasks, trials
from records.schedules import imports, schedules
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, make_job, measured, task_spec


class TestTake:
    def test_a_lease_survives_a_round_trip(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        lease = farm.leased("lease", limit=2, now=20.0)
        assert (lease.id, lease.worker_id, lease.session_id, lease.job_id) == (
            "lease",
            "worker",
            "session",
            "job",
        )
        assert (lease.attempt, lease.expires_at, lease.module_runs) == (1, 80.0, ())
        assert [trial.id for trial in lease.trials] == ids[:2]
        assert [trial.state for trial in farm.trials()] == ["leased", "leased", "pending"]
        assert lease.constants == {"w1": (1, 2)}
        assert lease.model_bytes == len(b"a model")

    def test_a_trial_is_leased_once(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("one", limit=2)
        assert [trial.id for trial in farm.leased("two", limit=2).trials] == ids[2:]
        assert farm.take("three") is None

    def test_without_trials_there_is_no_lease(self, farm: Farm) -> None:
        assert farm.take("lease") is None

    def test_without_slots_there_is_no_lease(self, farm: Farm) -> None:
        farm.issue("t1")
        assert farm.take("lease", limit=0) is None

    def test_a_lease_has_trials_of_one_job(self, farm: Farm) -> None:
        other = make_job(farm.session, "other")
        mine = farm.issue("t1")
        theirs = other.issue("t1")
        mine += farm.issue("t2")
        first, second = farm.leased("one"), farm.leased("two")
        assert [trial.id for trial in first.trials] == mine
        assert (second.job_id, [trial.id for trial in second.trials]) == ("other", theirs)

    def test_another_device_class_gets_no_lease(self, farm: Farm) -> None:
        farm.issue("t1")
        other = make_job(farm.session, "other", replace(DEVICE, cores=8))
        assert other.take("lease") is None

    def test_module_runs_go_first_and_together(self, farm: Farm) -> None:
        farm.issue("t1")
        run_ids = [farm.add_run(), farm.add_run("tuned")]
        lease = farm.leased("one")
        assert [(run.id, run.state) for run in lease.module_runs] == [(each, "leased") for each in run_ids]
        assert lease.trials == ()
        assert leases.current(farm.session, "worker", "session", now=21.0) == lease
        assert farm.leased("two").module_runs == ()

    def test_a_finished_job_needs_no_device(self, farm: Farm) -> None:
        farm.issue("t1")
        lease = farm.leased("lease")
        jobs.advance(farm.session, "job", {JobState.TUNING}, JobState.FAILED, now=21.0)
        assert [trial.id for trial in lease.trials] == [trial.id for trial in farm.trials()]
        leases.expire(farm.session, now=100.0)
        assert farm.take("again", now=101.0) is None


class TestCurrent:
    def test_the_current_lease_has_the_unreported_work(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        lease = farm.leased("lease")
        assert leases.current(farm.session, "worker", "session", now=21.0) == lease
        farm.report("lease", ids[:1])
        held = leases.current(farm.session, "worker", "session", now=31.0)
        assert held is not None
        assert [trial.id for trial in held.trials] == ids[1:]
        farm.report("lease", ids[1:])
        assert leases.current(farm.session, "worker", "session", now=31.0) is None

    def test_the_current_lease_is_the_sessions_and_not_expired(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        assert leases.current(farm.session, "worker", "another", now=21.0) is None
        assert leases.current(farm.session, "other", "session", now=21.0) is None
        assert leases.current(farm.session, "worker", "session", now=80.0) is None


class TestRenew:
    def test_renewing_moves_the_end(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        assert leases.renew(farm.session, "lease", "session", now=79.0, ttl_s=60.0)
        assert leases.expire(farm.session, now=138.0) == []
        assert leases.expire(farm.session, now=139.0) == ["job"]

    def test_a_stale_lease_is_not_renewed(self, farm: Farm) -> None:
        ids = farm.issue("t1")
        farm.leased("lease", now=20.0)
        assert not leases.renew(farm.session, "lease", "another", now=21.0, ttl_s=60.0)
        assert not leases.renew(farm.session, "unknown", "session", now=21.0, ttl_s=60.0)
        assert not leases.renew(farm.session, "lease", "session", now=80.0, ttl_s=60.0)
        farm.report("lease", ids)
        assert not leases.renew(farm.session, "lease", "session", now=31.0, ttl_s=60.0)


def test_a_lease_has_the_constants_of_the_workloads(farm: Farm) -> None:
    tasks.put_workload(farm.session, "w2", "{}")
    tasks.add_tasks(farm.session, "job", [replace(task_spec("job", "w2"), constants=())])
    [_, second] = tasks.for_job(farm.session, "job")
    new = trials.NewTrial(second.id, "w2", None, "t", 0.0)
    trials.add(farm.session, "job", 1, [new], now=10.0)
    assert farm.leased("lease").constants == {"w2": ()}


class TestBest:
    def test_no_best_is_known_at_first(self, farm: Farm) -> None:
        farm.issue("t1")
        assert farm.leased("lease").best_s == {}

    def test_the_best_latency_is_the_workloads_fastest_trial(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3", "t4")
        farm.leased("first", limit=3)
        farm.report("first", ids[:1], secs=2e-3)
        farm.report("first", ids[1:2], secs=1e-3)
        farm.report("first", ids[2:3], secs=None)
        assert farm.leased("second").best_s == {"w1": 2e-3}
        held = leases.current(farm.session, "worker", "session", now=31.0)
        assert held is not None
        assert held.best_s == {"w1": 2e-3}

    def test_the_best_latency_is_the_device_classs(self, farm: Farm) -> None:
        other = make_job(farm.session, "other", replace(DEVICE, cores=8))
        other.report("theirs", [trial.id for trial in _leased(other, "theirs", "t1").trials])
        assert _leased(farm, "mine", "t1").best_s == {}
        assert _leased(other, "again", "t2").best_s == {"w1": 2e-3}

    def test_an_imported_record_is_not_the_best(self, farm: Farm) -> None:
        target = farm.device.target
        fast = schedules.Record(
            "w1", farm.device.key, "t9", None, 1e-9, (1e-9,), Outcome.OK, target, "import", 1.0
        )
        assert imports.add(farm.session, [fast], now=1.0) == 1
        assert _leased(farm, "lease", "t1").best_s == {}


def _leased(farm: Farm, lease_id: str, trace: str) -> leases.StoredLease:
    farm.issue(trace)
    return farm.leased(lease_id)


class TestPace:
    def test_the_time_of_a_trial_comes_from_finished_leases(self, farm: Farm) -> None:
        farm.register()
        ids = farm.issue("t1", "t2", "t3", "t4")
        farm.leased("one", limit=2, now=20.0)
        farm.report("one", ids[:1], now=22.0)
        assert workers.get(farm.session, "worker").trial_s is None
        farm.report("one", ids[1:2], now=24.0)
        assert workers.get(farm.session, "worker").trial_s == 2.0
        farm.leased("two", limit=2, now=30.0)
        farm.report("two", ids[2:], now=38.0)
        assert workers.get(farm.session, "worker").trial_s == 3.0

    def test_leases_across_a_clock_change_do_not_count_for_the_pace(self, farm: Farm) -> None:
        farm.register()
        ids = farm.issue("t1")
        farm.leased("lease", now=20.0)
        farm.report("lease", ids, now=19.0)
        assert workers.get(farm.session, "worker").trial_s is None

    def test_module_runs_do_not_count_for_the_pace(self, farm: Farm) -> None:
        farm.register()
        run_id = farm.add_run()
        farm.leased("lease", now=20.0)
        result = LeaseResult(measured(1e-2), module_run_id=run_id)
        assert leases.report(farm.session, "lease", "session", [result], now=30.0).closed
        assert workers.get(farm.session, "worker").trial_s is None

    def test_trials_per_minute_cover_the_last_five_minutes(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("old", limit=1, now=20.0)
        farm.report("old", ids[:1], now=30.0)
        farm.leased("lease", limit=2, now=1000.0)
        farm.report("lease", ids[1:2], now=1010.0)
        assert leases.trials_per_minute(farm.session, now=1030.0) == {"worker": 2.0}
        farm.report("lease", ids[2:], now=1040.0)
        assert leases.trials_per_minute(farm.session, now=1120.0) == {"worker": 1.0}
        assert leases.trials_per_minute(farm.session, now=9000.0) == {}

    def test_held_leases_are_open_and_unexpired(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("one", limit=1, now=20.0)
        farm.leased("two", limit=1, now=21.0)
        assert leases.held(farm.session, now=22.0) == [
            HeldLease("one", "worker", 20.0),
            HeldLease("two", "worker", 21.0),
        ]
        farm.report("one", ids[:1], now=23.0)
        assert [lease.id for lease in leases.held(farm.session, now=24.0)] == ["two"]
        assert leases.held(farm.session, now=81.0) == []
