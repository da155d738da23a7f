"""`/v1/workers` and `/v1/device-classes`: list workers, and set their desired states.

Times are epoch seconds, durations seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from core.profile import Profile
from core.worker import DesiredState, Role
from records import access, devices
from records.fleet import hardware, leases, reservations, workers
from records.fleet.leases import HeldLease
from records.fleet.reservations import Reserved
from records.fleet.workers import WorkerInfo
from server.access.authentication import BOOTSTRAP, LOOPBACK, Caller
from server.api.fields import Name, RequestBody
from server.context import ContextDep
from server.problems import Problem, problems

router = APIRouter(prefix="/v1", tags=["workers"])

# A reservation that is forgotten ends after a week.
MAX_RESERVATION_MINUTES = 7 * 24 * 60


class WorkerBody(BaseModel):
    """A worker as last seen.

    `connected`: it called lately and has not gone offline. `state` is the last state that it reported.
    `desired_state` is work, drain, evicted or update. Its `role` is measure or build. A worker that builds
    has no device class. It links for the platforms in `builds_for`, and its trials are the ones that it
    built.

    `trials_per_minute` is the rate of the last five minutes, `trial_s` the seconds that a trial takes on it.
    `load` is the load average of one minute. If the worker measures a GPU, `temperature_c`,
    `memory_free_bytes` and `power_w` are the GPU's. `candidates` and `candidates_done` count the candidates
    of its `lease`. Unknown values are null. `driver` is the version of the GPU's driver, empty without a GPU.

    `health_error` says in one line why the worker can't measure or build. It is empty while the worker can,
    and before its first check. `sandbox_gaps` says what the sandbox doesn't keep measured code from.
    `calibrate`: the worker was asked to calibrate its device and hasn't done so yet. `other_version`: it runs
    another version of tunefarm than the service. Until `reserved_until`, it measures only the jobs of the
    token that is called `reserved_for`; both are null without a reservation. It measures in turns with the
    workers in `shares_with`, because they use the same cores or the same GPU.
    """

    id: str
    state: str
    desired_state: str
    role: str
    builds_for: list[str]
    connected: bool
    device_class: str | None
    device_name: str | None
    cores: int | None
    last_seen_at: float
    last_seen_ago_s: float
    trials_done: int
    failures: int
    failures_by_kind: dict[str, int]
    trials_per_minute: float
    trial_s: float | None
    load: float | None
    temperature_c: float | None
    memory_free_bytes: int | None
    power_w: float | None
    driver: str
    tunefarm_version: str
    tvm_version: str
    lease: str | None
    candidates: int | None
    candidates_done: int | None
    sandbox_gaps: str
    health_error: str
    calibrate: bool
    other_version: bool
    reserved_for: str | None
    reserved_until: float | None
    shares_with: list[str]

    @classmethod
    def of(
        cls,
        worker: WorkerInfo,
        now: float,
        trials_per_minute: float,
        held: HeldLease | None,
        version: str,
        shares_with: list[str],
    ) -> WorkerBody:
        vitals, reservation = worker.vitals, worker.reservation
        if reservation is not None and reservation.until <= now:
            reservation = None
        return cls(
            id=worker.id,
            state=worker.state.value,
            desired_state=worker.desired_state.value,
            role=worker.role.value,
            builds_for=list(worker.builder.builds_for) if worker.builder else [],
            connected=not (worker.has_left or worker.is_lost(now)),
            device_class=worker.device_class,
            device_name=worker.device_name,
            cores=worker.cores,
            last_seen_at=worker.last_seen_at,
            last_seen_ago_s=max(now - worker.last_seen_at, 0.0),
            trials_done=worker.trials_done,
            failures=worker.failures,
            failures_by_kind=dict(worker.failures_by_kind),
            trials_per_minute=trials_per_minute,
            trial_s=worker.trial_s,
            load=vitals.load,
            temperature_c=vitals.temperature_c,
            memory_free_bytes=vitals.memory_free_bytes,
            power_w=vitals.power_w,
            driver=vitals.driver,
            tunefarm_version=vitals.tunefarm_version,
            tvm_version=vitals.tvm_version,
            lease=held.id if held else None,
            candidates=vitals.candidates if held else None,
            candidates_done=vitals.candidates_done if held else None,
            sandbox_gaps=vitals.sandbox_gaps,
            health_error=vitals.health_error,
            calibrate=worker.calibrate,
            other_version=bool(version and vitals.tunefarm_version) and vitals.tunefarm_version != version,
            reserved_for=reservation and reservation.name,
            reserved_until=reservation and reservation.until,
            shares_with=shares_with,
        )


class WorkersBody(BaseModel):
    items: list[WorkerBody]


class ReservationBody(RequestBody):
    """A reservation of a worker for the next `minutes`. `holder` is the id or the name of a token, or
    "bootstrap"; null means the caller's."""

    minutes: float = Field(default=60.0, gt=0, le=MAX_RESERVATION_MINUTES, allow_inf_nan=False)
    holder: Name | None = None


class NoiseBody(BaseModel):
    """The spread of a trial's repeats as a fraction of their median: the median over the trials of the
    worker's last lease. It is null without trials."""

    noise: float | None


class DeviceClassBody(BaseModel):
    """Devices of equal hardware and toolchain. A job's target can be their `key` or `name`. The `profile` is
    null until one of them has been calibrated."""

    key: str
    name: str
    triple: str
    mcpu: str
    features: list[str]
    cores: int
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    toolchain: str
    target: str
    profile: Profile | None


class DeviceClassesBody(BaseModel):
    items: list[DeviceClassBody]


@router.get("/workers")
def show_workers(context: ContextDep) -> WorkersBody:
    """Return every known worker, with the time of its last call."""
    with context.database.begin() as session:
        return WorkersBody(items=_bodies(session, workers.list_workers(session), context))


@router.get("/workers/{worker_id:path}/noise", responses=problems(404))
def show_noise(worker_id: str, context: ContextDep) -> NoiseBody:
    """Return the spread of the repeats of the worker's last trials."""
    with context.database.begin() as session:
        workers.get(session, worker_id)
        return NoiseBody(noise=leases.noise_of(session, worker_id))


@router.post("/workers/{worker_id:path}:drain", responses=problems(404))
def drain(worker_id: str, context: ContextDep) -> WorkerBody:
    """Let the worker finish its lease and take no other until it is resumed."""
    return _set_desired_state(context, worker_id, DesiredState.DRAIN)


@router.post("/workers/{worker_id:path}:resume", responses=problems(404))
def resume(worker_id: str, context: ContextDep) -> WorkerBody:
    """Let a drained or evicted worker work again."""
    return _set_desired_state(context, worker_id, DesiredState.WORK)


@router.post("/workers/{worker_id:path}:evict", responses=problems(404))
def evict(worker_id: str, context: ContextDep) -> WorkerBody:
    """Revoke the worker's lease at once, and refuse sessions under its name until it is resumed."""
    now = context.now()
    with context.database.begin() as session:
        leases.evict(session, worker_id, now)
        return _body(session, worker_id, context)


@router.post("/workers/{worker_id:path}:update", responses=problems(404, 409))
def update(worker_id: str, context: ContextDep) -> WorkerBody:
    """Let the worker finish its lease and exit, so that its supervisor installs the service's version."""
    with context.database.begin() as session:
        if workers.get(session, worker_id).vitals.tunefarm_version == context.version:
            sentence = f"Worker {worker_id} has the service's version {context.version}: it needs no update."
            raise Problem(409, "worker-up-to-date", sentence)
        workers.set_desired_state(session, worker_id, DesiredState.UPDATE)
        return _body(session, worker_id, context)


@router.post("/workers/{worker_id:path}:calibrate", responses=problems(404, 409))
def calibrate(worker_id: str, context: ContextDep) -> WorkerBody:
    """Let the worker measure its device's profile again once it holds no lease."""
    with context.database.begin() as session:
        if workers.get(session, worker_id).builder is not None:
            raise _only_builds(worker_id)
        workers.request_calibration(session, worker_id)
        return _body(session, worker_id, context)


@router.post("/workers/{worker_id:path}:reserve", responses=problems(400, 404, 409))
def reserve(worker_id: str, body: ReservationBody, request: Request, context: ContextDep) -> WorkerBody:
    """Let the worker measure only the jobs of one token for a while.

    It finishes its lease first. The token may be reserved for again, which replaces the end.
    """
    caller: Caller = request.state.caller
    if caller is LOOPBACK:
        sentence = "This service needs no token, so nobody can tell jobs apart: start it with TUNEFARM_TOKEN."
        raise Problem(409, "no-tokens", sentence)
    now = context.now()
    with context.database.begin() as session:
        if workers.get(session, worker_id).role is Role.BUILD:
            raise _only_builds(worker_id)
        holder = caller.who if body.holder is None else _holder(session, body.holder, now)
        try:
            reservations.reserve(session, worker_id, holder, now + 60 * body.minutes, now)
        except Reserved as error:
            raise Problem(409, "worker-reserved", f"{error}.") from error
        return _body(session, worker_id, context)


@router.post("/workers/{worker_id:path}:unreserve", responses=problems(404))
def unreserve(worker_id: str, context: ContextDep) -> WorkerBody:
    """End the worker's reservation, if it has one."""
    with context.database.begin() as session:
        reservations.unreserve(session, worker_id)
        return _body(session, worker_id, context)


@router.get("/device-classes")
def show_device_classes(context: ContextDep) -> DeviceClassesBody:
    """Return every device class: what its devices are, and what calibration measured."""
    with context.database.begin() as session:
        classes = devices.classes(session)
    items = [DeviceClassBody.model_validate({"key": device.key, **asdict(device)}) for device in classes]
    return DeviceClassesBody(items=items)


def _only_builds(worker_id: str) -> Problem:
    return Problem(409, "worker-builds", f"Worker {worker_id} only builds: name one that measures.")


def _holder(session: Session, named: str, now: float) -> str:
    """Return the id of the token that a reservation names. Raises Problem."""
    if named == BOOTSTRAP.who:
        return named
    found = access.valid_ids(session, named, now)
    if not found:
        found = access.valid_ids(session, access.full_id(session, named), now)
    if len(found) != 1:
        which = f"{len(found)} valid tokens are" if found else "No valid token is"
        raise Problem(
            422, "unknown-token", f"{which} called {named!r}: `tunefarm token list` lists them with ids."
        )
    return found[0]


def _set_desired_state(context: ContextDep, worker_id: str, what: DesiredState) -> WorkerBody:
    with context.database.begin() as session:
        workers.set_desired_state(session, worker_id, what)
        return _body(session, worker_id, context)


def _body(session: Session, worker_id: str, context: ContextDep) -> WorkerBody:
    [body] = _bodies(session, [workers.get(session, worker_id)], context)
    return body


def _bodies(session: Session, workers: Sequence[WorkerInfo], context: ContextDep) -> list[WorkerBody]:
    now = context.now()
    rates = leases.trials_per_minute(session, now)
    held = {lease.worker_id: lease for lease in leases.held(session, now)}
    shared = hardware.sharing(session, now)
    return [
        WorkerBody.of(
            *(one, now, rates.get(one.id, 0.0), held.get(one.id), context.version, shared.get(one.id, []))
        )
        for one in workers
    ]
