"""Invented measurements of a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.engines.metaschedule_networks import TrialRate
from benchmarks.networks.compiled import AFTER, AT_ONCE, CompiledNetwork
from benchmarks.networks.disturbed import DisturbedNetwork
from benchmarks.networks.limits import Limits
from benchmarks.networks.peers import ONNXRUNTIME, OPENVINO, Peer
from benchmarks.networks.plan import EXPORTED, TUNED
from benchmarks.networks.session import Input, Manifest, Tuning
from benchmarks.networks.tuned import TunedNetwork
from benchmarks.results.curves import Point
from benchmarks.timing.contestants import OnnxFile, OpenVinoFile
from benchmarks.timing.deviation import Deviation
from benchmarks.timing.interleaved import Pair, Timings
from core.job import JobState
from tunefarm.client.values import Job, Task

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
    tasks=[
        Task("a", "conv", 2, True, "", 100, 4e-3, "winograd_4", "", flops=4e8, num_bytes=1e6),
        Task("b", "pool", 1, True, "", 200, 2e-3, flops=1e6, num_bytes=1e7),
    ],
    limits=Limits(flops_per_s=2e11, bytes_per_s=1e10),
    folder=Path("."),
    manifest=Manifest("{}", (Input((1, 3, 224, 224), "float32"),), untuned_s=(0.4,), tuned_s=(0.01,)),
    start_s=5.0,
    job_s=75.0,
    search_s=60.0,
    points=(Point(20.0, 64, 0.02), Point(50.0, 200, 0.0105), Point(60.0, 300, 0.01)),
)
PEERS = (
    Peer(ONNXRUNTIME, "ONNX Runtime 1", OnnxFile(Path("model.onnx"))),
    Peer(OPENVINO, "OpenVINO 2", OpenVinoFile(Path("model.onnx"))),
)
MEASURED = TunedNetwork(
    "resnet18",
    TUNING,
    {
        TUNED: Timings((0.01, 0.012)),
        EXPORTED: Timings((0.01, 0.012)),
        ONNXRUNTIME: Timings((0.0125, 0.015)),
        OPENVINO: Timings((0.0166, 0.02)),
    },
    Timings((0.01, 0.012)),
    Pair(Timings((0.4, 0.48)), Timings((0.01, 0.012))),
    PEERS,
    Deviation(0.5, 1e-6, 1e-5),
    TrialRate(trials=64, failed=2, seconds=94.0, set_up_s=30.0),
)
COMPILED = CompiledNetwork(
    "resnet18",
    replace(
        TUNING,
        job=replace(JOB, trials=0, trials_done=20),
        manifest=replace(TUNING.manifest, tuned_s=(0.02,)),
    ),
    replace(
        TUNING,
        job=replace(JOB, trials=20, trials_done=21),
        manifest=replace(TUNING.manifest, tuned_s=(0.011,)),
    ),
    {
        AT_ONCE: Timings((0.02, 0.02)),
        AFTER: Timings((0.012, 0.012)),
        ONNXRUNTIME: Timings((0.01, 0.01)),
        OPENVINO: Timings((0.016, 0.016)),
    },
    {AT_ONCE: Timings((0.02, 0.02)), AFTER: Timings((0.012, 0.012))},
    PEERS,
    Deviation(0.5, 1e-6, 1e-5),
)
# Published: 10 ms. The third block in a user's process met the other program.
DISTURBED = DisturbedNetwork("resnet18", TUNING, Timings((0.0098, 0.01, 0.02)), Timings((0.008, 0.008)))
