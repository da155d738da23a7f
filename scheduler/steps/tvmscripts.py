"""Store the TVMScripts of a job: each subgraph unscheduled, and its best known program."""

from __future__ import annotations

import logging

from compiler import workload
from compiler.lowering.trace import LoweringError, apply_trace
from records import devices
from records.jobs import tasks
from records.jobs.jobs import Job
from records.schedules import schedules, tvmscripts
from records.schedules.tvmscripts import UNSCHEDULED, Tvmscript
from records.storage.statements import digest
from scheduler.context import Context

# The least time between two looks for new best programs of a job during its search. Its last ones are stored
# when it is published.
INTERVAL_S = 30.0

log = logging.getLogger(__name__)


def store_during_search(context: Context, job: Job) -> None:
    """Store the missing TVMScripts of a job, at most once every INTERVAL_S, because writing them takes longer
    than planning.
    """
    now = context.now()
    # The clock may have been set back.
    if abs(now - context.tvmscripts_at.get(job.id, -INTERVAL_S)) >= INTERVAL_S:
        context.tvmscripts_at[job.id] = now
        store_missing(context, job)


def store_missing(context: Context, job: Job) -> None:
    """Store the missing TVMScripts of the job's workloads and of their best programs.

    Imported schedules get none, because this process replays no foreign trace.
    """
    if job.device_class is None:
        return
    with context.database.begin() as session:
        device = devices.get_class(session, job.device_class)
        hashes = [task.workload_hash for task in tasks.for_job(session, job.id)]
        best = schedules.best_many(session, hashes, device.key)
        known = tvmscripts.keys(session, hashes)
    made: list[Tvmscript] = []
    for name, space in context.spaces.load(hashes, device).items():
        if (name, UNSCHEDULED) not in known:
            made.append(Tvmscript(name, UNSCHEDULED, workload.tvmscript(space.module)))
        record = best.get(name)
        if record is None or record.is_foreign or (name, digest(record.trace)) in known:
            continue
        program = space.program(record.trace, record.program)
        try:
            text = workload.tvmscript(apply_trace(space.module, record.trace))
        except LoweringError as error:
            log.warning("the best program of %s has no TVMScript: %s", name, error)
        else:
            made.append(Tvmscript(name, digest(record.trace), text, str(program or "")))
    with context.database.begin() as session:
        tvmscripts.add(session, made)
