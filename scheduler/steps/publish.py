"""A job's last step: compile the model with the best schedules, time it, publish the fastest model."""

from __future__ import annotations

import hashlib
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO

from sqlalchemy.orm import Session

from compiler.importing.spec import ModelError
from compiler.lowering.trace import UNSCHEDULED
from compiler.packaging.artifact import ArtifactError, Verification, open_artifact
from core.device import Device
from core.durations import latency_text
from core.job import JobState
from core.lease import ModuleKind
from core.measurement import confidence_interval, is_noisy, is_slowed, noise, spread
from core.model_latency import base_workload
from core.webhook import WebhookEvent
from records import devices, webhooks
from records.fleet import module_runs
from records.fleet.module_runs import StoredModuleRun
from records.jobs import events, jobs, quantized_models, tasks, trials
from records.jobs.jobs import Job
from records.jobs.tasks import Task
from records.jobs.trials import FALLBACK
from records.schedules import schedules
from records.schedules.schedules import Record
from records.storage import blobs
from records.storage.blobs import BlobNotFound
from scheduler.context import Context
from scheduler.errors import PermanentError
from scheduler.steps import attempts, onnx_runtime, selection, tvmscripts, waiting_messages
from scheduler.steps.artifacts import (
    CompiledModel,
    describe_replaced,
    find_uncompilable,
    find_unschedulable,
    select_applicable,
    write_timed,
    write_tuned,
)
from scheduler.steps.intake import NOTES, UNVERIFIED
from scheduler.steps.selection import AssemblyHistory, failure_of, next_selection, read_history
from system import tracing

# The names of publishable models in messages. Of equally fast models, the first is published.
MODEL_NAMES: Mapping[ModuleKind, str] = {
    "tuned": "the tuned model",
    "published": "the one published before",
    "untuned": "the untuned one",
}
# A model is slower than another if its median is larger by this many standard errors, or by this fraction in
# spite of any noise.
MAX_STANDARD_ERRORS = 2.0
MAX_SLOWER = 0.02
# A model is timed again if its latency and the sum of its kernels' latencies differ by more than this factor.
# A difference below MIN_GAP_S doesn't count: calling kernels takes longer than the kernels of tiny models.
MAX_GAP, MIN_GAP_S = 1.25, 1e-4
# A larger share of a latency isn't given in percent.
MAX_PERCENT = 2.0
# The kind of the event that says why all models are timed again. Each job does this once.
TIMED_AGAIN = "timed_again"


@dataclass(frozen=True)
class Verdict:
    """The timed model to publish, and a sentence for the user that says why."""

    run: StoredModuleRun
    message: str


def run(context: Context, job: Job) -> None:
    """Compile the next model and request its timing. If none is left to try, publish the fastest. Raises
    PermanentError if no compiled model runs on the device.
    """
    with context.database.begin() as session:
        runs = onnx_runtime.without_first(module_runs.of_job(session, job.id))
        history = read_history(session, job.id, runs)
        if any(run.state != "done" for run in runs):
            waiting_messages.note_missing_device(session, job, context.now())
            return
    cause: Exception | None = None
    works_at_once = len(history.assemblies) == 1 and not history.assemblies[0].failure
    if not works_at_once:
        try:
            with tracing.span("compile", job.trace_parent, job=job.id):
                if _compile_next(context, job, runs, history):
                    return
        except (PermanentError, ArtifactError, ModelError) as error:
            cause = error
    if cause is None and not any(run.kind == "tuned" for run in runs):
        cause = ArtifactError(history.assemblies[0].failure)
    not_compiled = f"the model could not be compiled with the schedules found ({cause})"
    if not runs:
        peers = _peers(context, job)
        with context.database.begin() as session:
            if jobs.lock(session, job.id) is JobState.PUBLISHING:
                message = f"{not_compiled}: timing the untuned one"
                _request_timings(session, job, peers, message, context.now())
                onnx_runtime.request_again(session, job.id)
    elif not _timed_together(runs):
        with context.database.begin() as session:
            if jobs.lock(session, job.id) is JobState.PUBLISHING:
                module_runs.time_again(session, [run.id for run in runs if not run.failed])
    else:
        verdict = judge([run for run in runs if run.kind != onnx_runtime.KIND], not_compiled)
        if history.uncompared and verdict.run.kind == "tuned" and not _untuned_fails(runs):
            uncompared = f"its outputs could not be compared ({history.uncompared})"
            verdict = replace(verdict, message=f"{verdict.message}; {uncompared}")
        with _stored(context, verdict.run.artifact_sha) as timed:
            gap = _describe_gap(verdict.run, open_artifact(timed)[1].kernels_s)
            if gap and _time_again(context, job, runs, gap):
                return
            parts = [verdict.message, _describe_noise(verdict.run), gap]
            verdict = replace(verdict, message="; ".join(filter(None, parts)))
            with tracing.span("publish", job.trace_parent, job=job.id, published=verdict.run.kind):
                unverified = _outputs_unverified(verdict.run, runs, history)
                _publish(context, job, verdict, timed, runs, unverified)


def judge(runs: Sequence[StoredModuleRun], not_compiled: str = "") -> Verdict:
    """Choose the fastest model that runs. `not_compiled` says why there is no tuned model. If timings can't
    distinguish them, prefer the tuned model. Raises PermanentError if no model runs.
    """
    working = sorted((run for run in runs if not run.failed), key=_rank)
    tuned = next((run for run in [*working, *runs] if run.kind == "tuned"), None)
    if not working:
        if tuned is None:
            raise PermanentError(not_compiled)
        raise PermanentError(f"the compiled model does not run on the device: {failure_of(tuned)}")
    best = working[0]
    if best.kind == "untuned":
        best = next((run for run in working[1:] if not _is_slower(run, best)), best)
    if best.kind == "tuned":
        return Verdict(best, _describe_speed(best, working))
    cause = not_compiled
    if tuned is not None and tuned.failed:
        cause = f"the tuned model failed on the device ({failure_of(tuned)})"
    elif tuned is not None:
        cause = f"the tuned model takes {_latency(tuned)}, {MODEL_NAMES[best.kind]} {_latency(best)}"
    again = " again" if best.kind == "published" else ""
    return Verdict(best, f"{cause}: {MODEL_NAMES[best.kind]} is published{again}")


def _describe_speed(tuned: StoredModuleRun, working: Sequence[StoredModuleRun]) -> str:
    """Return the tuned model's latency and how much faster it is than the others."""
    others = {run.kind: run for run in working}
    text, untuned = _latency(tuned) + _describe_interval(tuned.run_s), others.get("untuned")
    if untuned is not None and _latency_s(untuned) < _latency_s(tuned):
        text += f", no slower than untuned ({_latency(untuned)}) within the noise of the timings"
    elif untuned is not None:
        text += f", {_compared(_latency_s(untuned) / _latency_s(tuned))} untuned ({_latency(untuned)})"
    if before := others.get("published"):
        ratio = _latency_s(before) / _latency_s(tuned)
        text += f", {_compared(ratio)} what was published before ({_latency(before)})"
    if untuned is None:
        text += "; the untuned model does not run, so neither speed nor outputs were compared"
    return text


def _describe_interval(run_s: Sequence[float]) -> str:
    """Describe the 95% confidence interval of a latency; "" if it is shorter than its last digit."""
    low, high = map(latency_text, confidence_interval(run_s) or (0.0, 0.0))
    return f" ({low} to {high} with 95% confidence)" if low != high else ""


def _compared(ratio: float) -> str:
    """Describe in words how a latency compares with one that is `ratio` times as long."""
    return f"{ratio:.1f} times faster than" if ratio >= 1.05 else "as fast as"


def _timed_together(runs: Sequence[StoredModuleRun]) -> bool:
    """Return whether one lease timed all working models in turns, so that they can be compared. After a lost
    device, each model gets its own lease, and separate timings count.
    """
    working = [run for run in runs if not run.failed]
    return len({run.lease_id for run in working}) < 2 or any(run.attempts for run in working)


def _time_again(context: Context, job: Job, runs: Sequence[StoredModuleRun], reason: str) -> bool:
    """Request another timing of all working models. Return False if they were timed again before."""
    with context.database.begin() as session:
        if jobs.lock(session, job.id) is not JobState.PUBLISHING:
            return True
        if events.of_kinds(session, job.id, [TIMED_AGAIN]):
            return False
        message = f"timing the compiled model again: {reason}"
        events.append_locked(session, job.id, TIMED_AGAIN, {"message": message}, context.now())
        module_runs.time_again(session, [run.id for run in runs if not run.failed])
        jobs.set_message(session, job.id, message)
    return True


def _untuned_fails(runs: Sequence[StoredModuleRun]) -> bool:
    return any(run.kind == "untuned" and run.failed for run in runs)


def _compile_next(
    context: Context, job: Job, runs: Sequence[StoredModuleRun], history: AssemblyHistory
) -> bool:
    """Compile the model with the next selection of schedules, and request its timing. Return False if no
    selection is left.

    Raises PermanentError, ModelError, ArtifactError.
    """
    doing = "compiling the model"
    if history.assemblies:
        doing += f" with fewer of the schedules found ({history.assemblies[-1].failure})"
    with context.database.begin() as session:
        if job.device_class is None:
            raise PermanentError("the job has no device class: submit it again")
        device = devices.get_class(session, job.device_class)
        listed = tasks.for_job(session, job.id)
        bases = {task.workload_hash: base_workload(task) for task in listed}
        records = schedules.successes(session, device.key, bases)
        unschedulable = selection.read_unschedulable(session, job.id)
        if next_selection(records, history, bases) is None:
            return False
        must_wait = context.must_not_disturb(session, device)
        if must_wait or not attempts.begin(session, job, doing, context.now(), context.settings.max_failures):
            return True
    imported = context.model_compiler.import_model(job.request, device)
    check_traces = context.children.check_traces
    selected = select_applicable(imported.tasks, records, device.target, history, check_traces)
    if selected is None:
        return False
    unscheduled = dict.fromkeys(unschedulable.keys() - selected.chosen.keys(), UNSCHEDULED)
    traces = unscheduled | selected.traces
    with tempfile.TemporaryFile() as library, tempfile.TemporaryFile() as artifact:
        try:
            context.model_compiler.compile_tuned(job.request, device, traces, library)
        except ArtifactError as error:
            scheduled = selected.chosen.keys() | unschedulable.keys()
            without = find_unschedulable(imported.tasks, scheduled, device.target, check_traces)
            refused: dict[selection.ScheduleId, str] = {}
            if not without:
                refused = find_uncompilable(imported.tasks, selected, device.target, check_traces)
            with context.database.begin() as session:
                for workload, problem in without.items():
                    selection.store_unschedulable(session, job.id, workload, problem, context.now())
                for schedule, problem in refused.items():
                    selection.store_refused(session, job.id, schedule, problem, context.now())
                if not without:
                    selection.store_failure(session, job.id, selected, str(error), context.now())
            return True
        with context.database.begin() as session:
            reasons = _untuned(session, listed, records) | unschedulable
        peers = {} if runs else _peers(context, job, _digest(library))
        # The tuned model's outputs must equal the untuned model's, unless the untuned model doesn't run.
        compares = not history.uncompared and not _untuned_fails(runs)
        with _stored(context, _untuned_sha(job)) as untuned:
            reference = open_artifact(untuned)[0] if compares else None
            compiled = CompiledModel(job, device, imported, library)
            write_tuned(artifact, compiled, selected, reference, reasons, context.now())
            sha, size = blobs.stage(context.database, artifact)
            with context.database.begin() as session:
                if jobs.lock(session, job.id) is not JobState.PUBLISHING:
                    return True
                blobs.put_file(session, artifact, sha, size)
                now = context.now()
                _request_timings(session, job, peers | {"tuned": sha}, "timing the compiled model", now)
                onnx_runtime.request_beside(session, job, runs, imported, device, now)
                selection.store_timed(session, job.id, selected, sha, compares, now)
    tvmscripts.store_missing(context, job)
    return True


def _untuned(session: Session, listed: Sequence[Task], records: Sequence[Record]) -> dict[str, str]:
    """Return the reasons why subgraphs have only their fallback schedule, by workload."""
    bases = {task.workload_hash: base_workload(task) for task in listed}
    tuned = {bases[record.workload_hash] for record in records if record.program != FALLBACK}
    reasons = {}
    for task in listed:
        if not task.variant and task.workload_hash not in tuned:
            tried = [trial for trial in trials.for_task(session, task.id) if trial.program != FALLBACK]
            failures = list(filter(None, map(failure_of, tried)))
            tried_text = f"none of its schedules works ({failures[-1]})" if failures else "none was tried"
            reasons[task.workload_hash] = task.reason or tried_text
    return reasons


def _request_timings(
    session: Session, job: Job, artifacts: Mapping[ModuleKind, str], message: str, now: float
) -> None:
    """Request the timings of artifacts. The caller has locked the job."""
    for kind, sha in artifacts.items():
        module_runs.add(session, job.id, kind, sha, now)
    jobs.set_message(session, job.id, message)


def _peers(context: Context, job: Job, tuned: bytes = b"") -> dict[ModuleKind, str]:
    """Return the artifacts to time beside a tuned library: the untuned artifact, and the artifact that the
    model's last job published for the device class. Omit the latter if its library is one of the other two.
    """
    peers: dict[ModuleKind, str] = {"untuned": _untuned_sha(job)}
    with context.database.begin() as session:
        sha = jobs.published_before(session, job)
    if sha is None:
        return peers
    # Omit artifacts that were deleted or that this version can't read.
    with suppress(ArtifactError, BlobNotFound):
        if _library_digest(context, sha) not in (tuned, _library_digest(context, _untuned_sha(job))):
            peers["published"] = sha
    return peers


def _untuned_sha(job: Job) -> str:
    assert job.untuned_artifact_sha is not None, "made when the model was imported"
    return job.untuned_artifact_sha


def _library_digest(context: Context, artifact_sha: str) -> bytes:
    """Return the SHA-256 of the library in an artifact. Raises ArtifactError."""
    with _stored(context, artifact_sha) as artifact:
        return _digest(open_artifact(artifact)[0])


def _digest(library: IO[bytes]) -> bytes:
    library.seek(0)
    return hashlib.file_digest(library, "sha256").digest()  # type: ignore[arg-type]  # any file that is read


@contextmanager
def _stored(context: Context, sha: str) -> Iterator[IO[bytes]]:
    """Yield a stored artifact as a file, because weights may have gigabytes."""
    with tempfile.TemporaryFile() as file:
        with context.database.reading() as session:
            file.writelines(blobs.chunks(session, sha))
        yield file


def _outputs_unverified(
    run: StoredModuleRun, runs: Sequence[StoredModuleRun], history: AssemblyHistory
) -> str:
    """Return why a model's outputs were not compared with the untuned model's; "" if they were."""
    if run.kind != "tuned":
        return ""  # the untuned model itself, or compared when first published
    return "the untuned model does not run" if _untuned_fails(runs) else history.uncompared


def _verified(
    session: Session, job: Job, device: Device, run: StoredModuleRun, outputs_unverified: str
) -> Verification:
    """Return the verification of a model that was timed on a device."""
    unverified = events.of_kinds(session, job.id, [UNVERIFIED])
    return Verification(
        import_unverified=unverified[-1].data["message"] if unverified else "",
        outputs_unverified=outputs_unverified,
        worker=module_runs.worker_of(session, run),
        device=device.name,
        noise=noise(run.run_s),
    )


def _publish(
    context: Context,
    job: Job,
    verdict: Verdict,
    timed: IO[bytes],
    runs: Sequence[StoredModuleRun],
    outputs_unverified: str,
) -> None:
    """Sign and store the chosen artifact, which `timed` holds, with all timings, and end the job."""
    working = [run for run in runs if run.kind != onnx_runtime.KIND and not run.failed]
    slowest_first = sorted(working, key=_rank, reverse=True)
    peer = onnx_runtime.compare(job, runs, verdict.run)
    secs = {run.kind: run.run_s for run in slowest_first}
    if verdict.run.kind == "published":
        # The earlier model becomes this job's tuned model, as if the search had found it.
        secs["tuned"] = secs.pop("published")
    assert job.device_class is not None, "it was timed on a device"
    with context.database.reading() as session:
        device = devices.get_class(session, job.device_class)
        verification = _verified(session, job, device, verdict.run, outputs_unverified)
        form = quantized_models.find(session, job.request, device)
    sign = None if context.signing_key is None else context.signing_key.sign
    with tempfile.TemporaryFile() as published:
        manifest = write_timed(published, timed, secs, verification, form and form.accuracy, sign)
        sha, size = blobs.stage(context.database, published)
        with context.database.begin() as session:
            if jobs.lock(session, job.id) is not JobState.PUBLISHING:
                return  # it was cancelled, or another scheduler has published it
            blobs.put_file(session, published, sha, size)
            for kind in ("untuned", "tuned"):
                if kind in secs:
                    jobs.set_end_to_end(session, job.id, kind, secs[kind])
            notes = [event.data["message"] for event in events.of_kinds(session, job.id, NOTES)]
            jobs.set_onnxruntime(session, job.id, peer)
            if verdict.run.footprint is not None:
                jobs.set_footprint(session, job.id, verdict.run.footprint)
            jobs.set_speed(session, job.id, verdict.run.speed)
            parts = [onnx_runtime.describe(peer), verdict.message, describe_replaced(manifest), *notes]
            message = "; ".join(filter(None, parts))
            jobs.set_artifacts(session, job.id, tuned_sha=sha)
            now = context.now()
            jobs.advance(session, job.id, {JobState.PUBLISHING}, JobState.DONE, now, message=message)
            if verdict.run.kind == "tuned":
                told = jobs.webhook_data(session, jobs.get(session, job.id))
                latencies = {kind: statistics.median(secs[kind]) for kind in secs}
                told |= {f"{kind}_latency_s": latencies.get(kind) for kind in MODEL_NAMES}
                webhooks.emit(session, WebhookEvent.ARTIFACT_FASTER, told, now)


def _describe_noise(run: StoredModuleRun) -> str:
    """Describe the noise in a model's timings; "" if there is little."""
    parts = []
    if is_slowed(run.speed):
        parts.append(f"the device was slowed down to {run.speed:.0%} of its speed, by heat or other programs")
    if is_noisy(run.run_s):
        low, high = map(latency_text, spread(run.run_s))
        parts.append(f"the device was disturbed: 80% of the calls took {low} to {high}")
    return "; ".join(parts)


def _describe_gap(run: StoredModuleRun, kernels_s: float | None) -> str:
    """Say why a model takes much more or less time than its kernels, timed one by one; "" if it doesn't.
    `kernels_s` is the sum of their latencies, None if unknown.
    """
    if kernels_s is None or abs(_latency_s(run) - kernels_s) < MIN_GAP_S:
        return ""
    share = kernels_s / _latency_s(run)
    text = f"its kernels, timed one by one, add up to {latency_text(kernels_s)}"
    text += f" ({share:.0%})" if share <= MAX_PERCENT else f", {share:.1f} times as long"
    if share * MAX_GAP < 1:
        return (
            f"{text}: in the model, they find less of their data in the caches, or the device was disturbed"
        )
    if share > MAX_GAP:
        return f"{text}: in the model, weights stay in the caches, or the device was disturbed before"
    return ""


def _rank(run: StoredModuleRun) -> tuple[float, int]:
    return _latency_s(run), list(MODEL_NAMES).index(run.kind)


def _latency_s(run: StoredModuleRun) -> float:
    return statistics.median(run.run_s)


def _is_slower(run: StoredModuleRun, than: StoredModuleRun) -> bool:
    """Return whether a model is slower than another by more than noise."""
    by = _latency_s(run) - _latency_s(than)
    noise = MAX_STANDARD_ERRORS * math.hypot(_standard_error(run), _standard_error(than))
    return by > min(noise, MAX_SLOWER * _latency_s(than))


def _standard_error(run: StoredModuleRun) -> float:
    """Return the standard error of the median, assuming a normal distribution; 0 for a single timing."""
    if len(run.run_s) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(run.run_s)
    deviation = (upper - lower) / 1.349
    return math.sqrt(math.pi / 2) * deviation / math.sqrt(len(run.run_s))


def _latency(run: StoredModuleRun) -> str:
    return latency_text(_latency_s(run))
