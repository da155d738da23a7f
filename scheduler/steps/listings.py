"""Listings of a job: each subgraph before it is scheduled, and the best program known of it."""

from __future__ import annotations

import logging

from compiler import workload
from compiler.lowering.trace import LoweringError, apply_trace
from records import devices
from records.jobs import tasks
from records.jobs.jobs import Job
from records.schedules import listings, schedules
from records.schedules.listings import UNSCHEDULED, Listing
from records.storage.statements import digest
from scheduler.context import Context

log = logging.getLogger(__name__)


def store_missing(context: Context, job: Job) -> None:
    """Store the listings of the job's workloads and of their best programs, unless they are stored.

    A schedule that another search made has no listing: this process replays no foreign trace.
    """
    if job.device_class is None:
        return
    with context.database.begin() as session:
        device = devices.get_class(session, job.device_class)
        hashes = [task.workload_hash for task in tasks.for_job(session, job.id)]
        best = schedules.best_many(session, hashes, device.key)
        known = listings.keys(session, hashes)
    made: list[Listing] = []
    for name, space in context.spaces.load(hashes, device).items():
        if (name, UNSCHEDULED) not in known:
            made.append(Listing(name, UNSCHEDULED, workload.listing(space.module)))
        record = best.get(name)
        if record is None or record.is_foreign or (name, digest(record.trace)) in known:
            continue
        program = space.program(record.trace, record.program)
        try:
            text = workload.listing(apply_trace(space.module, record.trace))
        except LoweringError as error:
            log.warning("the best program of %s has no listing: %s", name, error)
        else:
            made.append(Listing(name, digest(record.trace), text, str(program or "")))
    with context.database.begin() as session:
        listings.add(session, made)
