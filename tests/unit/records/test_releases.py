"""Releases are read with their jobs in a few queries, however many they are."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from core.job import JobState
from records import devices
from records.devices import DeviceClassNotFound
from records.jobs import releases
from records.jobs.releases import NoArtifact, ReleaseNotFound
from records.storage import blobs
from records.storage.tables import JobRow
from tests.devices import DEVICE
from tests.unit.records.farm import make_job


def released(session: Session, name: str, job_id: str) -> None:
    device = replace(DEVICE, toolchain=job_id)
    make_job(session, job_id, device)
    row = session.get(JobRow, job_id)
    assert row is not None
    row.state, row.artifact_sha = JobState.DONE, blobs.put(session, b"an artifact")
    session.flush()
    releases.point(session, name, job_id, 5.0)


def test_many_releases_are_two_queries(session: Session) -> None:
    for number in range(12):
        released(session, "production", f"job {number:02}")
    session.flush()
    session.expunge_all()
    statements: list[str] = []
    connection = session.connection()

    def note(*given: object) -> None:
        statements.append(str(given[2]))

    event.listen(connection, "before_cursor_execute", note)
    found = releases.all_releases(session)
    event.remove(connection, "before_cursor_execute", note)
    assert sorted(one.job.id for one in found) == [f"job {number:02}" for number in range(12)]
    assert len(statements) == 2


def test_a_name_has_an_artifact_of_each_device_class(session: Session) -> None:
    released(session, "production", "one")
    released(session, "production", "two")
    assert releases.get(session, "production", replace(DEVICE, toolchain="two").key).job.id == "two"
    with pytest.raises(DeviceClassNotFound):
        releases.get(session, "production", DEVICE.key)
    devices.put_class(session, DEVICE)
    with pytest.raises(ReleaseNotFound, match=f"device class {re.escape(DEVICE.title)} is named"):
        releases.get(session, "production", DEVICE.key)
    make_job(session, "three")
    with pytest.raises(NoArtifact):
        releases.point(session, "production", "three", 6.0)
