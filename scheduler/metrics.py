"""The metrics of a scheduler's process, for Prometheus."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram

# Planning takes 0.1 s to seconds, and compiling a model minutes.
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


class SchedulerMetrics:
    """The metrics of one scheduler, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._step_seconds = Histogram(
            "tunefarm_step_seconds",
            "Duration of a job's step in seconds",
            ["step"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.step_failures = Counter(
            "tunefarm_step_failures",
            "Failed steps: permanently, to be retried, or because the database is unavailable",
            ["step", "kind"],
            registry=self.registry,
        )
        self.sweeps = Counter("tunefarm_sweeps", "Sweeps by their end", ["ended"], registry=self.registry)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Count a job's step and measure its duration."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._step_seconds.labels(step).observe(time.perf_counter() - began)
