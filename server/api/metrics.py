"""`/metrics` for Prometheus, and the middleware that counts requests."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.job import JobState
from core.measurement import Outcome
from core.worker import DesiredState, Role, WorkerState
from records import access, devices
from records.fleet import leases, workers
from records.fleet.workers import WorkerInfo
from records.jobs import jobs
from records.jobs.jobs import Job, Queue
from records.schedules import cost_models
from records.schedules.cost_models import Version
from server.context import ContextDep
from server.metrics import ServerMetrics

router = APIRouter(tags=["health"])

_TEXT_ANSWER = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_LOST = "lost"
# Jobs that started within this many seconds count for the queue's time.
_RECENT_S = 3600.0
# Each model and each worker is a time series of Prometheus.
_MAX_MODELS, _MAX_WORKERS = 100, 50


@router.get("/metrics", response_class=Response, responses={200: _TEXT_ANSWER})
def metrics(context: ContextDep) -> Response:
    """Return counters and gauges in Prometheus' text format."""
    gauges, now = context.metrics, context.now()
    with context.database.begin() as session:
        queues = jobs.queues(session)
        known = workers.list_workers(session)
        rates, held = leases.trials_per_minute(session, now), leases.held(session, now)
        models = cost_models.newest_evaluated(session)
        ending = access.count_ending_tokens(session, now)
        waited_s = jobs.recent_waits(session, now - _RECENT_S)
        published = jobs.newest_artifacts(session, _MAX_MODELS)
        names = devices.names(session)
        connected = [one for one in known if not one.has_left and not one.is_lost(now)][:_MAX_WORKERS]
        noises = {one.id: leases.noise_of(session, one.id) for one in connected}
    _set_queues(gauges, queues, names, now)
    _set_models(gauges, models, names)
    gauges.ending_tokens.set(ending)
    gauges.queue_s.set(statistics.median(waited_s) if waited_s else 0.0)
    _set_gains(gauges, published, names)
    _set_devices(gauges, connected, noises)
    _set_measured(gauges, known, names)
    workers_by_state = Counter(_state(worker, now) for worker in known)
    for label in (*WorkerState, _LOST, DesiredState.EVICTED):
        gauges.workers.labels(str(label)).set(workers_by_state[label])
    gone = (WorkerState.OFFLINE, _LOST, DesiredState.EVICTED)
    gauges.workers_unhealthy.set(sum(bool(one.unable) and _state(one, now) not in gone for one in known))
    rate_by_class: defaultdict[str, float] = defaultdict(float)
    for worker in known:
        if worker.device_class is not None:
            rate_by_class[worker.device_class] += rates.get(worker.id, 0.0)
    gauges.trials_per_minute.clear()  # the name of a class changes when another class gets it
    for device_class, rate in rate_by_class.items():
        gauges.trials_per_minute.labels(device_class, names[device_class]).set(rate)
    gauges.held_leases.set(len(held))
    gauges.oldest_lease_s.set(max((now - lease.taken_at for lease in held), default=0.0))
    return Response(gauges.exposition(), media_type=CONTENT_TYPE_LATEST)


def _set_queues(gauges: ServerMetrics, queues: Sequence[Queue], names: Mapping[str, str], now: float) -> None:
    for state in (state for state in JobState if not state.finished):
        in_state = [queue for queue in queues if queue.state is state]
        oldest_at = min((queue.oldest_at for queue in in_state), default=now)
        gauges.jobs.labels(state.value).set(sum(queue.jobs for queue in in_state))
        gauges.oldest_job_s.labels(state.value).set(max(now - oldest_at, 0.0))
    gauges.open_trials.clear()
    for queue in queues:
        if queue.device_class is not None:
            of_class = queue.device_class, names[queue.device_class]
            gauges.open_trials.labels(*of_class).inc(queue.open_trials)


def _set_models(gauges: ServerMetrics, models: Sequence[Version], names: Mapping[str, str]) -> None:
    gauges.model_records.clear()
    gauges.model_quality.clear()
    for model in models:
        of_class = model.device_class, names[model.device_class]
        gauges.model_records.labels(*of_class).set(model.records)
        learned = (model.metrics or {}).get("learned", {})
        for measure in ("r2", "pairwise", "recall"):
            if isinstance(learned.get(measure), int | float):
                gauges.model_quality.labels(*of_class, measure).set(learned[measure])


def _set_gains(gauges: ServerMetrics, published: Sequence[Job], names: Mapping[str, str]) -> None:
    gauges.model_gain.clear()
    for job in published:
        assert job.device_class is not None, "it has an artifact"
        labels = job.request.model_name, job.device_class, names[job.device_class]
        if job.untuned_s and job.tuned_s:
            gain = statistics.median(job.untuned_s) / statistics.median(job.tuned_s)
            gauges.model_gain.labels(*labels, "untuned").set(gain)
        if job.onnxruntime is not None and job.onnxruntime.ratio is not None:
            gauges.model_gain.labels(*labels, "onnxruntime").set(job.onnxruntime.ratio)


def _set_devices(
    gauges: ServerMetrics, connected: Sequence[WorkerInfo], noises: Mapping[str, float | None]
) -> None:
    gauges.worker_noise.clear()
    gauges.worker_temperature.clear()
    for worker in connected:
        noise, temperature_c = noises[worker.id], worker.vitals.temperature_c
        if noise is not None:
            gauges.worker_noise.labels(worker.id).set(noise)
        if temperature_c is not None:
            gauges.worker_temperature.labels(worker.id).set(temperature_c)


def _set_measured(gauges: ServerMetrics, workers: Sequence[WorkerInfo], names: Mapping[str, str]) -> None:
    gauges.measured.clear()
    for worker in workers:
        if worker.device_class is not None and worker.role is Role.MEASURE:
            went_well = worker.trials_done - worker.failures
            for outcome, number in {Outcome.OK.value: went_well, **worker.failures_by_kind}.items():
                of_class = worker.device_class, names[worker.device_class]
                gauges.measured.labels(*of_class, outcome).inc(number)


def _state(worker: WorkerInfo, now: float) -> str:
    if worker.desired_state is DesiredState.EVICTED:
        return DesiredState.EVICTED
    return _LOST if worker.is_lost(now) else worker.state


class RequestMetricsMiddleware:
    """ASGI middleware that counts requests by route template, so that ids don't become labels."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._metrics.requests.labels(method, route, str(message["status"])).inc()
                self._metrics.answer_seconds.labels(route).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, count_and_send)
