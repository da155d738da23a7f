"""Releases: names, such as `production`, that point to an artifact of each device class."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from core.job import JobState
from records import devices
from records.jobs import jobs
from records.jobs.jobs import Job
from records.storage.database import NotFound
from records.storage.statements import changed, insert_into, lock_job
from records.storage.tables import ReleaseRow


class ReleaseNotFound(NotFound):
    """The name points to no artifact of the device class."""


class NoArtifact(Exception):
    """The job has published no artifact. The message is one sentence for the user."""


@dataclass(frozen=True)
class Release:
    """A name for the artifact that a job published for its device class."""

    name: str
    job: Job
    set_at: float


def point(session: Session, name: str, job_id: str, now: float) -> Release:
    """Let a name point to the artifact of a job, for its device class. Raises JobNotFound, NoArtifact."""
    lock_job(session, job_id)  # the lock keeps it from being deleted meanwhile
    job = jobs.get(session, job_id)
    if job.state is not JobState.DONE or job.artifact_sha is None or job.device_class is None:
        raise NoArtifact(f"job {job_id} is {job.state} and has no artifact: name a job that is done")
    row = {"name": name, "device_class": job.device_class, "job_id": job_id, "set_at": now}
    statement = insert_into(session, ReleaseRow).values(row)
    statement = statement.on_conflict_do_update(
        index_elements=["name", "device_class"], set_={"job_id": job_id, "set_at": now}
    )
    session.execute(statement)
    return Release(name, job, now)


def get(session: Session, name: str, device_class: str) -> Release:
    """Return the release with a name on a device class. Raises ReleaseNotFound, DeviceClassNotFound."""
    query = select(ReleaseRow).where(ReleaseRow.name == name, ReleaseRow.device_class == device_class)
    found = _releases(session, query)
    if not found:
        raise _not_found(session, name, device_class)
    return found[0]


def all_releases(session: Session) -> list[Release]:
    """Return all releases by name and device class."""
    return _releases(session, select(ReleaseRow).order_by(ReleaseRow.name, ReleaseRow.device_class))


def of_job(session: Session, job_id: str) -> list[str]:
    """Return the names that point to a job's artifact."""
    names = select(ReleaseRow.name).where(ReleaseRow.job_id == job_id)
    return list(session.scalars(names.order_by(ReleaseRow.name)))


def drop(session: Session, name: str, device_class: str) -> None:
    """Delete a name on a device class; the artifact stays.

    Raises ReleaseNotFound, DeviceClassNotFound.
    """
    named = delete(ReleaseRow).where(ReleaseRow.name == name, ReleaseRow.device_class == device_class)
    if not changed(session, named):
        raise _not_found(session, name, device_class)


def _not_found(session: Session, name: str, device_class: str) -> ReleaseNotFound:
    device = devices.get_class(session, device_class)
    return ReleaseNotFound(f"no artifact of device class {device.title} is named {name!r}")


def _releases(session: Session, query: Select[ReleaseRow]) -> list[Release]:
    by_id = jobs.by_id(session, query.with_only_columns(ReleaseRow.job_id).order_by(None))
    return [Release(row.name, by_id[row.job_id], row.set_at) for row in session.scalars(query)]
