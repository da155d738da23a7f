"""`/healthz`, `/readyz` and `/metrics`: for the machines that watch the service."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from core.job import JobState
from core.worker import Wanted, WorkerState
from records.fleet import devices, leases
from records.fleet.devices import WorkerInfo
from records.fleet.leases import HeldLease
from records.jobs import jobs
from server.api.metrics import Metrics
from server.api.problems import GUARDED, Problem, problems
from server.context import ContextDep

router = APIRouter(tags=["health"])

_TEXT_ANSWER = {"content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses=problems(503, 507))
def readyz(context: ContextDep) -> dict[str, str]:
    """The process answers and can use its database. 503 when it can't, or stops."""
    if context.stopping.is_set():
        raise Problem(503, "stopping", "The service stops.")
    with context.database.begin() as session:
        devices.workers(session)
    return {"status": "ok"}


@router.get("/metrics", response_class=Response, responses={200: _TEXT_ANSWER, **GUARDED})
def metrics(context: ContextDep) -> Response:
    """Counters in Prometheus' text format."""
    now = context.now()
    with context.database.begin() as session:
        by_state = Counter(job.state for job in jobs.unfinished(session))
        workers = devices.workers(session)
        rates, held = leases.trials_per_minute(session, now), leases.held(session, now)
    for state in (state for state in JobState if not state.finished):
        context.metrics.jobs.labels(state.value).set(by_state[state])
    _count_workers(context.metrics, workers, rates, now)
    _count_leases(context.metrics, held, now)
    return Response(context.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


def _count_workers(
    metrics: Metrics, workers: Sequence[WorkerInfo], rates: Mapping[str, float], now: float
) -> None:
    states = Counter(_state(worker, now) for worker in workers)
    for state in (*WorkerState, _LOST, Wanted.EVICTED):
        metrics.workers.labels(str(state)).set(states[state])
    there = [worker for worker in workers if _state(worker, now) in _THERE]
    metrics.workers_in_trouble.set(sum(bool(worker.unable) for worker in there))
    by_class: defaultdict[str, float] = defaultdict(float)
    for worker in workers:
        if worker.device_class is not None:
            by_class[worker.device_class] += rates.get(worker.id, 0.0)
    for device_class, rate in by_class.items():
        metrics.trials_per_minute.labels(device_class).set(rate)


def _count_leases(metrics: Metrics, held: Sequence[HeldLease], now: float) -> None:
    metrics.held_leases.set(len(held))
    metrics.oldest_lease_s.set(max((now - lease.taken_at for lease in held), default=0.0))


_LOST = "lost"
_THERE = frozenset(WorkerState) - {WorkerState.OFFLINE}


def _state(worker: WorkerInfo, now: float) -> str:
    if worker.wanted is Wanted.EVICTED:
        return Wanted.EVICTED
    return _LOST if worker.is_lost(now) else worker.state
