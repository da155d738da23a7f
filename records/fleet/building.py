"""Builders: workers that compile candidates for devices of other classes, and the libraries that they store.

The statement that makes a lease decides whether builders or devices build a job's candidates. That depends on
the builders that are connected at that moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, and_, bindparam, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from core.job import Build
from core.worker import LOST_AFTER_S
from records import devices
from records.storage.statements import changed, insert_into
from records.storage.tables import (
    BuilderRow,
    DeviceClassRow,
    JobRow,
    LeaseRow,
    LibraryRow,
    TrialRow,
    WorkerRow,
)

# A builder builds for devices of the same architecture only if it has at least this many times their cores.
MIN_CORES_RATIO = 2


@dataclass(frozen=True)
class Builder:
    """The platforms that a worker builds for, such as `x86_64` and `aarch64`, and its own platform and cores.

    It builds only for devices with its own toolchain, because another toolchain makes other code from the
    same schedule.
    """

    builds_for: tuple[str, ...]
    platform: str
    cores: int
    toolchain: str


def enrol(session: Session, worker_id: str, builder: Builder | None) -> None:
    """Store the platforms that a worker builds for; None deletes them. The caller holds the worker's row
    lock."""
    session.execute(delete(BuilderRow).where(BuilderRow.worker_id == worker_id))
    if builder is None or not builder.builds_for:
        return
    common = {"worker_id": worker_id, "cores": builder.cores, "toolchain": builder.toolchain}
    platforms = dict.fromkeys(builder.builds_for)
    rows = [common | {"platform": platform, "own": platform == builder.platform} for platform in platforms]
    session.execute(insert(BuilderRow), rows)


def builders_by_worker(session: Session) -> dict[str, Builder]:
    """Return every enrolled builder by the id of its worker, connected or not."""
    rows_of: defaultdict[str, list[BuilderRow]] = defaultdict(list)
    for row in session.scalars(select(BuilderRow).order_by(BuilderRow.own.desc(), BuilderRow.platform)):
        rows_of[row.worker_id].append(row)
    return {
        worker_id: Builder(
            builds_for=tuple(row.platform for row in rows),
            platform=next((row.platform for row in rows if row.own), ""),
            cores=rows[0].cores,
            toolchain=rows[0].toolchain,
        )
        for worker_id, rows in rows_of.items()
    }


def is_built_elsewhere() -> ColumnElement[bool]:
    """A condition on JobRow and its DeviceClassRow: devices lease only trials that builders have built."""
    return or_(JobRow.build == Build.BUILDER, has_suitable_builder())


def waits_for_builders(session: Session, job_id: str, now: float) -> bool:
    """Return whether builders compile the job's trials. Devices then lease no trial that isn't built."""
    joined = select(JobRow.id).join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
    found = joined.where(JobRow.id == job_id, is_built_elsewhere())
    return session.execute(found, {"seen_after": now - LOST_AFTER_S}).first() is not None


def has_suitable_builder() -> ColumnElement[bool]:
    """A condition on JobRow and its DeviceClassRow: a builder for the job is connected. Builders are
    connected if they may work and were seen after the parameter `seen_after`.
    """
    there = suitable_builders().where(
        devices.may_work(),
        WorkerRow.last_seen_at > bindparam("seen_after"),
    )
    return and_(JobRow.build != Build.DEVICE, there.exists())


def suits_worker() -> ColumnElement[bool]:
    """A condition on JobRow and its DeviceClassRow: the builder `worker`, a parameter, builds for the job."""
    this_one = suitable_builders().where(WorkerRow.id == bindparam("worker"))
    return and_(JobRow.build != Build.DEVICE, this_one.exists())


def suitable_builders() -> Select[str]:
    """Select the ids of the builders that can build for a job. If its `build` is AUTO, they must also be
    faster than the device. Use it as a subquery of JobRow and its DeviceClassRow.
    """
    suitable = (
        BuilderRow.platform == DeviceClassRow.platform,
        BuilderRow.toolchain == DeviceClassRow.toolchain,
        or_(
            JobRow.build == Build.BUILDER,
            BuilderRow.own.is_(False),
            BuilderRow.cores >= MIN_CORES_RATIO * DeviceClassRow.cores,
        ),
    )
    enrolled = select(BuilderRow.worker_id).join(WorkerRow, WorkerRow.id == BuilderRow.worker_id)
    return enrolled.where(*suitable).correlate(JobRow, DeviceClassRow)


def has_builder(session: Session, job_id: str, seen_after: float) -> bool:
    """Return whether a builder for this job is connected, or the job needs none."""
    job = select(JobRow.id).join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
    can_go_on = job.where(JobRow.id == job_id, or_(JobRow.build != Build.BUILDER, has_suitable_builder()))
    return session.scalar(can_go_on, {"seen_after": seen_after}) is not None


def target(session: Session, job_id: str) -> str:
    """Return the TVM target of the job's device class, for which its candidates are built."""
    of_job = select(DeviceClassRow.target).join(JobRow, JobRow.device_class == DeviceClassRow.key)
    return session.scalars(of_job.where(JobRow.id == job_id)).one()


def leased_platform(
    session: Session, lease_id: str, session_id: str, now: float, token_id: str | None = None
) -> str | None:
    """Return the platform that this session builds for under the lease; None if it holds no such lease.

    With `token_id`, the lease's worker must belong to this token.
    """
    live = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now, LeaseRow.build)
    of_lease = (
        select(DeviceClassRow.platform)
        .join(JobRow, JobRow.device_class == DeviceClassRow.key)
        .join(LeaseRow, LeaseRow.job_id == JobRow.id)
    )
    held = of_lease.where(LeaseRow.id == lease_id, LeaseRow.session_id == session_id, *live)
    if token_id is not None:
        own = select(WorkerRow.id).where(WorkerRow.id == LeaseRow.worker_id, WorkerRow.token_id == token_id)
        held = held.where(own.exists())
    return session.scalar(held)


def put_library(session: Session, lease_id: str, trial_id: int, sha: str, data: bytes) -> bool:
    """Store a trial's library until the trial is done. Return False if the lease doesn't hold the trial."""
    # The lock keeps the lease from lapsing meanwhile. Leases are always locked before their trials.
    session.execute(select(LeaseRow.id).where(LeaseRow.id == lease_id).with_for_update())
    held = (TrialRow.id == trial_id, TrialRow.lease_id == lease_id, TrialRow.state == "leased")
    if changed(session, update(TrialRow).where(*held).values(library_sha=sha)) == 0:
        return False
    stored = insert_into(session, LibraryRow).values(trial_id=trial_id, sha=sha, data=data)
    replaced = {"sha": stored.excluded.sha, "data": stored.excluded.data}
    session.execute(stored.on_conflict_do_update(index_elements=["trial_id"], set_=replaced))
    return True


def library(session: Session, sha: str) -> bytes | None:
    """Return the library with this SHA-256; None if no unfinished trial has it."""
    return session.scalars(select(LibraryRow.data).where(LibraryRow.sha == sha).limit(1)).first()


def drop_libraries(session: Session, trial_ids: Collection[int]) -> None:
    """Delete the libraries of finished trials, which no device will load again."""
    if trial_ids:
        session.execute(delete(LibraryRow).where(LibraryRow.trial_id.in_(trial_ids)))
