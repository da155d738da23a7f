"""Inference jobs run an artifact once with a user's inputs. Other jobs quantize their model first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compiler.importing.spec import ModelError
from core.job import Budget, JobState, Quantize
from core.measurement import Measurement, Outcome
from records.jobs import deletion, inferences, jobs, models, quantized_models
from records.jobs.jobs import Job
from records.jobs.models import UploadKind
from records.storage import blobs
from scheduler.steps.inference import GONE, NO_OUTPUTS
from tests.devices import DEVICE
from tests.unit.scheduler.farm import FakeCompiler, Farm


@pytest.fixture
def done(farm: Farm) -> Job:
    farm.submit()
    farm.plug_in()
    return farm.finish()


def infer(farm: Farm, source: Job) -> None:
    with farm.database.begin() as session:
        sha = blobs.put(session, b"inputs")
        models.add(session, sha, "inputs", farm.now, UploadKind.DATASET)
        asked = replace(source.request, target=str(source.device_class), budget=Budget(0), infers=source.id)
        jobs.create(session, "infer", asked, jobs.Submission(farm.now))
        inferences.add(session, "infer", sha)


def test_the_outputs_of_a_run_are_compared(farm: Farm, done: Job) -> None:
    infer(farm, done)
    for _ in range(6):  # in a new process each time
        farm.tick()
        farm.restart()
    job = farm.job("infer")
    assert (job.state, job.error, job.trials_issued) == (JobState.DONE, None, 0)
    assert job.message == (
        "worker worker ran it; the outputs differ from ONNX Runtime's for the original model by at most 0.5 "
        "(20.0 dB signal to noise, output 'data')"
    )
    with farm.database.begin() as session:
        found = inferences.get(session, "infer")
        assert blobs.get(session, str(found.outputs_sha)) == b"outputs"
    assert [run.kind for run in farm.runs("infer")] == ["inference"]
    # It published no artifact that later jobs are compared with.
    assert (job.artifact_sha, job.artifact_version) == (None, None)


@pytest.mark.parametrize(
    ("measured", "sends", "error"),
    [
        (Measurement(Outcome.RUN_TIMEOUT, error="it took 120 s"), False, "run_timeout: it took 120 s"),
        (Measurement(Outcome.OK, (0.1,)), False, NO_OUTPUTS),
    ],
)
def test_a_run_without_outputs_fails_the_job(
    farm: Farm, done: Job, measured: Measurement, sends: bool, error: str
) -> None:
    farm.inferred, farm.sends_outputs = measured, sends
    infer(farm, done)
    job = farm.finish("infer")
    assert job.state is JobState.FAILED
    assert error in str(job.error)


def test_inputs_that_do_not_fit_never_reach_a_device(farm: Farm, done: Job, compiler: FakeCompiler) -> None:
    compiler.inputs_error = ModelError("the file of inputs has no array 'data'")
    infer(farm, done)
    job = farm.finish("infer")
    assert (job.state, job.error) == (JobState.FAILED, "the file of inputs has no array 'data'")
    assert farm.runs("infer") == []


def test_an_artifact_that_was_deleted_is_named(farm: Farm, done: Job) -> None:
    infer(farm, done)
    with farm.database.begin() as session:
        deletion.delete_job(session, done.id, farm.now + 1e6)
    job = farm.finish("infer")
    assert (job.state, job.error) == (JobState.FAILED, GONE)


def test_an_inference_waits_for_its_device_and_can_be_cancelled(farm: Farm, done: Job) -> None:
    infer(farm, done)
    farm.sweep()
    assert farm.job("infer").state is JobState.PUBLISHING
    farm.now += 1000.0
    farm.sweep()
    assert farm.job("infer").message.startswith(f"waiting for a device of class {DEVICE.title}: ")
    with farm.database.begin() as session:
        jobs.cancel(session, "infer", farm.now)
    assert farm.lease() is None


def test_a_model_is_quantized_once_for_all_jobs(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.is_onnx = True
    with farm.database.begin() as session:
        sha = blobs.put(session, b"samples")
        models.add(session, sha, "samples", farm.now, UploadKind.DATASET)
    asked: dict[str, Any] = {"quantize": Quantize.INT8, "calibration": sha}
    farm.submit(**asked)
    farm.plug_in()
    job = farm.finish()
    said = "quantized (int8): 30.0 dB signal to noise against float32 on 2 calibration samples"
    assert job.message.endswith(f"{said}, weights of 3 layers in 7 bits, 1 layer kept in float32")
    runs = {run.kind: farm.blob(run.artifact_sha) for run in farm.runs()}
    assert runs["onnxruntime"] == b"quantized model"
    _, manifest = farm.published()
    assert manifest.quantization is not None
    assert manifest.quantization.worst_db == 30.0
    farm.submit("again", **asked)
    farm.submit("floats")
    farm.submit("weights", quantize=Quantize.INT4)
    for job_id in ("again", "floats", "weights"):
        farm.finish(job_id)
    assert compiler.quantized == 2
    # Jobs are compared with earlier artifacts of the same form of the model.
    kinds = {job_id: {run.kind for run in farm.runs(job_id)} for job_id in ("floats", "weights")}
    assert all("published" not in kinds[job_id] for job_id in kinds)
    floats_request = farm.job("floats").request
    with farm.database.begin() as session:
        assert quantized_models.find(session, floats_request, None) is None
        floats = jobs.published(session, job.request.model_sha, str(job.device_class))
        assert [one.id for one in floats] == ["floats"]


def test_a_job_cancelled_while_its_inputs_are_checked_runs_nothing(
    farm: Farm, done: Job, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(*_: object) -> None:
        with farm.database.begin() as session:
            jobs.cancel(session, "infer", farm.now)

    monkeypatch.setattr(compiler, "_check_inputs", cancel)
    farm.restart()
    infer(farm, done)
    farm.sweep()
    assert farm.job("infer").state is JobState.CANCELLED
    assert farm.runs("infer") == []
