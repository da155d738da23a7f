"""Leases: the work that a worker's session holds until it reports or its time is up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import Select, Update, bindparam, func, insert, or_, select, update
from sqlalchemy.orm import Session

from core.job import JobState
from core.measurement import Measurement, Outcome
from core.worker import Wanted
from records.fleet import building, devices, lost_devices, offers, results
from records.fleet.module_runs import StoredModuleRun, module_run_of
from records.fleet.offers import Offer
from records.fleet.results import LeaseResult
from records.jobs import events, fair_queue, jobs
from records.jobs.fair_queue import QueueEntry, Quota, Takes
from records.jobs.trials import Trial, trial_of
from records.schedules import schedules
from records.storage.statements import among, changed, dialect_of, lock_job, table_of
from records.storage.tables import LeaseRow, ModuleRunRow, TrialRow, WorkerRow

Work = TypeVar("Work", TrialRow, ModuleRunRow)
# Of a result: the id of its trial or of its module run.
Key: TypeAlias = tuple[int | None, int | None]

# Statements of every call are built once: to build them takes longer than to run them.
_ADD_LEASE = insert(table_of(LeaseRow))
# The scheduler is to look whenever so many trials of a lease have ended, as it plans while devices measure.
_LOOK_EVERY = 32
# `trials_per_minute` looks back this far.
PACE_WINDOW_S = 300.0
_LOST = Measurement(Outcome.DEVICE_LOST, error="every device that held it was lost before it reported")


@dataclass(frozen=True)
class StoredLease:
    """What one worker's session has to do by `expires_at`: trials of one job, to be measured or only to
    `build`; or its module runs, to be timed in turns.

    `trials` and `module_runs` are those not reported yet. `attempt` is 1 unless the work outlived a device
    that held it. By workload, `constants` are the indices of the arguments that are weights of the model, and
    `best_s` is the best latency that trials have had on this device class.
    """

    id: str
    worker_id: str
    session_id: str
    job_id: str
    attempt: int
    expires_at: float
    trials: tuple[Trial, ...]
    module_runs: tuple[StoredModuleRun, ...]
    constants: dict[str, tuple[int, ...]]
    best_s: dict[str, float]
    build: bool = False


@dataclass(frozen=True)
class HeldLease:
    """A lease that a worker holds."""

    id: str
    worker_id: str
    taken_at: float


class HeldWork(NamedTuple):
    """What a lease holds: the library that a trial came with, and which repeat it is."""

    library_sha: str | None = None
    repeat: int = 0


@dataclass(frozen=True)
class Reported:
    """How many results were news, their job (None: the lease is stale), and whether they closed the lease.

    `many`: with them, so many of a lease that goes on have ended that it is worth a look.
    """

    accepted: int
    job_id: str | None
    closed: bool
    many: bool = False


def take(
    session: Session,
    lease_id: str,
    worker_id: str,
    session_id: str,
    device_class: str | None,
    limit: int,
    now: float,
    ttl_s: float,
) -> StoredLease | None:
    """Lease up to `limit` of the oldest trials of one job of this class, as `fair_queue` says; its module
    runs go first, without trials. A builder, which has no device class, gets trials of any that it builds
    for.

    A trial or a module run that outlived a lost device is leased alone: if the next is lost too, it was this.
    """
    turns = _turns(session, worker_id, device_class, now) if limit > 0 else []
    portion = fair_queue.portion(session, worker_id, device_class, now) if turns else None
    for turn in turns:
        assert portion is not None, "there are turns"
        runs = _waiting_runs(session, turn)
        offered = [] if runs else _waiting_trials(session, turn, limit, portion)
        if runs or offered:  # another server may have been faster
            holder = {"id": lease_id, "worker_id": worker_id, "session_id": session_id}
            builds = turn.takes is Takes.UNBUILT
            lease = _grant(session, holder | {"build": builds}, offered, runs, now, ttl_s)
            if not builds:
                # Last: until the transaction ends, nobody else can charge the job.
                fair_queue.charge(session, turn, len(runs) + len(offered))
            return lease
    return None


def current(session: Session, worker_id: str, session_id: str, now: float) -> StoredLease | None:
    """The lease that this session holds now, with what it has not reported yet."""
    held = select(LeaseRow).where(LeaseRow.worker_id == worker_id, LeaseRow.session_id == session_id)
    live = held.where(LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)
    row = session.scalars(live.order_by(LeaseRow.taken_at.desc(), LeaseRow.id).limit(1)).first()
    return None if row is None else _load(session, row)


def renew(session: Session, lease_id: str, session_id: str, now: float, ttl_s: float) -> bool:
    """Extend a lease to `now + ttl_s`; False when it is closed, expired or another session's."""
    live = update(LeaseRow).where(*_live(lease_id, session_id, now))
    return changed(session, live.values(expires_at=now + ttl_s)) == 1


def report(
    session: Session, lease_id: str, session_id: str, reports: Sequence[LeaseResult], now: float
) -> Reported:
    """Store results, each once; what is repeated or stale changes nothing.

    Stale are a closed or expired lease, and another session's. A measurement is stored as a record too, and
    appends a "progress" event; what was built waits for a device. The last result closes the lease. The
    caller has written to the worker before.
    """
    whose = {"lease": lease_id, "its_session": session_id, "now": now}
    lease = session.scalar(_live_lease(), whose)
    if lease is None:
        return Reported(accepted=0, job_id=None, closed=False)
    held = _held(session, lease_id)
    news = _news(lease, held, reports)
    if not news:
        return Reported(accepted=0, job_id=lease.job_id, closed=False)
    is_all = len(news) == len(held)
    ended, built = results.apart(news)
    measured = [one.trial_id for one, _ in ended if one.trial_id is not None]
    repeats = [trial_id for trial_id in measured if held[trial_id, None].repeat]
    ended = results.with_earlier(session, ended, repeats)
    # Locks the job: after the worker and the lease and before trials, as everywhere.
    issued, done = jobs.count(session, lease.job_id, done=len(measured))
    results.finish(session, ended, now)
    schedules.put_trials(session, measured, now)
    building.make_ready(session, built)
    building.drop_libraries(session, [trial_id for trial_id in measured if held[trial_id, None].library_sha])
    outcomes = [*(measurement.outcome for _, measurement in ended), *(Outcome.OK for _ in built)]
    results.credit(session, lease, outcomes, len(measured) + len(built), closed_at=now if is_all else None)
    if ended:
        events.add(session, lease.job_id, "progress", _progress(issued, done), now)
    return Reported(len(news), lease.job_id, is_all, many=not is_all and _passes(lease.measured, len(news)))


def expire(session: Session, now: float, max_attempts: int = 2) -> list[str]:
    """Close the leases whose time is up; the ids of their jobs.

    What they had not reported is pending again, or done as DEVICE_LOST when it lost `max_attempts` devices.
    """
    overdue = select(LeaseRow).where(LeaseRow.closed_at.is_(None), LeaseRow.expires_at <= now)
    # By job, so that two schedulers which do this at once never wait for each other.
    in_order = overdue.order_by(LeaseRow.job_id, LeaseRow.id)
    leases = session.scalars(in_order.with_for_update(skip_locked=True)).all()
    for lease in leases:
        _lapse(session, lease, now, max_attempts)
    return list(dict.fromkeys(lease.job_id for lease in leases))


def give_back(session: Session, worker_id: str, session_id: str, now: float) -> list[str]:
    """Close what this session holds; the ids of the jobs. The caller has written to the worker before.

    What it had not reported is pending again, and no device counts as lost: it can't or shall not go on.
    """
    open_ones = select(LeaseRow).where(LeaseRow.worker_id == worker_id, LeaseRow.closed_at.is_(None))
    theirs = open_ones.where(LeaseRow.session_id == session_id).order_by(LeaseRow.job_id, LeaseRow.id)
    # One that is locked is just being expired.
    leases = session.scalars(theirs.with_for_update(skip_locked=True)).all()
    for lease in leases:
        _lapse(session, lease, now, max_attempts=None)
    return list(dict.fromkeys(lease.job_id for lease in leases))


def evict(session: Session, worker_id: str, now: float) -> None:
    """Let nobody work under this name until it is wanted again; what it holds is given back.

    Raises WorkerNotFound.
    """
    devices.set_wanted(session, worker_id, Wanted.EVICTED)
    holder = select(WorkerRow.session_id).where(WorkerRow.id == worker_id)
    give_back(session, worker_id, session.scalars(holder).one(), now)


def trials_per_minute(session: Session, now: float) -> dict[str, float]:
    """By worker, over the last five minutes, or since its first lease in them; without the idle ones."""
    recent = or_(LeaseRow.closed_at.is_(None), LeaseRow.closed_at > now - PACE_WINDOW_S)
    sums = select(LeaseRow.worker_id, func.sum(LeaseRow.measured), func.min(LeaseRow.taken_at))
    rows = session.execute(sums.where(recent).group_by(LeaseRow.worker_id))
    return {
        worker_id: 60.0 * measured / max(now - max(first, now - PACE_WINDOW_S), 1.0)
        for worker_id, measured, first in rows
    }


def held(session: Session, now: float) -> list[HeldLease]:
    """The leases that are open and whose time is not up, the oldest first."""
    live = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)
    leases = select(LeaseRow.id, LeaseRow.worker_id, LeaseRow.taken_at).where(*live)
    return [HeldLease(*row) for row in session.execute(leases.order_by(LeaseRow.taken_at, LeaseRow.id))]


def _turns(session: Session, worker_id: str, device_class: str | None, now: float) -> list[QueueEntry]:
    if device_class is None:
        return fair_queue.turns_to_build(session, worker_id)
    return fair_queue.turns(session, device_class, now)


def _waiting_runs(session: Session, turn: QueueEntry) -> Sequence[ModuleRunRow]:
    """The job's module runs that wait, oldest first."""
    if not turn.times:
        return []
    waiting = select(ModuleRunRow).where(ModuleRunRow.job_id == turn.job_id, ModuleRunRow.state == "pending")
    # Who finds them locked waits and gets none, not some: they are to be timed together.
    runs = session.scalars(waiting.order_by(ModuleRunRow.id).with_for_update()).all()
    suspects = [run for run in runs if run.attempts]
    return suspects[:1] or runs


def _waiting_trials(session: Session, turn: QueueEntry, limit: int, portion: Quota) -> Sequence[Offer]:
    """The oldest that no other transaction is taking."""
    about = {"job_id": turn.job_id, "together": min(limit, portion.of(turn.undone))}
    offered = session.execute(offers.waiting(turn.takes), about).all()
    if offered and offered[0].attempts:
        return offered[:1]
    return [offer for offer in offered if not offer.attempts]


def _grant(
    session: Session,
    holder: dict[str, Any],
    offered: Sequence[Offer],
    runs: Sequence[ModuleRunRow],
    now: float,
    ttl_s: float,
) -> StoredLease:
    first: Any = offered[0] if offered else runs[0]
    terms = {"job_id": first.job_id, "attempt": first.attempts + 1, "taken_at": now}
    values = {**holder, **terms, "expires_at": now + ttl_s}
    session.execute(_ADD_LEASE, values)
    ids = [work.id for work in offered or runs]
    taking = _taking(dialect_of(session), TrialRow if offered else ModuleRunRow)
    session.execute(taking, {"ids": ids, "lease": holder["id"]})
    return _whole(LeaseRow(**values), offered, runs)


@cache
def _taking(dialect: str, table: type[TrialRow | ModuleRunRow]) -> Update:
    work = table_of(table)
    values = {"state": "leased", "lease_id": bindparam("lease")}
    return update(work).where(among(dialect, work.c.id, "ids")).values(values)


@cache
def _live_lease() -> Select[LeaseRow]:
    """Locks it."""
    live = _live(bindparam("lease"), bindparam("its_session"), bindparam("now"))
    return select(LeaseRow).where(*live).with_for_update()


def _live(lease_id: Any, session_id: Any, now: Any) -> tuple[Any, ...]:
    ours = (LeaseRow.id == lease_id, LeaseRow.session_id == session_id)
    return (*ours, LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)


def _held(session: Session, lease_id: str) -> dict[Key, HeldWork]:
    """What this lease still holds."""
    rows = session.execute(_held_trials(), {"lease": lease_id})
    held: dict[Key, HeldWork] = {(row.id, None): HeldWork(row.library_sha, row.repeat) for row in rows}
    if held:
        return held
    runs = select(ModuleRunRow.id).where(ModuleRunRow.lease_id == lease_id, ModuleRunRow.state == "leased")
    return {(None, run_id): HeldWork() for run_id in session.scalars(runs)}


@cache
def _held_trials() -> Select[int, str | None, int]:
    held = (TrialRow.lease_id == bindparam("lease"), TrialRow.state == "leased")
    return select(TrialRow.id, TrialRow.library_sha, TrialRow.repeat).where(*held)


def _news(lease: LeaseRow, held: Mapping[Key, HeldWork], reports: Sequence[LeaseResult]) -> list[LeaseResult]:
    """The first result of each thing that is held, as far as it fits what was leased."""
    first = {(result.trial_id, result.module_run_id): result for result in reversed(reports)}
    return [
        replace(result, measurement=building.checked(lease, result.measurement, held[key].library_sha))
        for key, result in first.items()
        if key in held
    ]


def _passes(before: int, news: int) -> bool:
    """Whether so many more pass another multiple of what is worth a look."""
    return (before + news) // _LOOK_EVERY > before // _LOOK_EVERY


def _progress(issued: int, done: int) -> dict[str, int]:
    return {"trials_done": done, "trials_issued": issued}


def _lapse(session: Session, lease: LeaseRow, now: float, max_attempts: int | None) -> None:
    """End a lease that was not worked off: its device was lost, or gave it back (`max_attempts` None)."""
    session.execute(update(LeaseRow).where(LeaseRow.id == lease.id).values(closed_at=now))
    state = lock_job(session, lease.job_id)
    lost: Sequence[int] = ()
    if max_attempts is not None:
        lost_devices.note(session, lease, now)
        lost = _quarantine(session, TrialRow, lease.id, now, max_attempts)
        schedules.put_trials(session, lost, now)
        building.drop_libraries(session, lost)
        _quarantine(session, ModuleRunRow, lease.id, now, max_attempts)
    for table in (TrialRow, ModuleRunRow):
        still = (table.lease_id == lease.id, table.state == "leased")
        session.execute(update(table).where(*still).values(state="pending", lease_id=None))
    if state is not None and JobState(state).finished:
        jobs.drop_waiting(session, lease.job_id)
    issued, done = jobs.count(session, lease.job_id, done=len(lost))
    events.add(session, lease.job_id, "progress", _progress(issued, done), now)


def _quarantine(
    session: Session, table: type[Work], lease_id: str, now: float, max_attempts: int
) -> Sequence[int]:
    """Count one attempt more for what the lease still holds; the ids of what is given up because of it."""
    still = (table.lease_id == lease_id, table.state == "leased")
    session.execute(update(table).where(*still).values(attempts=table.attempts + 1))
    given_up = session.scalars(select(table.id).where(*still, table.attempts >= max_attempts)).all()
    session.execute(update(table).where(table.id.in_(given_up)).values(results.ended(_LOST, now)))
    return given_up


def _load(session: Session, lease: LeaseRow) -> StoredLease:
    held = offers.offers().where(TrialRow.lease_id == lease.id, TrialRow.state == "leased")
    held = held.order_by(TrialRow.id)
    runs = select(ModuleRunRow).where(ModuleRunRow.lease_id == lease.id, ModuleRunRow.state == "leased")
    offered = session.execute(held, {"job_id": lease.job_id}).all()
    return _whole(lease, offered, session.scalars(runs.order_by(ModuleRunRow.id)).all())


def _whole(lease: LeaseRow, offered: Sequence[Offer], runs: Sequence[ModuleRunRow]) -> StoredLease:
    """The lease with all that its worker needs to know."""
    return StoredLease(
        id=lease.id,
        worker_id=lease.worker_id,
        session_id=lease.session_id,
        job_id=lease.job_id,
        attempt=lease.attempt,
        expires_at=lease.expires_at,
        trials=tuple(replace(trial_of(offer), state="leased") for offer in offered),
        module_runs=tuple(replace(module_run_of(run), state="leased", lease_id=lease.id) for run in runs),
        constants={offer.workload_hash: tuple(offer.constants) for offer in offered},
        best_s={offer.workload_hash: offer.best_s for offer in offered if offer.best_s is not None},
        build=lease.build,
    )
