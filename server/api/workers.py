"""`/v1/workers` and `/v1/device-classes`: what measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fastapi import APIRouter
from sqlalchemy.orm import Session

from core.worker import Wanted
from records.fleet import devices, leases
from records.fleet.devices import WorkerInfo
from server.api.problems import Problem, problems
from server.api.worker_bodies import DeviceClassBody, DeviceClassesBody, WorkerBody, WorkersBody
from server.context import ContextDep

router = APIRouter(prefix="/v1", tags=["workers"])


@router.get("/workers")
def show_workers(context: ContextDep) -> WorkersBody:
    """Every worker ever seen, with when that was."""
    with context.database.begin() as session:
        return WorkersBody(items=_bodies(session, devices.workers(session), context.now()))


@router.post("/workers/{worker_id:path}:drain", responses=problems(404))
def drain(worker_id: str, context: ContextDep) -> WorkerBody:
    """Has the worker finish its lease and take no other, until it is resumed."""
    return _want(context, worker_id, Wanted.DRAIN)


@router.post("/workers/{worker_id:path}:resume", responses=problems(404))
def resume(worker_id: str, context: ContextDep) -> WorkerBody:
    """Has a worker that was drained or evicted work again."""
    return _want(context, worker_id, Wanted.WORK)


@router.post("/workers/{worker_id:path}:evict", responses=problems(404))
def evict(worker_id: str, context: ContextDep) -> WorkerBody:
    """Takes the worker's lease away at once and lets nobody in under its name, until it is resumed."""
    now = context.now()
    with context.database.begin() as session:
        leases.evict(session, worker_id, now)
        return _body(session, worker_id, now)


@router.post("/workers/{worker_id:path}:calibrate", responses=problems(404, 409))
def calibrate(worker_id: str, context: ContextDep) -> WorkerBody:
    """Has the worker measure its device's profile again as soon as it holds no lease."""
    with context.database.begin() as session:
        if devices.worker(session, worker_id).builder is not None:
            sentence = f"Worker {worker_id} only builds: name one that measures."
            raise Problem(409, "worker-builds", sentence)
        devices.request_calibration(session, worker_id)
        return _body(session, worker_id, context.now())


@router.get("/device-classes")
def show_device_classes(context: ContextDep) -> DeviceClassesBody:
    with context.database.begin() as session:
        known = devices.classes(session)
    items = [DeviceClassBody.model_validate({"key": device.key, **asdict(device)}) for device in known]
    return DeviceClassesBody(items=items)


def _want(context: ContextDep, worker_id: str, what: Wanted) -> WorkerBody:
    with context.database.begin() as session:
        devices.set_wanted(session, worker_id, what)
        return _body(session, worker_id, context.now())


def _body(session: Session, worker_id: str, now: float) -> WorkerBody:
    [body] = _bodies(session, [devices.worker(session, worker_id)], now)
    return body


def _bodies(session: Session, workers: Sequence[WorkerInfo], now: float) -> list[WorkerBody]:
    rates = leases.trials_per_minute(session, now)
    held = {lease.worker_id: lease for lease in leases.held(session, now)}
    return [WorkerBody.of(one, now, rates.get(one.id, 0.0), held.get(one.id)) for one in workers]
