"""Jobs that leave it open who builds, and whose builders build nothing: their devices do it themselves."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, case, func, or_, select, update
from sqlalchemy.orm import Session

from core.job import UNFINISHED, Build
from records.fleet import building, leases
from records.fleet.devices import LOST_AFTER_S
from records.jobs import events, jobs
from records.storage.statements import changed
from records.storage.tables import DeviceClassRow, JobRow, LeaseRow, TrialRow, WorkerRow

KIND = "builders_let_down"


@dataclass(frozen=True)
class WaitingJob:
    """A job whose devices wait for builders, which are there. As long as nobody does anything it stays equal.

    So many of its trials are `done` and so many others `built`. `worked` counts what its builders have ever
    done, as long as it may only wait for its turn: once they hold all that is left, what they do for others
    is no excuse.
    """

    job_id: str
    done: int
    built: int
    worked: int


def waiting_jobs(session: Session, now: float) -> list[WaitingJob]:
    """The jobs that leave it open who builds and have candidates that builders are to build or hold."""
    worked = select(func.coalesce(func.sum(WorkerRow.trials_done), 0)).where(
        WorkerRow.id.in_(building.suiting())
    )
    built = select(func.count()).where(_undone(), TrialRow.library_sha.is_not(None))
    unbuilt = select(TrialRow.id).where(_undone(), TrialRow.library_sha.is_(None))
    waits = unbuilt.where(TrialRow.state == "pending").correlate(JobRow).exists()
    found = (
        select(JobRow.id, JobRow.trials_done, built.correlate(JobRow).scalar_subquery())
        .add_columns(case((waits, worked.correlate(JobRow, DeviceClassRow).scalar_subquery()), else_=0))
        .join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
        .where(JobRow.build == Build.AUTO, JobRow.state.in_(UNFINISHED), building.served())
        .where(unbuilt.correlate(JobRow).exists())
        .order_by(JobRow.id)
    )
    return [WaitingJob(*row) for row in session.execute(found, {"seen_after": now - LOST_AFTER_S})]


def build_on_devices(session: Session, job_id: str, waited_s: float, now: float) -> None:
    """From now on the job's devices build for themselves; those who wait for it are told."""
    open_still = (JobRow.id == job_id, JobRow.build == Build.AUTO, JobRow.state.in_(UNFINISHED))
    if changed(session, update(JobRow).where(*open_still).values(build=Build.DEVICE)):
        message = f"builders built nothing for {waited_s:.0f} s: this job's devices build for themselves"
        events.append(session, job_id, KIND, {"message": message}, now)
        jobs.set_message(session, job_id, message)


def end_builder_leases(session: Session, now: float) -> list[str]:
    """End what builders still hold of jobs whose devices build; the ids of the jobs."""
    held = (
        select(LeaseRow.worker_id, LeaseRow.session_id)
        .join(JobRow, JobRow.id == LeaseRow.job_id)
        .where(LeaseRow.closed_at.is_(None), LeaseRow.build, JobRow.build == Build.DEVICE)
        .order_by(LeaseRow.worker_id)
    )
    freed: list[str] = []
    for worker_id, session_id in session.execute(held).all():
        # Locked before its lease, as everywhere.
        session.execute(select(WorkerRow.id).where(WorkerRow.id == worker_id).with_for_update())
        freed += leases.give_back(session, worker_id, session_id, now)
    return freed


def _undone() -> ColumnElement[bool]:
    """Of a job: a trial that waits or that somebody holds."""
    return and_(TrialRow.job_id == JobRow.id, or_(TrialRow.state == "pending", TrialRow.state == "leased"))
