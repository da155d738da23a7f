"""If the device has ONNX Runtime, the user's model is timed in it, in turns with the compiled models."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count

import pytest
from sqlalchemy.orm import Session

from compiler.children.models import ImportedModel
from compiler.packaging.artifact import ArtifactError
from core.device import Device
from core.job import JobState
from core.measurement import Footprint, Measurement, Outcome
from records.fleet.leases import MAX_ATTEMPTS, WITHOUT_ONNX_RUNTIME
from records.jobs import events, jobs
from records.jobs.jobs import Job, OnnxRuntime
from scheduler.steps import onnx_runtime
from scheduler.steps.onnx_runtime import GPU_NOT_TIMED, NOT_ONNX, NOT_TIMED
from scheduler.steps.publish import TIMED_AGAIN
from tests.devices import GPU
from tests.unit.scheduler.farm import TUNED, UNTUNED, FakeCompiler, Farm


@pytest.fixture
def onnx(compiler: FakeCompiler) -> FakeCompiler:
    compiler.is_onnx = True
    return compiler


def compared(farm: Farm) -> tuple[object, ...]:
    timing = farm.job().onnxruntime
    assert timing is not None
    return timing.version, timing.run_s, timing.ratio, timing.note


def test_a_job_reports_its_speed_against_onnx_runtime_first(farm: Farm, onnx: FakeCompiler) -> None:
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert compared(farm) == ("1.31.1", (0.0131,) * 3, pytest.approx(1.31), "")
    assert job.message == (
        "1.31 times as fast as ONNX Runtime 1.31.1 on this device (13.1 ms); "
        "10 ms, 50.0 times faster than untuned (500 ms)"
    )
    assert job.footprint == Footprint(1e-3, len(TUNED), 0.01), "the published model's"
    runs = {run.kind: run for run in farm.runs()}
    assert runs["onnxruntime"].artifact_sha == job.request.model_sha
    assert len({run.lease_id for run in runs.values()}) == 1, "timed in turns"


def test_onnx_runtime_is_timed_when_the_search_begins_and_again_at_its_end(
    farm: Farm, onnx: FakeCompiler
) -> None:
    """The first timing comes before any trial, and is there while the search runs."""
    farm.in_onnx_runtime = Measurement(Outcome.OK, (0.02,))
    farm.submit()
    farm.plug_in()
    farm.sweep()
    first = farm.work()
    assert first is not None
    assert ([run.kind for run in first.module_runs], first.trials) == (["onnxruntime"], ())
    farm.drain()
    job = farm.job()
    assert (job.state, job.trials_done) == (JobState.TUNING, 0)
    assert compared(farm) == ("1.31.1", (0.02,), None, "")
    farm.in_onnx_runtime = Measurement(Outcome.OK, (0.0131,))
    farm.finish()
    assert compared(farm) == ("1.31.1", (0.0131,), pytest.approx(1.31), "")


@pytest.mark.parametrize(("ahead", "planned"), [(0, 0), (1, 4)])
def test_a_planner_that_shares_the_devices_cores_waits_for_onnx_runtime(
    farm: Farm, onnx: FakeCompiler, ahead: int, planned: int
) -> None:
    farm.restart(plan_ahead=ahead)
    farm.submit()
    farm.plug_in()
    farm.sweep()
    assert (farm.job().state, farm.job().trials_issued) == (JobState.TUNING, planned)
    farm.work()
    farm.drain()
    assert farm.job().trials_issued >= 4


@pytest.mark.parametrize(("ahead", "state"), [(0, JobState.QUEUED), (1, JobState.TUNING)])
def test_the_next_model_is_imported_when_a_device_on_the_same_cores_times_none(
    farm: Farm, onnx: FakeCompiler, ahead: int, state: JobState
) -> None:
    farm.restart(plan_ahead=ahead)
    farm.submit()
    with farm.database.begin() as session:
        request = jobs.get(session, "job").request
        jobs.create_group(session, "pair", [request, request], jobs.Submission(farm.now))
        jobs.advance(session, "job", {JobState.QUEUED}, JobState.CANCELLED, farm.now)
    farm.plug_in()
    farm.sweep()
    assert [farm.job(name).state for name in ("pair", "pair-2")] == [JobState.TUNING, state]
    farm.work()
    farm.drain()
    assert farm.job("pair-2").state is JobState.TUNING, "without waiting for the next sweep"


@pytest.mark.parametrize(
    ("missing", "error", "note"),
    [
        (True, "", WITHOUT_ONNX_RUNTIME),
        (False, "no kernel for Celu(12)", f"{NOT_TIMED} (run_error: no kernel for Celu(12))"),
    ],
)
def test_why_onnx_runtime_is_not_timed_is_known_while_the_search_runs(
    farm: Farm, onnx: FakeCompiler, missing: bool, error: str, note: str
) -> None:
    farm.onnxruntime = "" if missing else "1.31.1"
    farm.in_onnx_runtime = Measurement(Outcome.RUN_ERROR, error=error)
    farm.submit()
    farm.plug_in()
    farm.tick()
    farm.sweep()
    job = farm.job()
    assert job.state is JobState.TUNING
    assert job.onnxruntime is not None
    assert note in job.onnxruntime.note


def test_every_model_of_a_group_is_timed_in_onnx_runtime(farm: Farm, onnx: FakeCompiler) -> None:
    farm.submit()
    with farm.database.begin() as session:
        request = jobs.get(session, "job").request
        jobs.create_group(session, "pair", [request, request], jobs.Submission(farm.now))
        names = [one.id for one in jobs.group(session, jobs.get(session, "pair"))]
    farm.plug_in()
    for _ in range(4):
        farm.tick()
    assert all(farm.job(name).onnxruntime is not None for name in names)


def test_without_a_search_onnx_runtime_is_timed_once(farm: Farm, onnx: FakeCompiler) -> None:
    farm.submit(trials=0)
    farm.plug_in()
    kinds = []
    while not farm.job().state.finished:
        farm.sweep()
        if lease := farm.work():
            kinds += [run.kind for run in lease.module_runs]
        farm.drain()
        farm.now += 5
    assert sorted(kinds) == ["onnxruntime", "tuned", "untuned"]


def test_a_first_timing_that_lost_devices_is_not_repeated(farm: Farm, onnx: FakeCompiler) -> None:
    farm.submit()
    farm.plug_in()
    farm.sweep()
    for _ in range(MAX_ATTEMPTS):
        lease = farm.lease()
        assert lease is not None
        assert [run.kind for run in lease.module_runs] == ["onnxruntime"]
        farm.now += 100
        farm.plug_in()
        farm.sweep()
    job = farm.finish()
    assert job.onnxruntime is not None
    assert job.onnxruntime.ratio is None
    assert "device_lost" in job.onnxruntime.note
    assert farm.published()[0] == TUNED


def test_a_job_says_that_its_device_was_disturbed(farm: Farm, onnx: FakeCompiler) -> None:
    farm.slowdowns = (*[1.0] * 6, *[1.5] * 5)
    farm.submit()
    farm.plug_in()
    assert farm.finish().message.endswith("; the device was disturbed: 80% of the calls took 10 ms to 15 ms")


def test_a_job_says_that_its_device_was_slow(farm: Farm, onnx: FakeCompiler) -> None:
    farm.speed = 0.62
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert job.message.endswith("; the device was slowed down to 62% of its speed, by heat or other programs")
    assert job.speed == 0.62


@pytest.mark.parametrize(
    ("latency_s", "cause"),
    [
        (0.02, "they find less of their data in the caches, or the device was disturbed"),
        (0.005, "weights stay in the caches, or the device was disturbed before"),
    ],
)
def test_a_model_that_differs_from_its_kernels_is_timed_again_once(
    farm: Farm, onnx: FakeCompiler, latency_s: float, cause: str
) -> None:
    farm.latency_s = {UNTUNED: 0.5, TUNED: latency_s}
    farm.submit()
    farm.plug_in()
    message = farm.finish().message
    assert "; its kernels, timed one by one, add up to 9." in message
    assert message.endswith(f": in the model, {cause}")
    with farm.database.begin() as session:
        (event,) = events.of_kinds(session, "job", [TIMED_AGAIN])
    assert event.data["message"].startswith("timing the compiled model again: its kernels")
    assert len({run.lease_id for run in farm.runs()}) == 1, "timed together, in turns"


def test_a_share_beyond_sense_is_no_percentage(farm: Farm, onnx: FakeCompiler) -> None:
    farm.latency_s = {UNTUNED: 0.5, TUNED: 1e-4}
    farm.submit()
    farm.plug_in()
    message = farm.finish().message
    assert re.search(r" add up to 9\.\d+ ms, 9\d\.\d times as long: in the model, weights stay", message)
    assert not re.search(r"\d{3,}%", message)


def test_a_model_whose_second_timing_agrees_is_published_without_a_doubt(
    farm: Farm, onnx: FakeCompiler
) -> None:
    farm.latency_s = {UNTUNED: 0.5, TUNED: 0.02}
    farm.submit()
    farm.plug_in()
    while not farm.job().message.startswith("timing the compiled model again"):
        farm.tick()
    farm.latency_s = {UNTUNED: 0.5, TUNED: 0.01}
    assert farm.finish().message.endswith("; 10 ms, 50.0 times faster than untuned (500 ms)")


def test_a_model_slower_than_onnx_runtime_is_still_published(farm: Farm, onnx: FakeCompiler) -> None:
    farm.in_onnx_runtime = Measurement(Outcome.OK, (0.005,))
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert farm.published()[0] == TUNED
    assert job.message.startswith("0.50 times as fast as ONNX Runtime 1.31.1 on this device (5 ms); 10 ms")


def test_the_ratio_is_of_the_model_that_is_published(farm: Farm, onnx: FakeCompiler) -> None:
    farm.latency_s = {UNTUNED: 0.004, TUNED: 0.01}
    farm.submit()
    farm.plug_in()
    farm.finish()
    assert compared(farm) == ("1.31.1", (0.0131,) * 3, pytest.approx(13.1 / 4), "")


def test_onnxruntime_is_timed_again_beside_the_model_that_works(farm: Farm, onnx: FakeCompiler) -> None:
    """The first model with the schedules found computes wrong results."""
    number = count()
    onnx.harmful = lambda trace: next(number) == 0
    farm.submit()
    farm.plug_in()
    farm.finish()
    assert compared(farm) == ("1.31.1", (0.0131,) * 3, pytest.approx(1.31), "")
    working = [run for run in farm.runs() if not run.failed]
    assert {run.kind for run in working} == {"untuned", "tuned", "onnxruntime"}
    assert len({run.lease_id for run in working}) == 1


def test_a_worker_without_onnx_runtime_times_the_rest(farm: Farm, onnx: FakeCompiler) -> None:
    farm.onnxruntime = ""
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert job.onnxruntime is not None
    assert job.onnxruntime.ratio is None
    assert WITHOUT_ONNX_RUNTIME in job.onnxruntime.note
    assert job.message == "10 ms, 50.0 times faster than untuned (500 ms)"


def test_a_model_that_onnx_runtime_refuses_is_published(farm: Farm, onnx: FakeCompiler) -> None:
    farm.in_onnx_runtime = Measurement(Outcome.RUN_ERROR, error="no kernel for Celu(12)")
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert job.onnxruntime == OnnxRuntime("1.31.1", note=f"{NOT_TIMED} (run_error: no kernel for Celu(12))")
    assert farm.published()[0] == TUNED


def test_models_of_other_formats_are_not_timed_in_onnx_runtime(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit()
    farm.plug_in()
    assert farm.finish().onnxruntime == OnnxRuntime(note=NOT_ONNX)
    assert {run.kind for run in farm.runs()} == {"untuned", "tuned"}


def test_a_model_that_does_not_compile_is_compared_untuned(farm: Farm, onnx: FakeCompiler) -> None:
    farm.submit()
    farm.plug_in()
    onnx.build_error = ArtifactError("no linker")
    farm.finish()
    assert compared(farm) == ("1.31.1", (0.0131,) * 3, pytest.approx(0.0131 / 0.5), "")
    assert len({run.lease_id for run in farm.runs()}) == 1, "timed in turns"


def test_jobs_on_a_gpu_are_not_timed_in_onnx_runtime(
    farm: Farm, onnx: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = onnx_runtime.request

    def of_gpu(session: Session, job: Job, imported: ImportedModel, device: Device, now: float) -> None:
        request(session, job, imported, replace(device, gpu=GPU.gpu), now)

    monkeypatch.setattr(onnx_runtime, "request", of_gpu)
    farm.submit()
    farm.plug_in()
    farm.sweep()
    assert farm.job().onnxruntime == OnnxRuntime(note=GPU_NOT_TIMED), "known at once"
    assert farm.finish().onnxruntime == OnnxRuntime(note=GPU_NOT_TIMED)
