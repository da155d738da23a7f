"""A job of a small real model: imported, searched, compiled, timed and published with the real compiler."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from sqlalchemy import select

from compiler.children import models as sandbox
from compiler.measuring.builder import LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.packaging.artifact import Manifest, unpack
from compiler.target import detect_device
from core.job import Budget, JobState
from core.measurement import Measurement
from core.worker import WorkerState
from records.fleet import devices, leases
from records.fleet.leases import StoredLease
from records.fleet.results import LeaseResult
from records.jobs import jobs, models, tasks
from records.jobs.jobs import Job, JobRequest
from records.schedules import listings, schedules
from records.schedules.listings import UNSCHEDULED
from records.storage import blobs
from records.storage.database import Database
from records.storage.statements import digest
from records.storage.tables import TrialRow
from scheduler.context import Context
from scheduler.settings import SchedulerSettings
from scheduler.steps.drive import drive
from scheduler.upkeep.sweep import Sweeper
from tests.children import kill_the_child
from tests.services import sqlite

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
        with database.begin() as session:
            devices.register(session, "worker", "session", self.fingerprint, WorkerState.READY, NOW)

    def work(self, lease_id: str) -> bool:
        key = self.fingerprint.key
        with self._database.begin() as session:
            lease = leases.take(session, lease_id, "worker", "session", key, 8, NOW, 60.0)
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

    def _trial(self, module_json: str, trace: str, constants: tuple[int, ...]) -> Measurement:
        built = self._builder.build(module_json, trace)
        return built if isinstance(built, Measurement) else self._runner.run(built, module_json, constants)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database(sqlite(tmp_path / "tunefarm.db"))
    yield found
    found.close()


@pytest.mark.slow
def test_a_real_model_is_tuned_and_published(database: Database) -> None:
    _submit(database)
    job = _finish(database, Device(database))
    assert (job.state, job.error) == (JobState.DONE, None)
    assert job.trials_done == 8
    library, manifest = _artifact(database, job.artifact_sha)
    with database.begin() as session:
        listed = tasks.for_job(session, "job")
        best = schedules.best_many(session, [t.workload_hash for t in listed], str(job.device_class))
        texts = {name: listings.of_workload(session, name) for name in best}
        # Those that were measured again to settle which is the best have been estimated before.
        estimated = session.scalars(select(TrialRow.estimated_s).where(TrialRow.repeat == 0)).all()
    assert library.startswith(b"\x7fELF")
    assert {spec.name: spec.shape for spec in manifest.inputs} == {"data": (1, 3, 16, 16)}
    assert any("conv2d" in task.name and task.covered and task.best_s for task in listed)
    assert best
    for name, record in best.items():
        naive, listing = texts[name][UNSCHEDULED], texts[name][digest(record.trace)]
        assert "for " in naive.text
        assert "T.reads" not in naive.text
        assert "for " in listing.text
        assert (naive.decisions == "", listing.decisions != "") == (True, True)
    assert estimated
    assert all(estimated)
    [conv] = [task for task in listed if "conv2d" in task.name and not task.variant]
    assert texts[conv.workload_hash][UNSCHEDULED].text not in {
        listing.text for sha, listing in texts[conv.workload_hash].items() if sha != UNSCHEDULED
    }
    assert conv.signature.startswith("float32[1,16,16,3], float32[3,3,3,8]")
    assert conv.num_bytes >= 4 * (16 * 16 * 3 + 3 * 3 * 3 * 8 + 8 * 16 * 16)
    assert manifest.untuned_secs == job.untuned_secs
    assert all(isinstance(json.loads(entry.trace), list) for entry in manifest.tasks if entry.trace)


@pytest.mark.slow
def test_a_model_that_computes_something_else_than_untuned_is_not_published(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sandbox.compile_tuned

    def compile_another(
        _data: bytes, _shapes: object, target: str, _schedules: object, library: IO[bytes], *, tf32: bool
    ) -> None:
        """As if kernels that are right by themselves were put together wrongly."""
        real(small_network(seed=1), {}, target, {}, library, tf32=tf32)

    monkeypatch.setattr(sandbox, "compile_tuned", compile_another)
    _submit(database)
    job = _finish(database, Device(database))
    assert job.state is JobState.DONE
    assert "wrong_result: not what the untuned model computes: output 0: its values are off by" in job.message
    assert job.message.endswith(": the untuned one is published")
    assert job.tuned_secs is None
    published, _ = _artifact(database, job.artifact_sha)
    assert published == _artifact(database, job.untuned_artifact_sha)[0]


def test_a_model_that_kills_the_compiler_fails_its_job_and_nothing_else(database: Database) -> None:
    Device(database)
    _submit(database)
    killer = threading.Thread(target=kill_the_child)
    killer.start()
    drive(_context(database, []), "intake", "job")
    killer.join()
    with database.begin() as session:
        job = jobs.get(session, "job")
    assert job.state is JobState.FAILED
    assert job.error == "importing the model crashed the compiler (SIGKILL)"


def _artifact(database: Database, sha: str | None) -> tuple[bytes, Manifest]:
    assert sha is not None
    with database.begin() as session:
        return unpack(blobs.get(session, sha))


def _submit(database: Database) -> None:
    with database.begin() as session:
        sha = blobs.put(session, small_network())
        models.add(session, sha, "small", NOW)
        request = JobRequest(sha, "small", {}, "native", Budget(8), seed=0)
        jobs.create(session, "job", request, None, NOW)


def _context(database: Database, wakes: list[tuple[str, str]]) -> Context:
    wake = lambda step, job_id: wakes.append((step, job_id))  # noqa: E731
    return Context(SETTINGS, database, lambda: NOW, "here", wake)


def _finish(database: Database, device: Device) -> Job:
    wakes: list[tuple[str, str]] = []
    context = _context(database, wakes)
    sweeper = Sweeper(context)
    for turn in range(40):
        sweeper.repair()
        sweeper.wake_jobs()
        while wakes:
            drive(context, *wakes.pop(0))
        device.work(f"lease {turn}")
        with database.begin() as session:
            job = jobs.get(session, "job")
        if job.state.finished:
            return job
    raise AssertionError(f"{job.state}: {job.message}")
