"""A job of a small real model: imported, searched, compiled, timed and published with the real compiler."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
import pytest
import tunefarm_runtime
from numpy.typing import NDArray
from sqlalchemy import select

from compiler.importing.onnx_runtime import load_session
from core.job import JobState, Quantize
from records import devices
from records.fleet import module_runs
from records.jobs import inferences, jobs, quantized_models, tasks
from records.jobs.jobs import Job
from records.schedules import schedules, tvmscripts
from records.schedules.tvmscripts import UNSCHEDULED
from records.storage import blobs
from records.storage.database import Database
from records.storage.statements import digest
from records.storage.tables import TrialRow
from scheduler.model_compiler import CompilerChildren
from scheduler.steps.drive import drive
from system.signing import make_key, read_key
from tests.children import kill_the_child
from tests.integration.scheduler.local_job import (
    NOW,
    Device,
    artifact,
    context,
    dataset,
    finish,
    small_network,
    submit,
)
from tests.services import sqlite
from tunefarm.client import artifact as client_artifact


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database(sqlite(tmp_path / "tunefarm.db"))
    yield found
    found.close()


@pytest.mark.slow_lane(seconds=8)
def test_a_real_model_is_tuned_and_published(database: Database, tmp_path: Path) -> None:
    submit(database)
    make_key(tmp_path / "key.pem")
    key = read_key(tmp_path / "key.pem")
    device = Device(database)
    job = finish(database, device, signing_key=key)
    assert (job.state, job.error) == (JobState.DONE, None)
    assert job.trials_done >= 8, "more if the machine was disturbed"
    library, manifest = artifact(database, job.artifact_sha)
    with database.begin() as session:
        listed = tasks.for_job(session, "job")
        best = schedules.best_many(session, [t.workload_hash for t in listed], str(job.device_class))
        texts = {name: tvmscripts.of_workload(session, name) for name in best}
        # Remeasured programs were estimated before.
        estimated = session.scalars(select(TrialRow.estimated_s).where(TrialRow.repeat == 0)).all()
    assert library.startswith(b"\x7fELF")
    assert {spec.name: spec.shape for spec in manifest.inputs} == {"data": (1, 3, 16, 16)}
    assert any("conv2d" in task.name and task.covered and task.best_s for task in listed)
    assert best
    for name, record in best.items():
        naive, tvmscript = texts[name][UNSCHEDULED], texts[name][digest(record.trace)]
        assert "for " in naive.text
        assert "T.reads" not in naive.text
        assert "for " in tvmscript.text
        assert (naive.decisions == "", tvmscript.decisions != "") == (True, True)
    assert estimated
    assert all(estimated)
    [conv] = [task for task in listed if "conv2d" in task.name and not task.variant]
    assert texts[conv.workload_hash][UNSCHEDULED].text not in {
        tvmscript.text for sha, tvmscript in texts[conv.workload_hash].items() if sha != UNSCHEDULED
    }
    assert conv.signature.startswith("float32[1,16,16,3], float32[3,3,3,8]")
    assert conv.num_bytes >= 4 * (16 * 16 * 3 + 3 * 3 * 3 * 8 + 8 * 16 * 16)
    assert manifest.untuned_s == job.untuned_s
    # It is signed, and says what was verified.
    with database.begin() as session:
        (tmp_path / "artifact.tar").write_bytes(blobs.get(session, str(job.artifact_sha)))
    (tmp_path / "model").mkdir()
    client_artifact.unpack(tmp_path / "artifact.tar", tmp_path / "model")
    assert tunefarm_runtime.load(tmp_path / "model", trusted=key.public).inputs[0].shape == (1, 3, 16, 16)
    verified = manifest.verification
    assert verified is not None
    assert (verified.worker, verified.device) == ("worker", device.fingerprint.name)
    assert (verified.import_unverified, verified.outputs_unverified) == ("", "")
    assert verified.noise is not None
    assert all(isinstance(json.loads(entry.trace), list) for entry in manifest.tasks if entry.trace)


@pytest.mark.slow_lane(seconds=18)
def test_a_model_is_quantized_before_it_is_tuned(database: Database) -> None:
    images = np.random.default_rng(0).standard_normal((6, 3, 16, 16), np.float32)
    calibration = dataset(database, data=images)
    submit(database, quantize=Quantize.INT8, calibration=calibration)
    job = finish(database, Device(database))
    assert (job.state, job.error) == (JobState.DONE, None)
    library, manifest = artifact(database, job.artifact_sha)
    with database.begin() as session:
        form = quantized_models.find(session, job.request, devices.get_class(session, str(job.device_class)))
        assert form is not None
        compiled = blobs.get(session, form.sha)
        runs = {run.kind: run.artifact_sha for run in module_runs.of_job(session, "job")}
    assert form.accuracy.text in job.message
    assert form.accuracy.worst_db is not None
    assert form.accuracy.worst_db > 20
    assert manifest.quantization == replace(form.accuracy, layers=())
    assert manifest.verification is not None
    assert manifest.verification.import_unverified == ""
    assert (manifest.computed_in, manifest.model_sha) == ("quantized", job.request.model_sha)
    # The quantized model is compiled, verified, and timed in ONNX Runtime beside the library.
    assert runs["onnxruntime"] == form.sha
    assert onnx.load_from_string(compiled).graph.input[0].name == "data"
    assert library.startswith(b"\x7fELF")
    # An inference runs it with a user's inputs, and compares it with the float model.
    inferred = run_with(database, "infer", data=images[:1])
    assert inferred.state is JobState.DONE
    assert inferred.message.startswith(
        "worker worker ran it; the outputs differ from ONNX Runtime's for the orig"
    )
    with database.begin() as session:
        found = inferences.get(session, "infer")
        outputs = blobs.get(session, str(found.outputs_sha))
    assert found.comparison is not None
    [difference] = found.comparison.outputs
    [wanted] = load_session(onnx.load_from_string(small_network()), ["pool"])({"data": images[:1]})
    computed = np.load(io.BytesIO(outputs))["pool"]
    assert computed.shape == (1, 8, 1, 1)
    assert difference.largest == pytest.approx(np.abs(computed - wanted).max(), rel=1e-3)
    assert difference.db is not None
    assert difference.db > 15
    # Wrong inputs fail before a device gets them.
    for name, bad, said in (
        ("none", {"image": images[:1]}, "the file of inputs has no array 'data'"),
        ("many", {"data": images}, "array 'data' of the file of inputs has the shape (6, 3, 16, 16)"),
    ):
        failed = run_with(database, name, **bad)
        assert failed.state is JobState.FAILED
        assert said in str(failed.error)
    # A second job with the same data finds the quantized model.
    with database.begin() as session:
        jobs.create(session, "again", job.request, jobs.Submission(NOW))
    refuse = CompilerChildren(quantize_model=lambda *_: pytest.fail("it is quantized again"))
    drive(context(database, [], refuse), "intake", "again")
    with database.begin() as session:
        assert jobs.get(session, "again").state is JobState.TUNING


def run_with(database: Database, job_id: str, **arrays: NDArray[Any]) -> Job:
    """Run the artifact of the job "job" with these inputs, in a separate job."""
    with database.begin() as session:
        own = jobs.get(session, "job")
        asked = replace(
            own.request, target=str(own.device_class), infers="job", quantize=Quantize.NONE, calibration=None
        )
        jobs.create(session, job_id, asked, jobs.Submission(NOW))
    inputs = dataset(database, **arrays)
    with database.begin() as session:
        inferences.add(session, job_id, inputs)
    return finish(database, Device(database), job_id=job_id)


def test_bad_calibration_data_fails_the_job_at_once(database: Database) -> None:
    Device(database)
    calibration = dataset(database, image=np.ones((2, 3, 16, 16), np.float32))
    submit(database, quantize=Quantize.INT8, calibration=calibration)
    drive(context(database, []), "intake", "job")
    with database.begin() as session:
        job = jobs.get(session, "job")
    assert job.state is JobState.FAILED
    assert job.error == (
        "the calibration data has no array 'data', which is an input of the model; its arrays are: image. "
        "Save it by numpy.savez, with an array for each input"
    )


@pytest.mark.slow_lane(seconds=18)
def test_a_model_that_computes_something_else_than_untuned_is_not_published(
    database: Database,
) -> None:
    real = CompilerChildren().compile_tuned

    def compile_another(
        _data: bytes, _shapes: object, target: str, _schedules: object, library: IO[bytes], *, tf32: bool
    ) -> None:
        """Simulate right kernels that are combined wrongly."""
        real(small_network(seed=1), {}, target, {}, library, tf32=tf32)

    submit(database)
    job = finish(database, Device(database), CompilerChildren(compile_tuned=compile_another))
    assert job.state is JobState.DONE
    assert "wrong_result: not what the untuned model computes: output 0: its values are off by" in job.message
    assert ": the untuned one is published" in job.message
    assert job.tuned_s is None
    published, _ = artifact(database, job.artifact_sha)
    assert published == artifact(database, job.untuned_artifact_sha)[0]


def test_a_model_that_kills_the_compiler_fails_its_job_and_nothing_else(database: Database) -> None:
    Device(database)
    submit(database)
    killer = threading.Thread(target=kill_the_child)
    killer.start()
    drive(context(database, []), "intake", "job")
    killer.join()
    with database.begin() as session:
        job = jobs.get(session, "job")
    assert job.state is JobState.FAILED
    assert job.error == "importing the model crashed the compiler (SIGKILL)"
