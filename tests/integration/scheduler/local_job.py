"""A job of a small model on this machine: the real compiler, and a device without the network."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.measuring.builder import LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.packaging.artifact import Manifest, unpack
from compiler.target import detect_device
from core.job import Budget
from core.measurement import Measurement, Outcome
from core.worker import Vitals, WorkerState
from records.fleet import leases, workers
from records.fleet.leases import StoredLease
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import inferences, jobs, models, tasks
from records.jobs.jobs import Job, JobRequest
from records.jobs.models import UploadKind
from records.storage import blobs
from records.storage.database import Database
from scheduler.context import Context
from scheduler.model_compiler import CompilerChildren
from scheduler.settings import SchedulerSettings
from scheduler.steps.drive import drive, wake_jobs
from scheduler.upkeep.outlines import OutlineReader
from scheduler.upkeep.sweep import Sweeper
from system.signing import SigningKey

SETTINGS = SchedulerSettings(
    broker="unused", database_url="unused", batch_size=4, trials_per_pick=2, plan_ahead=0
)


NOW = 1000.0


def small_network(seed: int = 0) -> bytes:
    """A convolution with its rectifier, and a pooling that the search need not understand."""
    rng = np.random.default_rng(seed)
    weight = numpy_helper.from_array(rng.normal(size=(8, 3, 3, 3)).astype(np.float32), "weight")
    nodes = [
        helper.make_node("Conv", ["data", "weight"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["pool"]),
    ]
    data = helper.make_tensor_value_info("data", TensorProto.FLOAT, [1, 3, 16, 16])
    pool = helper.make_tensor_value_info("pool", TensorProto.FLOAT, [1, 8, 1, 1])
    graph = helper.make_graph(nodes, "small", [data], [pool], [weight])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


class Device:
    """This machine as a worker without the network."""

    def __init__(self, database: Database) -> None:
        self.fingerprint = detect_device()
        self._database = database
        self._builder = LocalBuilder(self.fingerprint.target)
        self._runner = LocalRunner(self.fingerprint.target)
        able = Vitals(infers=True)
        self._session = WorkerSession("worker", "session", WorkerState.READY, self.fingerprint, able)
        with database.begin() as session:
            workers.register(session, self._session, NOW)

    def work(self, lease_id: str) -> bool:
        with self._database.begin() as session:
            lease = leases.acquire_lease(session, lease_id, self._session, 8, NOW, 60.0)
        if lease is None:
            return False
        results = self._measure(lease)
        with self._database.begin() as session:
            leases.report(session, lease.id, "session", results, NOW)
        return True

    def _measure(self, lease: StoredLease) -> list[LeaseResult]:
        with self._database.begin() as session:
            texts = tasks.workloads(session, {trial.workload_hash for trial in lease.trials})
            artifacts = {run.id: blobs.get(session, run.artifact_sha) for run in lease.module_runs}
        if lease.module_runs and lease.module_runs[0].kind == "inference":
            return [self._infer(lease, run_id, packed) for run_id, packed in artifacts.items()]
        if artifacts:
            return [
                LeaseResult(
                    self._runner.measure_module(io.BytesIO(artifact), compare=True), module_run_id=run_id
                )
                for run_id, artifact in artifacts.items()
            ]
        return [
            LeaseResult(self._trial(texts[t.workload_hash], t.trace, lease.constants[t.workload_hash]), t.id)
            for t in lease.trials
        ]

    def _infer(self, lease: StoredLease, run_id: int, packed: bytes) -> LeaseResult:
        found = self._runner.infer(io.BytesIO(packed), 1 << 20)
        if isinstance(found, Measurement):
            return LeaseResult(found, module_run_id=run_id)
        data, secs = found
        with self._database.begin() as session:
            inferences.set_outputs(session, lease.job_id, blobs.put(session, data))
        return LeaseResult(Measurement(Outcome.OK, (secs,)), module_run_id=run_id)

    def _trial(self, module_json: str, trace: str, constants: tuple[int, ...]) -> Measurement:
        built = self._builder.build(module_json, trace)
        return built if isinstance(built, Measurement) else self._runner.run(built, module_json, constants)


def artifact(database: Database, sha: str | None) -> tuple[bytes, Manifest]:
    assert sha is not None
    with database.begin() as session:
        return unpack(blobs.get(session, sha))


def submit(database: Database, model: bytes | None = None, **options: Any) -> None:
    """Queue a job of `model`, or of a small network, with some options."""
    with database.begin() as session:
        sha = blobs.put(session, model or small_network())
        models.add(session, sha, "small", NOW)
        request = JobRequest(sha, "small", {}, "native", Budget(8), seed=0, **options)
        jobs.create(session, "job", request, jobs.Submission(NOW))


def dataset(database: Database, **arrays: NDArray[Any]) -> str:
    """Store an .npz file of arrays; return its SHA-256."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    with database.begin() as session:
        sha = blobs.put(session, file.getvalue())
        models.add(session, sha, "data", NOW, UploadKind.DATASET)
    return sha


def context(
    database: Database,
    wakes: list[tuple[str, str]],
    children: CompilerChildren | None = None,
    signing_key: SigningKey | None = None,
) -> Context:
    wake = lambda step, job_id: wakes.append((step, job_id))  # noqa: E731
    children = children or CompilerChildren()
    return Context(SETTINGS, database, lambda: NOW, "here", wake, children=children, signing_key=signing_key)


def finish(
    database: Database,
    device: Device,
    children: CompilerChildren | None = None,
    signing_key: SigningKey | None = None,
    job_id: str = "job",
) -> Job:
    wakes: list[tuple[str, str]] = []
    made = context(database, wakes, children, signing_key)
    sweeper = Sweeper(made, OutlineReader(made))
    for turn in range(60):
        sweeper.repair()
        wake_jobs(made)
        while wakes:
            drive(made, *wakes.pop(0))
        device.work(f"lease {turn} of {job_id}")
        with database.begin() as session:
            job = jobs.get(session, job_id)
        if job.state.finished:
            return job
    raise AssertionError(f"{job.state}: {job.message}")
