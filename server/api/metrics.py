"""Counters for Prometheus, one registry per application."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Metrics:
    """What `/metrics` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tunefarm_http_requests",
            "HTTP requests answered",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.answer_seconds = Histogram(
            "tunefarm_http_answer_seconds",
            "Seconds until an answer began",
            ["route"],
            registry=self.registry,
        )
        self.synchronizations = Counter(
            "tunefarm_worker_synchronizations", "Calls of workers", registry=self.registry
        )
        self.leases = Counter("tunefarm_leases", "Leases given to workers", registry=self.registry)
        self.results = Counter("tunefarm_results", "Results received from workers", registry=self.registry)
        self.jobs = Gauge("tunefarm_jobs", "Unfinished jobs", ["state"], registry=self.registry)
        self.workers = Gauge("tunefarm_workers", "Known workers", ["state"], registry=self.registry)
        self.workers_in_trouble = Gauge(
            "tunefarm_workers_in_trouble",
            "Workers that are there and can't measure or build; `tunefarm workers` says why",
            registry=self.registry,
        )
        self.trials_per_minute = Gauge(
            "tunefarm_trials_per_minute",
            "Trials that the workers of a device class measured a minute, over the last five",
            ["device_class"],
            registry=self.registry,
        )
        self.held_leases = Gauge("tunefarm_held_leases", "Leases that workers hold", registry=self.registry)
        self.oldest_lease_s = Gauge(
            "tunefarm_oldest_lease_seconds",
            "How long ago the oldest lease that a worker holds was given, 0 without any",
            registry=self.registry,
        )

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class RequestMetricsMiddleware:
    """ASGI middleware that counts requests by route template, so that ids don't become labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope, message["status"], time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, counted)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.answer_seconds.labels(route).observe(seconds)


_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
