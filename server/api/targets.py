"""The device class that a request's `target` names."""

from __future__ import annotations

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from records import devices
from server.context import ServerContext
from server.problems import Problem

NATIVE = "native"


async def device_class_of(context: ServerContext, target: str) -> str:
    """Return the key of the target's device class. A key that was requested before needs no query.

    Raises a Problem that lists the known classes.
    """
    if context.look_ups.known(target):
        return target

    def resolve() -> str:
        with context.database.reading() as session:
            return device_class(session, target, context.now())

    return await run_in_threadpool(resolve)


def device_class(session: Session, target: str, now: float) -> str:
    """Return the key of the target's device class. Raises a Problem that lists the known classes."""
    device = devices.resolve_class(session, target, now)
    if device is not None:
        return device.key
    classes = devices.classes(session)
    known = [{"key": one.key, "name": one.name} for one in classes]
    listed = ", ".join(one.title for one in classes) or "none yet: start a worker"
    if target == NATIVE:
        sentence = f"No worker is ready, so there is no native device. Known device classes: {listed}."
    else:
        sentence = f"No device class is named {target!r}, or several are. Known device classes: {listed}."
    raise Problem(422, "unknown-target", sentence, known=known)
