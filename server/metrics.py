"""The Prometheus metrics of a server, which `/metrics` returns."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class ServerMetrics:
    """The metrics of one server, in their own registry. The label `device` names a `device_class`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tunefarm_http_requests",
            "HTTP requests with a response",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.answer_seconds = Histogram(
            "tunefarm_http_answer_seconds",
            "Seconds until the response began",
            ["route"],
            registry=self.registry,
        )
        self.synchronizations = Counter(
            "tunefarm_worker_synchronizations", "Calls of workers", registry=self.registry
        )
        self.leases = Counter("tunefarm_leases", "Leases given to workers", registry=self.registry)
        self.results = Counter("tunefarm_results", "Results received from workers", registry=self.registry)
        self.jobs = Gauge("tunefarm_jobs", "Unfinished jobs", ["state"], registry=self.registry)
        self.oldest_job_s = Gauge(
            "tunefarm_oldest_job_seconds",
            "Age of the oldest unfinished job in a state in seconds, 0 without jobs",
            ["state"],
            registry=self.registry,
        )
        self.open_trials = Gauge(
            "tunefarm_open_trials",
            "Trials that wait for a device of the class or are being measured on one",
            ["device_class", "device"],
            registry=self.registry,
        )
        self.measured = Gauge(
            "tunefarm_measured_trials",
            "Trials that the known workers of a device class have reported",
            ["device_class", "device", "outcome"],
            registry=self.registry,
        )
        self.model_quality = Gauge(
            "tunefarm_cost_model_quality",
            "Accuracy of the newest evaluated cost model of a class on records that it was not trained on",
            ["device_class", "device", "measure"],
            registry=self.registry,
        )
        self.model_records = Gauge(
            "tunefarm_cost_model_records",
            "Records that this cost model was trained on",
            ["device_class", "device"],
            registry=self.registry,
        )
        self.queue_s = Gauge(
            "tunefarm_queue_seconds",
            "Median seconds that the jobs started in the last hour had waited, 0 without such jobs",
            registry=self.registry,
        )
        self.model_gain = Gauge(
            "tunefarm_model_gain",
            "Latency of the untuned model, or of ONNX Runtime, divided by the latency of the newest artifact",
            ["model", "device_class", "device", "baseline"],
            registry=self.registry,
        )
        self.worker_noise = Gauge(
            "tunefarm_worker_noise",
            "Relative deviation of repeats in a worker's last lease, 0.01 for 1%",
            ["worker"],
            registry=self.registry,
        )
        self.worker_temperature = Gauge(
            "tunefarm_worker_temperature_celsius",
            "Temperature of a worker's device",
            ["worker"],
            registry=self.registry,
        )
        self.workers = Gauge("tunefarm_workers", "Known workers", ["state"], registry=self.registry)
        self.workers_unhealthy = Gauge(
            "tunefarm_workers_unhealthy",
            "Connected workers that can't measure or build; `tunefarm workers` says why",
            registry=self.registry,
        )
        self.ending_tokens = Gauge(
            "tunefarm_ending_tokens",
            "Valid tokens that expire within 14 days; `tunefarm token list` says when",
            registry=self.registry,
        )
        self.trials_per_minute = Gauge(
            "tunefarm_trials_per_minute",
            "Trials per minute of a device class, over the last five minutes",
            ["device_class", "device"],
            registry=self.registry,
        )
        self.held_leases = Gauge("tunefarm_held_leases", "Leases that workers hold", registry=self.registry)
        self.oldest_lease_s = Gauge(
            "tunefarm_oldest_lease_seconds",
            "Age of the oldest held lease in seconds, 0 without leases",
            registry=self.registry,
        )

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
