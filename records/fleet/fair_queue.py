"""The fair queue of jobs that share devices: it decides which job's trials a worker leases next, and how
many.

Jobs of higher priority go first. Jobs of equal priority share by weight, as in start-time fair queueing. A
lease of n trials lasts n / weight of the job's virtual time, from its start tag to its finish tag. The job
with the smallest next start tag goes first. A job that is new or was idle starts at the virtual time of its
priority, which is the largest start tag served. So being idle gives it neither a delay nor a credit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, and_, bindparam, case, func, literal, or_, select
from sqlalchemy.orm import Session

from core.job import UNFINISHED
from core.worker import LOST_AFTER_S
from records import devices
from records.fleet import building, reservations
from records.storage.statements import ConflictInsert, dialect_of, insert_of, oldest_pending, table_of
from records.storage.tables import (
    BuilderRow,
    DeviceClassRow,
    JobRow,
    ModuleRunRow,
    ShareRow,
    TrialRow,
    WorkerRow,
)

# The seconds of work in one lease. Other devices of the class wait this long for its results.
LEASE_S = 20.0
# The trials in one lease while the device's speed is unknown.
FIRST_LEASE = 8


class TrialFilter(StrEnum):
    """The pending trials of a job that a worker may lease. If builders build for the job, a device leases
    only BUILT trials; a builder leases only UNBUILT ones.
    """

    ANY = "any"
    BUILT = "built"
    UNBUILT = "unbuilt"


@dataclass(frozen=True)
class JobShare:
    """An unfinished job of a device class, with the tags of its last lease in virtual time.

    `waits`: it has work that no device has leased. `unfinished` counts its trials that are pending or leased.
    `has_module_run`: a module run is pending. `built_only`: builders build its candidates.
    """

    job_id: str
    priority: int
    weight: float
    created_at: float
    start_tag: float
    finish_tag: float
    waits: bool
    unfinished: int = 0
    has_module_run: bool = False
    built_only: bool = False
    trace_parent: str = ""


@dataclass(frozen=True)
class QueueEntry:
    """A job with work for a worker, and the start tag of its next lease.

    `unfinished` counts its trials that are pending or leased. `has_module_run`: a module run is pending.
    """

    job_id: str
    weight: float
    start_tag: float
    unfinished: int
    has_module_run: bool
    takes: TrialFilter = TrialFilter.ANY
    trace_parent: str = ""


@dataclass(frozen=True)
class WaitingWork:
    """The device classes that have work waiting, and whether candidates wait for a builder."""

    device_classes: set[str]
    has_unbuilt: bool


@dataclass(frozen=True)
class Quota:
    """One worker's part of a job's trials: a fraction of the unfinished ones, up to a maximum."""

    max_trials: int
    fraction: float

    def trials(self, unfinished: int) -> int:
        # The tolerance absorbs rounding errors: a tenth of 20 is 2, even if the tenth was computed as a
        # little more.
        return min(self.max_trials, math.ceil(unfinished * self.fraction - 1e-9))


def order(shares: Sequence[JobShare]) -> list[QueueEntry]:
    """Return the jobs that wait, in the order in which they are served."""
    virtual_time: defaultdict[int, float] = defaultdict(float)
    for share in shares:
        virtual_time[share.priority] = max(virtual_time[share.priority], share.start_tag)
    waiting = [
        (share, max(share.finish_tag, virtual_time[share.priority])) for share in shares if share.waits
    ]
    waiting.sort(key=lambda pair: (-pair[0].priority, pair[1], pair[0].created_at, pair[0].job_id))
    return [
        QueueEntry(
            share.job_id,
            share.weight,
            start_tag,
            share.unfinished,
            share.has_module_run,
            TrialFilter.BUILT if share.built_only else TrialFilter.ANY,
            share.trace_parent,
        )
        for share, start_tag in waiting
    ]


def entries(session: Session, worker_id: str, device_class: str, now: float) -> list[QueueEntry]:
    """Return the jobs that wait for devices of this class, in the order in which this worker serves them."""
    values = {
        "worker": worker_id,
        "device_class": device_class,
        "now": now,
        "seen_after": now - LOST_AFTER_S,
    }
    return order([JobShare(*row) for row in session.connection().execute(_select_shares(), values)])


def entries_to_build(session: Session, worker_id: str) -> list[QueueEntry]:
    """Return the jobs that wait for this builder, in the order in which devices serve them.

    Building is not charged, because the same trials are charged when they are measured.
    """
    shares = [JobShare(*row) for row in session.execute(_select_shares_to_build(), {"worker": worker_id})]
    return [replace(entry, has_module_run=False, takes=TrialFilter.UNBUILT) for entry in order(shares)]


def waiting(session: Session, now: float) -> WaitingWork:
    """Return which device classes have work waiting, and whether builders have."""
    rows = session.connection().execute(_select_waiting(), {"seen_after": now - LOST_AFTER_S}).all()
    return WaitingWork({row.device_class for row in rows if row.waits}, any(row.unbuilt for row in rows))


def charge(session: Session, entry: QueueEntry, trials: int) -> None:
    """Charge a job for leased trials. Concurrent charges by several servers add up correctly."""
    length = trials / entry.weight
    values = {
        "job_id": entry.job_id,
        "begun": entry.start_tag,
        "ended": entry.start_tag + length,
        "length": length,
    }
    session.connection().execute(_insert_share(dialect_of(session)), values)


def quota(session: Session, worker_id: str, device_class: str | None, now: float) -> Quota:
    """Return this worker's part of a job's trials, chosen so that all workers of its class finish together.

    A builder, which has no device class, shares with the other builders. A worker of unknown speed
    counts as fast as the average of the others.
    """
    values: dict[str, Any] = {"worker": worker_id, "seen_after": now - LOST_AFTER_S}
    if device_class is not None:
        values["device_class"] = device_class
    row = session.connection().execute(_select_speeds(device_class is None), values).one()
    own_trial_s, others, others_known, others_speed = row
    speed = float(others_speed or 0.0)
    own_speed = None if own_trial_s is None else 1.0 / own_trial_s
    known = others_known + (own_speed is not None)
    average = (speed + (own_speed or 0.0)) / known if known else 1.0
    class_speed = (own_speed or average) + speed + (others - others_known) * average
    max_trials = FIRST_LEASE if own_trial_s is None else max(int(LEASE_S / own_trial_s), 1)
    return Quota(max_trials, (own_speed or average) / class_speed)


# Building these statements takes longer than executing them, so each is built once.


@cache
def _insert_share(dialect: str) -> ConflictInsert:
    share = table_of(ShareRow)
    new = insert_of(dialect, share)
    started = case((share.c.ended > new.excluded.begun, share.c.ended), else_=new.excluded.begun)
    # Servers that lease at once choose the job by the same start tag, so `begun` is that tag. A later tag
    # would move the virtual time past the jobs that still wait, and they would lose their share.
    begun = case((share.c.begun > new.excluded.begun, share.c.begun), else_=new.excluded.begun)
    moved = {"begun": begun, "ended": started + bindparam("length", type_=Double())}
    return new.on_conflict_do_update(index_elements=["job_id"], set_=moved)


@cache
def _select_shares() -> Select[*tuple[Any, ...]]:
    built_only = building.is_built_elsewhere()
    # All jobs are selected, because those that may not use the device count for the virtual time, too.
    shares = _shares(and_(_has_waiting_work(built_only), reservations.may_use()), built_only)
    return shares.where(JobRow.device_class == bindparam("device_class"))


@cache
def _select_shares_to_build() -> Select[*tuple[Any, ...]]:
    unbuilt = _has_pending_trial(TrialRow.library_sha.is_(None))
    return _shares(unbuilt, literal(True)).where(building.suits_worker())


def _shares(waits: ColumnElement[bool], built_only: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Select the columns of a JobShare of unfinished jobs, joined to their device classes."""
    return (
        select(JobRow.id, JobRow.priority, JobRow.weight, JobRow.created_at)
        .add_columns(func.coalesce(ShareRow.begun, 0.0), func.coalesce(ShareRow.ended, 0.0), waits)
        .add_columns(JobRow.trials_issued - JobRow.trials_done, _has_pending_run(), built_only)
        .add_columns(JobRow.trace_parent)
        .outerjoin(ShareRow, ShareRow.job_id == JobRow.id)
        .join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
        .where(JobRow.state.in_(UNFINISHED))
    )


@cache
def _select_waiting() -> Select[*tuple[Any, ...]]:
    waits = _has_waiting_work(building.is_built_elsewhere())
    unbuilt = and_(building.has_suitable_builder(), _has_pending_trial(TrialRow.library_sha.is_(None)))
    return (
        select(JobRow.device_class, waits.label("waits"), unbuilt.label("unbuilt"))
        .join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
        .where(JobRow.state.in_(UNFINISHED))
        .distinct()
    )


@cache
def _select_speeds(builders: bool) -> Select[*tuple[Any, ...]]:
    """Select the worker's seconds per trial, and three sums over other connected workers like it. These are
    their number, the number with a known speed, and their trials per second.
    """
    worker: ColumnElement[str] = bindparam("worker")
    peers = (
        WorkerRow.id.in_(select(BuilderRow.worker_id))
        if builders
        else WorkerRow.device_class == bindparam("device_class")
    )
    others = and_(
        WorkerRow.id != worker,
        peers,
        devices.may_work(),
        WorkerRow.last_seen_at > bindparam("seen_after"),
    )
    speeds = select(
        func.max(WorkerRow.trial_s).filter(WorkerRow.id == worker),
        func.count().filter(others),
        func.count(WorkerRow.trial_s).filter(others),
        func.sum(1.0 / WorkerRow.trial_s).filter(others),
    )
    return speeds.where(or_(peers, WorkerRow.id == worker))


def _has_waiting_work(built_only: ColumnElement[bool]) -> ColumnElement[bool]:
    """A condition on JobRow: the job has work that no device has leased."""
    built = _has_pending_trial(TrialRow.library_sha.is_not(None))
    return or_(_has_pending_run(), case((built_only, built), else_=_has_pending_trial()))


def _has_pending_trial(*where: ColumnElement[bool]) -> ColumnElement[bool]:
    """A condition on JobRow: one of the job's trials that fulfil `where` is pending."""
    trials = select(TrialRow.id).where(TrialRow.job_id == JobRow.id, *where).correlate(JobRow)
    # With EXISTS, PostgreSQL may read all finished trials before it finds a pending one.
    return oldest_pending(trials).limit(1).scalar_subquery().is_not(None)


def _has_pending_run() -> ColumnElement[bool]:
    """A condition on JobRow: one of the job's module runs is pending."""
    runs = select(ModuleRunRow.id).where(ModuleRunRow.job_id == JobRow.id, ModuleRunRow.state == "pending")
    return runs.exists()
