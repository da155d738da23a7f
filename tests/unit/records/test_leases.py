from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from records import blobs, devices, events, jobs, leases, pace, schedules, tasks, trials
from records.database import Database
from records.leases import Reported, TrialResult
from search.measurement import Measurement, Outcome
from tests.unit.records.farm import DEVICE, Farm, make_job, measured, task_spec


def snapshot(farm: Farm) -> object:
    """Everything that a report may change."""
    session = farm.session
    return (
        farm.trials(),
        leases.module_runs(session, farm.job_id),
        schedules.history(session, farm.device.key),
        events.since(session, farm.job_id, 0, 1000),
    )


def add_run(farm: Farm, kind: jobs.Kind = "untuned") -> int:
    sha = blobs.put(farm.session, b"artifact")
    return leases.add_module_run(farm.session, farm.job_id, kind, sha, now=10.0)


class TestTake:
    def test_round_trip(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        lease = farm.leased("lease", limit=2, now=20.0)
        assert (lease.id, lease.worker_id, lease.session_id, lease.job_id) == (
            "lease",
            "worker",
            "session",
            "job",
        )
        assert (lease.attempt, lease.expires_at, lease.module_run) == (1, 80.0, None)
        assert [trial.id for trial in lease.trials] == ids[:2]
        assert {trial.state for trial in lease.trials} == {"leased"}
        assert lease.constants == {"w1": (1, 2)}

    def test_a_trial_is_leased_once(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("one", limit=2)
        assert [trial.id for trial in farm.leased("two", limit=2).trials] == ids[2:]
        assert farm.take("three") is None

    def test_nothing_to_do(self, farm: Farm) -> None:
        assert farm.take("lease") is None

    def test_no_slots_no_lease(self, farm: Farm) -> None:
        farm.issue("t1")
        assert farm.take("lease", limit=0) is None

    def test_a_lease_is_of_one_job(self, farm: Farm) -> None:
        other = make_job(farm.session, "other")
        mine = farm.issue("t1")
        theirs = other.issue("t1")
        mine += farm.issue("t2")
        first, second = farm.leased("one"), farm.leased("two")
        assert [trial.id for trial in first.trials] == mine
        assert (second.job_id, [trial.id for trial in second.trials]) == ("other", theirs)

    def test_another_device_class_gets_none(self, farm: Farm) -> None:
        farm.issue("t1")
        other = make_job(farm.session, "other", replace(DEVICE, cores=8))
        assert other.take("lease") is None

    def test_a_module_run_goes_first_and_alone(self, farm: Farm) -> None:
        farm.issue("t1")
        run_id = add_run(farm)
        lease = farm.leased("one")
        assert lease.module_run is not None
        assert (lease.module_run.id, lease.module_run.state, lease.trials) == (run_id, "leased", ())
        assert farm.leased("two").module_run is None

    def test_a_finished_job_needs_no_device(self, farm: Farm) -> None:
        farm.issue("t1")
        lease = farm.leased("lease")
        jobs.advance(farm.session, "job", {jobs.JobState.TUNING}, jobs.JobState.FAILED, now=21.0)
        assert [trial.id for trial in lease.trials] == [trial.id for trial in farm.trials()]
        leases.expire(farm.session, now=100.0)
        assert farm.take("again", now=101.0) is None


class TestCurrent:
    def test_what_it_still_has_to_do(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        lease = farm.leased("lease")
        assert leases.current(farm.session, "worker", "session", now=21.0) == lease
        farm.report("lease", ids[:1])
        held = leases.current(farm.session, "worker", "session", now=31.0)
        assert held is not None
        assert [trial.id for trial in held.trials] == ids[1:]
        farm.report("lease", ids[1:])
        assert leases.current(farm.session, "worker", "session", now=31.0) is None

    def test_is_of_the_session_and_its_time(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        assert leases.current(farm.session, "worker", "another", now=21.0) is None
        assert leases.current(farm.session, "other", "session", now=21.0) is None
        assert leases.current(farm.session, "worker", "session", now=80.0) is None


class TestRenew:
    def test_moves_the_end(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        assert leases.renew(farm.session, "lease", "session", now=79.0, ttl_s=60.0)
        assert leases.expire(farm.session, now=138.0) == []
        assert leases.expire(farm.session, now=139.0) == ["job"]

    def test_not_of_a_stale_lease(self, farm: Farm) -> None:
        ids = farm.issue("t1")
        farm.leased("lease", now=20.0)
        assert not leases.renew(farm.session, "lease", "another", now=21.0, ttl_s=60.0)
        assert not leases.renew(farm.session, "unknown", "session", now=21.0, ttl_s=60.0)
        assert not leases.renew(farm.session, "lease", "session", now=80.0, ttl_s=60.0)
        farm.report("lease", ids)
        assert not leases.renew(farm.session, "lease", "session", now=31.0, ttl_s=60.0)


class TestReport:
    def test_stores_results_and_records_and_closes(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease")
        assert farm.report("lease", ids[:1], secs=1e-3) == Reported(1, "job", closed=False)
        assert farm.report("lease", ids[1:], secs=None) == Reported(1, "job", closed=True)
        assert [trial.state for trial in farm.trials()] == ["done", "done"]
        best = schedules.best(farm.session, "w1", DEVICE.key)
        assert best == schedules.Record(
            "w1",
            DEVICE.key,
            "t1",
            {"trace": "t1"},
            2e-3,
            (1e-3, 2e-3, 3e-3),
            Outcome.OK,
            DEVICE.target,
            "trial",
            created_at=30.0,
        )
        assert {record.outcome for record in schedules.history(farm.session, DEVICE.key)} == {
            Outcome.OK,
            Outcome.BUILD_ERROR,
        }

    def test_appends_progress(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("lease", limit=2)
        farm.report("lease", ids[:2])
        last = events.since(farm.session, "job", 0, 100)[-1]
        assert (last.kind, last.data) == ("progress", {"trials_done": 2, "trials_issued": 3})

    def test_so_many_results_are_worth_a_look(self, farm: Farm) -> None:
        ids = farm.issue(*(f"t{number}" for number in range(80)))
        devices.register(farm.session, "worker", "session", DEVICE, devices.WorkerState.READY, 1.0)
        assert len(farm.leased("first").trials) == 8
        assert not farm.report("first", ids[:8], now=20.8).many, "it is closed"
        assert len(farm.leased("lease", limit=70, now=21.0).trials) == 70
        looks = [farm.report("lease", [trial_id], now=22.0).many for trial_id in ids[8:78]]
        assert [number for number, look in enumerate(looks, 1) if look] == [32, 64]

    def test_a_duplicate_changes_nothing(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease")
        farm.report("lease", ids[:1], secs=1e-3)
        before = snapshot(farm)
        assert farm.report("lease", ids[:1], secs=5e-3) == Reported(0, "job", closed=False)
        assert snapshot(farm) == before
        assert farm.report("lease", ids, secs=5e-3).accepted == 1
        assert farm.report("lease", ids, secs=5e-3) == Reported(0, None, closed=False)

    def test_the_same_result_twice_in_one_report_counts_once(self, farm: Farm) -> None:
        [trial_id] = farm.issue("t1")
        farm.leased("lease")
        assert farm.report("lease", [trial_id, trial_id]) == Reported(1, "job", closed=True)

    @pytest.mark.parametrize(
        ("lease_id", "session_id", "now"),
        [("lease", "another", 30.0), ("unknown", "session", 30.0), ("lease", "session", 80.0)],
        ids=["another session", "an unknown lease", "too late"],
    )
    def test_a_stale_report_changes_nothing(
        self, farm: Farm, lease_id: str, session_id: str, now: float
    ) -> None:
        ids = farm.issue("t1")
        farm.leased("lease", now=20.0)
        before = snapshot(farm)
        results = [TrialResult(measured(1e-3), ids[0])]
        assert leases.report(farm.session, lease_id, session_id, results, now) == Reported(0, None, False)
        assert snapshot(farm) == before

    def test_the_first_device_is_late_when_another_has_the_trial(self, farm: Farm) -> None:
        ids = farm.issue("t1")
        farm.leased("first", now=20.0)
        leases.expire(farm.session, now=80.0)
        farm.leased("second", now=81.0)
        before = snapshot(farm)
        assert farm.report("first", ids, now=82.0).accepted == 0
        assert snapshot(farm) == before
        assert farm.report("second", ids, now=83.0).accepted == 1

    def test_a_lease_has_no_say_over_the_trials_of_another(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("one", limit=1)
        farm.leased("two", limit=1)
        before = snapshot(farm)
        assert farm.report("one", ids[1:]) == Reported(0, "job", closed=False)
        assert snapshot(farm) == before

    def test_an_empty_report_is_no_news(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease")
        before = snapshot(farm)
        assert farm.report("lease", []) == Reported(0, "job", closed=False)
        assert snapshot(farm) == before

    def test_an_error_is_stored_whatever_it_says(self, farm: Farm) -> None:
        [trial_id] = farm.issue("t1")
        farm.leased("lease")
        crash = Measurement(Outcome.RUN_ERROR, error="\x00\ud800 Segmentation fault")
        leases.report(farm.session, "lease", "session", [TrialResult(crash, trial_id)], now=30.0)
        assert farm.trials()[0].error == "\ufffd? Segmentation fault"

    def test_a_result_is_of_one_thing(self) -> None:
        for ids in ((None, None), (1, 1)):
            with pytest.raises(ValueError, match="exactly one id"):
                TrialResult(measured(1.0), *ids)

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(order=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["one", "two"])), max_size=12))
    def test_in_any_order_each_trial_counts_once(self, farm: Farm, order: list[tuple[int, str]]) -> None:
        jobs_so_far = len(jobs.list_jobs(farm.session, 1000, None))
        mine = make_job(farm.session, f"job {jobs_so_far}")
        ids = mine.issue("t1", "t2", "t3", "t4")
        names = {name: f"{name} {jobs_so_far}" for name in ("one", "two")}
        owner = {trial.id: name for name, lease in names.items() for trial in mine.leased(lease, 2).trials}
        accepted = [mine.report(names[name], [ids[index]]).accepted for index, name in order]
        reported = {index for index, name in order if owner[ids[index]] == name}
        assert sum(accepted) == len(reported) == trials.counts(farm.session, mine.job_id).done
        mine.report(names["one"], ids)
        mine.report(names["two"], ids)
        assert trials.counts(farm.session, mine.job_id) == trials.TrialCounts(0, 0, done=4)


class TestExpire:
    def test_what_was_not_reported_is_pending_again(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease", now=20.0)
        farm.report("lease", ids[:1])
        assert leases.expire(farm.session, now=79.9) == []
        assert leases.expire(farm.session, now=80.0) == ["job"]
        assert leases.expire(farm.session, now=80.0) == []
        assert [(trial.state, trial.attempts) for trial in farm.trials()] == [("done", 0), ("pending", 1)]

    def test_a_trial_that_lost_a_device_is_leased_alone(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease", now=20.0)
        leases.expire(farm.session, now=80.0)
        ids += farm.issue("t3", "t4")
        taken = [farm.leased(name, now=81.0) for name in ("one", "two", "three")]
        assert [[trial.id for trial in lease.trials] for lease in taken] == [ids[:1], ids[1:2], ids[2:]]
        assert [lease.attempt for lease in taken] == [2, 2, 1]

    def test_one_that_lost_two_devices_is_quarantined(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease", now=20.0)
        leases.expire(farm.session, now=80.0)
        farm.leased("again", now=81.0)
        assert leases.expire(farm.session, now=141.0) == ["job"]
        bad, innocent = farm.trials()
        assert (bad.state, bad.outcome, bad.attempts) == ("done", Outcome.DEVICE_LOST, 2)
        assert "lost before it reported" in bad.error
        assert (innocent.state, innocent.attempts) == ("pending", 1)
        assert [record.trace for record in schedules.history(farm.session, DEVICE.key)] == ["t1"]
        assert [trial.id for trial in farm.leased("more", now=142.0).trials] == ids[1:]
        assert farm.report("more", ids[1:], now=143.0).closed

    def test_so_is_a_module_run(self, farm: Farm) -> None:
        add_run(farm)
        for number, now in enumerate((20.0, 100.0)):
            farm.leased(f"lease {number}", now=now)
            leases.expire(farm.session, now=now + 60.0)
        [run] = leases.module_runs(farm.session, "job")
        assert (run.state, run.outcome, run.attempts) == ("done", Outcome.DEVICE_LOST, 2)
        assert farm.take("again", now=200.0) is None


class TestGiveBack:
    def test_is_pending_again_at_once_and_nobodys_fault(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("lease", now=20.0)
        farm.report("lease", ids[:1])
        assert leases.give_back(farm.session, "worker", "session", now=31.0) == ["job"]
        assert leases.give_back(farm.session, "worker", "session", now=31.0) == []
        states = [(trial.state, trial.attempts) for trial in farm.trials()]
        assert states == [("done", 0), ("pending", 0), ("pending", 0)]
        again = farm.leased("again", now=32.0)
        assert ([trial.id for trial in again.trials], again.attempt) == (ids[1:], 1)

    def test_its_late_results_change_nothing(self, farm: Farm) -> None:
        ids = farm.issue("t1")
        farm.leased("lease", now=20.0)
        leases.give_back(farm.session, "worker", "session", now=21.0)
        before = snapshot(farm)
        assert farm.report("lease", ids, now=22.0) == Reported(0, None, closed=False)
        assert not leases.renew(farm.session, "lease", "session", now=22.0, ttl_s=60.0)
        assert snapshot(farm) == before

    def test_is_of_the_session_only(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        assert leases.give_back(farm.session, "worker", "another", now=21.0) == []
        assert leases.give_back(farm.session, "other", "session", now=21.0) == []
        assert [trial.state for trial in farm.trials()] == ["leased"]

    def test_so_is_a_module_run(self, farm: Farm) -> None:
        add_run(farm)
        farm.leased("lease", now=20.0)
        leases.give_back(farm.session, "worker", "session", now=21.0)
        [run] = leases.module_runs(farm.session, "job")
        assert (run.state, run.attempts) == ("pending", 0)

    def test_a_finished_jobs_are_dropped(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        jobs.cancel(farm.session, "job", now=21.0)
        leases.give_back(farm.session, "worker", "session", now=22.0)
        assert farm.trials() == []

    def test_evicting_gives_back_too(self, farm: Farm) -> None:
        register_worker(farm)
        farm.issue("t1")
        farm.leased("lease", now=20.0)
        leases.evict(farm.session, "worker", now=21.0)
        assert [(trial.state, trial.attempts) for trial in farm.trials()] == [("pending", 0)]
        with pytest.raises(devices.WorkerNotFound, match="'x'"):
            leases.evict(farm.session, "x", now=21.0)


class TestPace:
    def test_comes_from_leases_that_were_worked_off(self, farm: Farm) -> None:
        register_worker(farm)
        ids = farm.issue("t1", "t2", "t3", "t4")
        farm.leased("one", limit=2, now=20.0)
        farm.report("one", ids[:1], now=22.0)
        assert devices.worker(farm.session, "worker").trial_s is None
        farm.report("one", ids[1:2], now=24.0)
        assert devices.worker(farm.session, "worker").trial_s == 2.0
        farm.leased("two", limit=2, now=30.0)
        farm.report("two", ids[2:], now=38.0)
        assert devices.worker(farm.session, "worker").trial_s == 3.0

    def test_a_clock_that_was_set_back_tells_nothing(self, farm: Farm) -> None:
        register_worker(farm)
        ids = farm.issue("t1")
        farm.leased("lease", now=20.0)
        farm.report("lease", ids, now=19.0)
        assert devices.worker(farm.session, "worker").trial_s is None

    def test_neither_does_a_module_run(self, farm: Farm) -> None:
        register_worker(farm)
        run_id = add_run(farm)
        farm.leased("lease", now=20.0)
        result = TrialResult(measured(1e-2), module_run_id=run_id)
        assert leases.report(farm.session, "lease", "session", [result], now=30.0).closed
        assert devices.worker(farm.session, "worker").trial_s is None

    def test_a_minutes_trials(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("old", limit=1, now=20.0)
        farm.report("old", ids[:1], now=30.0)
        farm.leased("lease", limit=2, now=1000.0)
        farm.report("lease", ids[1:2], now=1010.0)
        assert pace.trials_per_minute(farm.session, now=1030.0) == {"worker": 2.0}
        farm.report("lease", ids[2:], now=1040.0)
        assert pace.trials_per_minute(farm.session, now=1120.0) == {"worker": 1.0}
        assert pace.trials_per_minute(farm.session, now=9000.0) == {}

    def test_what_is_held(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("one", limit=1, now=20.0)
        farm.leased("two", limit=1, now=21.0)
        assert pace.held(farm.session, now=22.0) == [
            pace.Held("one", "worker", 20.0),
            pace.Held("two", "worker", 21.0),
        ]
        farm.report("one", ids[:1], now=23.0)
        assert [lease.id for lease in pace.held(farm.session, now=24.0)] == ["two"]
        assert pace.held(farm.session, now=81.0) == []


def register_worker(farm: Farm) -> None:
    devices.register(farm.session, "worker", "session", farm.device, devices.WorkerState.READY, 19.0)


class TestModuleRuns:
    def test_round_trip(self, farm: Farm) -> None:
        run_id = add_run(farm)
        farm.leased("lease")
        result = TrialResult(measured(1e-2), module_run_id=run_id)
        reported = leases.report(farm.session, "lease", "session", [result], now=30.0)
        assert reported == Reported(1, "job", closed=True)
        [run] = leases.module_runs(farm.session, "job")
        assert run == leases.ModuleRun(
            run_id,
            "job",
            "untuned",
            blobs.put(farm.session, b"artifact"),
            "done",
            0,
            Outcome.OK,
            (1e-2, 2e-2, 3e-2),
            "",
        )
        assert schedules.history(farm.session, DEVICE.key) == []

    def test_asking_again_is_the_same_run(self, farm: Farm) -> None:
        assert add_run(farm) == add_run(farm) != add_run(farm, "tuned")

    def test_the_job_and_the_artifact_come_first(self, farm: Farm) -> None:
        with pytest.raises(blobs.BlobNotFound):
            leases.add_module_run(farm.session, "job", "tuned", "feed", now=1.0)
        with pytest.raises(jobs.JobNotFound):
            leases.add_module_run(farm.session, "x", "tuned", "feed", now=1.0)


class TestManyWorkersAtOnce:
    def test_no_trial_is_leased_twice_and_none_is_lost(self, database: Database) -> None:
        issued, failures = self._issue(database, 60), []
        taken: list[int] = []

        def work(name: str) -> None:
            try:
                while batch := self._take_and_report(database, name, len(taken)):
                    taken.extend(batch)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(f"worker {number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert sorted(taken) == issued
        with database.begin() as session:
            assert trials.counts(session, "job") == trials.TrialCounts(0, 0, done=60)

    def test_evicting_and_expiring_meanwhile_loses_nothing(self, database: Database) -> None:
        names = [f"worker {number}" for number in range(3)]
        self._issue(database, 40)
        with database.begin() as session:
            for name in names:
                devices.register(session, name, "s", DEVICE, devices.WorkerState.READY, now=20.0)
        done, failures = threading.Event(), []

        def until_done(act: Callable[[int], None]) -> None:
            try:
                for turn in itertools.count():
                    if done.is_set():
                        return
                    act(turn)
            except Exception as error:
                failures.append(error)
                done.set()

        def work(name: str, turn: int) -> None:
            self._take_and_report_or_not(database, name, turn)
            with database.begin() as session:
                if trials.counts(session, "job").done == 40:
                    done.set()

        def meddle(turn: int) -> None:
            with database.begin() as session:
                leases.evict(session, names[turn % 3], now=20.0)
            with database.begin() as session:
                leases.expire(session, now=1000.0, max_attempts=1000)
            with database.begin() as session:
                devices.want(session, names[turn % 3], devices.Wanted.WORK)
            time.sleep(0.05)

        acts = [functools.partial(work, name) for name in names] + [meddle, meddle]
        threads = [threading.Thread(target=until_done, args=(act,)) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        with database.begin() as session:
            assert trials.counts(session, "job") == trials.TrialCounts(0, 0, done=40)
            assert {run.outcome for run in trials.for_task(session, self._task(session))} == {Outcome.OK}

    def test_events_reach_a_reader_in_order(self, database: Database) -> None:
        self._issue(database, 1)
        failures: list[Exception] = []

        def write(name: str) -> None:
            try:
                for number in range(15):
                    with database.begin() as session:
                        events.append(session, "job", "progress", {"n": f"{name} {number}"}, now=1.0)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(f"writer {number}",)) for number in range(3)]
        for thread in threads:
            thread.start()
        read: list[events.Event] = []
        while any(thread.is_alive() for thread in threads):
            read += self._read(database, read)
        read += self._read(database, read)
        assert failures == []
        assert len([event for event in read if event.kind == "progress"]) == 45

    def _issue(self, database: Database, count: int) -> list[int]:
        with database.begin() as session:
            return make_job(session, "job").issue(*(f"t{number}" for number in range(count)))

    def _take_and_report(self, database: Database, name: str, turn: int) -> list[int]:
        with database.begin() as session:
            lease = leases.take(session, f"{name}, {turn}", name, "s", DEVICE.key, 3, now=20.0, ttl_s=60.0)
        if lease is None:
            return []
        results = [TrialResult(measured(1e-3), trial.id) for trial in lease.trials]
        with database.begin() as session:
            assert leases.report(session, lease.id, "s", results, now=30.0).closed
        return [trial.id for trial in lease.trials]

    def _take_and_report_or_not(self, database: Database, name: str, turn: int) -> None:
        """What a server does for a worker in two calls; the lease may be gone at the second."""
        with database.begin() as session:
            devices.seen(session, name, "s", devices.WorkerState.READY, 20.0)
            if not devices.may_take(session, name, "s"):
                return
            whose = (f"{name}, turn {turn}", name, "s", DEVICE.key)
            lease = leases.take(session, *whose, limit=3, now=20.0, ttl_s=60.0)
        if lease is not None:
            results = [TrialResult(measured(1e-3), trial.id) for trial in lease.trials]
            with database.begin() as session:
                if devices.seen(session, name, "s", devices.WorkerState.READY, 30.0) is not None:
                    leases.report(session, lease.id, "s", results, now=30.0)

    def _task(self, session: Session) -> int:
        [task] = tasks.for_job(session, "job")
        return task.id

    def _read(self, database: Database, read: list[events.Event]) -> list[events.Event]:
        with database.begin() as session:
            return events.since(session, "job", read[-1].id if read else 0, 1000)


def test_constants_are_those_of_the_workloads_in_the_lease(farm: Farm) -> None:
    tasks.put_workload(farm.session, "w2", "{}")
    tasks.add_tasks(farm.session, "job", [replace(task_spec("job", "w2"), constants=())])
    [_, second] = tasks.for_job(farm.session, "job")
    new = trials.NewTrial(second.id, "w2", None, "t", 0.0)
    trials.add(farm.session, "job", 1, [new], now=10.0)
    assert farm.leased("lease").constants == {"w2": ()}


class TestBest:
    def test_none_is_known_at_first(self, farm: Farm) -> None:
        farm.issue("t1")
        assert farm.leased("lease").best_s == {}

    def test_is_the_fastest_trial_of_the_workload(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3", "t4")
        farm.leased("first", limit=3)
        farm.report("first", ids[:1], secs=2e-3)
        farm.report("first", ids[1:2], secs=1e-3)
        farm.report("first", ids[2:3], secs=None)
        assert farm.leased("second").best_s == {"w1": 2e-3}
        held = leases.current(farm.session, "worker", "session", now=31.0)
        assert held is not None
        assert held.best_s == {"w1": 2e-3}

    def test_is_of_the_device_class(self, farm: Farm) -> None:
        other = make_job(farm.session, "other", replace(DEVICE, cores=8))
        other.report("theirs", [trial.id for trial in _leased(other, "theirs", "t1").trials])
        assert _leased(farm, "mine", "t1").best_s == {}
        assert _leased(other, "again", "t2").best_s == {"w1": 2e-3}

    def test_what_was_measured_elsewhere_does_not_count(self, farm: Farm) -> None:
        target = farm.device.target
        fast = schedules.Record(
            "w1", farm.device.key, "t9", None, 1e-9, (1e-9,), Outcome.OK, target, "import", 1.0
        )
        assert schedules.add_imported(farm.session, [fast], now=1.0) == 1
        assert _leased(farm, "lease", "t1").best_s == {}


def _leased(farm: Farm, lease_id: str, trace: str) -> leases.Lease:
    farm.issue(trace)
    return farm.leased(lease_id)
