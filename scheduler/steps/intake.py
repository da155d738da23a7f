"""A job's first step: choose a device class, quantize the model if the job asks for it, import it, compile it
untuned, and verify the import."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from compiler.children.models import ImportedModel
from compiler.children.verification import Verification
from compiler.importing.model import ExtractedTask
from compiler.importing.spec import ModelError, first_line
from compiler.reading.subgraph import UnsupportedSubgraph, read_dag
from compiler.workload import from_json, workload_hash
from core.device import Device
from core.durations import duration_text
from core.job import TF32, JobState, Quantize
from records import devices
from records.jobs import events, jobs, quantized_models, tasks
from records.jobs.jobs import Job
from records.jobs.tasks import TaskSpec
from records.storage import blobs
from scheduler.context import Context
from scheduler.planning.budget import read_remaining
from scheduler.planning.group import Group
from scheduler.spaces import sketches_of, tag_of
from scheduler.steps import attempts, onnx_runtime, waiting_messages
from scheduler.steps.artifacts import CompiledModel, write_untuned
from search.dag import Dag
from search.sketches.tensor_core import TENSOR_SINCE
from system import tracing

log = logging.getLogger(__name__)

# Kinds of events that the job's message also mentions, at the beginning of the search and at the end. The
# import could not be verified.
UNVERIFIED = "unverified"
# The model's outputs differ from ONNX Runtime's in a way that the standard allows.
ALLOWED_DIFFERENCE = "open"
# Outputs are padded, because the number of valid rows depends on the data.
PADDED = "padded"
# The job asks for TF32, but no subgraph can use it.
NOT_IN_TF32 = "not_in_tf32"
# What was quantized, and how accurate it is.
QUANTIZED = "quantized"
# Why a decoder's cache can't stay in its library.
NO_CACHE = "no_cache"
# How many products of halves are computed in float32.
IN_FLOAT32 = "in_float32"
NOTES = (UNVERIFIED, ALLOWED_DIFFERENCE, PADDED, NOT_IN_TF32, QUANTIZED, NO_CACHE, IN_FLOAT32)


def run(context: Context, job: Job) -> None:
    """Import the model and store its tasks and its untuned artifact. While no device of the target is known,
    set the job's message and wait. Raises ModelError, ArtifactError and PermanentError.
    """
    device = _begin(context, job)
    if device is None:
        return
    with tracing.span("intake", job.trace_parent, job=job.id):
        _import(context, job, device)


def _import(context: Context, job: Job, device: Device) -> None:
    began_at = context.now()
    if job.request.batch is not None:
        shapes = context.model_compiler.batch_shapes(job.request)
        with context.database.begin() as session:
            jobs.set_shapes(session, job.id, shapes)
        job = replace(job, request=replace(job.request, shapes=shapes))
    if job.request.quantize is not Quantize.NONE:
        _quantize(context, job, device)
    with tempfile.TemporaryFile() as artifact:
        with tempfile.TemporaryFile() as library:
            imported, verification = context.model_compiler.compile_untuned(job.request, device, library)
            write_untuned(artifact, CompiledModel(job, device, imported, library), context.now())
        wanted = [task for task in imported.tasks if task.exact or not job.request.exact]
        read = [_Subgraph.read(task, device) for task in wanted]
        subgraphs = [subgraph for subgraph in read if subgraph.dag is not None or not subgraph.task.variant]
        sha, size = blobs.stage(context.database, artifact)
        with context.database.begin() as session:
            before = (JobState.QUEUED, JobState.IMPORTING)
            if jobs.lock(session, job.id) not in before:
                return  # it was cancelled, or another scheduler has imported it
            blobs.put_file(session, artifact, sha, size)
            notes = _notes(job, device, imported, subgraphs, verification)
            if (form := quantized_models.find(session, job.request, device)) is not None:
                notes[QUANTIZED] = form.accuracy.text
            for kind, note in notes.items():
                events.append(session, job.id, kind, {"message": note}, context.now())
            # All jobs store workloads in one order, so that two jobs can't deadlock.
            for subgraph in sorted(subgraphs, key=lambda subgraph: subgraph.task.workload_hash):
                task, tag = subgraph.task, tag_of(subgraph.dag) if subgraph.dag is not None else None
                text, has_hash = task.module_json, subgraph.has_hash
                tasks.put_workload(session, task.workload_hash, text, tag, hashed_here=has_hash)
            tasks.add_tasks(session, job.id, [subgraph.spec(job) for subgraph in subgraphs])
            state, message = _next_state(session, job, subgraphs)
            took = f"imported in {duration_text(context.now() - began_at)}"
            message = "; ".join([took, message, *notes.values()])
            jobs.advance(session, job.id, before, state, context.now(), message=message)
            jobs.set_artifacts(session, job.id, untuned_sha=sha)
            if state is JobState.TUNING and job.request.budget.trials:
                # The device times the model before the first trial. A planner on its cores waits for that.
                onnx_runtime.request(session, job, imported, device, context.now())


def _quantize(context: Context, job: Job, device: Device) -> None:
    """Store the quantized form of the model that the job asks for, unless another job has. Raises
    ModelError."""
    with context.database.begin() as session:
        if quantized_models.find(session, job.request, device) is not None:
            return
        jobs.set_message(session, job.id, "quantizing the model")
    with tempfile.TemporaryFile() as file:
        accuracy = context.model_compiler.quantize(job.request, device, file)
        sha, size = blobs.stage(context.database, file)
        with context.database.begin() as session:
            blobs.put_file(session, file, sha, size)
            quantized_models.put(session, job.request, device, sha, accuracy)


def _begin(context: Context, job: Job) -> Device | None:
    """Return the device class to tune for; None if no such device is known, or if it is too early for a
    retry."""
    now = context.now()
    with context.database.begin() as session:
        if job.device_class is not None:
            device: Device | None = devices.get_class(session, job.device_class)
        else:
            group = jobs.group(session, job)
            found = next((one.device_class for one in group if one.device_class is not None), None)
            if found is None and next(one for one in group if not one.state.finished).id != job.id:
                return None  # the first job of a group chooses the device for all
            target = found or job.request.target
            device = devices.resolve_class(session, target, now, job.submitted_by)
            for other in group:
                if device is not None and other.state is JobState.QUEUED and other.id != job.id:
                    context.wake("intake", other.id)
        if device is None:
            waiting_messages.note_no_device(session, job, now, has_local_worker=context.settings.local_worker)
            return None
        jobs.set_device_class(session, job.id, device.key)
        if context.must_not_disturb(session, device):
            return None
        jobs.advance(session, job.id, {JobState.QUEUED}, JobState.IMPORTING, now)
        is_due = attempts.begin(session, job, "importing the model", now, context.settings.max_failures)
        return device if is_due else None


@dataclass(frozen=True)
class _Subgraph:
    """A task of the model as a dag; if the search doesn't cover it, `dag` is None and `reason` says why.
    `has_hash` tells whether the workload has the hash that the child reported. Otherwise a compromised child
    could replace another model's workload.
    """

    task: ExtractedTask
    dag: Dag | None
    reason: str
    has_hash: bool

    @classmethod
    def read(cls, task: ExtractedTask, device: Device) -> _Subgraph:
        """Read a task. Raises ModelError if the workload's hash differs from the child's."""
        has_hash = False
        try:
            module = from_json(task.module_json)
            has_hash = workload_hash(module) == task.workload_hash
            dag = read_dag(module)
            sketches_of(dag, device)
            read = cls(task, dag, "", has_hash)
        except UnsupportedSubgraph as error:
            read = cls(task, None, str(error) or "the search doesn't cover it", has_hash)
        except Exception as error:
            # Any error concerns this subgraph only: the others are still tuned.
            log.exception("the search can't read the subgraph %s", task.name)
            return cls(task, None, f"the search can't read it ({first_line(error)})", has_hash)
        if not has_hash:
            raise ModelError(f"the compiler reported a wrong hash of the subgraph {task.name}")
        return read

    def spec(self, job: Job) -> TaskSpec:
        return TaskSpec(
            job_id=job.id,
            workload_hash=self.task.workload_hash,
            name=self.task.name,
            weight=self.task.weight,
            flops=self.dag.flops if self.dag is not None else 0.0,
            signature=self.dag.signature if self.dag is not None else "",
            num_bytes=self.dag.num_bytes if self.dag is not None else 0.0,
            covered=self.dag is not None,
            reason=self.reason,
            constants=self.task.constants,
            variant=self.task.variant,
            variant_of=self.task.variant_of,
            layer=self.task.layer,
        )


def _notes(
    job: Job,
    device: Device,
    imported: ImportedModel,
    subgraphs: Sequence[_Subgraph],
    verification: Verification,
) -> dict[str, str]:
    """Return notes on the import for the user, by kind of event."""
    notes = {}
    if verification.unverified:
        compared = "the import could not be compared with what the model's file defines"
        notes[UNVERIFIED] = f"{compared}: {verification.unverified}"
    if verification.note:
        notes[ALLOWED_DIFFERENCE] = verification.note
    padded = [spec for spec in imported.outputs if spec.padded_axis is not None]
    if padded:
        said = ", ".join(f"'{spec.name}' {spec.shape}" for spec in padded)
        notes[PADDED] = f"the data decides how many of the first rows are valid, the rest hold -1: {said}"
    if imported.no_cache:
        notes[NO_CACHE] = f"the library doesn't keep the decoder's cache: {imported.no_cache}"
    in_float32, products = imported.halves_in_float32
    if in_float32:
        counted = f"{in_float32} of {products}" if in_float32 < products else "all"
        notes[IN_FLOAT32] = (
            f"{counted} convolutions and matrix products of float16 or bfloat16 are computed in float32, "
            "which is faster on this processor"
        )
    if job.request.tf32 and (reason := _why_not_in_tf32(device, subgraphs)):
        notes[NOT_IN_TF32] = reason
    return notes


def _why_not_in_tf32(device: Device, subgraphs: Sequence[_Subgraph]) -> str:
    """Return why no subgraph of a model is tried in TF32; "" if one is."""
    if any(subgraph.task.variant == TF32 for subgraph in subgraphs):
        return ""
    since = TENSOR_SINCE[TF32, "float32"]
    if device.gpu is None or device.gpu.capability < since:
        cause = f"it takes a GPU of compute capability {since / 10:.1f} or newer"
    else:
        cause = "the model has no matrix product or convolution of float32 for tensor cores"
    return f"nothing is computed in TF32: {cause}"


def _next_state(session: Session, job: Job, subgraphs: Sequence[_Subgraph]) -> tuple[JobState, str]:
    """Return the next state and its message."""
    own = [subgraph for subgraph in subgraphs if not subgraph.task.variant]
    num_variants = len(subgraphs) - len(own)
    variants = f", and {num_variants} variant{'s'[: num_variants > 1]}" if num_variants else ""
    if job.request.budget.trials:
        num_covered = sum(subgraph.dag is not None for subgraph in own)
        return JobState.TUNING, f"searching {num_covered} of {len(own)} subgraphs{variants}"
    if untried := read_remaining(session, Group.read(session, job)).untried:
        num_untried = sum(not task.variant for task in untried)
        message = f"trying the best guess for {num_untried} of {len(own)} subgraphs{variants}"
        return JobState.TUNING, message
    return JobState.PUBLISHING, "compiling the model with the known schedules"
