from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from core.measurement import Measurement, Outcome
from records import devices
from records.fleet import leases
from records.fleet.results import LeaseResult
from records.jobs import jobs, tasks, trials
from records.storage.statements import dialect_of
from records.storage.tables import JobRow
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, make_job, measured, put_measured, record, task_spec


class TestWorkloads:
    def test_a_stored_value_survives_a_round_trip(self, session: Session) -> None:
        tasks.put_workload(session, "w1", '{"nodes": []}')
        tasks.put_workload(session, "w1", "a repetition")
        assert tasks.workload(session, "w1") == '{"nodes": []}'
        assert tasks.workloads(session, ["w1", "w2"]) == {"w1": '{"nodes": []}'}

    def test_a_workload_hashed_here_replaces_a_clients_workload(self, session: Session) -> None:
        tasks.put_workload(session, "w1", "[1]")
        tasks.put_workload(session, "w1", "{}", hashed_here=True)
        tasks.put_workload(session, "w1", "[2]")
        assert tasks.workload(session, "w1") == "{}"

    def test_a_tag_is_learned_once(self, session: Session) -> None:
        devices.put_class(session, DEVICE)
        for tag in (None, "SSR2:9", "another"):
            tasks.put_workload(session, "w1", "{}", tag)
        tasks.put_workload(session, "w2", "{}", "SSR2:9")
        tasks.put_workload(session, "w3", "{}")
        assert tasks.tags(session, DEVICE.key) == {}
        for name, latency_s in (("w1", 1e-3), ("w2", None), ("w3", 1e-3)):
            put_measured(session, record("t", latency_s, workload_hash=name))
        assert tasks.tags(session, DEVICE.key) == {"w1": "SSR2:9"}
        assert tasks.tags(session, "another class") == {}

    def test_an_unknown_workload_is_not_found(self, session: Session) -> None:
        with pytest.raises(tasks.WorkloadNotFound, match="'w9'"):
            tasks.workload(session, "w9")


class TestTasks:
    def test_a_stored_value_survives_a_round_trip(self, farm: Farm) -> None:
        [task] = tasks.for_job(farm.session, "job")
        assert task == tasks.Task(
            farm.task_id, "job", "w1", "conv2d", 3, 2.5e8, True, "", trials=0, best_s=None, constants=(1, 2)
        )

    def test_adding_again_changes_nothing(self, farm: Farm) -> None:
        before = tasks.for_job(farm.session, "job")
        tasks.put_workload(farm.session, "w2", "{}")
        tasks.add_tasks(farm.session, "job", [task_spec("job"), task_spec("job", "w2")])
        after = tasks.for_job(farm.session, "job")
        assert after[:1] == before
        assert [task.workload_hash for task in after] == ["w1", "w2"]

    def test_the_index_starts_with_the_workload(self, farm: Farm) -> None:
        with pytest.raises(tasks.WorkloadNotFound):
            tasks.add_tasks(farm.session, "job", [task_spec("job", "w9")])

    def test_a_task_counts_trials_and_keeps_its_best_latency(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("lease")
        farm.report("lease", ids[:1], secs=4e-3)
        farm.report("lease", ids[1:2], secs=3e-3)
        farm.report("lease", ids[2:], secs=None)
        [task] = tasks.for_job(farm.session, "job")
        assert (task.trials, task.best_s) == (3, 6e-3)

    def test_a_jobs_latency_is_estimated_once_each_subgraph_is_measured(self, farm: Farm) -> None:
        session = farm.session
        for name in ("w2", "winograd"):
            tasks.put_workload(session, name, "{}")
        variant = replace(task_spec("job", "winograd"), variant="winograd", variant_of="w2")
        tasks.add_tasks(session, "job", [task_spec("job", "w2"), variant])
        put_measured(session, record("t", 1e-3), record("t", None, workload_hash="w2"))
        assert tasks.estimates(session, ["job"]) == {}
        put_measured(session, record("t", 2e-3, workload_hash="winograd"))
        assert tasks.estimates(session, ["job", "nobody"]) == {"job": pytest.approx(3 * 1e-3 + 3 * 2e-3)}
        make_job(session, "elsewhere", replace(DEVICE, cores=7))
        assert tasks.estimates(session, ["elsewhere"]) == {}

    def test_the_best_of_other_jobs_counts_but_their_trials_do_not(self, farm: Farm) -> None:
        ids = farm.issue("t1")
        farm.leased("lease")
        farm.report("lease", ids, secs=4e-3)
        other = make_job(farm.session, "other")
        [task] = tasks.for_job(other.session, "other")
        assert (task.trials, task.best_s) == (0, 8e-3)

    def test_what_is_known_before_a_job_leaves_out_its_own_measurements(self, farm: Farm) -> None:
        ids = farm.issue("t1")
        farm.leased("lease")
        farm.report("lease", ids, secs=4e-3)
        other = make_job(farm.session, "other")
        farm.session.get_one(JobRow, "other").created_at = 1e9
        assert tasks.known_before(farm.session, "job") == {}
        assert tasks.known_before(farm.session, "other") == {other.task_id: 8e-3}


class TestTrials:
    def test_a_stored_value_survives_a_round_trip(self, farm: Farm) -> None:
        [trial_id] = farm.issue("t1")
        [trial] = farm.trials()
        assert trial == trials.Trial(
            trial_id, "job", farm.task_id, "w1", {"trace": "t1"}, "t1", "pending", 0, None, (), ""
        )
        assert trial.latency_s is None

    def test_results_round_trip(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2")
        farm.leased("lease")
        farm.report("lease", ids[:1], secs=1e-3)
        farm.report("lease", ids[1:], secs=None)
        good, bad = farm.trials()
        assert (good.outcome, good.run_s, good.latency_s) == (Outcome.OK, (1e-3, 2e-3, 3e-3), 2e-3)
        assert (bad.outcome, bad.run_s, bad.latency_s) == (Outcome.BUILD_ERROR, (), None)
        assert bad.error == "no such intrinsic"

    def test_a_trace_is_issued_once_by_a_job(self, farm: Farm) -> None:
        first = farm.issue("t1", "t2")
        assert len(first) == 2
        again = farm.issue("t2", "t3", "t3")
        assert [trial.trace for trial in farm.trials()] == ["t1", "t2", "t3"]
        assert again == [farm.trials()[2].id]

    def test_another_job_may_issue_the_same_trace(self, farm: Farm) -> None:
        farm.issue("t1")
        assert len(make_job(farm.session, "other").issue("t1")) == 1

    def test_a_finished_job_gets_no_trials(self, farm: Farm) -> None:
        jobs.cancel(farm.session, "job", now=5.0)
        assert farm.issue("t1") == []
        assert farm.trials() == []

    def test_an_unknown_job_is_refused(self, farm: Farm) -> None:
        with pytest.raises(jobs.JobNotFound):
            trials.add(farm.session, "x", 0, [], now=1.0)

    def test_a_task_with_only_a_measured_import_has_no_first_guess(self, farm: Farm) -> None:
        assert trials.attempted_tasks(farm.session, "job") == set()
        imported = trials.NewTrial(farm.task_id, "w1", None, "t0", 1e-3)
        trials.add(farm.session, "job", 0, [imported], now=1.0)
        assert trials.attempted_tasks(farm.session, "job") == {farm.task_id}, "it waits for a device"
        farm.report("first", [trial.id for trial in farm.leased("first").trials])
        assert trials.attempted_tasks(farm.session, "job") == set()
        farm.issue("t1", "t2")
        farm.report("second", [trial.id for trial in farm.leased("second").trials])
        assert trials.attempted_tasks(farm.session, "job") == {farm.task_id}
        assert trials.attempted_tasks(farm.session, "other") == set()

    def test_a_guess_that_cannot_be_compiled_is_replaced_twice(self, farm: Farm) -> None:
        for guess in range(trials.MAX_GUESSES):
            assert trials.attempted_tasks(farm.session, "job") == set()
            farm.issue(f"t{guess}")
            assert trials.attempted_tasks(farm.session, "job") == {farm.task_id}, "it waits for a device"
            [trial] = farm.leased(f"lease {guess}").trials
            failed = LeaseResult(Measurement(Outcome.BUILD_ERROR, error="LLVM ERROR"), trial.id)
            leases.report(farm.session, f"lease {guess}", "session", [failed], now=30.0)
        assert trials.attempted_tasks(farm.session, "job") == {farm.task_id}

    def test_dropping_keeps_leased_trials(self, farm: Farm) -> None:
        farm.issue("t1", "t2", "t3")
        farm.leased("lease", limit=1)
        assert trials.drop_pending(farm.session, "job") == 2
        assert [trial.state for trial in farm.trials()] == ["leased"]

    def test_ids_of_deleted_trials_are_not_reused(self, farm: Farm) -> None:
        dropped = farm.issue("t1", "t2")
        trials.drop_pending(farm.session, "job")
        assert min(farm.issue("t3")) > max(dropped)

    @pytest.mark.parametrize("predicted_s", [math.inf, math.nan, -1.0])
    def test_predictions_are_stored_in_seconds(self, predicted_s: float) -> None:
        with pytest.raises(ValueError, match="predicted_s"):
            trials.NewTrial(1, "w1", None, "t", predicted_s)


class TestDone:
    """What is shown of a job's trials."""

    def done(self, farm: Farm) -> list[int]:
        """Store a trial that went well, a failed one, and one that is faster than both; another is open."""
        ids = farm.issue("a", "b", "c")
        farm.leased("l1")
        for number, (trial_id, secs) in enumerate(zip(ids, (4e-3, None, 1e-3), strict=True)):
            farm.report("l1", [trial_id], secs, now=30.0 + number)
        farm.issue("open")
        return ids

    def test_measured_trials_are_listed_in_the_order_they_ended(self, farm: Farm) -> None:
        self.done(farm)
        expected = [(30.0, 8e-3), (31.0, None), (32.0, 2e-3)]  # of 1, 2 and 3 times the seconds
        assert trials.measured(farm.session, "job") == [(farm.task_id, *one) for one in expected]

    def test_improvements_are_faster_than_all_earlier_trials(self, farm: Farm) -> None:
        ids = farm.issue(*"abcdefg")
        farm.leased("l1")
        secs = (None, 4e-3, 5e-3, 4e-3, 2e-3, 3e-3, 1e-3)
        for number, trial_id in enumerate(ids):
            farm.report("l1", [trial_id], secs[number], now=30.0 + number)
        expected = [(31.0, 8e-3), (34.0, 4e-3), (36.0, 2e-3)]
        assert trials.improvements(farm.session, ["job"]) == [(farm.task_id, *one) for one in expected]

    @pytest.mark.parametrize("moments", [(1,), (1, 2), (1, 3, 3, 3, 5), (1, 1, 1, 1), (1, 2, 3, 4, 4, 7)])
    def test_the_pace_is_that_of_all_finished_trials(self, farm: Farm, moments: tuple[int, ...]) -> None:
        ids = farm.issue(*(f"t{number}" for number in range(8)))
        farm.leased("l1")
        assert trials.pace(farm.session, ["job"]) is None
        for trial_id, now in zip(ids, moments, strict=False):
            farm.report("l1", [trial_id], None if trial_id % 2 else 1e-3, now=30.0 + now)
        assert trials.pace(farm.session, ["job"]) == trials.Pace.of([30.0 + now for now in moments])

    def test_successful_trials_are_listed_with_their_predictions(self, farm: Farm) -> None:
        self.done(farm)
        assert trials.predictions(farm.session, farm.task_id) == [(2e-3, 1e-3, None), (8e-3, 1e-3, None)]

    def test_failures_are_counted(self, farm: Farm) -> None:
        self.done(farm)
        [failure] = trials.failures(farm.session, "job", 5)
        assert (failure.outcome, failure.trials) == (measured(None).outcome, 1)

    def test_an_index_covers_the_measured_trials(self, farm: Farm) -> None:
        self.done(farm)
        if dialect_of(farm.session) != "sqlite":
            pytest.skip("PostgreSQL reads small tables from beginning to end")
        plans = []

        def explain(_connection: object, cursor: sqlite3.Cursor, statement: str, *rest: Any) -> None:
            if statement.startswith("SELECT"):
                explained = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", rest[0])
                plans.append(" ".join(row[3] for row in explained))

        connection = farm.session.connection()
        event.listen(connection, "before_cursor_execute", explain)
        trials.measured(farm.session, "job")
        trials.failures(farm.session, "job", 5)
        event.remove(connection, "before_cursor_execute", explain)
        assert "COVERING INDEX ix_trials_done" in plans[0]
        assert "TEMP B-TREE" not in plans[0]
        assert "INDEX ix_trials_done" in plans[1]
