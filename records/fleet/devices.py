"""Device classes, and the workers that measure on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from core.device import Device
from core.profile import Profile
from core.worker import Wanted, WorkerState
from records.fleet import builders
from records.fleet.builders import Builder
from records.storage.database import NotFound
from records.storage.statements import changed, insert_missing, table_of
from records.storage.tables import DeviceClassRow, FencedSessionRow, LeaseRow, WorkerRow

# A worker calls at least every 30 s.
LOST_AFTER_S = 40.0


class Asked(NamedTuple):
    """What people ask of a worker: what it should do, and whether to measure its device's profile again."""

    wanted: Wanted = Wanted.WORK
    calibrate: bool = False


class DeviceClassNotFound(NotFound):
    """No device class has this key."""


class WorkerNotFound(NotFound):
    """No worker has this id."""


class SessionFenced(Exception):
    """A newer session of the same worker has taken this one's place, or its worker was evicted."""


@dataclass(frozen=True)
class Vitals:
    """How a worker is, as far as it says so. `candidates` are those of the lease it holds. `trouble` says why
    it can't measure, in one line; `builds` that it is there to build, which is known before it can."""

    tunefarm_version: str = ""
    tvm_version: str = ""
    load: float | None = None
    temperature_c: float | None = None
    memory_free_bytes: int | None = None
    candidates: int | None = None
    candidates_done: int | None = None
    uncontained: str = ""
    trouble: str = ""
    builds: bool = False


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as last seen. `trials_done` counts what it reported, `failures` what of that was not OK.

    `trial_s` are the seconds that a trial takes on it, None until it has worked off a lease. A `builder` has
    no device class: it measures nothing, and its trials are those that it built. `calibrate`: it is wanted to
    measure its device's profile again.
    """

    id: str
    session_id: str
    device_class: str | None
    device_name: str | None
    cores: int | None
    state: WorkerState
    wanted: Wanted
    last_seen_at: float
    trials_done: int
    failures: int
    failures_by_kind: Mapping[str, int]
    vitals: Vitals
    trial_s: float | None
    builder: Builder | None = None
    calibrate: bool = False

    def is_lost(self, now: float) -> bool:
        """Whether it has been silent for longer than a worker that is there, and never said farewell."""
        return not self.has_left and now - self.last_seen_at > LOST_AFTER_S

    @property
    def has_left(self) -> bool:
        """Whether it has said farewell."""
        return self.state is WorkerState.OFFLINE

    @property
    def is_builder(self) -> bool:
        """Whether it is there to build, able to or not."""
        return self.builder is not None or self.vitals.builds

    @property
    def unable(self) -> str:
        """What it can't do and why, as it goes on after its name; empty when it can."""
        does = "build" if self.is_builder else "measure"
        return f"can't {does}: {self.vitals.trouble}" if self.vitals.trouble else ""


def put_class(session: Session, device: Device, calibrated: bool = False) -> None:
    """Store a device class unless it is already there. Its profile takes the place of the one that is known
    when it was `calibrated` just now."""
    row = {"key": device.key, "name": device.name, "device": device.to_json(), "target": device.target}
    facts = {"machine": None if device.gpu else device.machine, "cores": device.cores}
    row |= {"toolchain": device.toolchain}
    insert_missing(session, DeviceClassRow, {**row, **facts}, key=["key"])
    if device.profile is not None:
        known = update(DeviceClassRow).where(DeviceClassRow.key == device.key)
        if not calibrated:
            known = known.where(DeviceClassRow.profile.is_(None))
        session.execute(known.values(profile=device.profile.to_json()))


def get_class(session: Session, key: str) -> Device:
    """Raises DeviceClassNotFound."""
    found = session.execute(_described().where(DeviceClassRow.key == key)).first()
    if found is None:
        raise DeviceClassNotFound(f"there is no device class {key!r}")
    return _device(*found)


def classes(session: Session) -> list[Device]:
    """By name."""
    rows = session.execute(_described().order_by(DeviceClassRow.name, DeviceClassRow.key))
    return [_device(*row) for row in rows]


def resolve_class(session: Session, target: str) -> Device | None:
    """The device class meant by a key, by a name that only one has, or by "native".

    "native" is the class of the worker seen last among those that are ready or busy and wanted to work.
    """
    if target == "native":
        key = _native(session)
        return None if key is None else get_class(session, key)
    by_key = session.execute(_described().where(DeviceClassRow.key == target)).first()
    if by_key is not None:
        return _device(*by_key)
    by_name = session.execute(_described().where(DeviceClassRow.name == target).limit(2)).all()
    return _device(*by_name[0]) if len(by_name) == 1 else None


def register(
    session: Session,
    worker_id: str,
    session_id: str,
    device: Device | None,
    state: WorkerState,
    now: float,
    vitals: Vitals | None = None,
    builder: Builder | None = None,
    calibrated: bool = False,
) -> str | None:
    """Make this the worker's session; the older session that it fences off, if any, whose leases expire now.

    Repeating it updates the device and the vitals (None keeps them), the state and the time. A `builder` has
    no device, because nothing is measured on it. A device that was `calibrated` just now brings its class a
    new profile, and needs to be calibrated no more. Raises SessionFenced when a newer session has taken this
    one's place, or the worker is evicted.
    """
    if _is_fenced(session, worker_id, session_id):
        raise SessionFenced(f"worker {worker_id!r} has a newer session than {session_id!r}")
    if wanted(session, worker_id) is Wanted.EVICTED:
        raise SessionFenced(f"worker {worker_id!r} is evicted")
    older = _enter(session, worker_id, session_id, state, now)
    values: dict[str, object] = {"session_id": session_id, **_sign_of_life(state, now, vitals)}
    if device is not None:
        put_class(session, device, calibrated)
        values["device_class"] = device.key
        if calibrated:
            values["calibrate"] = False
    elif older is not None or builder is not None:
        # The worker may have come back on other hardware: it has no class until it has probed again.
        values["device_class"] = None
    session.execute(update(WorkerRow).where(WorkerRow.id == worker_id).values(values))
    if device is not None or older is not None or builder is not None:
        builders.enrol(session, worker_id, builder)
    if older is not None:
        _fence(session, worker_id, older, now)
    return older


def seen(
    session: Session,
    worker_id: str,
    session_id: str,
    state: WorkerState,
    now: float,
    vitals: Vitals | None = None,
) -> Asked | None:
    """Note a sign of life; what people ask of the worker. None, and nothing changed, when this is not its
    session, or it is evicted."""
    about: dict[str, object] = {"worker": worker_id, "its_session": session_id}
    about |= {"new_state": state, "now": now, "new_vitals": None if vitals is None else asdict(vitals)}
    found = session.execute(_note_life(vitals is not None), about).first()
    return None if found is None else Asked(Wanted(found[0]), found[1])


@cache
def _note_life(with_vitals: bool) -> ReturningUpdate[str, bool]:
    worker = table_of(WorkerRow)
    values: dict[str, Any] = {"state": bindparam("new_state"), "last_seen_at": bindparam("now")}
    if with_vitals:
        values["vitals"] = bindparam("new_vitals")
    ours = update(worker).where(worker.c.id == bindparam("worker"), worker.c.wanted != Wanted.EVICTED)
    noted = ours.where(worker.c.session_id == bindparam("its_session")).values(values)
    return noted.returning(worker.c.wanted, worker.c.calibrate)


def workers(session: Session) -> list[WorkerInfo]:
    """By id."""
    return _workers(session, _select_workers().order_by(WorkerRow.id))


def worker(session: Session, worker_id: str) -> WorkerInfo:
    """Raises WorkerNotFound."""
    found = _workers(session, _select_workers().where(WorkerRow.id == worker_id))
    if not found:
        raise WorkerNotFound(f"there is no worker {worker_id!r}")
    return found[0]


def want(session: Session, worker_id: str, what: Wanted) -> None:
    """Note what people want a worker to do, until they want something else. Raises WorkerNotFound."""
    values: dict[str, str] = {"wanted": what}
    if what is Wanted.EVICTED:
        values["state"] = WorkerState.DRAINING  # it may never say so itself
    if changed(session, update(WorkerRow).where(WorkerRow.id == worker_id).values(values)) == 0:
        raise WorkerNotFound(f"there is no worker {worker_id!r}")


def calibrate(session: Session, worker_id: str) -> None:
    """Note that a worker is to measure its device's profile again. Raises WorkerNotFound."""
    if changed(session, update(WorkerRow).where(WorkerRow.id == worker_id).values(calibrate=True)) == 0:
        raise WorkerNotFound(f"there is no worker {worker_id!r}")


def asked(session: Session, worker_id: str) -> Asked:
    """What people ask of a worker; work for an unknown one."""
    row = select(WorkerRow.wanted, WorkerRow.calibrate).where(WorkerRow.id == worker_id)
    found = session.execute(row).first()
    return Asked() if found is None else Asked(Wanted(found[0]), found[1])


def wanted(session: Session, worker_id: str) -> Wanted:
    """WORK for an unknown worker."""
    return Wanted(session.scalar(select(WorkerRow.wanted).where(WorkerRow.id == worker_id)) or Wanted.WORK)


def unwanted(session: Session) -> list[str]:
    """The ids of the workers that people want to take no work, or to calibrate before they do."""
    asked_for = or_(WorkerRow.wanted != Wanted.WORK, WorkerRow.calibrate)
    return list(session.scalars(select(WorkerRow.id).where(asked_for)))


def may_take(session: Session, worker_id: str, session_id: str) -> bool:
    """Whether this session may have work; until the transaction ends, nothing can change that."""
    row = select(WorkerRow.session_id, WorkerRow.state, WorkerRow.wanted).where(WorkerRow.id == worker_id)
    found = session.execute(row.with_for_update(key_share=True)).first()
    return found is not None and tuple(found) == (session_id, WorkerState.READY, Wanted.WORK)


def _described() -> Select[str, str | None]:
    return select(DeviceClassRow.device, DeviceClassRow.profile)


def _device(text: str, profile: str | None) -> Device:
    return replace(Device.from_json(text), profile=None if profile is None else Profile.from_json(profile))


def _native(session: Session) -> str | None:
    able = (WorkerRow.state.in_((WorkerState.READY, WorkerState.BUSY)), WorkerRow.wanted == Wanted.WORK)
    newest = select(WorkerRow.device_class).where(*able, WorkerRow.device_class.is_not(None))
    return session.scalar(newest.order_by(WorkerRow.last_seen_at.desc(), WorkerRow.id).limit(1))


def _is_fenced(session: Session, worker_id: str, session_id: str) -> bool:
    fenced = select(FencedSessionRow.fenced_at).filter_by(worker_id=worker_id, session_id=session_id)
    return session.scalar(fenced) is not None


def _enter(session: Session, worker_id: str, session_id: str, state: WorkerState, now: float) -> str | None:
    """Make sure that the worker has a row; the other session that the row is of, if it is."""
    row = {"id": worker_id, "session_id": session_id, "state": state, "last_seen_at": now}
    insert_missing(session, WorkerRow, row, key=["id"])
    current = select(WorkerRow.session_id).where(WorkerRow.id == worker_id)
    held = session.scalars(current.with_for_update()).one()
    return None if held == session_id else held


def _fence(session: Session, worker_id: str, session_id: str, now: float) -> None:
    fenced = {"worker_id": worker_id, "session_id": session_id, "fenced_at": now}
    insert_missing(session, FencedSessionRow, fenced, key=["worker_id", "session_id"])
    theirs = (LeaseRow.worker_id == worker_id, LeaseRow.session_id == session_id)
    running = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)
    session.execute(update(LeaseRow).where(*theirs, *running).values(expires_at=now))


def _sign_of_life(state: WorkerState, now: float, vitals: Vitals | None) -> dict[str, object]:
    values: dict[str, object] = {"state": state, "last_seen_at": now}
    return values if vitals is None else values | {"vitals": asdict(vitals)}


def _select_workers() -> Select[WorkerRow, str, str]:
    classes_ = (DeviceClassRow, DeviceClassRow.key == WorkerRow.device_class)
    return select(WorkerRow, DeviceClassRow.name, DeviceClassRow.device).outerjoin(*classes_)


def _workers(session: Session, query: Select[WorkerRow, str, str]) -> list[WorkerInfo]:
    known = builders.by_worker(session)
    rows = session.execute(query)
    return [_info(row, name, device, known.get(row.id)) for row, name, device in rows]


def _info(row: WorkerRow, device_name: str | None, device: str | None, builder: Builder | None) -> WorkerInfo:
    return WorkerInfo(
        id=row.id,
        session_id=row.session_id,
        device_class=row.device_class,
        device_name=device_name,
        cores=builder.cores if builder else None if device is None else _cores(device),
        state=WorkerState(row.state),
        wanted=Wanted(row.wanted),
        last_seen_at=row.last_seen_at,
        trials_done=row.trials_done,
        failures=row.failures,
        failures_by_kind=row.failures_by_kind,
        vitals=Vitals(**row.vitals or {}),
        trial_s=row.trial_s,
        builder=builder,
        calibrate=row.calibrate,
    )


@lru_cache(maxsize=256)
def _cores(device: str) -> int:
    """Of thousands of workers, most are of a few classes."""
    return Device.from_json(device).cores
