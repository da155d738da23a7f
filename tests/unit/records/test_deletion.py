"""Deleting a finished job deletes its rows, and files without references."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import func, inspect, select
from sqlalchemy.orm import Session

from core.job import JobState, Quantize
from core.quantization import OutputAccuracy, Quantization
from records.fleet import leases, module_runs
from records.jobs import deletion, jobs, models, quantized_models, tasks
from records.jobs.deletion import UPLOAD_GRACE_S, JobInUse, delete_job, drop_blobs, drop_uploads
from records.jobs.models import UploadKind
from records.schedules import schedules
from records.storage import blobs
from records.storage.database import Database
from records.storage.tables import Base, BlobRow, ChunkRow
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, make_job, request

LATER = 2.0 + UPLOAD_GRACE_S


def finish(session: Session, job_id: str = "job", state: JobState = JobState.DONE) -> None:
    jobs.advance(session, job_id, {JobState.TUNING}, state, now=40.0)


def rows(session: Session) -> dict[str, int]:
    counts = {
        name: session.scalar(select(func.count()).select_from(table))
        for name, table in Base.metadata.tables.items()
    }
    return {name: count for name, count in counts.items() if count}


def full(session: Session, job_id: str = "job") -> Farm:
    """Return a job with rows in every table."""
    farm = make_job(session, job_id)
    first, _ = farm.issue("t1", "t2")
    farm.leased(f"lease of {job_id}")
    farm.report(f"lease of {job_id}", [first])
    sha = blobs.put(session, f"untuned {job_id}".encode())
    jobs.set_artifacts(session, job_id, untuned_sha=sha, tuned_sha=blobs.put(session, b"tuned"))
    module_runs.add(session, job_id, "tuned", blobs.put(session, b"timed"), now=20.0)
    return farm


class TestJobs:
    def test_deleting_a_job_deletes_only_rows_of_that_job(self, session: Session) -> None:
        full(session)
        finish(session)
        before = rows(session)
        delete_job(session, "job", now=50.0)
        left = rows(session)
        assert set(before) - set(left) == {"jobs", "tasks", "trials", "leases", "events", "shares"}
        assert left == {name: before[name] for name in left}
        assert len(schedules.successes(session, Farm(session, "job", 1).device.key, ["w1"])) == 1
        assert tasks.workload(session, "w1") == "{}"

    def test_every_table_that_refers_to_jobs_is_emptied(self, session: Session) -> None:
        """This test fails if a new table is forgotten."""
        found = inspect(session.connection())
        referring = {
            name
            for name in Base.metadata.tables
            if any(key["referred_table"] == "jobs" for key in found.get_foreign_keys(name))
        }
        # A release keeps its job.
        assert referring == {table.__tablename__ for table in deletion._JOB_TABLES} | {"releases"}

    def test_deleting_a_job_keeps_rows_of_other_jobs(self, session: Session) -> None:
        full(session, "other")
        before = rows(session)
        make_job(session, "job").issue("t3")
        finish(session)
        delete_job(session, "job", now=50.0)
        assert rows(session) == before
        assert jobs.get(session, "other").state is JobState.TUNING

    @pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED])
    def test_a_lease_of_a_deleted_job_is_stale(self, session: Session, state: JobState) -> None:
        farm = full(session)
        finish(session, state=state)
        delete_job(session, "job", now=50.0)
        stale = farm.report("lease of job", [2], now=51.0)
        assert (stale.accepted, stale.job_id) == (0, None)
        assert not leases.renew(session, "lease of job", "session", 51.0, 60.0)
        assert leases.current(session, "worker", "session", 51.0) is None

    def test_a_large_job_is_deleted_a_few_rows_at_a_time(self, session: Session) -> None:
        farm = full(session)
        farm.report("lease of job", [trial.id for trial in farm.trials()])
        farm.issue(*(f"more {number}" for number in range(7)))
        farm.report("another", [trial.id for trial in farm.leased("another").trials])
        finish(session, state=JobState.FAILED)
        turns = 1
        while not delete_job(session, "job", now=50.0, limit=2):
            turns += 1
            assert leases.current(session, "worker", "session", 50.0) is None
        assert turns > 2
        assert not {"jobs", "tasks", "trials", "leases", "events"} & set(rows(session))

    def test_an_unfinished_job_must_be_cancelled_first(self, farm: Farm) -> None:
        with pytest.raises(JobInUse, match="Job job is tuning: cancel it first"):
            delete_job(farm.session, "job", now=50.0)

    def test_a_job_that_a_scheduler_holds_is_not_deleted(self, farm: Farm) -> None:
        jobs.claim_job(farm.session, "job", "scheduler", 39.0, 900.0)
        finish(farm.session)
        with pytest.raises(JobInUse, match="a scheduler still runs one of its steps: try again soon"):
            delete_job(farm.session, "job", now=50.0)
        delete_job(farm.session, "job", now=1000.0)

    def test_deleting_an_unknown_job_raises(self, session: Session) -> None:
        with pytest.raises(jobs.JobNotFound):
            delete_job(session, "job", now=50.0)


class TestFiles:
    def test_blobs_are_kept_until_the_job_is_deleted(self, session: Session) -> None:
        full(session)
        assert (drop_uploads(session, LATER, 10), drop_blobs(session, 10).blobs) == (0, 0)
        finish(session)
        delete_job(session, "job", now=50.0)
        assert (drop_uploads(session, 50.0, 10), drop_blobs(session, 10).blobs) == (0, 3)
        assert [row.sha for row in session.scalars(select(BlobRow))] == [blobs.put(session, b"a model")]
        assert (drop_uploads(session, LATER, 10), drop_blobs(session, 10).blobs) == (1, 1)
        assert not {"blobs", "blob_chunks", "models"} & set(rows(session))

    def test_a_model_uploaded_again_is_new(self, session: Session) -> None:
        sha = blobs.put(session, b"a model")
        models.add(session, sha, "resnet", now=1.0)
        models.add(session, sha, "resnet", now=LATER)
        assert drop_uploads(session, LATER + 1.0, 10) == 0
        assert drop_blobs(session, 10).blobs == 0

    def test_datasets_and_quantized_models_are_kept_while_jobs_need_them(self, session: Session) -> None:
        sha = blobs.put(session, b"samples")
        models.add(session, sha, "samples", 1.0, UploadKind.DATASET)
        asked = replace(request(session), quantize=Quantize.INT8, calibration=sha)
        jobs.create(session, "job", asked, jobs.Submission(1.0))
        accuracy = Quantization(Quantize.INT8, False, 1, 1, 0, (OutputAccuracy("y", 30.0),), ())
        quantized_models.put(session, asked, None, blobs.put(session, b"in bytes"), accuracy)
        old = replace(DEVICE, features=("avx2",))
        assert quantized_models.find(session, asked, old) is None
        quantized_models.put(session, asked, old, blobs.put(session, b"in 7 bits"), accuracy)
        assert quantized_models.find(session, asked, old) == (blobs.put(session, b"in 7 bits"), accuracy)
        assert (drop_uploads(session, LATER, 10), drop_blobs(session, 10).blobs) == (0, 0)
        assert quantized_models.find(session, asked, None) == (blobs.put(session, b"in bytes"), accuracy)
        jobs.cancel(session, "job", now=2.0)
        delete_job(session, "job", now=50.0)
        assert (drop_uploads(session, LATER, 10), drop_blobs(session, 10).blobs) == (2, 4)
        assert not {"blobs", "datasets", "models", "quantized_models"} & set(rows(session))

    def test_a_call_deletes_a_limited_number_of_blobs(self, session: Session) -> None:
        for number in range(5):
            blobs.put(session, bytes([number]))
        assert [drop_blobs(session, 2).blobs for _ in range(4)] == [2, 2, 1, 0]
        assert session.scalar(select(func.count()).select_from(ChunkRow)) == 0

    def test_a_large_blob_is_deleted_a_few_chunks_at_a_time(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blobs, "CHUNK_BYTES", 4)
        blobs.put(session, bytes(range(90)))
        blobs.put(session, b"small")
        dropped = [drop_blobs(session, 10, chunks=10) for _ in range(4)]
        assert [one.chunks for one in dropped] == [10, 10, 5, 0]
        assert sum(one.blobs for one in dropped) == 2
        assert session.scalar(select(func.count()).select_from(ChunkRow)) == 0

    def test_a_half_deleted_blob_is_stored_again(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blobs, "CHUNK_BYTES", 4)
        sha = blobs.put(session, bytes(range(90)))
        assert drop_blobs(session, 10, chunks=10) == (0, 10)
        assert blobs.put(session, bytes(range(90))) == sha
        assert blobs.get(session, sha) == bytes(range(90))

    def test_a_blob_that_is_being_written_is_kept(self, database: Database) -> None:
        """The same file may be stored already, without a reference."""
        with database.begin() as session:
            make_job(session, "job")
            blobs.put(session, b"library")
        written, dropped = threading.Event(), threading.Event()

        def write() -> None:
            with database.begin() as session:
                sha = blobs.put(session, b"library")
                written.set()
                # SQLite has one writer at a time: the other waits for this one's end.
                dropped.wait(0.5)
                jobs.set_artifacts(session, "job", tuned_sha=sha)

        def drop() -> int:
            written.wait(10)
            with database.begin() as session:
                count = drop_blobs(session, 10).blobs
            dropped.set()
            return count

        assert both(write, drop) == 0
        with database.begin() as session:
            sha = jobs.get(session, "job").artifact_sha
            assert blobs.get(session, str(sha)) == b"library"

    def test_a_blob_that_is_being_deleted_is_written_again(self, database: Database) -> None:
        with database.begin() as session:
            make_job(session, "job")
            blobs.put(session, b"library")
        deleted = threading.Event()

        def write() -> None:
            deleted.wait(10)
            with database.begin() as session:
                jobs.set_artifacts(session, "job", tuned_sha=blobs.put(session, b"library"))

        def drop() -> int:
            with database.begin() as session:
                count = drop_blobs(session, 10).blobs
                deleted.set()
                threading.Event().wait(0.3)
                return count

        assert both(write, drop) == 1
        with database.begin() as session:
            sha = jobs.get(session, "job").artifact_sha
            assert blobs.get(session, str(sha)) == b"library"

    def test_reading_a_blob_during_its_deletion_raises(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blobs, "CHUNK_BYTES", 4)
        sha = blobs.put(session, b"0123456789")
        assert blobs.chunk(session, sha, 0) == b"0123"
        drop_blobs(session, 10)
        with pytest.raises(blobs.BlobNotFound, match="was deleted while it was read"):
            blobs.chunk(session, sha, 1)


def both(write: Callable[[], None], drop: Callable[[], int]) -> int:
    with ThreadPoolExecutor(2) as pool:
        writing, dropping = pool.submit(write), pool.submit(drop)
        writing.result(30)
        return dropping.result(30)
