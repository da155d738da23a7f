"""How jobs share devices: whose trials come next, and how many of them one device gets at once.

Jobs of higher priority go first. Jobs of equal priority share by weight, as in start-time fair queueing: a
job's leases follow each other on a time line of its own, on which a trial is the shorter, the heavier the
job is; the job whose next lease begins earliest is next. None begins before the one that was last served
began: who had nothing to do has saved nothing up, and who is new begins beside the others.
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
from core.worker import Wanted, WorkerState
from records.fleet import building
from records.fleet.devices import LOST_AFTER_S
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

# A lease is as much as its device does in about so many seconds: for so long others may wait for its results.
LEASE_S = 20.0
# What a device gets first, before it is known how fast it is.
FIRST_LEASE = 8


class Takes(StrEnum):
    """Which of a job's waiting trials a worker gets: where others build, a device those that come built."""

    ANY = "any"
    BUILT = "built"
    UNBUILT = "unbuilt"


@dataclass(frozen=True)
class JobShare:
    """An unfinished job of a device class. `begun` and `ended` are where its last lease lies on its time
    line; `waits`: it has something to do that no device has taken. So many of its trials are `undone`, and
    `times`: a module run is among what waits. `built_only`: its trials are built elsewhere before."""

    job_id: str
    priority: int
    weight: float
    created_at: float
    begun: float
    ended: float
    waits: bool
    undone: int = 0
    times: bool = False
    built_only: bool = False


@dataclass(frozen=True)
class QueueEntry:
    """A job that waits for workers, and where its next lease begins on its time line.

    So many of its trials are `undone`: they wait or are in other devices' hands. `times`: a module run waits.
    """

    job_id: str
    weight: float
    begins: float
    undone: int
    times: bool
    takes: Takes = Takes.ANY


@dataclass(frozen=True)
class Waiting:
    """The device classes whose devices have work waiting, and whether candidates wait to be built."""

    device_classes: set[str]
    has_unbuilt: bool


@dataclass(frozen=True)
class Quota:
    """What one device gets at once: at most so many trials, and this part of those that are not done."""

    most: int
    part: float

    def of(self, undone: int) -> int:
        """How many of so many that are not done, if as many wait."""
        # A tenth of 20 is 2, also where it was computed as a little more.
        return min(self.most, math.ceil(undone * self.part - 1e-9))


def order(standings: Sequence[JobShare]) -> list[QueueEntry]:
    """The jobs that wait, the next one first."""
    clocks: defaultdict[int, float] = defaultdict(float)
    for one in standings:
        clocks[one.priority] = max(clocks[one.priority], one.begun)
    waiting = [(one, max(one.ended, clocks[one.priority])) for one in standings if one.waits]
    waiting.sort(key=lambda pair: (-pair[0].priority, pair[1], pair[0].created_at, pair[0].job_id))
    return [_turn(one, begins) for one, begins in waiting]


def _turn(one: JobShare, begins: float) -> QueueEntry:
    takes = Takes.BUILT if one.built_only else Takes.ANY
    return QueueEntry(one.job_id, one.weight, begins, one.undone, one.times, takes)


def turns(session: Session, device_class: str, now: float) -> list[QueueEntry]:
    """The jobs that wait for devices of this class, the next one first."""
    about = {"device_class": device_class, "seen_after": now - LOST_AFTER_S}
    return order([JobShare(*row) for row in session.execute(_standings(), about)])


def turns_to_build(session: Session, worker_id: str) -> list[QueueEntry]:
    """The jobs that wait for this builder, in the order in which devices serve them.

    What is built is not charged, because it will be when it is measured.
    """
    found = order([JobShare(*row) for row in session.execute(_standings_to_build(), {"worker": worker_id})])
    return [replace(turn, times=False, takes=Takes.UNBUILT) for turn in found]


def waiting(session: Session, now: float) -> Waiting:
    """What all workers together wait for."""
    rows = session.execute(_waiting(), {"seen_after": now - LOST_AFTER_S}).all()
    return Waiting({row.device_class for row in rows if row.waits}, any(row.builds for row in rows))


def charge(session: Session, turn: QueueEntry, trials: int) -> None:
    """Note that the job was given so many trials. Exact however many servers do so at once."""
    length = trials / turn.weight
    about = {"job_id": turn.job_id, "begun": turn.begins, "ended": turn.begins + length, "length": length}
    session.execute(_charge(dialect_of(session)), about)


def portion(session: Session, worker_id: str, device_class: str | None, now: float) -> Quota:
    """What this worker gets of a job's trials, so that it and the others of its class end together; a builder
    has no class, and the other builders beside it.

    A worker whose speed isn't known yet counts as fast as the others are on average.
    """
    about: dict[str, Any] = {"worker": worker_id, "seen_after": now - LOST_AFTER_S}
    if device_class is not None:
        about["device_class"] = device_class
    own_s, count, known, found = session.execute(_speeds(device_class is None), about).one()
    speed = float(found or 0.0)
    own = [] if own_s is None else [1.0 / own_s]
    total = speed + sum(own)
    typical = total / (known + len(own)) if total else 1.0
    mine = own[0] if own else typical
    everyone = mine + speed + (count - known) * typical
    most = FIRST_LEASE if own_s is None else max(int(LEASE_S / own_s), 1)
    return Quota(most, mine / everyone)


# To build these takes longer than to run them, so it is done once.


@cache
def _charge(dialect: str) -> ConflictInsert:
    share = table_of(ShareRow)
    new = insert_of(dialect, share)
    begun = case((share.c.ended > new.excluded.begun, share.c.ended), else_=new.excluded.begun)
    moved = {"begun": begun, "ended": begun + bindparam("length", type_=Double())}
    return new.on_conflict_do_update(index_elements=["job_id"], set_=moved)


@cache
def _standings() -> Select[*tuple[Any, ...]]:
    built_only = building.elsewhere()
    found = _jobs(_waits(built_only), built_only)
    return found.where(JobRow.device_class == bindparam("device_class"))


@cache
def _standings_to_build() -> Select[*tuple[Any, ...]]:
    return _jobs(_pending(TrialRow.library_sha.is_(None)), literal(True)).where(building.suits_worker())


def _jobs(waits: ColumnElement[bool], built_only: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Unfinished jobs as Standings, beside their device classes."""
    return (
        select(JobRow.id, JobRow.priority, JobRow.weight, JobRow.created_at)
        .add_columns(func.coalesce(ShareRow.begun, 0.0), func.coalesce(ShareRow.ended, 0.0), waits)
        .add_columns(JobRow.trials_issued - JobRow.trials_done, _run_waits(), built_only)
        .outerjoin(ShareRow, ShareRow.job_id == JobRow.id)
        .join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
        .where(JobRow.state.in_(UNFINISHED))
    )


@cache
def _waiting() -> Select[*tuple[Any, ...]]:
    builds = and_(building.served(), _pending(TrialRow.library_sha.is_(None)))
    return (
        select(JobRow.device_class, _waits(building.elsewhere()).label("waits"), builds.label("builds"))
        .join(DeviceClassRow, DeviceClassRow.key == JobRow.device_class)
        .where(JobRow.state.in_(UNFINISHED))
        .distinct()
    )


@cache
def _speeds(builders: bool) -> Select[*tuple[Any, ...]]:
    """The seconds of the worker's trials; how many others there are, how many of known speed, and that."""
    worker: ColumnElement[str] = bindparam("worker")
    peers = (
        WorkerRow.id.in_(select(BuilderRow.worker_id))
        if builders
        else WorkerRow.device_class == bindparam("device_class")
    )
    others = and_(
        WorkerRow.id != worker,
        peers,
        WorkerRow.state.in_((WorkerState.READY, WorkerState.BUSY)),
        WorkerRow.wanted == Wanted.WORK,
        WorkerRow.last_seen_at > bindparam("seen_after"),
    )
    facts = select(
        func.max(WorkerRow.trial_s).filter(WorkerRow.id == worker),
        func.count().filter(others),
        func.count(WorkerRow.trial_s).filter(others),
        func.sum(1.0 / WorkerRow.trial_s).filter(others),
    )
    return facts.where(or_(peers, WorkerRow.id == worker))


def _waits(built_only: ColumnElement[bool]) -> ColumnElement[bool]:
    """Of a job: whether it has something to do that no device has taken."""
    built = _pending(TrialRow.library_sha.is_not(None))
    return or_(_run_waits(), case((built_only, built), else_=_pending()))


def _pending(*which: ColumnElement[bool]) -> ColumnElement[bool]:
    """Of a job: whether one of its trials, of `which` this is true, is not taken by any worker."""
    trials = select(TrialRow.id).where(TrialRow.job_id == JobRow.id, *which).correlate(JobRow)
    # Not EXISTS: for that, PostgreSQL may read whatever is done before it comes to one that waits.
    return oldest_pending(trials).limit(1).scalar_subquery().is_not(None)


def _run_waits() -> ColumnElement[bool]:
    """Of a job: whether one of its module runs is not taken by any device."""
    runs = select(ModuleRunRow.id).where(ModuleRunRow.job_id == JobRow.id, ModuleRunRow.state == "pending")
    return runs.exists()
