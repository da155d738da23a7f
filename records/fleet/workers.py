"""Workers: their sessions, their instructions from administrators, and their last reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, bindparam, delete, func, or_, select, tuple_, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from core.device import Device
from core.worker import LOST_AFTER_S, DesiredState, Role, Vitals, WorkerState
from records import devices
from records.fleet import building
from records.fleet.building import Builder
from records.fleet.names import NameClaim, check_name_claim
from records.storage.database import NotFound
from records.storage.statements import changed, insert_missing, table_of
from records.storage.tables import BuilderRow, DeviceClassRow, FencedSessionRow, LeaseRow, TokenRow, WorkerRow


class Instructions(NamedTuple):
    """An administrator's instructions to a worker: its desired state, and whether to calibrate its device
    again."""

    desired_state: DesiredState = DesiredState.WORK
    calibrate: bool = False


@dataclass(frozen=True)
class Reservation:
    """A worker measures only the jobs of the token `holder`, called `name`, until the time `until`."""

    holder: str
    name: str
    until: float


class Capacity(NamedTuple):
    """The number of devices of a class, and the trials that they measure in a second together. A device of
    unknown speed counts as fast as the average; the sum is 0 while none is known."""

    devices: int
    trials_per_s: float


class WorkerNotFound(NotFound):
    """No worker has this id."""


class SessionFenced(Exception):
    """A newer session of the same worker has taken this one's place, or its worker was evicted."""


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as last seen.

    `trials_done` counts the trials that it reported. `failures` counts its results that were not OK,
    including those of whole models. `trial_s` is the recent average of seconds per trial, None until the
    worker has finished a lease. A worker whose `role` is BUILD has no device class. Its trials are the ones
    that it built. `builder` is None until it is able to build. `calibrate`: it was asked to calibrate its
    device again, and hasn't done so yet. The `reservation` may be over.
    """

    id: str
    session_id: str
    device_class: str | None
    device_name: str | None
    cores: int | None
    state: WorkerState
    desired_state: DesiredState
    last_seen_at: float
    trials_done: int
    failures: int
    failures_by_kind: Mapping[str, int]
    vitals: Vitals
    trial_s: float | None
    role: Role = Role.MEASURE
    builder: Builder | None = None
    calibrate: bool = False
    reservation: Reservation | None = None

    def is_lost(self, now: float) -> bool:
        """Return whether the worker has been silent for too long without having gone offline."""
        return not self.has_left and now - self.last_seen_at > LOST_AFTER_S

    @property
    def has_left(self) -> bool:
        """Whether the worker has gone offline."""
        return self.state is WorkerState.OFFLINE

    @property
    def unable(self) -> str:
        """A phrase that follows the worker's name, such as "can't measure: ..."; empty if the worker can
        work."""
        return f"can't {self.role}: {self.vitals.health_error}" if self.vitals.health_error else ""


@dataclass(frozen=True)
class WorkerSession:
    """A session of a worker, as the worker describes it in a call.

    `device` is None until it was probed. A worker that builds has a `builder` instead. If `vitals` is None,
    the stored vitals and role stay. `calibrated`: the device was calibrated just now, so its class gets the
    new profile. `claim` has the caller's token and boot id. `hardware` names what it measures on.
    """

    worker_id: str
    session_id: str
    state: WorkerState
    device: Device | None = None
    vitals: Vitals | None = None
    role: Role = Role.MEASURE
    builder: Builder | None = None
    calibrated: bool = False
    claim: NameClaim = NameClaim()  # noqa: RUF009 - it never changes
    hardware: tuple[str, ...] = ()

    @property
    def device_class(self) -> str | None:
        return None if self.device is None else self.device.key


def register(session: Session, worker: WorkerSession, now: float) -> str | None:
    """Register a session as the worker's current one. Return the older session that it fences off, if any.

    The leases of the older session expire now. Registering a session again updates the device, the state, the
    time, the vitals and the role. Raises SessionFenced if a newer session exists or the worker is evicted.
    Raises NameTaken, NameInUse.
    """
    worker_id, session_id, device, claim = worker.worker_id, worker.session_id, worker.device, worker.claim
    fenced = select(FencedSessionRow.fenced_at).filter_by(worker_id=worker_id, session_id=session_id)
    if session.scalar(fenced) is not None:
        raise SessionFenced(f"worker {worker_id!r} has a newer session than {session_id!r}")
    if desired_state(session, worker_id) is DesiredState.EVICTED:
        raise SessionFenced(f"worker {worker_id!r} is evicted")
    values: dict[str, object] = {"session_id": session_id, "state": worker.state, "last_seen_at": now}
    is_new = insert_missing(session, WorkerRow, {"id": worker_id, **values}, key=["id"])
    current = session.scalars(select(WorkerRow).where(WorkerRow.id == worker_id).with_for_update()).one()
    older = None if current.session_id == session_id else current.session_id
    if is_new or older is not None or current.token_id != claim.token_id:
        check_name_claim(session, current, claim, is_new, now)
    values |= {"boot_id": claim.boot_id, "hardware": list(worker.hardware) or None}
    if claim.token_id is not None:
        values["token_id"] = claim.token_id
    if worker.vitals is not None:
        values["vitals"] = _vitals_json(worker.vitals, worker.role)
    if device is not None:
        devices.put_class(session, device, worker.calibrated)
        values["device_class"] = device.key
        if worker.calibrated:
            values["calibrate"] = False
    elif older is not None or worker.builder is not None:
        # The worker may be on other hardware now, so it has no class until it has probed again.
        values["device_class"] = None
    session.execute(update(WorkerRow).where(WorkerRow.id == worker_id).values(values))
    if device is not None or older is not None or worker.builder is not None:
        building.enrol(session, worker_id, worker.builder)
    if older is not None:
        _fence(session, worker_id, older, now)
    return older


def heartbeat(session: Session, worker: WorkerSession, now: float) -> Instructions | None:
    """Store the state, the vitals and the time of a worker's call. Return its instructions.

    If this is not the worker's session, or the worker is evicted, return None and change nothing. Raises
    NameTaken if the name belongs to another token.
    """
    worker_id, session_id, token_id = worker.worker_id, worker.session_id, worker.claim.token_id
    values: dict[str, object] = {
        "worker": worker_id,
        "its_session": session_id,
        "new_state": worker.state,
        "now": now,
    }
    if worker.vitals is not None:
        values["new_vitals"] = _vitals_json(worker.vitals, worker.role)
    if token_id is not None:
        values["its_token"] = token_id
    statement = _update_heartbeat(worker.vitals is not None, token_id is not None)
    connection = session.connection()
    found = connection.execute(statement, values).first()
    if found is None and token_id is not None and _adopt(session, worker_id, session_id, token_id, now):
        found = connection.execute(statement, values).first()
    return None if found is None else Instructions(DesiredState(found[0]), found[1])


def _adopt(session: Session, worker_id: str, session_id: str, token_id: str, now: float) -> bool:
    """Move a worker's session to another token if the session's token is no longer valid. Return False if it
    isn't the worker's session.

    Raises NameTaken.
    """
    row = select(WorkerRow).where(WorkerRow.id == worker_id, WorkerRow.session_id == session_id)
    worker = session.scalars(row.with_for_update()).first()
    if worker is None or worker.token_id == token_id:
        return False
    check_name_claim(session, worker, NameClaim(token_id, worker.boot_id), False, now)
    session.execute(update(WorkerRow).where(WorkerRow.id == worker_id).values(token_id=token_id))
    return True


@cache
def _update_heartbeat(with_vitals: bool, with_token: bool) -> ReturningUpdate[str, bool]:
    worker = table_of(WorkerRow)
    values: dict[str, Any] = {"state": bindparam("new_state"), "last_seen_at": bindparam("now")}
    if with_vitals:
        values["vitals"] = bindparam("new_vitals")
    this_one = update(worker).where(
        worker.c.id == bindparam("worker"), worker.c.desired_state != DesiredState.EVICTED
    )
    of_session = this_one.where(worker.c.session_id == bindparam("its_session")).values(values)
    if with_token:
        of_session = of_session.where(worker.c.token_id == bindparam("its_token"))
    return of_session.returning(worker.c.desired_state, worker.c.calibrate)


def list_workers(session: Session) -> list[WorkerInfo]:
    """Return every worker, by id."""
    return _workers(session)


def get(session: Session, worker_id: str) -> WorkerInfo:
    """Return one worker. Raises WorkerNotFound."""
    found = _workers(session, WorkerRow.id == worker_id)
    if not found:
        raise WorkerNotFound(f"there is no worker {worker_id!r}")
    return found[0]


def set_desired_state(session: Session, worker_id: str, desired_state: DesiredState) -> None:
    """Store a worker's desired state. Raises WorkerNotFound."""
    values: dict[str, str] = {"desired_state": desired_state}
    if desired_state is DesiredState.EVICTED:
        values["state"] = WorkerState.DRAINING  # an evicted worker may never call again
    if changed(session, update(WorkerRow).where(WorkerRow.id == worker_id).values(values)) == 0:
        raise WorkerNotFound(f"there is no worker {worker_id!r}")


def request_calibration(session: Session, worker_id: str) -> None:
    """Ask a worker to calibrate its device again. Raises WorkerNotFound."""
    if changed(session, update(WorkerRow).where(WorkerRow.id == worker_id).values(calibrate=True)) == 0:
        raise WorkerNotFound(f"there is no worker {worker_id!r}")


def instructions(session: Session, worker_id: str) -> Instructions:
    """Return a worker's instructions; WORK without a calibration for an unknown worker."""
    row = select(WorkerRow.desired_state, WorkerRow.calibrate).where(WorkerRow.id == worker_id)
    found = session.execute(row).first()
    return Instructions() if found is None else Instructions(DesiredState(found[0]), found[1])


def desired_state(session: Session, worker_id: str) -> DesiredState:
    """Return a worker's desired state; WORK for an unknown worker."""
    return instructions(session, worker_id).desired_state


def has_other_session(session: Session, worker_id: str, session_id: str) -> bool:
    """Return whether the session id belongs to another worker. With a copied id, a worker could report for
    the other worker's leases."""
    others = select(WorkerRow.id).where(WorkerRow.session_id == session_id, WorkerRow.id != worker_id)
    return session.scalar(others.limit(1)) is not None


def not_taking_work(session: Session) -> list[str]:
    """Return the ids of workers whose desired state isn't WORK, or that must calibrate first."""
    return list(session.scalars(_select_not_taking_work()))


@cache
def _select_not_taking_work() -> Select[str]:
    withheld = or_(WorkerRow.desired_state != DesiredState.WORK, WorkerRow.calibrate)
    return select(WorkerRow.id).where(withheld)


def count_able(session: Session, device_class: str, now: float, silent_s: float = LOST_AFTER_S) -> int:
    """Return how many workers of a device class measure the jobs of anybody: they aren't reserved, and
    haven't been silent for `silent_s`.
    """
    able = _is_able(device_class, now, silent_s)
    return session.scalar(select(func.count()).select_from(WorkerRow).where(*able)) or 0


def capacity(session: Session, device_class: str, now: float) -> Capacity:
    """Return the devices of a class that measure the jobs of anybody, and their speed together."""
    able = _is_able(device_class, now, LOST_AFTER_S)
    columns = (func.count(), func.count(WorkerRow.trial_s), func.sum(1.0 / WorkerRow.trial_s))
    devices, known, trials_per_s = session.execute(select(*columns).where(*able)).one()
    return Capacity(devices, devices * float(trials_per_s) / known if known else 0.0)


def _is_able(device_class: str, now: float, silent_s: float) -> tuple[ColumnElement[bool], ...]:
    return (
        WorkerRow.device_class == device_class,
        devices.may_work(),
        WorkerRow.last_seen_at > now - silent_s,
        or_(WorkerRow.reserved_until.is_(None), WorkerRow.reserved_until <= now),
    )


def may_lease(session: Session, worker_id: str, session_id: str) -> bool:
    """Return whether this session may lease work, and lock the worker's row so that this stays true."""
    found = session.connection().execute(_select_session_to_lease(), {"worker": worker_id}).first()
    return found is not None and tuple(found) == (session_id, WorkerState.READY, DesiredState.WORK)


@cache
def _select_session_to_lease() -> Select[str, str, str]:
    """Select and lock a worker's session, state and desired state."""
    row = select(WorkerRow.session_id, WorkerRow.state, WorkerRow.desired_state)
    return row.where(WorkerRow.id == bindparam("worker")).with_for_update(key_share=True)


def drop_silent(session: Session, before: float, limit: int) -> int:
    """Delete up to `limit` workers that were silent since `before`, and up to `limit` sessions that were
    fenced before it.

    Return the number of both. Workers with an instruction or a reservation stay, because it applies to their
    names. Workers with fenced sessions stay, too.
    """
    key = (FencedSessionRow.worker_id, FencedSessionRow.session_id)
    old = select(*key).where(FencedSessionRow.fenced_at < before).order_by(*key).limit(limit)
    sessions = changed(session, delete(FencedSessionRow).where(tuple_(*key).in_(old)))
    fenced = select(FencedSessionRow.worker_id).where(FencedSessionRow.worker_id == WorkerRow.id)
    unreserved = or_(WorkerRow.reserved_until.is_(None), WorkerRow.reserved_until < before)
    works = WorkerRow.desired_state == DesiredState.WORK
    silent = (WorkerRow.last_seen_at < before, works, unreserved, ~fenced.exists())
    found = select(WorkerRow.id).where(*silent).order_by(WorkerRow.id).limit(limit)
    # A locked worker is calling just now.
    ids = session.scalars(found.with_for_update(skip_locked=True)).all()
    session.execute(delete(BuilderRow).where(BuilderRow.worker_id.in_(ids)))
    session.execute(delete(WorkerRow).where(WorkerRow.id.in_(ids)))
    return len(ids) + sessions


def _fence(session: Session, worker_id: str, session_id: str, now: float) -> None:
    """Fence a session off: it can't register again, and its leases expire now."""
    fenced = {"worker_id": worker_id, "session_id": session_id, "fenced_at": now}
    insert_missing(session, FencedSessionRow, fenced, key=["worker_id", "session_id"])
    own = (LeaseRow.worker_id == worker_id, LeaseRow.session_id == session_id)
    live = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)
    session.execute(update(LeaseRow).where(*own, *live).values(expires_at=now))


def _vitals_json(vitals: Vitals, role: Role) -> dict[str, Any]:
    """Return the vitals as JSON to store. They include the role, as `builds`."""
    return asdict(vitals) | {"builds": role is Role.BUILD}


def _workers(session: Session, *where: ColumnElement[bool]) -> list[WorkerInfo]:
    builders = building.builders_by_worker(session)
    rows = session.execute(
        select(WorkerRow, DeviceClassRow.name, DeviceClassRow.cores, TokenRow.name)
        .outerjoin(TokenRow, TokenRow.id == WorkerRow.reserved_for)
        .outerjoin(DeviceClassRow, DeviceClassRow.key == WorkerRow.device_class)
        .where(*where)
        .order_by(WorkerRow.id)
    )
    found = []
    for row, device_name, device_cores, holder in rows:
        builder = builders.get(row.id)
        vitals = dict(row.vitals or {})
        builds = vitals.pop("builds", False) or builder is not None
        found.append(
            WorkerInfo(
                id=row.id,
                session_id=row.session_id,
                device_class=row.device_class,
                device_name=device_name,
                cores=builder.cores if builder else device_cores,
                state=WorkerState(row.state),
                desired_state=DesiredState(row.desired_state),
                last_seen_at=row.last_seen_at,
                trials_done=row.trials_done,
                failures=row.failures,
                failures_by_kind=row.failures_by_kind,
                vitals=Vitals(**vitals),
                trial_s=row.trial_s,
                role=Role.BUILD if builds else Role.MEASURE,
                builder=builder,
                calibrate=row.calibrate,
                reservation=None
                if row.reserved_for is None or row.reserved_until is None
                else Reservation(row.reserved_for, holder or row.reserved_for, row.reserved_until),
            )
        )
    return found
