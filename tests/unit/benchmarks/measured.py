"""A network as it might have been measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.engines.metaschedule import TrialRate
from benchmarks.networks.network import EXPORTED, ONNXRUNTIME, TUNED, UNTUNED, Measured
from benchmarks.networks.tuning import Tuning
from benchmarks.results.curves import Point
from benchmarks.timing.agreement import Deviation
from benchmarks.timing.interleaved import Timings
from tunefarm.values import Job, JobState

JOB = Job(
    id="job",
    state=JobState.DONE,
    model="sha",
    model_name="resnet18",
    shapes={},
    target="native",
    trials=300,
    minutes=None,
    seed=0,
    message="",
    error=None,
    device_class="class",
    created_at=0.0,
    started_at=0.0,
    finished_at=100.0,
    trials_done=300,
    untuned_latency_s=0.4,
    tuned_latency_s=0.01,
)
TUNING = Tuning(
    JOB,
    Path("model.so"),
    Path("manifest.json"),
    Path("."),
    total_s=80.0,
    start_s=5.0,
    search_s=60.0,
    points=(Point(20.0, 64, 0.02), Point(50.0, 200, 0.0105), Point(60.0, 300, 0.01)),
)
MEASURED = Measured(
    "resnet18",
    TUNING,
    {
        TUNED: Timings((0.01, 0.012)),
        EXPORTED: Timings((0.01, 0.012)),
        UNTUNED: Timings((0.4, 0.48)),
        ONNXRUNTIME: Timings((0.008, 0.0096)),
    },
    Deviation(0.5, 1e-6, 1e-5),
    TrialRate(trials=64, failed=2, seconds=94.0, set_up_s=30.0),
)
