"""Reports of results, and their effects."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.measurement import Measurement, Outcome
from core.worker import WorkerState
from records.fleet import leases, workers
from records.fleet.leases import ReportEffect
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import events, jobs, trials
from records.schedules import schedules
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, best, make_job, measured


class TestReport:
    def test_a_report_stores_results_and_records_and_closes_the_lease(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease")
        first = farm.report("lease", ids[:1], secs=1e-3)
        assert first == ReportEffect(1, "job", closed=False, worth_planning=True)
        assert farm.report("lease", ids[1:], secs=None) == ReportEffect(1, "job", closed=True)
        assert [trial.state for trial in farm.trials()] == ["done", "done"]
        assert best(farm.session, "w1", DEVICE.key) == schedules.Record(
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

    def test_a_report_appends_a_progress_event(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("lease", limit=2)
        farm.report("lease", ids[:2])
        last = events.since(farm.session, "job", 0, 100)[-1]
        assert (last.kind, last.data) == ("progress", {"trials_done": 2, "trials_issued": 3})

    def test_every_32_results_of_a_lease_are_worth_planning(self, farm: Farm) -> None:
        ids = farm.issue(*(f"t{number}" for number in range(80)))
        workers.register(farm.session, WorkerSession("worker", "session", WorkerState.READY, DEVICE), 1.0)
        assert len(farm.leased("first").trials) == 8
        assert not farm.report("first", ids[:8], now=20.8).worth_planning, "it is closed"
        assert len(farm.leased("lease", limit=70, now=21.0).trials) == 70
        worth = [farm.report("lease", [trial_id], now=22.0).worth_planning for trial_id in ids[8:78]]
        assert [number for number, one in enumerate(worth, 1) if one] == [32, 64]

    def test_half_of_a_lease_is_worth_planning_if_nothing_else_is_pending(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3", "t4", "t5", "t6", "t7")
        farm.leased("first", limit=3)
        assert not any(farm.report("first", [one], now=20.2).worth_planning for one in ids[:3])
        assert len(farm.leased("second", now=21.0).trials) == 4
        worth = [farm.report("second", [one], now=22.0).worth_planning for one in ids[3:]]
        assert worth == [False, True, False, False]

    def test_half_of_the_runs_of_a_lease_are_not_worth_planning(self, farm: Farm) -> None:
        runs = [farm.add_run("untuned"), farm.add_run("tuned")]
        farm.leased("lease")
        first = LeaseResult(measured(1e-3), module_run_id=runs[0])
        assert not leases.report(farm.session, "lease", "session", [first], now=30.0).worth_planning

    def test_a_duplicate_changes_nothing(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease")
        farm.report("lease", ids[:1], secs=1e-3)
        before = farm.snapshot()
        assert farm.report("lease", ids[:1], secs=5e-3) == ReportEffect(0, "job", closed=False)
        assert farm.snapshot() == before
        assert farm.report("lease", ids, secs=5e-3).accepted == 1
        assert farm.report("lease", ids, secs=5e-3) == ReportEffect(0, None, closed=False)

    def test_a_result_repeated_in_one_report_counts_once(self, farm: Farm) -> None:
        [trial_id] = farm.issue("t1")
        farm.leased("lease")
        assert farm.report("lease", [trial_id, trial_id]) == ReportEffect(1, "job", closed=True)

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
        before = farm.snapshot()
        results = [LeaseResult(measured(1e-3), ids[0])]
        assert leases.report(farm.session, lease_id, session_id, results, now) == ReportEffect(0, None, False)
        assert farm.snapshot() == before

    def test_a_late_result_of_a_reassigned_trial_is_ignored(self, farm: Farm) -> None:
        ids = farm.issue("t1")
        farm.leased("first", now=20.0)
        leases.expire(farm.session, now=80.0)
        farm.leased("second", now=81.0)
        before = farm.snapshot()
        assert farm.report("first", ids, now=82.0).accepted == 0
        assert farm.snapshot() == before
        assert farm.report("second", ids, now=83.0).accepted == 1

    def test_results_for_trials_of_another_lease_are_ignored(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("one", limit=1)
        farm.leased("two", limit=1)
        before = farm.snapshot()
        assert farm.report("one", ids[1:]) == ReportEffect(0, "job", closed=False)
        assert farm.snapshot() == before

    def test_an_empty_report_changes_nothing(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease")
        before = farm.snapshot()
        assert farm.report("lease", []) == ReportEffect(0, "job", closed=False)
        assert farm.snapshot() == before

    def test_any_error_text_can_be_stored(self, farm: Farm) -> None:
        [trial_id] = farm.issue("t1")
        farm.leased("lease")
        crash = Measurement(Outcome.RUN_ERROR, error="\x00\ud800 Segmentation fault")
        leases.report(farm.session, "lease", "session", [LeaseResult(crash, trial_id)], now=30.0)
        assert farm.trials()[0].error == "\ufffd? Segmentation fault"

    def test_a_result_belongs_to_a_trial_or_a_module_run(self) -> None:
        for ids in ((None, None), (1, 1)):
            with pytest.raises(ValueError, match="exactly one id"):
                LeaseResult(measured(1.0), *ids)

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(order=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["one", "two"])), max_size=12))
    def test_each_trial_counts_once_in_any_order_of_reports(
        self, farm: Farm, order: list[tuple[int, str]]
    ) -> None:
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
