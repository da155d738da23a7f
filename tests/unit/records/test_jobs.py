from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from core.job import MAX_PRIORITY, TF32, Budget, JobState
from records import devices
from records.fleet import leases, module_runs
from records.jobs import events, jobs, models, tasks, trials
from records.storage import blobs
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, make_job, request, task_spec


def create(session: Session, job_id: str, now: float = 1.0, key: str | None = None) -> jobs.Job:
    return jobs.create(session, job_id, request(session), jobs.Submission(now, key))


def states(session: Session, job_id: str) -> list[str]:
    happened = events.since(session, job_id, 0, 100)
    return [event.data["state"] for event in happened if event.kind == "state"]


class TestRequest:
    def test_a_seed_must_fit_a_column(self, session: Session) -> None:
        with pytest.raises(ValueError, match="seed"):
            request(session, seed=2**63)
        assert request(session, seed=2**63 - 1)

    @pytest.mark.parametrize("weight", [0.0, -1.0, 1001.0, float("nan"), float("inf")])
    def test_a_weight_must_be_within_bounds(self, session: Session, weight: float) -> None:
        with pytest.raises(ValueError, match=r"weight must be between 0\.001 and 1000"):
            request(session, weight=weight)

    def test_a_priority_must_fit_a_column(self, session: Session) -> None:
        with pytest.raises(ValueError, match="priority must be between"):
            request(session, priority=MAX_PRIORITY + 1)

    def test_an_exact_job_has_no_tf32(self, session: Session) -> None:
        with pytest.raises(ValueError, match="tf32 is not exact"):
            request(session, exact=True, tf32=True)

    def test_extents_must_be_positive(self, session: Session) -> None:
        with pytest.raises(ValueError, match="'data' must be positive"):
            request(session, shapes={"data": (1, 0)})


class TestCreate:
    def test_a_stored_value_survives_a_round_trip(self, session: Session) -> None:
        sharing = {"priority": -3, "weight": 0.25}
        asked = request(
            session, shapes={"a": (1, 3), "b": ()}, budget=Budget(12, 2.5), seed=2**63 - 1, **sharing
        )
        created = jobs.create(session, "job", asked, jobs.Submission(5.0))
        assert created.request == asked
        assert (created.state, created.created_at, created.message) == (JobState.QUEUED, 5.0, "")
        assert (created.trials_done, created.trials_issued) == (0, 0)
        assert (created.started_at, created.finished_at, created.error) == (None, None, None)
        assert (created.untuned_s, created.tuned_s) == (None, None)
        assert jobs.get(session, "job") == created
        assert states(session, "job") == ["queued"]

    def test_without_a_key_each_is_a_new_job(self, session: Session) -> None:
        assert create(session, "a").id == "a"
        assert create(session, "b").id == "b"

    def test_the_same_key_and_request_return_the_first_job(self, session: Session) -> None:
        create(session, "a", key="key")
        assert create(session, "b", now=9.0, key="key") == jobs.get(session, "a")
        assert [job.id for job in jobs.unfinished(session)] == ["a"]

    def test_the_same_key_with_another_request_conflicts(self, session: Session) -> None:
        create(session, "a", key="key")
        with pytest.raises(jobs.IdempotencyConflict, match="'key' belongs to another request"):
            jobs.create(session, "b", request(session, budget=Budget(7)), jobs.Submission(1.0, "key"))

    def test_an_unknown_model_is_refused(self, session: Session) -> None:
        with pytest.raises(models.ModelNotFound):
            jobs.create(session, "a", request(session, model_sha="feed"), jobs.Submission(1.0))

    def test_an_unknown_job_is_not_found(self, session: Session) -> None:
        with pytest.raises(jobs.JobNotFound, match="there is no job 'x'"):
            jobs.get(session, "x")


class TestLists:
    def test_pages_run_from_the_newest(self, session: Session) -> None:
        for job_id, now in (("a", 1.0), ("b", 2.0), ("c", 2.0), ("d", 3.0)):
            create(session, job_id, now)
        first = [job.id for job in jobs.list_jobs(session, 2, None)]
        second = [job.id for job in jobs.list_jobs(session, 2, first[-1])]
        assert (first, second) == (["d", "c"], ["b", "a"])
        assert jobs.list_jobs(session, 2, "a") == []

    def test_an_unknown_cursor_is_refused(self, session: Session) -> None:
        with pytest.raises(jobs.JobNotFound):
            jobs.list_jobs(session, 2, "x")

    def test_unfinished_jobs_are_listed_from_the_oldest(self, session: Session) -> None:
        for job_id, now in (("a", 3.0), ("b", 2.0), ("c", 1.0)):
            create(session, job_id, now)
        jobs.cancel(session, "b", now=4.0)
        assert [job.id for job in jobs.unfinished(session)] == ["c", "a"]


class TestPublished:
    def test_tf32_artifacts_need_an_explicit_request(self, session: Session) -> None:
        for job_id, variant in (("in float32", ""), ("in TF32", TF32)):
            make_job(session, job_id, tf32=True)
            tasks.put_workload(session, "w2", "{}")
            other = replace(task_spec(job_id, "w2"), variant=variant, variant_of="w1")
            tasks.add_tasks(session, job_id, [other])
            jobs.set_artifacts(session, job_id, tuned_sha=blobs.put(session, b"artifact"))
            jobs.advance(session, job_id, {JobState.TUNING}, JobState.DONE, now=2.0)
        sha = jobs.get(session, "in TF32").request.model_sha
        given = {
            tf32: {job.id for job in jobs.published(session, sha, DEVICE.key, tf32=tf32)}
            for tf32 in (False, True)
        }
        assert given == {False: {"in float32"}, True: {"in float32", "in TF32"}}


class TestClaim:
    def test_only_one_scheduler_holds_a_job(self, session: Session) -> None:
        create(session, "job")
        assert jobs.claim_job(session, "job", "one", now=1.0, ttl_s=10.0)
        assert not jobs.claim_job(session, "job", "two", now=10.9, ttl_s=10.0)
        assert jobs.claim_job(session, "job", "two", now=11.0, ttl_s=10.0)
        assert not jobs.claim_job(session, "job", "one", now=12.0, ttl_s=10.0)

    def test_the_holder_renews_a_claim(self, session: Session) -> None:
        create(session, "job")
        jobs.claim_job(session, "job", "one", now=1.0, ttl_s=10.0)
        assert jobs.claim_job(session, "job", "one", now=9.0, ttl_s=10.0)
        assert not jobs.claim_job(session, "job", "two", now=18.0, ttl_s=10.0)

    def test_a_released_job_can_be_claimed(self, session: Session) -> None:
        create(session, "job")
        jobs.claim_job(session, "job", "one", now=1.0, ttl_s=10.0)
        jobs.release_claim(session, "job", "two")
        assert not jobs.claim_job(session, "job", "two", now=2.0, ttl_s=10.0)
        jobs.release_claim(session, "job", "one")
        assert jobs.claim_job(session, "job", "two", now=2.0, ttl_s=10.0)

    def test_a_job_that_ended_is_not_claimed(self, session: Session) -> None:
        """It may end between a scheduler's look at its state and the claim."""
        create(session, "job")
        jobs.cancel(session, "job", now=2.0)
        assert not jobs.claim_job(session, "job", "one", now=3.0, ttl_s=10.0)

    def test_an_unknown_job_cannot_be_claimed(self, session: Session) -> None:
        assert not jobs.claim_job(session, "x", "one", now=1.0, ttl_s=10.0)


class TestAdvance:
    def test_a_job_advances_through_all_states(self, session: Session) -> None:
        create(session, "job")
        path = [JobState.QUEUED, JobState.IMPORTING, JobState.TUNING, JobState.PUBLISHING, JobState.DONE]
        for now, (state, to) in enumerate(itertools.pairwise(path), start=2):
            assert jobs.advance(session, "job", {state}, to, now=float(now), message=f"is {to}")
        job = jobs.get(session, "job")
        assert (job.state, job.message, job.started_at, job.finished_at) == (
            JobState.DONE,
            "is done",
            2.0,
            5.0,
        )
        assert states(session, "job") == path

    def test_a_stale_step_changes_nothing(self, session: Session) -> None:
        before = create(session, "job")
        assert not jobs.advance(session, "job", {JobState.TUNING}, JobState.PUBLISHING, now=2.0)
        assert not jobs.advance(session, "x", set(JobState), JobState.DONE, now=2.0)
        assert jobs.get(session, "job") == before
        assert states(session, "job") == ["queued"]

    def test_a_failed_job_keeps_its_error(self, session: Session) -> None:
        create(session, "job")
        jobs.advance(session, "job", {JobState.QUEUED}, JobState.FAILED, now=2.0, error="no operator Foo")
        assert jobs.get(session, "job").error == "no operator Foo"
        assert events.since(session, "job", 0, 9)[-1].data["error"] == "no operator Foo"

    def test_only_final_states_are_finished(self) -> None:
        assert {state for state in JobState if state.finished} == {"done", "failed", "cancelled"}


class TestCancel:
    def test_cancelling_drops_pending_trials_and_lets_leases_lapse(self, farm: Farm) -> None:
        first, second = farm.issue("t1", "t2")
        sha = blobs.put(farm.session, b"artifact")
        farm.leased("lease", limit=1)
        module_runs.add(farm.session, "job", "untuned", sha, now=10.0)
        assert jobs.cancel(farm.session, "job", now=21.0).state is JobState.CANCELLED
        assert [(trial.id, trial.state) for trial in farm.trials()] == [(first, "leased")]
        assert module_runs.of_job(farm.session, "job") == []
        assert farm.report("lease", [first]).accepted == 1
        assert second not in [trial.id for trial in farm.trials()]

    def test_work_of_a_cancelled_job_is_not_leased_again(self, farm: Farm) -> None:
        farm.issue("t1")
        farm.leased("lease")
        jobs.cancel(farm.session, "job", now=21.0)
        assert leases.expire(farm.session, now=100.0) == ["job"]
        assert farm.trials() == []
        assert farm.take("other", now=101.0) is None

    def test_a_finished_job_keeps_its_state(self, session: Session) -> None:
        create(session, "job")
        jobs.advance(session, "job", {JobState.QUEUED}, JobState.DONE, now=2.0)
        assert jobs.cancel(session, "job", now=3.0).state is JobState.DONE
        assert jobs.get(session, "job").finished_at == 2.0

    def test_an_unknown_job_is_not_found(self, session: Session) -> None:
        with pytest.raises(jobs.JobNotFound):
            jobs.cancel(session, "x", now=3.0)


class TestSetters:
    def test_a_stored_value_survives_a_round_trip(self, session: Session) -> None:
        create(session, "job")
        devices.put_class(session, DEVICE)
        one, two = blobs.put(session, b"1"), blobs.put(session, b"2")
        assert jobs.set_device_class(session, "job", DEVICE.key)
        assert jobs.set_message(session, "job", "waiting for a device")
        assert jobs.set_artifacts(session, "job", untuned_sha=one)
        assert jobs.set_artifacts(session, "job", tuned_sha=two)
        assert jobs.set_end_to_end(session, "job", "untuned", [0.2, 0.25])
        assert jobs.set_end_to_end(session, "job", "tuned", (0.1,))
        job = jobs.get(session, "job")
        assert (job.device_class, job.message) == (DEVICE.key, "waiting for a device")
        assert (job.untuned_artifact_sha, job.artifact_sha) == (one, two)
        assert (job.untuned_s, job.tuned_s) == ((0.2, 0.25), (0.1,))

    def test_a_cancelled_job_ignores_results(self, session: Session) -> None:
        create(session, "job")
        devices.put_class(session, DEVICE)
        sha = blobs.put(session, b"1")
        before = jobs.cancel(session, "job", now=2.0)
        assert not jobs.set_device_class(session, "job", DEVICE.key)
        assert not jobs.set_message(session, "job", "still here")
        assert not jobs.set_artifacts(session, "job", tuned_sha=sha)
        assert not jobs.set_end_to_end(session, "job", "tuned", [0.1])
        assert jobs.get(session, "job") == before

    def test_an_unknown_device_class_is_refused(self, session: Session) -> None:
        create(session, "job")
        with pytest.raises(devices.DeviceClassNotFound):
            jobs.set_device_class(session, "job", "feed")


class TestProgress:
    def test_a_job_counts_only_trials_of_that_job(self, farm: Farm) -> None:
        ids = farm.issue("t1", "t2", "t3")
        farm.leased("lease", limit=2)
        farm.report("lease", ids[:1])
        job = jobs.get(farm.session, "job")
        assert (job.trials_done, job.trials_issued) == (1, 3)
        assert trials.counts(farm.session, "job") == trials.TrialCounts(pending=1, leased=1, done=1)
