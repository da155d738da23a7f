"""Candidates that are built on another machine than they are measured on: whose, and what becomes of them.

Whether a job's candidates are built elsewhere is asked whenever a lease is made, in the same statement: it
depends on which builders are there at that moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, and_, bindparam, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from core.job import Build
from core.measurement import Built, Measurement, Outcome
from core.worker import Wanted, WorkerState
from records.storage.statements import changed, insert_into, update_each
from records.storage.tables import (
    BuilderRow,
    DeviceClassRow,
    JobRow,
    LeaseRow,
    LibraryRow,
    TrialRow,
    WorkerRow,
)

# A builder of a device's own kind builds for it when it has so many times as many cores.
CORES = 2


@dataclass(frozen=True)
class Builder:
    """The machines that a worker builds for (`x86_64`, `aarch64`), the one that it runs on and its cores.

    It builds for devices of its own toolchain only: the code of another one is another kernel.
    """

    builds_for: tuple[str, ...]
    machine: str
    cores: int
    toolchain: str


def enrol(session: Session, worker_id: str, builder: Builder | None) -> None:
    """Note what a worker builds for; None: it is no builder. The caller has written to the worker before."""
    session.execute(delete(BuilderRow).where(BuilderRow.worker_id == worker_id))
    if builder is None or not builder.builds_for:
        return
    same = {"worker_id": worker_id, "cores": builder.cores, "toolchain": builder.toolchain}
    names = dict.fromkeys(builder.builds_for)
    rows = [same | {"machine": name, "own": name == builder.machine} for name in names]
    session.execute(insert(BuilderRow), rows)


def by_worker(session: Session) -> dict[str, Builder]:
    """Every builder that ever was one until it became something else, alive or not."""
    rows: defaultdict[str, list[BuilderRow]] = defaultdict(list)
    for row in session.scalars(select(BuilderRow).order_by(BuilderRow.own.desc(), BuilderRow.machine)):
        rows[row.worker_id].append(row)
    return {worker_id: _builder(theirs) for worker_id, theirs in rows.items()}


def elsewhere() -> ColumnElement[bool]:
    """Of a job, beside its device class: whether devices measure only what comes built."""
    return or_(JobRow.build == Build.BUILDER, served())


def served() -> ColumnElement[bool]:
    """Of a job, beside its device class: whether a builder is there that is to build for it.

    Those are there that were seen after the parameter `seen_after` and may work.
    """
    there = suiting().where(
        WorkerRow.state.in_((WorkerState.READY, WorkerState.BUSY)),
        WorkerRow.wanted == Wanted.WORK,
        WorkerRow.last_seen_at > bindparam("seen_after"),
    )
    return and_(JobRow.build != Build.DEVICE, there.exists())


def suits_worker() -> ColumnElement[bool]:
    """Of a job, beside its device class: whether the builder `worker`, a parameter, is to build for it."""
    ours = suiting().where(WorkerRow.id == bindparam("worker"))
    return and_(JobRow.build != Build.DEVICE, ours.exists())


def has_builder(session: Session, job_id: str, seen_after: float) -> bool:
    """Whether somebody is there who builds for this job, or nobody needs to be."""
    asked = select(JobRow.id).join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
    content = asked.where(JobRow.id == job_id, or_(JobRow.build != Build.BUILDER, served()))
    return session.scalar(content, {"seen_after": seen_after}) is not None


def target(session: Session, job_id: str) -> str:
    """The TVM target of the job's device class, for which its candidates are built."""
    of_job = select(DeviceClassRow.target).join(JobRow, JobRow.device_class == DeviceClassRow.key)
    return session.scalars(of_job.where(JobRow.id == job_id)).one()


def machine(session: Session, lease_id: str, session_id: str, now: float) -> str | None:
    """The machine that this session builds for under this lease; None when it does not, or no longer."""
    live = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now, LeaseRow.build)
    of_lease = (
        select(DeviceClassRow.machine)
        .join(JobRow, JobRow.device_class == DeviceClassRow.key)
        .join(LeaseRow, LeaseRow.job_id == JobRow.id)
    )
    return session.scalar(of_lease.where(LeaseRow.id == lease_id, LeaseRow.session_id == session_id, *live))


def put_library(session: Session, lease_id: str, trial_id: int, sha: str, data: bytes) -> bool:
    """Keep what was built of a trial until that is done; False when the lease doesn't hold it."""
    # So that the lease can't lapse meanwhile; it is locked before its trials, as everywhere.
    session.execute(select(LeaseRow.id).where(LeaseRow.id == lease_id).with_for_update())
    held = (TrialRow.id == trial_id, TrialRow.lease_id == lease_id, TrialRow.state == "leased")
    if changed(session, update(TrialRow).where(*held).values(library_sha=sha)) == 0:
        return False
    stored = insert_into(session, LibraryRow).values(trial_id=trial_id, sha=sha, data=data)
    again = {"sha": stored.excluded.sha, "data": stored.excluded.data}
    session.execute(stored.on_conflict_do_update(index_elements=["trial_id"], set_=again))
    return True


def library(session: Session, sha: str) -> bytes | None:
    """None when no trial that is not done has such a library."""
    return session.scalars(select(LibraryRow.data).where(LibraryRow.sha == sha).limit(1)).first()


def drop_libraries(session: Session, trial_ids: Collection[int]) -> None:
    """Of trials that are done: nobody will load them any more."""
    if trial_ids:
        session.execute(delete(LibraryRow).where(LibraryRow.trial_id.in_(trial_ids)))


def checked(lease: LeaseRow, reported: Measurement | Built, library_sha: str | None) -> Measurement | Built:
    """A result that fits what was leased and stored, or in its place a failure that says how it doesn't."""
    if isinstance(reported, Built):
        if lease.build and reported.sha == library_sha:
            return reported
        return Measurement(Outcome.UNKNOWN, error="the worker reported a library that is not stored")
    if lease.build and reported.outcome is Outcome.OK:
        return Measurement(Outcome.UNKNOWN, error="a worker that only builds reported a measurement")
    return reported


def make_ready(session: Session, built: Mapping[int, Built]) -> None:
    """What was built waits for a device. Whatever was lost while it was built, it was not this trial."""
    waits = {"state": "pending", "lease_id": None, "attempts": 0}
    rows = [{"id": trial_id, "build_secs": one.build_secs} | waits for trial_id, one in built.items()]
    if rows:
        update_each(session, TrialRow, rows)


def suiting() -> Select[str]:
    """Builders that can build for a job, beside its device class, and should where it leaves that open."""
    fits = (
        BuilderRow.machine == DeviceClassRow.machine,
        BuilderRow.toolchain == DeviceClassRow.toolchain,
        or_(
            JobRow.build == Build.BUILDER,
            BuilderRow.own.is_(False),
            BuilderRow.cores >= CORES * DeviceClassRow.cores,
        ),
    )
    known = select(BuilderRow.worker_id).join(WorkerRow, WorkerRow.id == BuilderRow.worker_id)
    return known.where(*fits).correlate(JobRow, DeviceClassRow)


def _builder(rows: list[BuilderRow]) -> Builder:
    own = next((row.machine for row in rows if row.own), "")
    return Builder(tuple(row.machine for row in rows), own, rows[0].cores, rows[0].toolchain)
