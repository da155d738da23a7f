"""A scheduler counts its steps, their failures, and its sweeps."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from core.job import JobState
from scheduler.main import serve_metrics
from scheduler.metrics import SchedulerMetrics
from system.command import CommandError
from tests.services import free_port
from tests.unit.scheduler.farm import Farm


def value(metrics: SchedulerMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


def test_steps_and_sweeps_are_counted(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    assert farm.finish().state is JobState.DONE
    farm.sweep()
    metrics = farm.context.metrics
    for step in ("intake", "round", "publish"):
        assert value(metrics, "tunefarm_step_seconds_count", step=step) > 0
    assert value(metrics, "tunefarm_step_failures_total", step="intake", kind="final") == 0
    assert value(metrics, "tunefarm_sweeps_total", ended="well") > 0


def test_metrics_are_served_on_the_port_of_the_settings() -> None:
    metrics, port = SchedulerMetrics(), free_port()
    with metrics.timed("round"):
        pass
    serve_metrics(metrics, "127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b'tunefarm_step_seconds_count{step="round"} 1.0' in answer.read()
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(CommandError, match="TUNEFARM_METRICS_PORT"),
    ):
        serve_metrics(metrics, "127.0.0.1", taken.getsockname()[1])
