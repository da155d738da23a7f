"""Sweeps delete unneeded data from time to time."""

from __future__ import annotations

from records.jobs import deletion
from records.jobs.deletion import UPLOAD_GRACE_S
from records.storage import blobs
from scheduler.upkeep.garbage_collection import FILES, INTERVAL_S
from tests.unit.scheduler.farm import Farm


def stored(farm: Farm, sha: str | None) -> bool:
    with farm.database.begin() as session:
        return blobs.size(session, str(sha)) is not None


def leave(farm: Farm, *files: bytes) -> None:
    with farm.database.begin() as session:
        for data in files:
            blobs.put(session, data)


def test_the_files_of_a_deleted_job_are_deleted(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    measured = len(farm.records())
    farm.now += INTERVAL_S
    farm.sweep()
    assert stored(farm, job.artifact_sha)
    with farm.database.begin() as session:
        deletion.delete_job(session, job.id, farm.now)
    farm.sweep()
    assert stored(farm, job.artifact_sha), "garbage was collected a moment ago"
    farm.now += INTERVAL_S
    farm.sweep()
    assert not stored(farm, job.artifact_sha)
    assert not stored(farm, job.untuned_artifact_sha)
    assert stored(farm, job.request.model_sha)
    farm.now += UPLOAD_GRACE_S
    farm.sweep()
    assert not stored(farm, job.request.model_sha)
    assert len(farm.records()) == measured > 0


def test_many_files_go_at_once(farm: Farm) -> None:
    many = [f"file {number}".encode() for number in range(2 * FILES + 1)]
    leave(farm, *many)
    farm.sweep()
    with farm.database.begin() as session:
        assert deletion.drop_blobs(session, 1).blobs == 0


def test_a_clock_that_is_set_back_does_not_end_the_collection(farm: Farm) -> None:
    farm.sweep()
    leave(farm, b"a file")
    farm.now -= 3600.0
    farm.sweep()
    with farm.database.begin() as session:
        assert deletion.drop_blobs(session, 1).blobs == 0
