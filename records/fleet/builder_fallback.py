"""The builder fallback: if builders build nothing for a job, its devices build for themselves."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Select, and_, case, func, select, update
from sqlalchemy.orm import Session

from core.job import UNFINISHED, Build
from core.worker import LOST_AFTER_S
from records.fleet import building, leases
from records.jobs import events, jobs
from records.storage.statements import changed
from records.storage.tables import DeviceClassRow, JobRow, LeaseRow, TrialRow, WorkerRow

KIND = "builders_let_down"


@dataclass(frozen=True)
class WaitingJob:
    """A job whose devices wait for builders, with counts that change whenever it makes progress.

    `done` counts its finished trials, `built` its trials that are built but not finished. While some of its
    trials wait for a builder, `worked` counts the trials that its builders have built for any job, because
    its turn may still come. Once builders hold all of its trials, `worked` is 0, because work for other jobs
    is no progress.
    """

    job_id: str
    done: int
    built: int
    worked: int


def waiting_jobs(session: Session, now: float) -> list[WaitingJob]:
    """Return the jobs with `build` AUTO that have candidates waiting for builders or held by builders."""
    unfinished = and_(TrialRow.job_id == JobRow.id, TrialRow.state.in_(("pending", "leased")))
    built = select(func.count()).where(unfinished, TrialRow.library_sha.is_not(None))
    unbuilt = select(TrialRow.id).where(unfinished, TrialRow.library_sha.is_(None))
    pending = unbuilt.where(TrialRow.state == "pending").correlate(JobRow).exists()
    worked = select(func.coalesce(func.sum(WorkerRow.trials_done), 0)).where(
        WorkerRow.id.in_(building.suitable_builders())
    )
    waiting = (
        select(JobRow.id, JobRow.trials_done, built.correlate(JobRow).scalar_subquery())
        .add_columns(case((pending, worked.correlate(JobRow, DeviceClassRow).scalar_subquery()), else_=0))
        .join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
        .where(JobRow.build == Build.AUTO, JobRow.state.in_(UNFINISHED), building.has_suitable_builder())
        .where(unbuilt.correlate(JobRow).exists())
        .order_by(JobRow.id)
    )
    return [WaitingJob(*row) for row in session.execute(waiting, {"seen_after": now - LOST_AFTER_S})]


def build_on_devices(session: Session, job_id: str, waited_s: float, now: float) -> None:
    """If a job's `build` is AUTO, let its devices build from now on. Record that in the job's events and
    message."""
    undecided = (JobRow.id == job_id, JobRow.build == Build.AUTO, JobRow.state.in_(UNFINISHED))
    if changed(session, update(JobRow).where(*undecided).values(build=Build.DEVICE)):
        message = f"builders built nothing for {waited_s:.0f} s: this job's devices build for themselves"
        events.append(session, job_id, KIND, {"message": message}, now)
        jobs.set_message(session, job_id, message)


def holding_builders(session: Session) -> list[tuple[str, str]]:
    """Return (worker, session) for each lease to build for a job whose devices now build for themselves."""
    return [(row.worker_id, row.session_id) for row in session.execute(_select_holding_builders())]


def end_builder_lease(session: Session, worker_id: str, session_id: str, now: float) -> list[str]:
    """Close a session's lease to build for a job whose devices now build for themselves. Return the job's id.

    Call it once in a transaction: a job is locked after the worker and its lease, so another worker can't be
    locked afterwards.
    """
    session.execute(select(WorkerRow.id).where(WorkerRow.id == worker_id).with_for_update())
    own = (LeaseRow.worker_id == worker_id, LeaseRow.session_id == session_id)
    if session.execute(_select_holding_builders().where(*own)).first() is None:
        return []
    return leases.give_back(session, worker_id, session_id, now)


def _select_holding_builders() -> Select[str, str]:
    return (
        select(LeaseRow.worker_id, LeaseRow.session_id)
        .join(JobRow, JobRow.id == LeaseRow.job_id)
        .where(LeaseRow.closed_at.is_(None), LeaseRow.build, JobRow.build == Build.DEVICE)
        .order_by(LeaseRow.worker_id)
    )
