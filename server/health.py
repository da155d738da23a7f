"""`/healthz`, `/readyz` and `/metrics`: for the machines that watch the service."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from records import devices, jobs
from records.devices import WorkerState
from records.jobs import JobState
from server.context import ContextDep
from server.problems import Problem

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(context: ContextDep) -> dict[str, str]:
    """The process answers and can use its database. 503 when it can't, or stops."""
    if context.stopping.is_set():
        raise Problem(503, "stopping", "The service stops.")
    with context.database.begin() as session:
        devices.workers(session)
    return {"status": "ok"}


@router.get("/metrics", response_class=Response)
def metrics(context: ContextDep) -> Response:
    """Counters in Prometheus' text format."""
    with context.database.begin() as session:
        by_state = Counter(job.state for job in jobs.unfinished(session))
        workers = Counter(worker.state for worker in devices.workers(session))
    for state in (state for state in JobState if not state.finished):
        context.metrics.jobs.labels(state.value).set(by_state[state])
    for worker_state in WorkerState:
        context.metrics.workers.labels(worker_state.value).set(workers[worker_state])
    return Response(context.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
