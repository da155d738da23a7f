"""`/v1/workers` and `/v1/device-classes`: what measures."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from records import devices
from server.context import ContextDep
from server.schemas import DeviceClassBody, DeviceClassesBody, WorkerBody, WorkersBody

router = APIRouter(prefix="/v1", tags=["workers"])


@router.get("/workers")
def show_workers(context: ContextDep) -> WorkersBody:
    """Every worker ever seen, with when that was."""
    with context.database.begin() as session:
        return WorkersBody(items=[WorkerBody.of(worker) for worker in devices.workers(session)])


@router.get("/device-classes")
def show_device_classes(context: ContextDep) -> DeviceClassesBody:
    with context.database.begin() as session:
        known = devices.classes(session)
    items = [DeviceClassBody.model_validate({"key": device.key, **asdict(device)}) for device in known]
    return DeviceClassesBody(items=items)
