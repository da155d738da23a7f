"""The user's model in ONNX Runtime: a device times it once when the search begins, for an estimate, and again
in turns with the compiled models."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sqlalchemy.orm import Session

from compiler.children.models import ImportedModel
from core.device import Device
from core.durations import latency_text, times_text
from core.lease import ModuleKind
from core.measurement import Outcome
from records.fleet import module_runs
from records.fleet.module_runs import StoredModuleRun
from records.jobs import jobs, quantized_models
from records.jobs.jobs import Job, OnnxRuntime
from scheduler.steps.selection import failure_of

KIND: ModuleKind = "onnxruntime"
NOT_ONNX = "ONNX Runtime runs ONNX models only"
GPU_NOT_TIMED = "ONNX Runtime is timed on CPUs only, and this device is a GPU"
NOT_TIMED = "the model was not timed in ONNX Runtime"


def request(session: Session, job: Job, imported: ImportedModel, device: Device, now: float) -> None:
    """Request the timing of the model that was imported, unless it was requested before. If ONNX Runtime
    can't run it, store the reason. The caller has locked the job.
    """
    if imported.is_onnx and device.gpu is None:
        sha = quantized_models.file_sha(session, job.request, device)
        module_runs.add(session, job.id, KIND, sha, now)
        return
    note = NOT_ONNX if device.gpu is None else GPU_NOT_TIMED
    jobs.set_onnxruntime(session, job.id, OnnxRuntime(note=note))


def request_again(session: Session, job_id: str) -> None:
    """Request another timing in turns with the compiled models, unless devices were lost during the first
    one. The caller has locked the job.
    """
    timed = [run for run in module_runs.of_job(session, job_id) if run.kind == KIND]
    module_runs.time_again(session, [run.id for run in timed if run.outcome is not Outcome.DEVICE_LOST])


def request_beside(
    session: Session,
    job: Job,
    runs: Sequence[StoredModuleRun],
    imported: ImportedModel,
    device: Device,
    now: float,
) -> None:
    """Request the timing beside the first compiled model, when there are no `runs` of compiled models yet.
    The caller has locked the job.
    """
    if not runs:
        request(session, job, imported, device, now)
        request_again(session, job.id)


def without_first(runs: Sequence[StoredModuleRun]) -> Sequence[StoredModuleRun]:
    """Return a job's module runs; none as long as there is only the one of the beginning."""
    return [] if all(run.kind == KIND and run.state == "done" for run in runs) else runs


def store_first(session: Session, job: Job) -> None:
    """Store the timing from the beginning of the search with the job, once it is there. It has no ratio."""
    if job.onnxruntime is not None:
        return
    timing = _timing(module_runs.of_job(session, job.id))
    if timing is not None:
        jobs.set_onnxruntime(session, job.id, timing)


def compare(job: Job, runs: Sequence[StoredModuleRun], published: StoredModuleRun) -> OnnxRuntime:
    """Return the model's timing in ONNX Runtime with its ratio to the published model's; without the timing,
    the reason.
    """
    timing = _timing(runs, published)
    return timing or job.onnxruntime or OnnxRuntime(note=NOT_TIMED)


def describe(timing: OnnxRuntime) -> str:
    """Compare the published model with ONNX Runtime; "" if that wasn't timed."""
    if timing.ratio is None:
        return ""
    peer = f"ONNX Runtime {timing.version} on this device ({latency_text(statistics.median(timing.run_s))})"
    return f"{times_text(timing.ratio, ' times')} as fast as {peer}"


def _timing(runs: Sequence[StoredModuleRun], published: StoredModuleRun | None = None) -> OnnxRuntime | None:
    """Return the model's timing among a job's runs; None if it wasn't requested or isn't finished."""
    run = next((run for run in runs if run.kind == KIND and run.state == "done"), None)
    if run is None:
        return None
    if run.failed:
        return OnnxRuntime(run.onnxruntime, note=f"{NOT_TIMED} ({failure_of(run)})")
    if published is None:
        return OnnxRuntime(run.onnxruntime, run.run_s)
    ratio = statistics.median(run.run_s) / statistics.median(published.run_s)
    return OnnxRuntime(run.onnxruntime, run.run_s, ratio)
